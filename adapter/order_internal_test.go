package adapter

import (
	"context"
	"testing"

	"github.com/seed-63e9a637/jetbus"
)

// An owner stands down when its events are out of all hands. A worker that counted as running
// still would be taken for one whose handler ignores its context.
func TestHandlerEndsWithItsEvent(t *testing.T) {
	bus, _, _ := internalBus(t)
	if _, err := bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	const n = 300
	for range n {
		if _, err := bus.Publish(t.Context(), jetbus.Event{Topic: "a"}); err != nil {
			t.Fatal(err)
		}
	}
	done, left := make(chan struct{}), n
	joined, err := bus.Subscribe(t.Context(), "a", "g", func(context.Context, *jetbus.Delivery) error {
		if left--; left == 0 {
			close(done)
		}
		return nil
	}, jetbus.SubscribeOptions{From: jetbus.Earliest(), Order: jetbus.Total})
	if err != nil {
		t.Fatal(err)
	}
	s := joined.(*subscription)
	for looking := true; looking; {
		s.mu.Lock()
		if s.running != s.owners[0].busy {
			t.Errorf("%d handlers run, of %d events", s.running, s.owners[0].busy)
			looking = false
		}
		s.mu.Unlock()
		select {
		case <-done:
			looking = false
		default:
		}
	}
	<-done
	if err := joined.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}
