package adapter_test

import (
	"context"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// Of two held events of one ID nobody can say which one is meant: neither is settled.
func TestSettleByAmbiguousID(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.ensure(jetbus.TopicConfig{Name: "a"})
		for range 3 {
			e := event("a", "k")
			e.ID = "twin"
			must(r.bus.Publish(ctx, e))(r.T)
			time.Sleep(time.Hour) // longer than the topic knows an ID
		}
		ds := r.receive("g", jetbus.ReceiveOptions{Max: 2, AckTimeout: time.Minute})
		r.equal("received", len(ds), 2)
		r.wantErr(r.bus.Ack(ctx, "a", "g", "twin"), jetbus.ErrConflict)
		r.wantErr(r.bus.Nack(ctx, "a", "g", "twin", "no"), jetbus.ErrConflict)
		r.equal("held", r.group("a", "g").Held, 2)
		r.ok(ds[0].Ack(ctx))

		// Nor where a handler has the other one.
		handled := make(chan *jetbus.Delivery, 1)
		s := must(r.bus.Subscribe(ctx, "a", "g", func(_ context.Context, d *jetbus.Delivery) error {
			handled <- d
			return nil
		}, jetbus.SubscribeOptions{ManualAck: true}))(r.T)
		d := <-handled
		r.wantErr(r.bus.Ack(ctx, "a", "g", "twin"), jetbus.ErrConflict)
		r.ok(d.Ack(ctx))
		r.ok(r.bus.Ack(ctx, "a", "g", "twin"))
		r.wantErr(r.bus.Ack(ctx, "a", "g", "twin"), jetbus.ErrNotHeld)
		r.ok(s.Stop(ctx))
		r.equal("held", r.group("a", "g").Held, 0)
		r.equal("settled up to", r.group("a", "g").AckedSeq, 3)
	})
}
