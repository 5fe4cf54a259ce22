package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/registry"
)

// backfillFlags are the flags of backfill.
type backfillFlags struct {
	schemaFlags
	registry.BackfillOptions

	upcasters, since, until string
}

func newBackfill(a *app) *cobra.Command {
	var f backfillFlags
	cmd := &cobra.Command{
		Use:   "backfill FROM TO",
		Short: "Copy the events that a topic holds into another, in a newer version of the schema",
		Long: `Copies the events that the topic FROM holds into the topic TO, which must exist and may
be compacted. Each is brought to one version of FROM's schema, by the edits of --upcasters
where versions are not compatible, and validated. It may be interrupted, killed and
repeated: under one name it goes on where it was, and writes no event twice. For that the
bounds must be the same: give them as times, since a while ago is another time each time.

The file of edits is an object of topics, with an edit for each version that it turns into
the next:

  {"orders.created": {"1": {"rename": {"sum": "total"}, "default": {"currency": "EUR"}}}}

Events that cannot be brought there are not written. They are listed, and the exit code
is 5, as it is where the work ended in between.`,
		Example: `  jetbus backfill orders.created orders.v2 --upcasters edits.json --dry-run
  jetbus backfill orders.created orders.v2 --upcasters edits.json --rate 500
  jetbus backfill heartbeat.received process.state --name warm-up --since 2026-01-01T00:00:00Z`,
		Args: exactly(2),
		RunE: func(cmd *cobra.Command, args []string) error { return a.backfill(cmd, f, args[0], args[1]) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.Name, "name", "", `name under which it goes on (default "FROM to TO")`)
	flags.StringVar(&f.upcasters, "upcasters", "", "file with edits, JSON")
	flags.IntVar(&f.Version, "version", 0, "version of FROM's schema to bring events to (default the latest)")
	flags.StringVar(&f.since, "since", "", "only events stored since this time (RFC 3339, epoch milliseconds), or in the last while (2h)")
	flags.StringVar(&f.until, "until", "", "only events stored before this time, or before a while ago (10m)")
	flags.Float64Var(&f.Rate, "rate", 0, "events a second at most (default as fast as it goes)")
	flags.Var((*limitFlag)(&f.Limit), "limit", "at most that many events in this run (default all)")
	flags.BoolVar(&f.DryRun, "dry-run", false, "write nothing, say what would happen")
	flags.StringVarP(&f.output, "output", "o", "table", "table, json or ndjson")
	flags.StringVar(&f.bucket, "bucket", "SCHEMAS", "key-value bucket of the registry")
	return cmd
}

// options are what the flags say.
func (f backfillFlags) options(from, to string, now time.Time) (o registry.BackfillOptions, err error) {
	o = f.BackfillOptions
	o.From, o.To = from, to
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	for _, bound := range []struct {
		flag, text string
		to         *time.Time
	}{{"since", f.since, &o.Since}, {"until", f.until, &o.Until}} {
		if bound.text == "" {
			continue
		}
		if *bound.to, err = parseTime(bound.text, ago); err != nil {
			return o, usagef("--%s: %w", bound.flag, err)
		}
	}
	if f.upcasters == "" {
		return o, nil
	}
	text, err := os.ReadFile(f.upcasters)
	if err != nil {
		return o, usagef("--upcasters: %w", fileError(err))
	}
	if o.Upcasters, err = registry.ParseUpcasters(text); err != nil {
		return o, usagef("--upcasters %s: %w", f.upcasters, err)
	}
	if len(o.Upcasters[from]) == 0 {
		return o, usagef("--upcasters %s: there is no edit for %s", f.upcasters, from)
	}
	return o, nil
}

func (a *app) backfill(cmd *cobra.Command, f backfillFlags, from, to string) error {
	if err := checkOutput(f.output); err != nil {
		return err
	}
	o, err := f.options(from, to, time.Now())
	if err != nil {
		return err
	}
	return a.withBoth(cmd.Context(), &f.schemaFlags, func(bus *adapter.Bus, r *registry.Registry) error {
		progress, worked := newProgressLine(cmd.ErrOrStderr()), false
		o.Progress = func(s registry.BackfillStats) {
			worked = true
			progress.show(func() string {
				return fmt.Sprintf("%s of %s, %s written, %s invalid", count(s.Seq), count(s.Last), count(s.Written), count(s.Invalid))
			})
		}
		stats, err := registry.Backfill(cmd.Context(), bus, r, o)
		progress.clear()
		if err != nil && stats.Read == 0 {
			return err
		}
		return errors.Join(backfillError(err, o, stats), writeBackfill(cmd.OutOrStdout(), f.output, o, stats, worked))
	})
}

// backfillError is a backfill's error, which says so if something was done all the
// same, or not all.
func backfillError(err error, o registry.BackfillOptions, s registry.BackfillStats) error {
	switch {
	case errors.Is(err, context.Canceled):
		return &partialError{fmt.Errorf("interrupted after %s; repeat it to go on", plural(s.Read, "event"))}
	case err != nil:
		return &partialError{err}
	case s.Invalid > 0 && o.DryRun:
		return &partialError{fmt.Errorf("%s of %s cannot be brought to the version", plural(s.Invalid, "event"), o.From)}
	case s.Invalid > 0:
		return &partialError{fmt.Errorf("%s of %s could not be brought to the version and are not in %s", plural(s.Invalid, "event"), o.From, o.To)}
	}
	return nil
}

// writeBackfill prints what a backfill did. That it had not worked says that it was
// finished before.
func writeBackfill(w io.Writer, output string, o registry.BackfillOptions, s registry.BackfillStats, worked bool) error {
	if output != "table" {
		return writeValue(w, output, s)
	}
	verb := "written to"
	if o.DryRun {
		verb = "would be written to"
	}
	parts := []string{fmt.Sprintf("%s of %s %s %s", plural(s.Written, "event"), o.From, verb, o.To)}
	for _, p := range []struct {
		n    int
		text string
	}{{s.Invalid, "invalid"}, {s.Dropped, "dropped"}, {s.Kept, "left out since " + o.To + " has newer state"}} {
		if p.n > 0 {
			parts = append(parts, count(p.n)+" "+p.text)
		}
	}
	text := strings.Join(parts, ", ") + "\n"
	if s.Finished && !worked {
		text = "this backfill was finished before; use another --name to do it again\n" + text
	}
	if !s.Finished {
		text += fmt.Sprintf("done up to %s of %s; repeat it to go on\n", count(s.Seq), count(s.Last))
	}
	if len(s.Problems) > 0 {
		rows := [][]string{{"SEQ", "ID", "PROBLEM"}}
		for _, p := range s.Problems {
			rows = append(rows, []string{strconv.FormatUint(p.Seq, 10), p.ID, p.Err})
		}
		text += table(rows)
		if more := s.Invalid - len(s.Problems); more > 0 {
			text += fmt.Sprintf("and %s more\n", count(more))
		}
	}
	_, err := io.WriteString(w, text)
	return err
}
