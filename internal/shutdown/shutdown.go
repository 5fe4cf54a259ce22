// Package shutdown says by what context something is stopped.
//
// Programs stop when a context is canceled: that of signal.NotifyContext, say. They hand the
// same one to what they stop, by instinct or in a defer, and mean "stop", not "cancel what
// runs". So a context that was canceled before the call says nothing about how long it may
// take. One whose deadline has passed does: those who stop one thing after the other within a
// time have none left.
package shutdown

import (
	"context"
	"errors"
)

// Context returns the context that bounds a stop: ctx, or, where ctx was canceled already,
// one with its values and without an end. What is stopped then has bounds of its own.
func Context(ctx context.Context) context.Context {
	if errors.Is(ctx.Err(), context.Canceled) {
		return context.WithoutCancel(ctx)
	}
	return ctx
}
