package adapter_test

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
		r.ensure(jetbus.TopicConfig{Name: "state", Compact: true})
		nc, dying := r.open(adapter.Config{})
		o := jetbus.SubscribeOptions{From: jetbus.Earliest(), ManualAck: true, MaxAttempts: -1, AckTimeout: 5 * time.Second}
		held := make(chan *jetbus.Delivery, 10)
		must(dying.Subscribe(r.Context(), "state", "g", func(_ context.Context, d *jetbus.Delivery) error {
			held <- d
			return nil
		}, o))(r.T)
		r.publish("state", "a", "b", "c")
		for range 3 {
			<-held
		}
		must(r.bus.Publish(r.Context(), jetbus.Tombstone("state", "c")))(r.T)
		r.ok((<-held).Ack(r.Context()))
		r.settle()
		nc.Close()

		again := make(chan string, 10)
		s := must(r.bus.Subscribe(r.Context(), "state", "g", func(ctx context.Context, d *jetbus.Delivery) error {
			again <- d.Key
			return d.Ack(ctx)
		}, o))(r.T)
		time.Sleep(time.Minute)
		r.ok(s.Stop(r.Context()))
		got := map[string]bool{}
		for len(again) > 0 {
			got[<-again] = true
		}
		r.equal("what another member got", got, map[string]bool{"a": true, "b": true})
	})
}
