package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/projector"
	"github.com/seed-63e9a637/jetbus/projector/mongosink"
)

// projectFlags are the flags of project.
type projectFlags struct {
	mongo  mongoFlags
	output string

	spec                         projectSpec
	file                         string
	fields, indexes, uniqueIndex []string
	rebuild                      bool
	runFor                       time.Duration
}

func newProject(a *app) *cobra.Command {
	f := &projectFlags{}
	cmd := &cobra.Command{
		Use:     "project [TOPIC [COLLECTION]]",
		Aliases: []string{"projection", "projections"},
		Short:   "Keep a MongoDB collection up to date with a topic",
		Long: `Keeps a MongoDB collection up to date with a topic: each key is a document, which is the
payload of the key's last event. Run it as often as you like, the replicas share the work;
kill it, and it goes on where it was. No document ever goes back. What cannot be stored
becomes a dead letter of the topic. Ctrl-C ends it in order.

A collection that the projection has not seen yet is filled first: from the snapshot that
--from names, which names the topic as well, or from the topic itself. The collection is
called like the topic unless COLLECTION is given, and the projection like the collection.

The key of a document is the event's key, or what the path of --key finds in the payload:
.processId, or .order.id, a string or an integer. An event whose payload is null, or has
"_deleted": true, or what --tombstone says, deletes its key: the document stays for
--tombstone-ttl, without its fields and with "_deleted": true.

--file takes all that describes a projection from a file of JSON instead:

  {"topic": "process.state", "collection": "processes", "keyOf": ".processId",
   "map": {"host": ".host", "load": ".cpu_pct"}, "tombstone": ".status=gone",
   "indexes": [{"keys": {"host": 1, "name": 1}}, {"keys": {"pid": 1}, "unique": true}],
   "versionOf": ".version", "from": "process.state.snapshot", "name": "processes",
   "tombstoneTTL": "31d", "hardDelete": false, "exclusive": false, "merge": false}

--rebuild fills a new collection beside the old one, which serves meanwhile, puts it in
its place, and ends. Give it the flags, or the file, that the projection runs with: the new
collection has the keys, fields and indexes that they say, and no others.`,
		Example: `  jetbus project process.state processes --mongo mongodb://127.0.0.1:27017 --index host,name
  jetbus project --from process.state.snapshot
  jetbus project --file project.json
  jetbus project process.state processes --index host,name --rebuild
  jetbus project ls`,
		Args: between(0, 2),
		RunE: func(cmd *cobra.Command, args []string) error { return a.project(cmd, f, args) },
	}
	f.mongo.add(cmd)
	cmd.PersistentFlags().StringVarP(&f.output, "output", "o", "table", "table, json or ndjson")
	f.add(cmd)
	cmd.AddCommand(newProjectList(a, f))
	return cmd
}

// add adds the flags of project that its subcommands do not have.
func (f *projectFlags) add(cmd *cobra.Command) {
	flags, s := cmd.Flags(), &f.spec
	flags.StringVar(&f.file, "file", "", `file that describes the projection, JSON; "-" is standard input`)
	flags.StringVar(&s.Name, "name", "", "name, which replicas share, and the group's at the topic (default COLLECTION)")
	flags.StringVar(&s.From, "from", "", "snapshot of the topic, to fill the collection from")
	flags.Var(&s.KeyOf, "key", "where the documents' key is: key, or a path into the payload (default key)")
	flags.StringArrayVar(&f.fields, "map", nil, "fields of the documents, name=path,... (default all of the payload)")
	flags.Var(&s.Tombstone, "tombstone", "what else deletes a key: path, for true, or path=value")
	flags.Var(&s.VersionOf, "version-of", "path of the version by which the publisher orders the events of a key (default their order in the topic)")
	flags.StringArrayVar(&f.indexes, "index", nil, "index of the collection, host,-name; may be repeated")
	flags.StringArrayVar(&f.uniqueIndex, "unique-index", nil, "the same, without two documents that are alike in it; may be repeated")
	flags.Var((*periodFlag)(&s.TombstoneTTL), "tombstone-ttl", "how long the document of a deleted key stays (default 31d)")
	flags.BoolVar(&s.HardDelete, "hard-delete", false, "remove the document of a deleted key at once (needs --exclusive and a replica set)")
	flags.BoolVar(&s.Exclusive, "exclusive", false, "one replica works, all events in their order, and the others stand by")
	flags.BoolVar(&s.Merge, "merge", false, "keep fields of a document that its event does not have")
	flags.BoolVar(&f.rebuild, "rebuild", false, "fill the collection anew and end")
	flags.DurationVar(&f.runFor, "for", 0, "end this time after the start (default never)")
}

// described are the flags that a file stands for.
var described = []string{"name", "from", "key", "map", "tombstone", "version-of", "index", "unique-index", "tombstone-ttl", "hard-delete", "exclusive", "merge"}

// describe returns the projection that flags, arguments or the file describe.
func (f *projectFlags) describe(cmd *cobra.Command, args []string) (s projectSpec, err error) {
	if f.file == "" {
		s = f.spec
		if len(args) > 0 {
			s.Topic = args[0]
		}
		if len(args) > 1 {
			s.Collection = args[1]
		}
		if s.Map, err = parseFields(f.fields); err != nil {
			return s, err
		}
		for _, i := range []struct {
			flag   string
			values []string
			unique bool
		}{{"index", f.indexes, false}, {"unique-index", f.uniqueIndex, true}} {
			list, err := parseIndexes(i.flag, i.values, i.unique)
			if err != nil {
				return s, err
			}
			s.Indexes = append(s.Indexes, list...)
		}
		return s, s.check()
	}
	if len(args) > 0 {
		return s, usagef("--file says the topic and the collection: leave %s out", strings.Join(args, " "))
	}
	for _, name := range described {
		if cmd.Flags().Changed(name) {
			return s, usagef("--file describes the whole projection: write --%s into it", name)
		}
	}
	if s, err = readSpec(cmd, f.file, parseSpec); err != nil {
		return s, err
	}
	return s, s.check()
}

func (a *app) project(cmd *cobra.Command, f *projectFlags, args []string) error {
	if err := checkOutput(f.output); err != nil {
		return err
	}
	switch {
	case f.runFor < 0:
		return usagef("--for %v: use more than 0", f.runFor)
	case f.runFor > 0 && f.rebuild:
		return usagef("--rebuild ends by itself: leave --for out")
	}
	return untilInterrupted(cmd.Context(), func(open func()) error {
		if f.rebuild { // which is not done until it ends by itself
			open()
		}
		s, err := f.describe(cmd, args)
		if err != nil {
			return err
		}
		return a.withMongo(cmd.Context(), &f.mongo, func(db *mongo.Database) error {
			return a.withBus(cmd.Context(), func(bus *adapter.Bus) error {
				if err := s.find(cmd.Context(), bus); err != nil {
					return err
				}
				sink, err := mongosink.New(db, s.sink())
				if err != nil {
					return err
				}
				o := s.options()
				o.Logger = newBriefLog(cmd.ErrOrStderr())
				if f.rebuild {
					return rebuild(cmd, f.output, bus, sink, s, o)
				}
				r := projectRun{out: cmd.OutOrStdout(), output: f.output, spec: s, database: db.Name(), open: open}
				return r.run(cmd.Context(), bus, sink, o, f.runFor)
			})
		})
	})
}

// find fills in what the bus has to say: the topic, where only its snapshot was named.
func (s *projectSpec) find(ctx context.Context, bus jetbus.Topics) error {
	if s.Topic == "" {
		info, err := bus.TopicInfo(ctx, s.From)
		if err != nil {
			return fmt.Errorf("--from: %w", err)
		}
		if s.Topic = info.Config.SnapshotOf; s.Topic == "" {
			return usagef("--from %s: it is no snapshot: name the topic to project", s.From)
		}
	}
	return s.complete()
}

// projectRun is one run of a projection.
type projectRun struct {
	out      io.Writer
	output   string
	spec     projectSpec
	database string
	open     func() // called when it has started
}

// run projects until ctx or the time ends, which is no error, or the projection does.
func (r *projectRun) run(ctx context.Context, bus *adapter.Bus, sink projector.Sink, o projector.Options, runFor time.Duration) error {
	p, err := projector.Start(ctx, bus, sink, o)
	if err != nil {
		return err
	}
	r.open()
	ended := ctx
	ctx, cancel := endAfter(ctx, runFor)
	defer cancel()
	run := runner{out: r.out, output: r.output}
	run.title = fmt.Sprintf("%s to collection %s of database %s, as %s", r.spec.Topic, r.spec.Collection, r.database, o.Name)
	run.line = func(ctx context.Context) (string, any) {
		l := r.lineOf(ctx, p)
		return l.text(), l
	}
	run.hint = func() string {
		if p.Stats().Rejected == 0 {
			return ""
		}
		return fmt.Sprintf("see jetbus dlq ls %s --group %s", r.spec.Topic, o.Name)
	}
	return run.run(ctx, projectJob{p, ended})
}

// projectJob is a projection, which ends with the context of its start as well.
type projectJob struct {
	*projector.Projection

	started context.Context //nolint:containedctx // that of the start
}

// Err returns why the projection ended: nil where that was asked for.
func (j projectJob) Err() error {
	if j.started.Err() != nil {
		return nil //nolint:nilerr // the end was asked for
	}
	return j.Projection.Err()
}

// projectLine is what a run prints for programs.
type projectLine struct {
	Time       time.Time       `json:"time"`
	Projection string          `json:"projection"`
	Topic      string          `json:"topic"`
	Collection string          `json:"collection"`
	Stats      projector.Stats `json:"stats"`
	Lag        *projector.Lag  `json:"lag,omitempty"` // missing where the broker does not say
}

// lineOf says how a projection is.
func (r *projectRun) lineOf(ctx context.Context, p *projector.Projection) projectLine {
	l := projectLine{Time: time.Now(), Projection: r.spec.Name, Topic: r.spec.Topic, Collection: r.spec.Collection, Stats: p.Stats()}
	if lag, err := p.Lag(ctx); err == nil {
		l.Lag = &lag
	}
	return l
}

// text is the line for people, without the time.
func (l projectLine) text() string {
	s := l.Stats
	parts := []string{string(s.Phase), plural(s.Events, "event"), count(s.Applied) + " applied", count(s.Stale) + " stale", plural(s.Rejected, "dead letter")}
	if l.Lag != nil {
		parts = append(parts, "lag "+count(l.Lag.Events))
	}
	if s.LastError != "" {
		parts = append(parts, s.LastError)
	}
	return printable(strings.Join(parts, "  "))
}
