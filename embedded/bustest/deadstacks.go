package bustest

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"strings"

	"github.com/seed-63e9a637/jetbus"
)

// tracedError is an error with the stack of where it was made, as libraries for errors have them.
type tracedError struct {
	cause    error
	counters []uintptr
}

func (e *tracedError) Error() string { return e.cause.Error() }
func (e *tracedError) Unwrap() error { return e.cause }

// StackTrace returns the program counters of the error.
func (e *tracedError) StackTrace() []uintptr { return e.counters }

func traced(cause error) error {
	counters := make([]uintptr, 32)
	return &tracedError{cause, counters[:runtime.Callers(2, counters)]}
}

func explode() { panic("boom") }

// stackByKey fails in the way that the event's key says.
func stackByKey(ctx context.Context, d *jetbus.Delivery) error {
	switch d.Key {
	case "panics":
		explode()
	case "traced":
		return fmt.Errorf("charge: %w", traced(errHandler))
	case "rejected":
		return traced(jetbus.Reject(errHandler))
	case "nacked":
		return d.Nack(ctx, jetbus.NackOptions{AtOnce: true, Reason: "not this", Stack: "nack.f()\n\tnack.go:1"})
	case "by hand":
		return d.RejectWith(ctx, jetbus.RejectOptions{As: "odd", Reason: "never", Stack: "hand.f()\n\thand.go:1"})
	case "plain":
		return errHandler
	}
	return nil
}

// stackParts are a part of the stack of each, with the reason of its dead letter.
var stackParts = map[string]struct {
	reason jetbus.DeadReason
	part   string
}{
	"panics":   {jetbus.DeadMaxAttempts, "bustest.explode("},
	"traced":   {jetbus.DeadMaxAttempts, "bustest.stackByKey\n\t"},
	"rejected": {jetbus.DeadRejected, "bustest.stackByKey\n\t"},
	"nacked":   {jetbus.DeadMaxAttempts, "nack.f()\n\tnack.go:1"},
	"by hand":  {"odd", "hand.f()\n\thand.go:1"},
	"plain":    {jetbus.DeadMaxAttempts, ""},
}

// hasStacks fails unless each of the dead letters has its stack, the useful frames first, and its event does not.
func (r *run) hasStacks(letters []jetbus.DeadLetter) {
	r.Helper()
	for _, d := range letters {
		want := stackParts[d.Event.Key]
		if !strings.Contains(firstLines(d.Stack, 2), want.part) || (d.Stack == "") != (want.part == "") || len(d.Stack) > jetbus.MaxStackBytes {
			r.Errorf("event %s: want %q in the first lines of the stack:\n%s", d.Event.Key, want.part, d.Stack)
		}
		if d.Reason != want.reason || strings.Contains(d.Error, "\n") || d.Truncated || len(d.Event.Headers) != 0 {
			r.Errorf("event %s: dead letter %+v", d.Event.Key, d)
		}
	}
}

// firstLines are the first n lines of a text.
func firstLines(text string, n int) string {
	lines := strings.SplitAfterN(text, "\n", n+1)
	return strings.Join(lines[:min(n, len(lines))], "")
}

func stacks(r *run) {
	for i, o := range []jetbus.SubscribeOptions{{MaxAttempts: 1}, {MaxAttempts: 3, Backoff: quick}, {MaxAttempts: 2, Backoff: quick, Order: jetbus.PerKey}} {
		topic := r.topic(fmt.Sprint("t", i))
		got := byHand() // some events are refused by hand
		r.subscribe(r.A, topic, "g", got.then(func(ctx context.Context, d *jetbus.Delivery) error {
			if d.ReplayOf > 0 {
				return nil
			}
			return stackByKey(ctx, d)
		}), o)
		events := r.publish(topic, "panics", "traced", "rejected", "nacked", "by hand", "plain")
		all := r.dead(topic, len(events))
		if len(all) != len(events) {
			r.Errorf("%d dead letters of %d events", len(all), len(events))
		}
		r.hasStacks(all)
		r.settled(topic, "g", events[len(events)-1].Seq)
		_, err := jetbus.Replay(r.ctx, r.Admin, jetbus.ReplayOptions{DeadLetterQuery: jetbus.DeadLetterQuery{Topic: topic}})
		r.must(err)
		for _, e := range events {
			again := got.first(r, "the replay of "+e.Key, func(d *jetbus.Delivery) bool { return d.ReplayOf > 0 && d.ID == e.ID })
			if !maps.Equal(again.Headers, e.Headers) {
				r.Errorf("the replay of %s has the headers %v", e.Key, again.Headers)
			}
		}
	}
}

// receivedStacks settles by hand what Receive returned.
func receivedStacks(r *run) {
	topic := r.topic("t")
	r.publish(topic, "nacked", "by hand")
	for range 2 {
		ds, err := r.A.(jetbus.Receiver).Receive(r.ctx, topic, "g", jetbus.ReceiveOptions{From: jetbus.Earliest(), MaxAttempts: 1, Wait: awhile()})
		r.must(err)
		for _, d := range ds {
			r.must(stackByKey(r.ctx, d))
		}
		if len(ds) == 2 {
			break
		}
	}
	r.hasStacks(r.dead(topic, 2))
}
