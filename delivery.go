package jetbus

import (
	"context"
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
	// Attempt counts from 1. It grows when the event comes back because a handler
	// failed, lost its lease or died with its process, not when it was given back.
	Attempt     int
	MaxAttempts int // as in the options; -1 without end

	lease Lease // nil: see noLease
}

// Lease is a backend's side of a [Delivery]: the right to settle one event. The
// errors are those of the Delivery's methods. Implementations are safe for
// concurrent use.
type Lease interface {
	Ack(ctx context.Context) error
	Nack(ctx context.Context, o NackOptions) error
	Extend(ctx context.Context, d time.Duration) error
	GiveBack(ctx context.Context) error
	Deadline() time.Time
}

// NackOptions say how an event is refused.
type NackOptions struct {
	// Delay until it comes back. Zero: the subscription's backoff for this
	// attempt. -1: at once.
	Delay  time.Duration `json:"-"`
	Reason string        `json:"reason,omitempty"` // for observers and logs
}

// NewDelivery binds an event to a lease. Backends call it, and tests of handlers.
func NewDelivery(e Event, group string, attempt, maxAttempts int, l Lease) *Delivery {
	return &Delivery{Event: e, Group: group, Attempt: attempt, MaxAttempts: maxAttempts, lease: l}
}

// Cursor is the position of this event: what the group's cursor is once
// everything up to the event is settled.
func (d *Delivery) Cursor() Cursor {
	return Cursor{Topic: d.Topic, LastSeq: d.Seq, LastID: d.ID, LastTime: d.Time}
}

// Deadline is when the lease runs out unless it is extended, by this process's
// clock and with a margin for the network.
func (d *Delivery) Deadline() time.Time { return d.held().Deadline() }

// Ack acknowledges the event: the group is done with it. It returns when the
// acknowledgement was sent; a broker that is away at that moment delivers the
// event again. The error is [ErrAlreadySettled], [ErrLeaseExpired] (nothing was sent),
// or one of the connection.
func (d *Delivery) Ack(ctx context.Context) error { return d.held().Ack(ctx) }

// Nack refuses the event; it comes back after a delay. The errors are those of Ack.
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

func (d *Delivery) held() Lease {
	if d.lease == nil {
		return noLease{}
	}
	return d.lease
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

// Deadline returns the zero time, which has passed.
func (noLease) Deadline() time.Time { return time.Time{} }
