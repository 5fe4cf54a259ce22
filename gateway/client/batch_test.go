package client_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// TestChain: what does not fit behind a chain says so as the bus does.
func TestChain(t *testing.T) {
	l := limits()
	l.BatchEvents = 7
	r := start(t, gateway.Config{Limits: l})
	bus := dial(t, r.config())
	events := make([]jetbus.Event, 8)
	for i := range events {
		events[i] = jetbus.Event{Topic: "orders", ID: fmt.Sprint(i)}
	}
	if _, err := bus.PublishBatch(t.Context(), events, jetbus.BatchOptions{Chain: &jetbus.Chain{}}); !errors.Is(err, jetbus.ErrUnsupported) {
		t.Errorf("more than a frame: %v", err)
	}
	for range 2 { // the second time all of it is there
		receipts, err := bus.PublishBatch(t.Context(), events[:7], jetbus.BatchOptions{Chain: &jetbus.Chain{}})
		if err != nil || receipts[6].Event.Seq != 7 {
			t.Fatalf("%+v, %v", receipts, err)
		}
	}
	r.publish(1)
	after := jetbus.Chain{AfterID: "6", AfterSeq: 7}
	_, err := bus.PublishBatch(t.Context(), []jetbus.Event{{Topic: "orders"}, {Topic: "orders"}}, jetbus.BatchOptions{Chain: &after})
	chain, ok := errors.AsType[*jetbus.ChainError](err)
	if !ok || !errors.Is(err, jetbus.ErrWrongSequence) || chain.Topic != "orders" || chain.AfterID != "6" || chain.LastID == "" {
		t.Errorf("behind another's event: %#v, %v", chain, err)
	}
	if b, ok := errors.AsType[*jetbus.BatchError](err); !ok || len(b.Failed) != 2 || b.Failed[1].Stored != jetbus.StoredNo {
		t.Errorf("behind another's event: %v", err)
	}
	_, err = bus.PublishBatch(t.Context(), []jetbus.Event{{Topic: "orders"}, {Topic: "none"}}, jetbus.BatchOptions{Chain: &after})
	if !errors.Is(err, jetbus.ErrConflict) && !errors.Is(err, jetbus.ErrNoTopic) {
		t.Errorf("of two topics: %v", err)
	}
}

// TestWhatMayBeStoredIsNotToldAsRefused: an answer that says nothing of an earlier try leaves open
// what became of that; and an atomic batch that may be stored is not sent again, since it would be
// refused for what it has stored itself.
func TestWhatMayBeStoredIsNotToldAsRefused(t *testing.T) {
	for what, c := range map[string]struct {
		o      jetbus.BatchOptions
		frames int
	}{
		"one by one": {jetbus.BatchOptions{}, 2},
		"atomic":     {jetbus.BatchOptions{Atomic: true}, 1},
	} {
		t.Run(what, func(t *testing.T) {
			first := true
			inScript(t, func(_ *line, r *frame.Request) string {
				if r.Op != frame.PublishBatch {
					return yes(r)
				}
				code, retryable, stored := "topic_full", false, "no"
				if first {
					first, code, retryable, stored = false, "broker_unavailable", true, "unknown"
				}
				return fmt.Sprintf(`{"op":"ERR","corr":%q,"code":%q,"msg":"no","retryable":%v,"details":{"stored":%q}}`, r.Corr, code, retryable, stored)
			}, func(s *standIn) {
				bus, _ := s.dial(nil)
				_, err := bus.PublishBatch(s.Context(), []jetbus.Event{{Topic: "orders"}, {Topic: "orders"}}, c.o)
				b, ok := errors.AsType[*jetbus.BatchError](err)
				if !ok || len(b.Failed) != 2 || b.Failed[0].Stored != jetbus.StoredUnknown || b.Failed[1].Stored != jetbus.StoredUnknown {
					s.Errorf("got %v, %+v", err, b)
				}
				if n := len(s.said(frame.PublishBatch)); n != c.frames {
					s.Errorf("%d frames, want %d", n, c.frames)
				}
			})
		})
	}
}
