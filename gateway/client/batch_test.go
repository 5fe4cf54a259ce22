package client_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway"
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
