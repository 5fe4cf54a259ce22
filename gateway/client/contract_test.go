package client_test

import (
	"flag"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/gateway/client"
)

var whole = flag.Bool("whole", false, "run the contract over the client whole, and not only what is quick of it")

// lacks is what a client has not: topics are declared beside the broker, and it has no
// connection of NATS.
const lacks = bustest.NeedTopics | bustest.NeedOpen | bustest.NeedPipe | bustest.NeedRetry | bustest.NeedPartitions | bustest.NeedAging

func TestContractInBubble(t *testing.T) {
	o := bustest.Options{Without: lacks, Only: holds}
	if !*whole {
		o.Without |= bustest.NeedPower
	}
	bustest.Contract(t, o, func(t *testing.T) bustest.Subject {
		t.Helper()
		t.Cleanup(func() { time.Sleep(time.Second) }) // what the server writes behind
		s := bustest.SubjectOn(t, bustest.Start(t, embedded.Config{}), adapter.Config{})
		network := newPipeNet()
		serve(t, s.Admin, gateway.Config{Limits: limits()}, network)
		s.A, s.B, s.Open = dial(t, network.config()), dial(t, network.config()), nil
		return s
	})
}

// The sockets are real, and a proxy delays what passes and cuts them.
func TestContractOverCutSockets(t *testing.T) {
	broker := bustest.Start(t, embedded.Config{})
	admin := bustest.Open(t, broker, adapter.Config{})
	on, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serve(t, admin, gateway.Config{Limits: limits()}, on)
	p := startProxy(t, on.Addr().String(), 2*time.Millisecond)
	p.cutting(t, 700*time.Millisecond)
	o := bustest.Options{RealTime: true, Without: lacks | bustest.NeedRestart | bustest.NeedMany, Only: swift}
	bustest.Contract(t, o, func(t *testing.T) bustest.Subject {
		t.Helper()
		c := client.Config{URL: p.url(), Reconnect: jetbus.Backoff{Min: 10 * time.Millisecond, Max: 100 * time.Millisecond}}
		return bustest.Subject{A: dial(t, c), B: dial(t, c), Admin: admin}
	})
}

// holds reports whether a behavior is one that a gateway's client has.
func holds(b bustest.Behavior) bool {
	_, otherwise := different[b.Name]
	return !otherwise
}

// swift reports whether a behavior is run over sockets that are cut.
func swift(b bustest.Behavior) bool {
	return holds(b) && !slices.Contains(short, b.Name) && (*whole || slices.Contains(overSockets, b.Name))
}

// short are behaviors whose frames take longer than the connections last, or that count what
// is done twice where an answer is lost.
var short = []string{
	"an atomic batch is stored whole or not at all",
	"an atomic batch over its limits is refused before it is sent",
	"a chained batch is stored behind the event it names, once, and nobody else's is",
	"an event above the broker's limit is refused before it is sent, and one at the limit is stored",
	"a batch with an invalid event stores nothing",
	"a group moves back and forward while its members run",
	"pages of a topic that grows are complete and do not overlap",
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

// different are behaviors that a client of a gateway does not have, and why.
var different = map[string]string{
	"a forced move ends the handlers of what it takes away":                                                     "the gateway learns of it when its lease at the broker ends, later than AckTimeout",
	"settings of a group that change at a redeploy become the group's":                                          "the AckTimeout of the group at the broker is the gateway's",
	"one member of an ordered group is active, and when it stops the next goes on at once, without a duplicate": "what waits behind events of its key is held by the gateway, and not counted as Held",
	"a move waits for held events to be settled":                                                                "the client holds up to MaxInFlight events, of which the move waits for all",
	"a slow member does not hold what a fast one could do":                                                      "for the same reason",
}
