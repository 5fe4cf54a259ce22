package jetbus

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Delivery is one event in the hands of one handler. The event's fields are
// reached directly: d.ID, d.Payload. It is settled once, by the handler's return
// or by one of Ack, Nack and GiveBack, whichever is first; with both, the call
// wins. Its methods may be used from any goroutine. In JSON it is its event. A
// Delivery that was not made by NewDelivery holds nothing: its methods return
// [ErrNotHeld].
type Delivery struct {
	Event
	Group string
	// Attempt counts from 1. It grows when a handler failed or overran its lease,
	// and when a process died while it handled this event and nothing else that was
	// suspect; not when the event was snoozed, given back, or delivered again
	// because a process or a connection failed. With MaxAttempts -1 a process that
	// died is nobody's failure.
	Attempt     int
	MaxAttempts int // as in the options; -1 without end
	// Redelivered: the event was delivered before, and may have been handled.
	Redelivered bool
	// Epoch tells turns of a partition's owners apart: it ascends from one to the next
	// ([PartitionTurn]). 0: the topic is not subscribed to by partition.
	Epoch uint64
	// ReplayOf is the position of the dead letter that this is a replay of; 0: it is none.
	ReplayOf uint64

	lease Lease // nil: see noLease
}

// Cursor is the position of this event: what the group's cursor is once
// everything up to the event is settled. Its LastTime is d.Stored.
func (d *Delivery) Cursor() Cursor {
	return Cursor{Topic: d.Topic, LastSeq: d.Seq, LastID: d.ID, LastTime: d.Stored}
}

// Deadline is when the lease runs out unless it is extended, by this process's
// clock and with a margin for the network.
func (d *Delivery) Deadline() time.Time { return d.held().Deadline() }

// Ack acknowledges the event: the group is done with it. It returns when the
// acknowledgement was sent; a broker that is away at that moment delivers the
// event again. The error is [ErrAlreadySettled], [ErrLeaseExpired] (nothing was sent),
// or one of the connection. Where the broker does not let this member settle it is
// [ErrDenied] of an event from Receive, and that of the [Subscription] of another.
func (d *Delivery) Ack(ctx context.Context) error { return d.held().Ack(ctx) }

// Nack refuses the event, which is a failed attempt: it comes back after a
// delay, or is a dead letter after the last one. The errors are those of Ack.
func (d *Delivery) Nack(ctx context.Context, o NackOptions) error { return d.held().Nack(ctx, o) }

// Extend makes the lease last at least for another AckTimeout from now, or for by
// if that is longer and the backend is able to keep it. It returns when the
// broker has answered. The errors are those of Ack.
func (d *Delivery) Extend(ctx context.Context, by time.Duration) error {
	return d.held().Extend(ctx, by)
}

// GiveBack returns the event unprocessed: another member gets it at once, and it
// does not count as an attempt. The errors are those of Ack.
func (d *Delivery) GiveBack(ctx context.Context) error { return d.held().GiveBack(ctx) }

// Snooze puts the event off for that long, at most [MaxRetryDelay], and does not
// count as an attempt. The errors are those of Ack.
func (d *Delivery) Snooze(ctx context.Context, by time.Duration) error {
	return d.held().Snooze(ctx, by)
}

// Reject makes the event a dead letter at once. Where that cannot be stored, the
// event comes back as after a Nack. The errors are those of Ack.
func (d *Delivery) Reject(ctx context.Context, reason string) error {
	return d.RejectWith(ctx, RejectOptions{Reason: reason})
}

// RejectAs is Reject with the reason that the dead letter shows besides the text, one of the
// constants or a word of the caller's. The empty one is [DeadRejected].
func (d *Delivery) RejectAs(ctx context.Context, as DeadReason, reason string) error {
	return d.RejectWith(ctx, RejectOptions{As: as, Reason: reason})
}

// RejectWith is Reject with the reason and the stack that the dead letter shows. It returns the same errors as Ack.
func (d *Delivery) RejectWith(ctx context.Context, o RejectOptions) error {
	o.As = cmp.Or(o.As, DeadRejected)
	return d.held().Reject(ctx, o)
}

func (d *Delivery) held() Lease {
	if d.lease == nil {
		return noLease{}
	}
	return d.lease
}

// NewDelivery binds an event to a lease. Backends call it, and tests of handlers.
func NewDelivery(e Event, group string, attempt, maxAttempts int, l Lease) *Delivery {
	return &Delivery{Event: e, Group: group, Attempt: attempt, MaxAttempts: maxAttempts, lease: l}
}

// Lease is a backend's side of a [Delivery]: the right to settle one event. The
// errors are those of the Delivery's methods. Implementations are safe for
// concurrent use.
type Lease interface {
	Ack(ctx context.Context) error
	Nack(ctx context.Context, o NackOptions) error
	Extend(ctx context.Context, d time.Duration) error
	GiveBack(ctx context.Context) error
	Snooze(ctx context.Context, d time.Duration) error
	Reject(ctx context.Context, o RejectOptions) error // o.As is not empty
	Deadline() time.Time
}

// NackOptions say how an event is refused.
type NackOptions struct {
	// Delay until it comes back, at most [MaxRetryDelay], which a longer one is. Zero: the
	// subscription's backoff for this attempt, unless AtOnce.
	Delay  time.Duration `json:"-"`
	AtOnce bool          `json:"atOnce,omitempty"` // it comes back without a delay
	Reason string        `json:"reason,omitempty"` // for observers, logs and the dead letter it may become
	// Stack is the stack of the failure, as [StackOf] returns it, for the dead letter that the event may become. At most
	// [MaxStackBytes] are kept. Empty: the failure has none.
	Stack string `json:"stack,omitempty"`
}

// RejectOptions describe why an event is given up. Each zero field has the documented default.
type RejectOptions struct {
	As     DeadReason // the dead letter's Reason: a constant or a word of the caller's. Default [DeadRejected]
	Reason string     // the dead letter's Error, also for observers and logs. Default "rejected"
	// Stack is the stack of the failure, as [StackOf] returns it. At most [MaxStackBytes] are kept. Empty: the
	// failure has none.
	Stack string
}

// Validate reports a negative Delay, or one beside AtOnce. The error wraps [ErrInvalidOption].
func (o NackOptions) Validate() error {
	switch {
	case o.Delay < 0:
		return fmt.Errorf("%w: Delay is %v, use 0 for the backoff, or AtOnce", ErrInvalidOption, o.Delay)
	case o.Delay > 0 && o.AtOnce:
		return fmt.Errorf("%w: Delay is %v and AtOnce is set; choose one", ErrInvalidOption, o.Delay)
	}
	return nil
}

type plainNackOptions NackOptions

type nackJSON struct {
	plainNackOptions
	DelayMs millis `json:"delayMs,omitempty"`
}

// MarshalJSON gives the members delayMs, atOnce, reason and stack, leaving out what is zero.
func (o NackOptions) MarshalJSON() ([]byte, error) {
	return json.Marshal(nackJSON{plainNackOptions(o), millis(o.Delay)})
}

// UnmarshalJSON reads what MarshalJSON writes. It does not validate.
func (o *NackOptions) UnmarshalJSON(text []byte) error {
	w, err := unmarshal[nackJSON](text, "nack options")
	if err != nil {
		return err
	}
	*o = NackOptions(w.plainNackOptions)
	o.Delay = time.Duration(w.DelayMs)
	return nil
}

// Settler settles events by id. It knows the leases that this process holds and
// no others ([ErrNotHeld]). Where it holds several events of one id, which publishers
// gave them, it settles none ([ErrConflict]): their deliveries do.
type Settler interface {
	// Ack acknowledges the event. The errors are those of [Delivery.Ack].
	Ack(ctx context.Context, topic, group, id string) error
	// Nack refuses the event; it comes back after the subscription's backoff. The
	// reason goes to observers and logs.
	Nack(ctx context.Context, topic, group, id, reason string) error
}

// noLease is the lease of a Delivery without one.
type noLease struct{}

// Ack returns ErrNotHeld.
func (noLease) Ack(context.Context) error { return ErrNotHeld }

// Nack returns ErrNotHeld.
func (noLease) Nack(context.Context, NackOptions) error { return ErrNotHeld }

// Extend returns ErrNotHeld.
func (noLease) Extend(context.Context, time.Duration) error { return ErrNotHeld }

// GiveBack returns ErrNotHeld.
func (noLease) GiveBack(context.Context) error { return ErrNotHeld }

// Snooze returns ErrNotHeld.
func (noLease) Snooze(context.Context, time.Duration) error { return ErrNotHeld }

// Reject returns ErrNotHeld.
func (noLease) Reject(context.Context, RejectOptions) error { return ErrNotHeld }

// Deadline returns the zero time, which has passed.
func (noLease) Deadline() time.Time { return time.Time{} }
