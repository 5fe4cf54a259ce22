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

// storedFlags are the flags of the commands on what the bus holds of feeds.
type storedFlags struct {
	mongo              mongoFlags
	tokenStore, output string
}

func (f *storedFlags) add(cmd *cobra.Command) {
	f.mongo.addDatabase(cmd)
	addTokenStore(cmd, &f.tokenStore)
	cmd.Flags().StringVarP(&f.output, "output", "o", "table", "table, json or ndjson")
}

func (f *storedFlags) check() error {
	if err := checkOutput(f.output); err != nil {
		return err
	}
	return checkTokenStore(f.tokenStore)
}

func newChangefeedStatus(a *app) *cobra.Command {
	f := &storedFlags{}
	cmd := &cobra.Command{
		Use:     "status [NAME]",
		Aliases: []string{"ls", "list"},
		Short:   "Say how far the change feeds of this bus are, and which of them run",
		Long: `Says how far the change feeds of this bus are, whether they run or not. LAST is the last
event of the topic, the feed's checkpoint; POSITION is the time of MongoDB up to which
everything is published, and LAG how long ago that is: a feed that keeps up saves it every
10 seconds while there is nothing to publish. HOLDER is the instance that has the lock; one
that was killed has it until its lease is over.

MongoDB is not asked, unless the positions are there (--token-store mongo). With -o json
there is all that is known, the resume tokens too.`,
		Example: `  jetbus changefeed status
  jetbus changefeed status orders-changed -o json
  jetbus changefeed status --token-store mongo --mongo mongodb://db.example.com/shop`,
		Args: between(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.changefeedStatus(cmd, f, args) },
	}
	f.add(cmd)
	return cmd
}

// storedFeed is what status prints for programs.
type storedFeed struct {
	Feed     string          `json:"feed"`
	Source   string          `json:"source,omitempty"` // database.collection, or the database; missing where no position is saved
	State    string          `json:"state"`            // running, copying or stopped
	Holder   string          `json:"holder,omitempty"` // who has the lock
	Renewed  *time.Time      `json:"renewed,omitempty"`
	Saved    *storedPosition `json:"saved,omitempty"`
	Topics   []storedTopic   `json:"topics"` // those that end with an event of the feed: one, but for feeds that were given another
	Position *time.Time      `json:"position,omitempty"`
	LagMs    *int64          `json:"lagMs,omitempty"` // missing where there is no position
}

type storedPosition struct {
	Token changefeed.Token         `json:"token"`
	Time  time.Time                `json:"time"` // of MongoDB, at the position
	Topic string                   `json:"topic,omitempty"`
	Copy  *changefeed.CopyProgress `json:"copy,omitempty"`
	Saved time.Time                `json:"saved"`
}

type storedTopic struct {
	Topic     string           `json:"topic"`
	Seq       uint64           `json:"seq"`
	Published time.Time        `json:"published"` // the time of the last event
	Token     changefeed.Token `json:"token"`
	Time      time.Time        `json:"time"` // of MongoDB, at the token
	Copying   bool             `json:"copying,omitempty"`
}

// The states of a feed that status knows.
const (
	feedRunning = "running"
	feedCopying = "copying"
	feedStopped = "stopped"
)

// newStoredFeed is what there is to say of a feed at a time.
func newStoredFeed(s changefeed.Stored, now time.Time) storedFeed {
	f := storedFeed{Feed: s.Feed, Source: s.Saved.Source, State: feedStopped, Holder: s.Holder, Renewed: unlessZero(s.Renewed), Topics: []storedTopic{}}
	furthest, copying := s.Saved.Token, s.Saved.Copy != nil
	if furthest != "" {
		f.Saved = &storedPosition{Token: furthest, Time: furthest.Time(), Topic: s.Saved.Topic, Copy: s.Saved.Copy, Saved: s.Saved.Saved}
	}
	for _, t := range s.Topics {
		f.Topics = append(f.Topics, storedTopic{Topic: t.Topic, Seq: t.Seq, Published: t.Time, Token: t.Token, Time: t.Token.Time(), Copying: t.Copy})
		if t.Token.Compare(furthest) > 0 {
			furthest, copying = t.Token, t.Copy
		}
	}
	switch {
	case s.Holder != "" && copying:
		f.State = feedCopying
	case s.Holder != "":
		f.State = feedRunning
	}
	if furthest != "" {
		at := furthest.Time()
		lag := max(now.Sub(at).Milliseconds(), 0)
		f.Position, f.LagMs = &at, &lag
	}
	return f
}

func (a *app) changefeedStatus(cmd *cobra.Command, f *storedFlags, args []string) error {
	if err := f.check(); err != nil {
		return err
	}
	return a.withStore(cmd.Context(), f, func(ctx context.Context, bus *adapter.Bus, store changefeed.TokenStore) error {
		var list []changefeed.Stored
		if len(args) == 0 {
			var err error
			if list, err = changefeed.ReadStored(ctx, bus, store); err != nil {
				return err
			}
		} else {
			one, err := findFeed(ctx, bus, store, args[0])
			if err != nil {
				return err
			}
			list = append(list, one)
		}
		if len(list) == 0 && f.output == "table" {
			_, err := fmt.Fprintln(cmd.ErrOrStderr(), "this bus knows of no change feed; start one with jetbus changefeed run")
			return err
		}
		now := time.Now()
		feeds := make([]storedFeed, len(list))
		for i, s := range list {
			feeds[i] = newStoredFeed(s, now)
		}
		return writeFeeds(cmd.OutOrStdout(), f.output, feeds)
	})
}

// withStore connects to what the positions of feeds are in, and runs f for as long as
// --timeout allows.
func (a *app) withStore(ctx context.Context, f *storedFlags, do func(context.Context, *adapter.Bus, changefeed.TokenStore) error) error {
	run := func(db *mongo.Database) error {
		return a.withBus(ctx, func(bus *adapter.Bus) error {
			ctx, cancel := context.WithTimeout(ctx, a.timeout)
			defer cancel()
			return do(ctx, bus, tokenStore(f.tokenStore, bus, db))
		})
	}
	if f.tokenStore != storeMongo {
		return run(nil)
	}
	return a.withMongo(ctx, &f.mongo, run)
}

func writeFeeds(w io.Writer, output string, list []storedFeed) error {
	if output != "table" {
		return writeValues(w, output, list)
	}
	rows := [][]string{{"FEED", "SOURCE", "TOPIC", "LAST", "POSITION", "LAG", "STATE", "HOLDER"}}
	for _, f := range list {
		position, lag := "-", "-"
		if f.Position != nil {
			position, lag = moment(*f.Position), (time.Duration(*f.LagMs) * time.Millisecond).Round(time.Second).String()
		}
		topics := f.Topics
		if len(topics) == 0 { // it has published nothing yet
			topics = []storedTopic{{Topic: "-"}}
			if f.Saved != nil {
				topics[0].Topic = or(f.Saved.Topic, "-")
			}
		}
		for _, t := range topics {
			last := "-"
			if t.Seq > 0 {
				last = "#" + count(t.Seq)
			}
			rows = append(rows, []string{f.Feed, or(f.Source, "-"), t.Topic, last, position, lag, f.State, or(holderID(f.Holder), "-")})
		}
	}
	_, err := io.WriteString(w, table(rows))
	return err
}

// holderID is the owner of a lock without what the feed does, which a table says already.
func holderID(owner string) string {
	if _, id, ok := strings.Cut(owner, " #"); ok {
		return id
	}
	return owner
}
