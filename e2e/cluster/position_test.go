package cluster

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/e2e/internal/election"
)

// To look for an id that is not stored leaves no trace: it can be published right after,
// and the topic's replicas stay of one mind.
func TestLookupOfAnUnknownID(t *testing.T) {
	const ids = 30
	c, bus := onCluster(t, jetbus.TopicConfig{KeyInSubject: true})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for i := range ids {
		id := fmt.Sprint("mine-", i)
		var subscribed error
		for range 2 {
			_, subscribed = bus.Receive(ctx, "a", "g", jetbus.ReceiveOptions{From: jetbus.AfterID(id), Wait: -1})
		}
		if !errors.Is(subscribed, jetbus.ErrPositionUnknown) {
			t.Fatalf("a group behind an id that nobody has stored: %v", subscribed)
		}
		r, err := bus.Publish(ctx, jetbus.Event{Topic: "a", ID: id, Key: "k"})
		if err != nil || r.Duplicate || r.Event.Seq != uint64(i+1) {
			t.Fatalf("then stored as %+v, %v", r, err)
		}
		if i%10 == 5 {
			if err := election.StepDown(ctx, c, "EV_A"); err != nil {
				t.Fatal(err)
			}
		}
	}
	got, err := bus.Receive(ctx, "a", "behind", jetbus.ReceiveOptions{From: jetbus.AfterID(fmt.Sprint("mine-", ids-2)), Wait: patience})
	if err != nil || len(got) != 1 || got[0].Seq != ids {
		t.Errorf("behind the last but one: %d events, %v", len(got), err)
	}
}
