package client_test

import (
	"flag"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/gateway"
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

// holds reports whether a behavior is one that a gateway's client has.
func holds(b bustest.Behavior) bool {
	_, otherwise := different[b.Name]
	return !otherwise
}

// different are behaviors that a client of a gateway does not have, and why.
var different = map[string]string{
	"a forced move ends the handlers of what it takes away":                                                     "the gateway learns of it when its lease at the broker ends, later than AckTimeout",
	"settings of a group that change at a redeploy become the group's, and others stay":                         "the AckTimeout of the group at the broker is the gateway's",
	"one member of an ordered group is active, and when it stops the next goes on at once, without a duplicate": "what waits behind events of its key is held by the gateway, and not counted as Held",
	"a move waits for held events to be settled":                                                                "the client holds up to MaxInFlight events, of which the move waits for all",
	"a dry run returns what a publish would, and stores nothing":                                                "a gateway that does not know dry runs would store the event",
	"a slow member does not hold what a fast one could do":                                                      "for the same reason",
}
