package reads_test

import (
	"context"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

// A tombstone removes the event before it of its key, and no other from the hands of
// a group: what a member held that died goes to another. (A rollup has the server
// take the event that it removes for the last one that was settled.)
func TestTombstoneOfAnEventInHand(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "state", Compact: true})
		nc, dying := r.Open(adapter.Config{})
		o := jetbus.SubscribeOptions{From: jetbus.Earliest(), ManualAck: true, MaxAttempts: -1, AckTimeout: 5 * time.Second}
		held := make(chan *jetbus.Delivery, 10)
		must(dying.Subscribe(r.Context(), "state", "g", func(_ context.Context, d *jetbus.Delivery) error {
			held <- d
			return nil
		}, o))(r.T)
		r.Publish("state", "a", "b", "c")
		for range 3 {
			<-held
		}
		must(r.Bus.Publish(r.Context(), jetbus.Tombstone("state", "c")))(r.T)
		r.OK((<-held).Ack(r.Context()))
		r.Settle()
		nc.Close()

		again := make(chan string, 10)
		s := must(r.Bus.Subscribe(r.Context(), "state", "g", func(ctx context.Context, d *jetbus.Delivery) error {
			again <- d.Key
			return d.Ack(ctx)
		}, o))(r.T)
		time.Sleep(time.Minute)
		r.OK(s.Stop(r.Context()))
		got := map[string]bool{}
		for len(again) > 0 {
			got[<-again] = true
		}
		r.Equal("what another member got", got, map[string]bool{"a": true, "b": true})
	})
}
