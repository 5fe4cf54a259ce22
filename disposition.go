package jetbus

import (
	"errors"
	"fmt"
	"time"
)

// Action is what becomes of an event after its handler has returned.
type Action int

// What a handler can ask for.
const (
	ActionAck    Action = iota // done with it: the handler returned nil, or Drop
	ActionRetry                // a failed attempt: it comes back after a wait
	ActionSnooze               // it comes back after a wait, and that was no attempt
	ActionReject               // no attempt will help: to the dead letters at once
)

// Disposition is what a handler's result asks for. Backends act on it.
type Disposition struct {
	Action Action
	Delay  time.Duration // the wait; 0 with ActionRetry: the subscription's backoff
	Reason DeadReason    // with ActionReject
	Err    error         // the failure, without what steers it; with ActionAck why the event was dropped
}

// DispositionOf returns what a handler's result asks for, however deep the
// steering error is wrapped; of several the outermost counts, and of several
// joined the first. A nil error is an acknowledgement, an error without steering
// a failed attempt.
func DispositionOf(err error) Disposition {
	if err == nil {
		return Disposition{Action: ActionAck}
	}
	if s, ok := errors.AsType[*steer](err); ok {
		return s.disposition
	}
	return Disposition{Action: ActionRetry, Err: err}
}

// RetryIn fails the attempt and says when the next one is due, instead of the
// subscription's backoff. A delay of 0 or less is the backoff after all, one
// above [MaxRetryDelay] is that. A nil err says only that it was asked for.
func RetryIn(d time.Duration, err error) error {
	if err == nil {
		err = errRetryAsked
	}
	return &steer{"retry", Disposition{Action: ActionRetry, Delay: boundDelay(d), Err: err}}
}

// Snooze puts the event off without counting an attempt: what it needs is not
// there yet. Delays are bounded as by RetryIn; the least is a millisecond.
func Snooze(d time.Duration) error {
	return &steer{"snooze", Disposition{Action: ActionSnooze, Delay: max(boundDelay(d), time.Millisecond), Err: errSnoozed}}
}

// Reject sends the event to the dead letters at once: trying again would not
// help. A nil err says only that it was asked for.
func Reject(err error) error { return RejectAs(DeadRejected, err) }

// RejectAs is Reject with the reason that the dead letter shows, one of the
// constants or a word of the caller's. The empty one is [DeadRejected].
func RejectAs(reason DeadReason, err error) error {
	if reason == "" {
		reason = DeadRejected
	}
	if err == nil {
		err = errRejected
	}
	return &steer{"reject", Disposition{Action: ActionReject, Reason: reason, Err: err}}
}

// Drop acknowledges the event although it was not processed, on purpose. The
// reason goes to observers.
func Drop(reason error) error {
	if reason == nil {
		reason = errDropped
	}
	return &steer{"drop", Disposition{Action: ActionAck, Err: reason}}
}

// MaxRetryDelay bounds the delays of RetryIn and Snooze: retries are kept for 30
// days, and one must not outlive that.
const MaxRetryDelay = 14 * 24 * time.Hour

func boundDelay(d time.Duration) time.Duration { return min(max(d, 0), MaxRetryDelay) }

var (
	errRetryAsked = errors.New("the handler asked for a retry")
	errSnoozed    = errors.New("the handler put the event off")
	errRejected   = errors.New("the handler rejected the event")
	errDropped    = errors.New("the handler dropped the event")
)

// steer is an error that says what is to become of the event.
type steer struct {
	verb        string
	disposition Disposition
}

// Error gives the verb and the cause.
func (s *steer) Error() string { return fmt.Sprintf("%s: %v", s.verb, s.disposition.Err) }

// Unwrap returns the cause.
func (s *steer) Unwrap() error { return s.disposition.Err }
