package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/changefeed"
)

// feedFlags are the flags of changefeed run.
type feedFlags struct {
	mongo  mongoFlags
	spec   feedSpec
	file   string
	output string
	runFor time.Duration
}

func newChangefeedRun(a *app) *cobra.Command {
	f := &feedFlags{}
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Publish what changes in a MongoDB collection, until it is stopped",
		Long: `Publishes what changes in a MongoDB collection, or in a whole database, until it is
stopped. Run it twice, and one stands by; kill it, and it goes on where it was: the topic's
last event is its checkpoint. Ctrl-C ends it in order. MongoDB must be a replica set, a
single member will do.

The event of a change has the document's _id for its key, the document in extended JSON for
its payload, null for a delete, and the operation in the header x-mongo-op. The topic is the
feed's alone; it is declared where it does not exist, in a stream of its own.

--start is for a feed that has no position yet; jetbus changefeed reset gives one another.

What cannot be published is treated as the --on flags say; by default it becomes a dead
letter of the topic, or ends the feed with an error. Changes that MongoDB no longer has are
never skipped without a gap event.

--file takes all that describes a feed from a file of JSON instead:

  {"database": "shop", "collection": "orders", "topic": "orders.changed", "name": "orders",
   "start": "copy", "ops": ["insert", "update", "replace"], "filter": {"ns.coll": "orders"},
   "fullDocument": "updateLookup", "before": "off", "expanded": false, "format": "relaxed",
   "mode": "auto", "tokenStore": "keys", "lease": "15s", "allowLoop": false,
   "onHistoryLost": "resync", "onInvalidate": "continue", "onOversize": "dlq",
   "onPoison": "dlq", "onMissing": "key"}`,
		Example: `  jetbus changefeed run --mongo mongodb://127.0.0.1:27017 --database shop --collection orders --topic orders.changed
  jetbus changefeed run --collection orders --topic orders.changed --start copy --ops insert,update,replace
  jetbus changefeed run --database shop --topic shop.changed --on-history-lost resync
  jetbus changefeed run --file feed.json`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.changefeed(cmd, f) },
	}
	f.mongo.addDatabase(cmd)
	f.spec.add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.file, "file", "", `file that describes the feed, JSON; "-" is standard input`)
	flags.StringVarP(&f.output, "output", "o", "table", "table, json or ndjson")
	flags.DurationVar(&f.runFor, "for", 0, "end this time after the start (default never)")
	return cmd
}

// describe returns the feed that the flags or the file describe.
func (f *feedFlags) describe(cmd *cobra.Command, database string) (s feedSpec, err error) {
	if f.file == "" {
		s = f.spec
		return s, s.check(database)
	}
	for _, name := range feedDescribed {
		if cmd.Flags().Changed(name) {
			return s, usagef("--file describes the whole feed: write --%s into it", name)
		}
	}
	if s, err = readSpec(cmd, f.file, parseFeedSpec); err != nil {
		return s, err
	}
	return s, s.check(database)
}

func (a *app) changefeed(cmd *cobra.Command, f *feedFlags) error {
	if err := checkOutput(f.output); err != nil {
		return err
	}
	if f.runFor < 0 {
		return usagef("--for %v: use more than 0", f.runFor)
	}
	return untilInterrupted(cmd.Context(), func(open func()) error {
		s, err := f.describe(cmd, a.database(&f.mongo))
		if err != nil {
			return err
		}
		where := mongoFlags{uri: f.mongo.uri, db: s.Database}
		return a.withMongo(cmd.Context(), &where, func(db *mongo.Database) error {
			return a.withBus(cmd.Context(), func(bus *adapter.Bus) error {
				o := s.options()
				o.TokenStore = tokenStore(s.TokenStore, bus, db)
				o.Log = newBriefLog(cmd.ErrOrStderr())
				feed, err := changefeed.Start(cmd.Context(), bus, db.Client(), o)
				if err != nil {
					return err
				}
				open()
				ctx, cancel := endAfter(cmd.Context(), f.runFor)
				defer cancel()
				return newFeedRunner(cmd.OutOrStdout(), f.output, s, feed).run(ctx, feed)
			})
		})
	})
}

func newFeedRunner(out io.Writer, output string, s feedSpec, feed *changefeed.Feed) *runner {
	return &runner{
		out: out, output: output, title: s.title(feed),
		line: func(context.Context) (string, any) {
			l := lineOf(s, feed)
			return l.text(), l
		},
		hint: func() string {
			if n := feed.Stats(); n.Poisoned+n.Oversize == 0 {
				return ""
			}
			return "see jetbus dlq ls " + s.Topic
		},
	}
}

// source names what a feed watches.
func (s *feedSpec) source() string {
	if s.Collection == "" {
		return s.Database
	}
	return s.Database + "." + s.Collection
}

// title says what a feed does.
func (s *feedSpec) title(feed *changefeed.Feed) string {
	what := "collection " + s.source()
	if s.Collection == "" {
		what = "all of database " + s.Database
	}
	return fmt.Sprintf("%s to %s, as %s, mode %s", what, s.Topic, s.Name, feed.Status().Mode)
}

// feedLine is what a run prints for programs.
type feedLine struct {
	Time   time.Time         `json:"time"`
	Feed   string            `json:"feed"`
	Source string            `json:"source"`
	Topic  string            `json:"topic"`
	Status changefeed.Status `json:"status"`
	LagMs  int64             `json:"lagMs"`
	Stats  changefeed.Stats  `json:"stats"`
}

// lineOf says how a feed is.
func lineOf(s feedSpec, feed *changefeed.Feed) feedLine {
	l := feedLine{Time: time.Now(), Feed: s.Name, Source: s.source(), Topic: s.Topic, Status: feed.Status(), Stats: feed.Stats()}
	l.LagMs = l.Status.Lag.Milliseconds()
	return l
}

// text is the line for people, without the time.
func (l feedLine) text() string {
	s := l.Stats
	parts := []string{string(l.Status.State), count(s.Published) + " published"}
	for _, p := range []struct {
		n    uint64
		text string
	}{
		{s.Copied, "copied"},
		{s.Filtered, "filtered"},
		{s.Poisoned, "refused"},
		{s.Oversize, "too large"},
		{s.Duplicates, "stored before"},
		{uint64(max(s.InFlight, 0)), "in flight"}, //nolint:gosec // not negative
	} {
		if p.n > 0 {
			parts = append(parts, count(p.n)+" "+p.text)
		}
	}
	if s.Gaps > 0 {
		parts = append(parts, plural(s.Gaps, "gap"))
	}
	parts = append(parts, fmt.Sprintf("lag %v", l.Status.Lag))
	if l.Status.Error != "" && l.Status.State != changefeed.Failed { // that error ends the command
		parts = append(parts, l.Status.Error)
	}
	return printable(strings.Join(parts, "  "))
}
