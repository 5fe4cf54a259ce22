package groups_test

import (
	"context"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// filled is a group of topic a that may hold three events and holds n of as many.
func (r *rig) filled(n int) []*jetbus.Delivery {
	r.Helper()
	r.Ensure(jetbus.TopicConfig{Name: "a"})
	s := must(r.Bus.Subscribe(r.Context(), "a", "g", func(context.Context, *jetbus.Delivery) error { return nil },
		jetbus.SubscribeOptions{From: jetbus.Earliest(), GroupMaxInFlight: 3}))(r.T)
	r.OK(s.Stop(r.Context()))
	must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("a", 10), jetbus.BatchOptions{}))(r.T)
	held := r.receive("g", jetbus.ReceiveOptions{Max: n})
	r.Equal("held", len(held), n)
	return held
}

// A group that holds all it may has nothing to give: that is no failure.
func TestReceiveOfFullGroup(t *testing.T) {
	inBubble(t, func(r *rig) {
		held := r.filled(3)
		began := time.Now()
		r.Equal("of a full group", len(r.receive("g", jetbus.ReceiveOptions{Wait: -1})), 0)
		if took := time.Since(began); took >= 500*time.Millisecond {
			r.Errorf("none came after %v", took)
		}
		began = time.Now()
		r.Equal("of a full group", len(r.receive("g", jetbus.ReceiveOptions{Wait: 10 * time.Second})), 0)
		r.Equal("waited", time.Since(began).Round(time.Second), 10*time.Second)
		r.OK(held[0].Nack(r.Context(), jetbus.NackOptions{AtOnce: true}))
		r.Equal("what comes again", deliveredKeys(r.receive("g", jetbus.ReceiveOptions{Wait: -1})), "0")
		r.Equal("held at the server", r.Group("a", "g").Held, 3)
	})
}

// What a group may still hold comes at once, also where more was asked for.
func TestReceiveOfNearlyFullGroup(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.filled(1)
		for _, wait := range []time.Duration{-1, time.Minute} {
			began := time.Now()
			got := r.receive("g", jetbus.ReceiveOptions{Wait: wait})
			r.Equal("came", len(got), 2)
			r.Equal("after", time.Since(began), time.Duration(0))
			for _, d := range got {
				r.OK(d.Ack(r.Context()))
			}
			r.Settle()
		}
	})
}

// Who waits at a full group gets what there is room for, when there is.
func TestReceiveWaitsForRoom(t *testing.T) {
	inBubble(t, func(r *rig) {
		held := r.filled(3)
		time.AfterFunc(3*time.Second, func() { r.WantNil(held[1].Ack(r.Context())) })
		began := time.Now()
		got := r.receive("g", jetbus.ReceiveOptions{Wait: 10 * time.Second})
		r.Equal("came", deliveredKeys(got), "3")
		r.Equal("after", time.Since(began), 3*time.Second)
		r.Equal("held at the server", r.Group("a", "g").Held, 3)
	})
}

// Several that receive at once take what there is room for, and none of them fails.
func TestReceiveFillsGroupAtOnce(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.OK(r.filled(1)[0].Ack(r.Context()))
		for _, wait := range []time.Duration{-1, 10 * time.Second} {
			const n = 4
			r.Settle()
			began := time.Now()
			got := make(chan []*jetbus.Delivery, n)
			for range n {
				go func() {
					ds, err := r.Bus.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{Wait: wait, Max: 2})
					r.WantNil(err)
					got <- ds
				}()
			}
			var all []*jetbus.Delivery
			for range n {
				all = append(all, <-got...)
			}
			r.Equal("together", len(all), 3)
			if took := time.Since(began); took >= max(wait, 0)+time.Second {
				r.Errorf("with a wait of %v it took %v", wait, took)
			}
			r.Equal("held at the server", r.Group("a", "g").Held, 3)
			for _, d := range all {
				r.OK(d.Ack(r.Context()))
			}
		}
	})
}
