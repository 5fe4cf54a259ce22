//go:build unix

package faults

import (
	"context"
	"testing"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/e2e/internal/rig"
)

// readLog reads a topic, and checks that no id is in it twice.
func readLog(t *testing.T, bus *adapter.Bus, topic string) map[string]jetbus.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), rig.Limit)
	defer cancel()
	events := map[string]jetbus.Event{}
	for e, err := range bus.Scan(ctx, topic, jetbus.ScanQuery{}) {
		if err != nil {
			t.Fatal(err)
		}
		if other, twice := events[e.ID]; twice {
			t.Errorf("%s is stored twice, at %d and %d", e.ID, other.Seq, e.Seq)
		}
		events[e.ID] = e
	}
	return events
}

// checkLog checks that a topic holds these events, once each, and no others.
func checkLog(t *testing.T, bus *adapter.Bus, topic string, ids []string) {
	t.Helper()
	events := readLog(t, bus, topic)
	missing := 0
	for _, id := range ids {
		if _, ok := events[id]; !ok {
			missing++
			if missing <= 5 {
				t.Errorf("%s was acknowledged and is not stored", id)
			}
		}
	}
	if len(events) != len(ids) || missing > 0 {
		t.Errorf("%d events are stored, %d were published, %d of those are missing", len(events), len(ids), missing)
	}
}
