//go:build unix

package faults

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/e2e/internal/broker"
	"github.com/seed-63e9a637/jetbus/e2e/internal/rig"
)

// buffering starts a member that handles 40 events fast and then holds one, with
// others waiting behind it in its hands. It returns the ids of those that wait.
func buffering(t *testing.T, url, topic string, ackTimeout time.Duration) (a *rig.Process, waiting []string) {
	t.Helper()
	bus := rig.OpenBus(t, url)
	a = rig.Spawn(t, "consumer", consumerConfig{URL: url, Topic: topic, Group: "g", AckTimeout: ackTimeout, Hold: "held-0"})
	a.First(t, "ready")
	var events []jetbus.Event
	for _, part := range []struct {
		prefix string
		n      int
	}{{"quick", 40}, {"held", 1}, {"waiting", 10}} {
		for i := range part.n {
			events = append(events, jetbus.Event{Topic: topic, ID: fmt.Sprintf("%s-%d", part.prefix, i)})
		}
	}
	// All at once: how many wait is a matter of what was finished in the last second.
	if _, err := bus.PublishBatch(t.Context(), events, jetbus.BatchOptions{Atomic: true}); err != nil {
		t.Fatal(err)
	}
	for _, e := range events[41:] {
		waiting = append(waiting, e.ID)
	}
	a.Of(t, "started", "held-0")
	rig.Eventually(t, func() string {
		g, err := rig.Group(t, bus, topic, "g")
		if err == nil && g.Held > 3 {
			return ""
		}
		return fmt.Sprintf("nothing waits in the hands of the member: %+v, %v", g, err)
	})
	return a, waiting
}

// TestConsumerKilled ends a member by SIGKILL while its handler runs and others of
// its events wait.
func TestConsumerKilled(t *testing.T) {
	t.Parallel()
	const ackTimeout = 15 * time.Second // the other member is there within it, on any machine
	b := broker.Start(t)
	bus := rig.OpenBus(t, b.URL())
	rig.Declare(t, bus, jetbus.TopicConfig{Name: "kill"})
	victim, waiting := buffering(t, b.URL(), "kill", ackTimeout)

	other := rig.Spawn(t, "consumer", consumerConfig{URL: b.URL(), Topic: "kill", Group: "g", AckTimeout: ackTimeout})
	other.First(t, "ready")
	victim.Kill()

	again := other.Of(t, "started", "held-0")     // the contract of the bus has after how long, in fake time
	if again.Attempt != 1 || !again.Redelivered { // it may be innocent of its process's death
		t.Errorf("it came as attempt %d, redelivered %v, want 1, true", again.Attempt, again.Redelivered)
	}
	rig.AwaitHandled(t, append(waiting, "held-0"), other)
	rig.AwaitSettled(t, bus, "kill", "g")
	if started := victim.Said("handled"); len(started) != 40 {
		t.Errorf("the killed member handled %d events, want 40: the test shows something else", len(started))
	}
	for id := range rig.Handled(victim) {
		if rig.Handled(other)[id] {
			t.Errorf("%s was handled and acknowledged, and came again", id)
		}
	}
}

// TestTerminated ends a member by SIGTERM while its handler runs and others of its
// events wait: these go to another member at once, and the handler finishes. How soon
// at once is, the contract of the bus has in fake time.
func TestTerminated(t *testing.T) {
	t.Parallel()
	const ackTimeout = 30 * time.Second // so that no lease runs out
	b := broker.Start(t)
	bus := rig.OpenBus(t, b.URL())
	rig.Declare(t, bus, jetbus.TopicConfig{Name: "term"})
	leaving, waiting := buffering(t, b.URL(), "term", ackTimeout)

	other := rig.Spawn(t, "consumer", consumerConfig{URL: b.URL(), Topic: "term", Group: "g", AckTimeout: ackTimeout})
	other.First(t, "ready")
	leaving.Terminate(t)
	again := 0
	for _, id := range waiting {
		r := other.Of(t, "started", id)
		if r.Redelivered {
			again++
		}
		if r.Attempt != 1 {
			t.Errorf("%s came as attempt %d, want 1: it was given back", id, r.Attempt)
		}
	}
	leaving.Order(t, "release")
	leaving.Of(t, "handled", "held-0")
	if stopped := leaving.First(t, "stopped"); stopped.Count < 3 {
		t.Errorf("%d events were given back: the test shows something else", stopped.Count)
	} else if again > stopped.Count {
		t.Errorf("%d events came again and %d were given back: the others waited for their leases to end", again, stopped.Count)
	}
	leaving.Gone(t)
	rig.AwaitSettled(t, bus, "term", "g")
	if rig.Handled(other)["held-0"] {
		t.Error("the event that the leaving member finished came again")
	}
}
