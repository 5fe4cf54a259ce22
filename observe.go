package jetbus

import (
	"slices"
	"time"
)

// ObservationKind names what happened.
type ObservationKind string

// What an Observer is told.
const (
	Published    ObservationKind = "published"     // an event was stored, or Count events of one topic and version; Duration is how long the call took
	PublishFail  ObservationKind = "publish_fail"  // Publish returned an error, Err
	Polled       ObservationKind = "polled"        // the first event came after a request to the broker; Duration is the wait for it
	Delivered    ObservationKind = "delivered"     // a handler is about to run; Duration is the time since the event was stored, Reason why it was delivered again
	Acked        ObservationKind = "acked"         // acknowledged; Duration is the handler's, Err why the handler dropped the event
	Nacked       ObservationKind = "nacked"        // refused, because of Reason or Err; Duration is the handler's
	Snoozed      ObservationKind = "snoozed"       // put off without an attempt, for Duration
	DeadLettered ObservationKind = "dead_lettered" // given up after Count attempts, because of Reason, the DeadReason, and Err
	DeadFail     ObservationKind = "dead_fail"     // a dead letter could not be stored, Err; its event is kept
	Replayed     ObservationKind = "replayed"      // a dead letter was put before its group again; Seq is its position in the topic
	TookOver     ObservationKind = "took_over"     // this member became the active one of an ordered group
	StoodDown    ObservationKind = "stood_down"    // it is no longer, because of Reason
	Extended     ObservationKind = "extended"      // a lease is extended, the event's ID and Attempt known once it is in hand; Reason where its holder asked for it
	LeaseLost    ObservationKind = "lease_lost"    // a lease ran out here; the event will be delivered again
	GivenBack    ObservationKind = "given_back"    // returned without an attempt, because of Reason
	Filtered     ObservationKind = "filtered"      // acknowledged unseen
	Undecodable  ObservationKind = "undecodable"   // a message is no event, Err
)

// Observation is one thing that happened. Fields that do not apply are zero.
type Observation struct {
	Kind     ObservationKind
	Topic    string
	Group    string
	ID       string
	Seq      uint64
	Attempt  int
	Count    int
	Duration time.Duration
	Reason   string
	Err      error
	// Version is the schema version that the event states in its header [HeaderSchemaVersion]: for Published, for
	// PublishFail of one event, and for the kinds of a group whose event a handler got. It is not validated and can be
	// any text. It can be empty for Filtered. Otherwise empty means that the event states none.
	Version string
}

// Observer is told what the bus does, on the goroutine that does it: it must be
// quick, must not block and must be safe for concurrent use. Nil observes nothing.
type Observer func(Observation)

// Observe calls the observer if there is one.
func (o Observer) Observe(what Observation) {
	if o != nil {
		o(what)
	}
}

// Observers returns an observer that tells each of the list, in its order: metrics and a log of
// your own, say. Those that are nil are left out; without any other it is nil.
func Observers(list ...Observer) Observer {
	list = slices.DeleteFunc(slices.Clone(list), func(o Observer) bool { return o == nil })
	if len(list) < 2 {
		return append(list, nil)[0]
	}
	return func(what Observation) {
		for _, o := range list {
			o(what)
		}
	}
}
