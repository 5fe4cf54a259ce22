package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/changefeed"
)

// resetFlags are the flags of changefeed reset.
type resetFlags struct {
	storedFlags

	start             feedStart
	collection, topic string
	yes               bool
}

func newChangefeedReset(a *app) *cobra.Command {
	f := &resetFlags{}
	cmd := &cobra.Command{
		Use:   "reset NAME",
		Short: "Have a change feed begin anew",
		Long: `Has a change feed forget its position, while no instance of it runs. Without --yes it
changes nothing, and says what it would do.

The position is at two places. The one that is saved is forgotten. The other one is the
last event of the feed's topic, which stays: a feed whose topic has events goes on behind
it, whatever the --start of jetbus changefeed run.

With --start here it goes on there instead. A gap event in the topic says so to who reads it,
and is the checkpoint from then on; what the topic has stays. After

  --start copy     all documents are published, then what changes from now on
  --start latest   what changes from now on; what changed since the last event is missing
  --start TIME     what changed since that time, some of it for the second time
  --start TOKEN    what changed behind that resume token, the same

A topic that is to begin empty is removed first, with its groups: jetbus topics rm; then reset
the feed without --start, and give that to jetbus changefeed run.

What the feed watches is known from its position; --database, --collection and --topic say it
where they are to be others, or there is no position.`,
		Example: `  jetbus changefeed reset orders-changed
  jetbus changefeed reset orders-changed --start copy --mongo mongodb://db.example.com/ --yes`,
		Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.resetFeed(cmd, f, args[0]) },
	}
	f.add(cmd)
	flags := cmd.Flags()
	flags.Var(&f.start, "start", "where it goes on: latest, copy for all documents first, a time (RFC 3339), or a resume token")
	flags.StringVar(&f.collection, "collection", "", "collection, with --start (default that of the position)")
	flags.StringVar(&f.topic, "topic", "", "topic, with --start (default the one with the feed's events)")
	flags.BoolVar(&f.yes, "yes", false, "do it")
	return cmd
}

func (a *app) resetFeed(cmd *cobra.Command, f *resetFlags, name string) error {
	if err := f.check(); err != nil {
		return err
	}
	if f.start.text == "" {
		if f.collection != "" || f.topic != "" {
			return usagef("--collection and --topic go with --start")
		}
		return a.withStore(cmd.Context(), &f.storedFlags, func(ctx context.Context, bus *adapter.Bus, store changefeed.TokenStore) error {
			return f.reset(ctx, cmd, bus, nil, store, name)
		})
	}
	return a.withMongo(cmd.Context(), &f.mongo, func(db *mongo.Database) error {
		return a.withBus(cmd.Context(), func(bus *adapter.Bus) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), a.timeout)
			defer cancel()
			return f.reset(ctx, cmd, bus, db.Client(), tokenStore(f.tokenStore, bus, db), name)
		})
	})
}

func (f *resetFlags) reset(ctx context.Context, cmd *cobra.Command, bus *adapter.Bus, client *mongo.Client, store changefeed.TokenStore, name string) error {
	s, err := findFeed(ctx, bus, store, name)
	o := changefeed.ResetOptions{Name: name, TokenStore: store}
	switch {
	case err != nil && f.start.text == "":
		return err
	case err != nil && !errors.Is(err, errNoFeed): // otherwise the flags say all
		return err
	}
	if s.Holder != "" {
		return fmt.Errorf("%w: %s, which said so %s", changefeed.ErrRunning, s.Holder, moment(s.Renewed))
	}
	if f.start.text != "" {
		o.Start = &f.start.point
		if err := f.fill(cmd, s, &o); err != nil {
			return err
		}
	}
	what := f.preview(s, o)
	if !f.yes {
		return usagef("%s; add --yes to do it (see jetbus changefeed reset --help)", strings.Join(what, "; "))
	}
	token, err := changefeed.Reset(ctx, bus, client, o)
	if err != nil {
		return err
	}
	return f.report(cmd.OutOrStdout(), what, name, token)
}

// fill says what the feed watches, by the flags or else by its position.
func (f *resetFlags) fill(cmd *cobra.Command, s changefeed.Stored, o *changefeed.ResetOptions) error {
	database, collection, _ := strings.Cut(s.Saved.Source, ".")
	o.Database, o.Collection, o.Topic = or(f.mongo.db, database), f.collection, or(f.topic, s.Saved.Topic)
	if !cmd.Flags().Changed("collection") && (f.mongo.db == "" || f.mongo.db == database) {
		o.Collection = collection
	}
	if o.Database == "" {
		return usagef("feed %s has no saved position that says what it watches: say it with --database and --collection, which is empty for the whole database", s.Feed)
	}
	if o.Topic == "" {
		if len(s.Topics) != 1 {
			return usagef("%s with events of feed %s: name it with --topic", plural(len(s.Topics), "topic"), s.Feed)
		}
		o.Topic = s.Topics[0].Topic
	}
	if err := jetbus.ValidTopic(o.Topic); err != nil {
		return usagef("--topic: %w", err)
	}
	return nil
}

// preview says what a reset does.
func (f *resetFlags) preview(s changefeed.Stored, o changefeed.ResetOptions) []string {
	var what []string
	if s.Saved.Token != "" {
		what = append(what, fmt.Sprintf("feed %s forgets its saved position in %s, %s", o.Name, s.Saved.Source, moment(s.Saved.Token.Time())))
	} else {
		what = append(what, fmt.Sprintf("feed %s has no saved position", o.Name))
	}
	if o.Start != nil {
		source := o.Database
		if o.Collection != "" {
			source += "." + o.Collection
		}
		return append(what, fmt.Sprintf("it goes on from %s of %s, behind a gap event in %s where that has events", f.start.text, source, o.Topic))
	}
	if len(s.Topics) == 0 {
		return append(what, "no topic ends with an event of it: it begins at the --start of jetbus changefeed run")
	}
	for _, t := range s.Topics {
		what = append(what, fmt.Sprintf("it goes on behind event #%s of %s, which is at %s: another --start must be given here", count(t.Seq), t.Topic, moment(t.Token.Time())))
	}
	return what
}

// resetDone is what reset prints for programs.
type resetDone struct {
	Feed  string           `json:"feed"`
	Start string           `json:"start,omitempty"`
	Token changefeed.Token `json:"token,omitempty"` // where it goes on; missing: at its checkpoint
}

func (f *resetFlags) report(w io.Writer, what []string, name string, token changefeed.Token) error {
	if f.output != "table" {
		return writeValue(w, f.output, resetDone{name, f.start.text, token})
	}
	for _, line := range what {
		if _, err := fmt.Fprintln(w, printable(line)); err != nil {
			return err
		}
	}
	return nil
}
