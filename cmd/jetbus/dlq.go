package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

func newDLQ(a *app) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "dlq",
		Aliases: []string{"deadletters"},
		Short:   "List, replay, export and purge dead letters",
		Long: `A dead letter is an event that a group could not process: its handler failed too
often or rejected it. It has the bytes of the event and says why it was given up.

Without a command it lists the topics that have dead letters.`,
		Example: `  jetbus dlq ls orders.created --open
  jetbus dlq stats orders.created
  jetbus dlq replay orders.created --group mailer --error refused --dry-run
  jetbus dlq replay orders.created --group mailer --rate 50`,
		Args: noCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.listDeadTopics(cmd, output) },
	}
	cmd.PersistentFlags().StringVarP(&output, "output", "o", "table", "table, json or ndjson")
	purge, export := newDLQPurge(a), newDLQExport(a)
	inWords(purge, export)
	cmd.AddCommand(newDLQList(a, &output), newDLQShow(a, &output), newDLQStats(a, &output), newDLQReplay(a, &output), purge, export)
	return cmd
}

// deadFlags are the flags that select dead letters.
type deadFlags struct {
	group, since, until, key, id, text string
	reasons, seqs                      []string
	open                               bool
	limit                              int
}

func (f *deadFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.group, "group", "", "only of this group")
	flags.StringSliceVar(&f.reasons, "reason", nil, "only given up for one of these: max_attempts, rejected, undecodable, schema, crash_loop, ...")
	flags.StringVar(&f.since, "since", "", "only given up since this time (RFC 3339, epoch milliseconds), or in the last while (2h)")
	flags.StringVar(&f.until, "until", "", "only given up before this time, or before a while ago (10m)")
	flags.StringVar(&f.key, "key", "", "only of events with this key")
	flags.StringVar(&f.id, "id", "", "only of the event with this id")
	flags.StringVar(&f.text, "error", "", "only with this text in the error")
	flags.StringSliceVar(&f.seqs, "seq", nil, "only these positions: 17,20-25")
	flags.Var((*limitFlag)(&f.limit), "limit", "at most that many, the oldest first (default all)")
}

func (f *deadFlags) addOpen(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.open, "open", false, "only those that were not replayed")
}

// maxSeqs bounds how many positions --seq may name; each is asked for by itself.
const maxSeqs = 10_000

// query is what the flags select.
func (f *deadFlags) query(topic string, now time.Time) (jetbus.DeadLetterQuery, error) {
	q := jetbus.DeadLetterQuery{
		Topic: strings.TrimPrefix(topic, "dlq."), Group: f.group, Key: f.key, ID: f.id, Error: f.text, Open: f.open, Limit: f.limit,
	}
	for _, reason := range f.reasons {
		q.Reasons = append(q.Reasons, jetbus.DeadReason(reason))
	}
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	for _, bound := range []struct {
		flag, text string
		to         *time.Time
	}{{"since", f.since, &q.Since}, {"until", f.until, &q.Until}} {
		if bound.text == "" {
			continue
		}
		var err error
		if *bound.to, err = parseTime(bound.text, ago); err != nil {
			return q, usagef("--%s: %w", bound.flag, err)
		}
	}
	for _, text := range f.seqs {
		low, high, err := parseSeqs(text)
		if err != nil || high-low >= maxSeqs || len(q.Seqs)+int(high-low) >= maxSeqs { //nolint:gosec // bounded just before
			return q, usagef("--seq %q: use positions from 1 like 17 or 20-25, at most %s of them", text, count(maxSeqs))
		}
		for seq := low; seq <= high; seq++ {
			q.Seqs = append(q.Seqs, seq)
		}
	}
	return q, q.Validate()
}

// parseSeqs reads a position or a range of them.
func parseSeqs(s string) (low, high uint64, err error) {
	first, last, isRange := strings.Cut(s, "-")
	if !isRange {
		last = first
	}
	if low, err = strconv.ParseUint(strings.TrimPrefix(first, "#"), 10, 63); err != nil {
		return 0, 0, err
	}
	if high, err = strconv.ParseUint(strings.TrimPrefix(last, "#"), 10, 63); err != nil {
		return 0, 0, err
	}
	if low == 0 || high < low {
		return 0, 0, strconv.ErrRange
	}
	return low, high, nil
}

func newDLQList(a *app, output *string) *cobra.Command {
	var f deadFlags
	cmd := &cobra.Command{
		Use:   "ls [TOPIC]",
		Short: "List the dead letters of a topic, or the topics that have some",
		Example: `  jetbus dlq ls
  jetbus dlq ls orders.created --group mailer --since 24h --open`,
		Args: between(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return a.listDead(cmd, *output, f, args[0])
			}
			if err := noFilter(cmd); err != nil {
				return err
			}
			return a.listDeadTopics(cmd, *output)
		},
	}
	f.add(cmd)
	f.addOpen(cmd)
	return cmd
}

// noFilter is an error where a flag that selects dead letters was given: topics are listed with
// all that they have.
func noFilter(cmd *cobra.Command) (err error) {
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if f.Changed && err == nil {
			err = usagef("--%s selects dead letters of one topic: name it, %s TOPIC; see %s --help", f.Name, cmd.CommandPath(), cmd.CommandPath())
		}
	})
	return err
}

func newDLQShow(a *app, output *string) *cobra.Command {
	return &cobra.Command{
		Use:     "show TOPIC SEQ",
		Short:   "Show all that is known of a dead letter, with its payload",
		Example: `  jetbus dlq show orders.created 17`,
		Args:    exactly(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.showDead(cmd, *output, args[0], args[1])
		},
	}
}

func newDLQStats(a *app, output *string) *cobra.Command {
	return &cobra.Command{
		Use:     "stats TOPIC",
		Short:   "Count the dead letters of a topic by group, reason and kind of error",
		Example: `  jetbus dlq stats orders.created`,
		Args:    exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.deadStats(cmd, *output, args[0])
		},
	}
}

func newDLQExport(a *app) *cobra.Command {
	var f deadFlags
	cmd := &cobra.Command{
		Use:     "export TOPIC",
		Short:   "Write dead letters with their payloads, one JSON object a line",
		Example: `  jetbus dlq export orders.created --since 24h > dead.ndjson`,
		Args:    exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.listDead(cmd, "ndjson", f, args[0])
		},
	}
	f.add(cmd)
	f.addOpen(cmd)
	return cmd
}

// deadTopic is a topic and how many dead letters it has.
type deadTopic struct {
	Topic       string `json:"topic"`
	DeadLetters uint64 `json:"deadLetters"`
}

func (a *app) listDeadTopics(cmd *cobra.Command, output string) error {
	if err := checkOutput(output); err != nil {
		return err
	}
	return a.withBus(cmd.Context(), func(bus *adapter.Bus) error {
		list, err := deadTopics(cmd.Context(), bus)
		if err != nil {
			return err
		}
		if output != "table" {
			return writeValues(cmd.OutOrStdout(), output, list)
		}
		if len(list) == 0 {
			_, err = fmt.Fprintln(cmd.ErrOrStderr(), "there are no dead letters")
			return err
		}
		rows := [][]string{{"TOPIC", "DEAD LETTERS"}}
		for _, t := range list {
			rows = append(rows, []string{t.Topic, count(t.DeadLetters)})
		}
		_, err = io.WriteString(cmd.OutOrStdout(), table(rows))
		return err
	})
}
