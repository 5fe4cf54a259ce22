package bustest_test

import (
	"context"
	"flag"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

// days is how long TestStateStays leaves state alone; `make month` says 30.
var days = flag.Int("days", 1, "how many days of fake time state must stay")

// State does not age: not in a compacted topic, and not in its snapshot, whose
// source sends a sign of life every second of that time.
func TestStateStays(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		ctx := t.Context()
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		broker, err := embedded.Start(ctx, embedded.Config{})
		must(err)
		defer func() { must(broker.Stop(context.Background())) }()
		nc, err := broker.Connect()
		must(err)
		defer nc.Close()
		bus, err := adapter.Open(ctx, nc, adapter.Config{Storage: jetbus.MemoryStorage})
		must(err)
		defer func() { must(bus.Close(context.Background())) }()
		_, err = bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: "state", Compact: true})
		must(err)
		_, err = bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: "snap", SnapshotOf: "state"})
		must(err)
		for _, e := range []jetbus.Event{
			{Topic: "state", Key: "a", Payload: []byte("1")},
			{Topic: "state", Key: "b", Payload: []byte("2")},
			jetbus.Tombstone("state", "b"),
		} {
			_, err := bus.Publish(ctx, e)
			must(err)
		}
		time.Sleep(time.Duration(*days) * 24 * time.Hour)
		for _, topic := range []string{"state", "snap"} {
			latest, err := bus.LatestByKey(ctx, topic, "a", "b")
			must(err)
			if a, ok := latest["a"]; !ok || string(a.Payload) != "1" || len(latest) != 1 {
				t.Errorf("after %d days %s has %v", *days, topic, latest)
			}
		}
	})
}
