//go:build unix

package faults

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// slack is what a busy machine may add to a time that is promised.
const slack = 2 * time.Second

// buffering starts a member that handles 40 events fast and then holds one, with
// others waiting behind it in its hands. It returns the ids of those that wait.
func buffering(t *testing.T, url, topic string, ackTimeout time.Duration) (a *child, waiting []string) {
	t.Helper()
	bus := openBus(t, url)
	a = spawn(t, "consumer", consumerConfig{URL: url, Topic: topic, Group: "g", AckTimeout: ackTimeout, Hold: "held-0"})
	a.first(t, "ready")
	quick := publish(t, bus, topic, "quick", 40) // the window is what was finished in the last second
	awaitHandled(t, quick, a)
	publish(t, bus, topic, "held", 1)
	waiting = publish(t, bus, topic, "waiting", 10)
	a.of(t, "started", "held-0")
	eventually(t, func() string {
		g, err := group(t, bus, topic, "g")
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
	const ackTimeout = 1500 * time.Millisecond
	b := startBroker(t)
	bus := openBus(t, b.url())
	declare(t, bus, jetbus.TopicConfig{Name: "kill"})
	victim, waiting := buffering(t, b.url(), "kill", ackTimeout)

	other := spawn(t, "consumer", consumerConfig{URL: b.url(), Topic: "kill", Group: "g", AckTimeout: ackTimeout})
	other.first(t, "ready")
	killed := time.Now()
	victim.kill()

	again := other.of(t, "started", "held-0")
	if took := again.At.Sub(killed); took > ackTimeout+slack {
		t.Errorf("the event of the killed handler came to another member after %v, promised is %v", took, ackTimeout)
	}
	if again.Attempt != 2 {
		t.Errorf("it came as attempt %d, want 2", again.Attempt)
	}
	awaitHandled(t, append(waiting, "held-0"), other)
	awaitSettled(t, bus, "kill", "g")
	if started, _ := victim.said("handled"); len(started) != 40 {
		t.Errorf("the killed member handled %d events, want 40: the test shows something else", len(started))
	}
	for id := range handled(victim) {
		if handled(other)[id] {
			t.Errorf("%s was handled and acknowledged, and came again", id)
		}
	}
}

// TestTerminated ends a member by SIGTERM while its handler runs and others of its
// events wait: these go to another member at once, and the handler finishes.
func TestTerminated(t *testing.T) {
	t.Parallel()
	const ackTimeout = 30 * time.Second // so that no lease runs out
	b := startBroker(t)
	bus := openBus(t, b.url())
	declare(t, bus, jetbus.TopicConfig{Name: "term"})
	leaving, waiting := buffering(t, b.url(), "term", ackTimeout)

	other := spawn(t, "consumer", consumerConfig{URL: b.url(), Topic: "term", Group: "g", AckTimeout: ackTimeout})
	other.first(t, "ready")
	asked := time.Now()
	leaving.signal(t, syscall.SIGTERM)
	for _, id := range waiting {
		r := other.of(t, "started", id)
		if took := r.At.Sub(asked); took > 2*time.Second {
			t.Errorf("%s came to another member %v after SIGTERM, promised is 1s", id, took)
		}
		if r.Attempt != 1 {
			t.Errorf("%s came as attempt %d, want 1: it was given back", id, r.Attempt)
		}
	}
	leaving.order(t, "release")
	leaving.of(t, "handled", "held-0")
	if stopped := leaving.first(t, "stopped"); stopped.Count < 3 {
		t.Errorf("%d events were given back: the test shows something else", stopped.Count)
	}
	leaving.gone(t)
	awaitSettled(t, bus, "term", "g")
	if handled(other)["held-0"] {
		t.Error("the event that the leaving member finished came again")
	}
}
