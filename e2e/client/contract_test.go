package client

import (
	"slices"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/gateway/client"
)

// TestContract: a proxy delays what passes, and cuts it again and again.
func TestContract(t *testing.T) {
	admin := bustest.Open(t, bustest.Start(t, embedded.Config{}), adapter.Config{})
	p := startProxy(t, serve(t, admin), 2*time.Millisecond)
	p.cutting(t, 700*time.Millisecond)
	left := slices.Clone(overSockets)
	o := bustest.Options{RealTime: true, Only: func(b bustest.Behavior) bool {
		i := slices.Index(left, b.Name)
		if i >= 0 {
			left = slices.Delete(left, i, i+1)
		}
		return i >= 0
	}}
	bustest.Contract(t, o, func(t *testing.T) bustest.Subject {
		t.Helper()
		c := client.Config{URL: p.url(), Reconnect: jetbus.Backoff{Min: 10 * time.Millisecond, Max: 100 * time.Millisecond}}
		return bustest.Subject{A: dial(t, c), B: dial(t, c), Admin: admin}
	})
	if len(left) > 0 {
		t.Errorf("the contract has no %q", left)
	}
}

// overSockets are behaviors that a connection which breaks could spoil, and that are quick in real time.
var overSockets = []string{
	"a group that starts at the earliest event gets every event, in order",
	"the members of a group share its events without overlap",
	"one subscription may take several topics, and filters acknowledge unseen",
	"a handler that returns nil settles the event at the server",
	"a delivery is settled once: the first call stands, and the server hears of no other",
	"a handler that settles and returns an error has settled",
	"an event given back goes to another member at once and is no attempt",
	"with ManualAck an event is settled by whoever knows it, by id",
	"handlers run at most Concurrency at once, and a member holds at most MaxInFlight",
	"a paused member gets nothing until it resumes",
	"every publisher's events are stored in its order",
	"of writers that expect the same sequence exactly one wins each round",
	"Stop lets a running handler finish with a live context, and its ack reaches the server",
	"Stop gives events that wait to another member at once",
	"subscriptions that end before their first event leave nothing behind",
	"a group goes on where it was when a member comes back",
	"the cursor is where everything before is settled, not what was settled last",
	"members that create the same group at once share it",
	"an event that is snoozed thirty times has had no attempt",
	"with Total events are handled one after the other, failed ones in their place",
	"an event that fails holds up its key and nothing else, and behind its dead letter the key goes on",
}
