package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

// replayFlags are the flags of dlq replay.
type replayFlags struct {
	deadFlags
	rate               float64
	toTopic            string
	dryRun, force, yes bool
}

func newDLQReplay(a *app, output *string) *cobra.Command {
	var f replayFlags
	cmd := &cobra.Command{
		Use:   "replay TOPIC",
		Short: "Put dead letters before the group that could not process them",
		Long: `Puts dead letters before the group that could not process them, oldest first, and
before no other group. Each is replayed once: the command may be interrupted and
repeated, and goes on where it was. The dead letters stay where they are.

An event that fails again becomes another dead letter; one that was replayed five
times is left alone. --force replays it all the same, and what was replayed before.

--to-topic publishes the events to a topic instead, with new ids, for all its
groups. It and --force ask for a confirmation, unless --yes is given.

If some could not be replayed, the exit code is 5.`,
		Example: `  jetbus dlq replay orders.created --group mailer --dry-run
  jetbus dlq replay orders.created --group mailer --limit 1
  jetbus dlq replay orders.created --group mailer --rate 50
  jetbus dlq replay orders.created --seq 17 --force --yes`,
		Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.replayDead(cmd, *output, f, args[0]) },
	}
	f.add(cmd)
	flags := cmd.Flags()
	flags.Float64Var(&f.rate, "rate", 0, "events a second at most (default as fast as it goes)")
	flags.BoolVar(&f.dryRun, "dry-run", false, "change nothing, say what would happen")
	flags.StringVar(&f.toTopic, "to-topic", "", "publish to this topic, for all its groups")
	flags.BoolVar(&f.force, "force", false, "also what was replayed before, or five times, or goes to a topic that keeps state")
	flags.BoolVar(&f.yes, "yes", false, "do not ask")
	return cmd
}

func (a *app) replayDead(cmd *cobra.Command, output string, f replayFlags, topic string) error {
	if err := checkOutput(output); err != nil {
		return err
	}
	q, err := f.query(topic, time.Now())
	if err != nil {
		return err
	}
	o := jetbus.ReplayOptions{DeadLetterQuery: q, Rate: f.rate, DryRun: f.dryRun, ToTopic: f.toTopic, Force: f.force}
	if err := o.Validate(); err != nil {
		return err
	}
	return a.withBus(cmd.Context(), func(bus *adapter.Bus) error {
		if (f.force || f.toTopic != "") && !f.yes && !f.dryRun {
			due, err := askReplay(cmd, bus, &o)
			if err != nil {
				return err
			}
			if due.Replayed == 0 {
				return writeReplay(cmd.OutOrStdout(), output, o, due)
			}
		}
		progress := newProgressLine(cmd.ErrOrStderr())
		o.Progress = func(s jetbus.ReplayStats) {
			progress.show(func() string {
				return fmt.Sprintf("%s looked at, %s replayed, %s failed", count(s.Read), count(s.Replayed), count(s.Failed))
			})
		}
		stats, err := jetbus.Replay(cmd.Context(), bus, o)
		progress.clear()
		if err != nil && stats.Matched == 0 {
			return err
		}
		return errors.Join(replayError(err, stats), writeReplay(cmd.OutOrStdout(), output, o, stats))
	})
}

// pinDead ties a query to the dead-letter topic that there is, before what it selects is
// counted: one that is made anew while somebody is asked has others at the same positions.
func pinDead(ctx context.Context, bus jetbus.Topics, q *jetbus.DeadLetterQuery) error {
	info, err := bus.TopicInfo(ctx, jetbus.DeadLetterTopic(q.Topic))
	if errors.Is(err, jetbus.ErrNoTopic) {
		err = fmt.Errorf("dead letters of %s: %w: there are none", q.Topic, jetbus.ErrNoDeadLetters)
	}
	q.Created = info.Created
	return err
}

// askReplay asks for a confirmation of what a replay would do, if that is anything, tells it, and
// bounds the replay to that: what comes meanwhile, or was behind the last one, is not confirmed.
func askReplay(cmd *cobra.Command, bus *adapter.Bus, o *jetbus.ReplayOptions) (jetbus.ReplayStats, error) {
	if err := pinDead(cmd.Context(), bus, &o.DeadLetterQuery); err != nil {
		return jetbus.ReplayStats{}, err
	}
	dry := *o
	dry.DryRun = true
	stats, err := jetbus.Replay(cmd.Context(), bus, dry)
	if stats.Replayed == 0 {
		return stats, err
	}
	o.Limit, o.UpToSeq = stats.Replayed, stats.LastSeq
	to := "their groups"
	if o.ToTopic != "" {
		to = o.ToTopic + ", for all its groups"
	}
	return stats, confirm(cmd, fmt.Sprintf("%s of %s would be replayed to %s", plural(stats.Replayed, "event"), o.Topic, to), stats.Replayed)
}

// replayError is a replay's error, which says so if something was done all the same.
func replayError(err error, stats jetbus.ReplayStats) error {
	if err == nil || stats.Replayed+stats.Already == 0 {
		return err
	}
	if errors.Is(err, context.Canceled) {
		err = fmt.Errorf("interrupted after %s; repeat it to go on", plural(stats.Replayed, "event"))
	}
	return &partialError{err}
}

func writeReplay(w io.Writer, output string, o jetbus.ReplayOptions, s jetbus.ReplayStats) error {
	if output != "table" {
		return writeValue(w, output, s)
	}
	verb := "replayed"
	if o.DryRun {
		verb = "would be replayed"
	}
	parts := []string{plural(s.Replayed, "event") + " " + verb}
	for _, p := range []struct {
		n    int
		text string
	}{{s.Already, "replayed before"}, {s.Guarded, "left alone after five replays (see --force)"}, {s.Failed, "failed"}} {
		if p.n > 0 {
			parts = append(parts, count(p.n)+" "+p.text)
		}
	}
	_, err := fmt.Fprintln(w, strings.Join(parts, ", "))
	return err
}

// confirm asks for the number of what is about to be changed.
func confirm(cmd *cobra.Command, what string, n int) error {
	if _, err := fmt.Fprintf(cmd.ErrOrStderr(), "%s; type their number to go on: ", what); err != nil {
		return err
	}
	line, err := readUntilDone(cmd.Context(), func() (string, error) { return bufio.NewReader(cmd.InOrStdin()).ReadString('\n') })
	switch {
	case cmd.Context().Err() != nil:
		return errors.New("interrupted before it was confirmed: nothing was changed")
	case err != nil && !errors.Is(err, io.EOF):
		return fmt.Errorf("read standard input: %w", err)
	}
	fmt.Fprintln(cmd.ErrOrStderr())
	if strings.ReplaceAll(strings.TrimSpace(line), ",", "") != strconv.Itoa(n) {
		return usagef("not confirmed, nothing was changed; type %d, or add --yes (see %s --help)", n, cmd.CommandPath())
	}
	return nil
}

func newDLQPurge(a *app) *cobra.Command {
	var f deadFlags
	var yes bool
	cmd := &cobra.Command{
		Use:   "purge TOPIC",
		Short: "Remove dead letters for good",
		Long:  "Removes dead letters for good. It asks for their number, unless --yes is given.",
		Example: `  jetbus dlq purge orders.created --until 720h
  jetbus dlq purge orders.created --group mailer --seq 17 --yes`,
		Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.purgeDead(cmd, f, yes, args[0]) },
	}
	f.add(cmd)
	f.addOpen(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func (a *app) purgeDead(cmd *cobra.Command, f deadFlags, yes bool, topic string) error {
	q, err := f.query(topic, time.Now())
	if err != nil {
		return err
	}
	return a.withBus(cmd.Context(), func(bus *adapter.Bus) error {
		watched := &watchedBus{Bus: bus, line: newProgressLine(cmd.ErrOrStderr())}
		if !yes {
			if err := pinDead(cmd.Context(), bus, &q); err != nil {
				return err
			}
			n, last := 0, uint64(0)
			for d, err := range jetbus.DeadLetters(cmd.Context(), watched, q) {
				if err != nil {
					watched.line.clear()
					return err
				}
				n, last = n+1, d.Seq
			}
			watched.line.clear()
			watched.read = 0 // it is read again
			if n == 0 {
				return fmt.Errorf("purge dead letters of %s: %w: none matches", q.Topic, jetbus.ErrNoDeadLetters)
			}
			if err := confirm(cmd, fmt.Sprintf("%s of %s would be removed, which nothing brings back", plural(n, "dead letter"), q.Topic), n); err != nil {
				return err
			}
			q.Limit, q.UpToSeq = n, last // what is behind the last one, or came meanwhile, was not confirmed
		}
		n, err := jetbus.PurgeDeadLetters(cmd.Context(), watched, q)
		watched.line.clear()
		if err != nil && n > 0 {
			return &partialError{fmt.Errorf("%s removed, then: %w", plural(n, "dead letter"), err)}
		}
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "removed %s of %s\n", plural(n, "dead letter"), q.Topic)
		return err
	})
}
