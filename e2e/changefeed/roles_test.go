//go:build unix

package changefeed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/changefeed"
	"github.com/seed-63e9a637/jetbus/e2e/internal/broker"
	"github.com/seed-63e9a637/jetbus/e2e/internal/child"
)

// report is a line that a child tells its parent.
type report struct {
	State changefeed.State `json:",omitempty"` // of a feed
	Stats changefeed.Stats `json:",omitzero"`
	Error string           `json:",omitempty"`
}

// leads reports whether the feed had a change stream, or had one and is reconnecting.
func (r *report) leads() bool {
	return r.State == changefeed.Streaming || r.State == changefeed.Reconnecting
}

// The feed of these tests.
const (
	feedName   = "chaos"
	topic      = "things.changed"
	collection = "things"
	leaseTTL   = 3 * time.Second // the least, so that there is often another leader
)

// feedConfig is that of an instance of the feed.
type feedConfig struct {
	URL, Mongo, Database string
	Mode                 changefeed.Mode
}

func connectMongo(uri string) (*mongo.Client, error) {
	return mongo.Connect(options.Client().ApplyURI(uri).SetServerSelectionTimeout(2 * time.Second).SetHeartbeatInterval(500 * time.Millisecond))
}

// runFeed is an instance of the feed. It may start, and end, while the broker or
// MongoDB is away.
func runFeed(ctx context.Context, config []byte, p *child.Parent) error {
	var c feedConfig
	if err := json.Unmarshal(config, &c); err != nil {
		return err
	}
	p.Tell(report{})
	nc, err := broker.Dial(c.URL, nats.RetryOnFailedConnect(true))
	if err != nil {
		return err
	}
	defer nc.Close()
	client, err := connectMongo(c.Mongo)
	if err != nil {
		return err
	}
	defer func() { _ = client.Disconnect(context.Background()) }() // the process ends
	bus, err := persist(ctx, func() (*adapter.Bus, error) { return adapter.Open(ctx, nc, adapter.Config{}) })
	if bus == nil {
		return err
	}
	f, err := persist(ctx, func() (*changefeed.Feed, error) {
		return changefeed.Start(context.WithoutCancel(ctx), bus, client, changefeed.Options{
			Name: feedName, Database: c.Database, Collection: collection, Topic: topic, Mode: c.Mode,
			LeaseTTL: leaseTTL, MaxAwaitTime: 200 * time.Millisecond, ProgressInterval: 300 * time.Millisecond,
			Backoff: jetbus.Backoff{Min: 20 * time.Millisecond, Max: time.Second},
		})
	})
	if f == nil {
		return err
	}
	if err := watch(ctx, f, p); err != nil {
		return err
	}
	err = f.Stop(context.Background())
	p.Tell(report{State: f.Status().State, Stats: f.Stats()})
	_ = bus.Close(context.Background()) // the broker may be away, and the feed has ended
	return err
}

// watch tells how the feed is until ctx ends.
func watch(ctx context.Context, f *changefeed.Feed, p *child.Parent) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		s := f.Status()
		p.Tell(report{State: s.State, Stats: f.Stats(), Error: s.Error})
		select {
		case <-tick.C:
		case <-f.Done():
			return fmt.Errorf("the feed ended by itself: %w", f.Err())
		case <-ctx.Done():
			return nil
		}
	}
}

// persist tries until the broker is there. It returns nil when ctx ends before.
func persist[T any](ctx context.Context, try func() (*T, error)) (*T, error) {
	for {
		switch v, err := try(); {
		case err == nil:
			return v, nil
		case ctx.Err() != nil:
			return nil, nil //nolint:nilerr // nobody waits for it any more
		case !errors.Is(err, jetbus.ErrUnavailable):
			return nil, err
		}
	}
}
