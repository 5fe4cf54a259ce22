package shutdown_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus/internal/shutdown"
)

type key struct{}

func TestContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, 1))
	bounded, release := context.WithTimeout(ctx, time.Hour)
	defer release()
	want, _ := bounded.Deadline()
	alive, done := shutdown.Context(ctx, time.Minute)
	defer done()
	if _, ok := alive.Deadline(); ok {
		t.Error("one that lives is bounded")
	}
	cancel()
	if alive.Err() == nil {
		t.Error("one that lives is not the caller's any more")
	}
	for name, c := range map[string]struct {
		ctx  context.Context
		own  time.Duration
		want func(at time.Time, ok bool) bool
	}{
		"canceled":                    {ctx, 0, func(_ time.Time, ok bool) bool { return !ok }},
		"canceled, with own bound":    {ctx, time.Minute, func(at time.Time, ok bool) bool { return ok && time.Until(at) <= time.Minute }},
		"canceled, with its deadline": {bounded, time.Minute, func(at time.Time, ok bool) bool { return ok && at.Equal(want) }},
	} {
		got, done := shutdown.Context(c.ctx, c.own)
		if at, ok := got.Deadline(); got.Err() != nil || got.Value(key{}) != 1 || !c.want(at, ok) {
			t.Errorf("%s: %v, value %v, deadline %v", name, got.Err(), got.Value(key{}), at)
		}
		done()
	}
	late, end := context.WithTimeout(t.Context(), -1)
	defer end()
	for name, c := range map[string]struct {
		ctx  context.Context
		want error
	}{"time over": {late, context.DeadlineExceeded}, "firm": {shutdown.Firm(ctx), context.Canceled}} {
		got, done := shutdown.Context(c.ctx, time.Minute)
		if !errors.Is(got.Err(), c.want) {
			t.Errorf("%s: %v", name, got.Err())
		}
		done()
	}
}
