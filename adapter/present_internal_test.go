package adapter

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// What is remembered of durables does not outlive them by more than a list, and who waits
// in vain for the list of another is told what the other would be.
func TestPresentForgets(t *testing.T) {
	_, nc, _ := directStream(t)
	bus := openBus(t, nc, Config{})
	const n = 3
	if _, err := bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "a", Partitions: n}); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		group := fmt.Sprint("g", i)
		if err := bus.JoinPartitions(t.Context(), "a", group, jetbus.SubscribeOptions{Order: jetbus.PerKey}); err != nil {
			t.Fatal(err)
		}
		if parts, err := bus.GroupPartitions(t.Context(), "a", group); err != nil || len(parts) != n || len(bus.present.seen) != n {
			t.Errorf("%d parts (%v), %d remembered, want %d", len(parts), err, len(bus.present.seen), n)
		}
		if err := bus.DeleteGroup(t.Context(), "a", group); err != nil {
			t.Fatal(err)
		}
	}

	bus.present.lists = map[string]*sharedList{"EV_A": {turn: make(chan struct{}, 1), waiting: 1}}
	bus.present.lists["EV_A"].turn <- struct{}{} // of one that takes its time
	ctx, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	if _, err := bus.listed(ctx, "EV_A"); !errors.Is(err, jetbus.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without a turn: %v", err)
	}
}
