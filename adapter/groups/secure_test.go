package groups_test

import (
	"bytes"
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// In a cluster the lease of an event that is old, or came before, is extended as soon as
// it comes: a server that takes the lead would take it to be over. So is that of any event which
// nothing extends later. On one server it takes a second,
// in which most events are settled.
func TestOldEventIsSecured(t *testing.T) {
	const lease = 30 * time.Second
	subscribe := func(o jetbus.SubscribeOptions) func(r *rig, b *adapter.Bus) {
		return func(r *rig, b *adapter.Bus) {
			o.From, o.AckTimeout = jetbus.Earliest(), lease
			r.Subscribe(b, func(ctx context.Context, _ *jetbus.Delivery) error {
				select {
				case <-time.After(lease / 2):
				case <-ctx.Done():
				}
				return nil
			}, o)
		}
	}
	receive := func(r *rig, b *adapter.Bus) {
		ds := must(b.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{From: jetbus.Earliest(), AckTimeout: lease}))(r.T)
		r.Equal("received", len(ds), 1)
	}
	giveBack := func(r *rig, b *adapter.Bus) {
		for range 2 {
			ds := must(b.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{From: jetbus.Earliest(), AckTimeout: lease, Wait: time.Minute}))(r.T)
			r.Equal("received", len(ds), 1)
			r.OK(ds[0].GiveBack(r.Context()))
		}
		receive(r, b)
	}
	for name, c := range map[string]struct {
		take        func(r *rig, b *adapter.Bus)
		age         time.Duration // of the event
		alone       bool          // on one server
		first, soon int           // extensions by then
	}{
		"subscribed":              {take: subscribe(jetbus.SubscribeOptions{}), age: lease, first: 1, soon: 1},
		"in order":                {take: subscribe(jetbus.SubscribeOptions{Order: jetbus.PerKey}), age: lease, first: 1, soon: 1},
		"without extensions":      {take: subscribe(jetbus.SubscribeOptions{MaxLease: -1}), age: lease, first: 1, soon: 1},
		"received":                {take: receive, age: lease, first: 1, soon: 1},
		"delivered before":        {take: giveBack, first: 3, soon: 3},
		"received new":            {take: receive, first: 1, soon: 1},
		"new":                     {take: subscribe(jetbus.SubscribeOptions{})},
		"on one server":           {take: subscribe(jetbus.SubscribeOptions{}), age: lease, alone: true, soon: 1},
		"received from one":       {take: receive, age: lease, alone: true},
		"delivered before by one": {take: giveBack, alone: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.Ensure(jetbus.TopicConfig{Name: "a"})
				b := r.Bus
				if !c.alone {
					_, b = r.Open(adapter.Config{}, nats.InProcessServer(adaptertest.Replicated{InProcessConnProvider: r.Broker, Stream: "EV_A"}))
				}
				r.Publish("a", "k")
				time.Sleep(c.age)
				var extensions atomic.Int64
				watch := must(r.NC.Subscribe("$JS.ACK.>", func(m *nats.Msg) { extensions.Add(int64(bytes.Count(m.Data, []byte("+WPI")))) }))(r.T)
				defer func() { r.OK(watch.Unsubscribe()) }()
				c.take(r, b)
				time.Sleep(lease / 60)
				r.Settle()
				r.Equal("extensions at once", extensions.Load(), c.first)
				time.Sleep(3 * time.Second)
				r.Settle()
				r.Equal("extensions soon", extensions.Load(), c.soon)
			})
		})
	}
}
