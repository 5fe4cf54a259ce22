// Package shutdown says by what context something is stopped.
//
// Programs stop when a context is canceled: that of signal.NotifyContext, say. They hand the
// same one to what they stop, by instinct or in a defer, and mean "stop", not "cancel what
// runs". So a context that was canceled before the call says nothing about how long it may
// take. Its deadline does, if it has one: those who stop one thing after the other within a
// time have none left when that is over.
package shutdown

import (
	"context"
	"errors"
	"time"
)

// Context returns the context that bounds a stop, and what releases it: ctx, or, where ctx was
// canceled already, one with its values and its deadline. Where it has no deadline either, the
// stop is bounded by own; 0: what is stopped has bounds of its own.
func Context(ctx context.Context, own time.Duration) (context.Context, context.CancelFunc) {
	if ctx.Value(firmKey{}) != nil || !errors.Is(ctx.Err(), context.Canceled) {
		return ctx, func() {}
	}
	free := context.WithoutCancel(ctx)
	if deadline, ok := ctx.Deadline(); ok {
		return context.WithDeadline(free, deadline)
	}
	if own > 0 {
		return context.WithTimeout(free, own)
	}
	return free, func() {}
}

// firmKey marks a context that is meant.
type firmKey struct{}

// Firm returns ctx for those whose cancellation means "now", also before the call.
func Firm(ctx context.Context) context.Context { return context.WithValue(ctx, firmKey{}, true) }
