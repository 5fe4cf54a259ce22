package groups_test

import (
	"context"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// Of two held events of one ID nobody can say which one is meant: neither is settled.
func TestSettleByAmbiguousID(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		for range 3 {
			e := adaptertest.Event("a", "k")
			e.ID = "twin"
			must(r.Bus.Publish(ctx, e))(r.T)
			time.Sleep(time.Hour) // longer than the topic knows an ID
		}
		ds := r.receive("g", jetbus.ReceiveOptions{Max: 2, AckTimeout: time.Minute})
		r.Equal("received", len(ds), 2)
		r.WantErr(r.Bus.Ack(ctx, "a", "g", "twin"), jetbus.ErrConflict)
		r.WantErr(r.Bus.Nack(ctx, "a", "g", "twin", "no"), jetbus.ErrConflict)
		r.Equal("held", r.Group("a", "g").Held, 2)
		r.OK(ds[0].Ack(ctx))

		// Nor where a handler has the other one.
		handled := make(chan *jetbus.Delivery, 1)
		s := must(r.Bus.Subscribe(ctx, "a", "g", func(_ context.Context, d *jetbus.Delivery) error {
			handled <- d
			return nil
		}, jetbus.SubscribeOptions{ManualAck: true}))(r.T)
		d := <-handled
		r.WantErr(r.Bus.Ack(ctx, "a", "g", "twin"), jetbus.ErrConflict)
		r.OK(d.Ack(ctx))
		r.OK(r.Bus.Ack(ctx, "a", "g", "twin"))
		r.WantErr(r.Bus.Ack(ctx, "a", "g", "twin"), jetbus.ErrNotHeld)
		r.OK(s.Stop(ctx))
		r.Equal("held", r.Group("a", "g").Held, 0)
		r.Equal("settled up to", r.Group("a", "g").AckedSeq, 3)
	})
}
