package bustest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// delivered is one call of a handler.
type delivered struct {
	*jetbus.Delivery
	at time.Time
}

// record is what handlers got, in the order in which they were called.
type record struct {
	mu   sync.Mutex
	all  []delivered
	more chan struct{} // signaled by each; capacity 1

	inbox *inbox // nil: each call counts
}

// newRecord is a record of handlers that are idempotent, if they are to be: see
// [Options].Repeats.
func (r *run) newRecord() *record {
	c := byHand()
	c.inbox = r.inbox
	return c
}

// byHand is a record of handlers whose nil does not say that the event is settled: each
// call counts.
func byHand() *record { return &record{more: make(chan struct{}, 1)} }

// handle is a handler that takes note and succeeds.
func (c *record) handle(ctx context.Context, d *jetbus.Delivery) error {
	return c.then(func(context.Context, *jetbus.Delivery) error { return nil })(ctx, d)
}

// then is a handler that takes note and goes on with h.
func (c *record) then(h jetbus.Handler) jetbus.Handler {
	return c.inbox.once(func(ctx context.Context, d *jetbus.Delivery) error {
		c.add(d)
		return h(ctx, d)
	})
}

func (c *record) add(d *jetbus.Delivery) {
	c.mu.Lock()
	c.all = append(c.all, delivered{d, time.Now()})
	c.mu.Unlock()
	select {
	case c.more <- struct{}{}:
	default:
	}
}

// list returns all calls so far.
func (c *record) list() []delivered {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.all)
}

// keys returns the keys of all calls so far.
func (c *record) keys() []string {
	var out []string
	for _, d := range c.list() {
		out = append(out, d.Key)
	}
	return out
}

// wait waits for n calls at least and returns them.
func (c *record) wait(t *testing.T, n int) []delivered {
	t.Helper()
	return c.within(t, n, awhile())
}

// within waits for n calls, no longer than d.
func (c *record) within(t *testing.T, n int, d time.Duration) []delivered {
	t.Helper()
	late := time.NewTimer(d)
	defer late.Stop()
	for {
		all := c.list()
		if len(all) >= n {
			return all
		}
		select {
		case <-c.more:
		case <-late.C:
			t.Fatalf("handlers were called %d times within %v, not %d times: %v", len(all), d, n, c.keys())
		}
	}
}

// exactly fails if the calls so far have other keys, in whatever order.
func (c *record) exactly(t *testing.T, want ...string) {
	t.Helper()
	got := c.keys()
	slices.Sort(got)
	want = slices.Sorted(slices.Values(want))
	if !slices.Equal(got, want) {
		t.Errorf("handlers got the keys %v, want %v", got, want)
	}
}

// inLine fails unless the calls so far have these keys, in this order; in any order where
// events may come again, and so behind later ones.
func (r *run) inLine(got *record, want ...string) {
	r.Helper()
	if r.inbox != nil {
		got.exactly(r.T, want...)
	} else if keys := got.keys(); !slices.Equal(keys, want) {
		r.Errorf("handlers got the keys %v, want %v in this order", keys, want)
	}
}

// first waits for a call that is ok, and returns it.
func (c *record) first(r *run, what string, ok func(d *jetbus.Delivery) bool) delivered {
	r.Helper()
	var found delivered
	r.eventually(what, func() error {
		all := c.list()
		i := slices.IndexFunc(all, func(d delivered) bool { return ok(d.Delivery) })
		if i < 0 {
			return fmt.Errorf("handlers got the keys %v", c.keys())
		}
		found = all[i]
		return nil
	})
	return found
}

// gate is a handler that reports its start and waits for leave, or for the end
// of its context. It is idempotent where handlers are to be, see [Options].Repeats.
type gate struct {
	inbox   *inbox
	entered chan *jetbus.Delivery
	leave   chan error
	ended   chan error // causes of contexts that ended first
}

func (r *run) newGate() *gate {
	return &gate{inbox: r.inbox, entered: make(chan *jetbus.Delivery, 1000), leave: make(chan error, 1000), ended: make(chan error, 1000)}
}

// noMore fails where the handler was called again, though what was settled must not come again.
func (r *run) noMore(g *gate) {
	r.Helper()
	if n := len(g.entered); n > 0 && r.inbox == nil {
		r.Errorf("the handler was called %d times more", n)
	}
}

func (g *gate) handle(ctx context.Context, d *jetbus.Delivery) error {
	return g.inbox.once(g.enter)(ctx, d)
}

func (g *gate) enter(ctx context.Context, d *jetbus.Delivery) error {
	g.entered <- d
	select {
	case err := <-g.leave:
		return err
	case <-ctx.Done():
		g.ended <- context.Cause(ctx)
		return context.Cause(ctx)
	}
}

// receive returns the next value of a channel.
func receive[T any](t *testing.T, what string, ch <-chan T) T {
	t.Helper()
	patience := awhile()
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case v := <-ch:
		return v
	case <-late.C:
		t.Fatalf("%s did not happen within %v", what, patience)
	}
	panic("unreachable")
}

// wantErr fails unless err is the condition.
func wantErr(t *testing.T, what string, err, condition error) {
	t.Helper()
	if !errors.Is(err, condition) || condition == nil && err != nil {
		t.Errorf("%s: error %v, want %v", what, err, condition)
	}
}

// sameKeys fails unless the events have these keys, in this order.
func sameKeys(t *testing.T, what string, events []jetbus.Event, want []string) {
	t.Helper()
	var got []string
	for _, e := range events {
		got = append(got, e.Key)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: keys %v, want %v", what, got, want)
	}
}

var errHandler = errors.New("the handler's own")

// failing returns a handler that fails the first n calls for each event.
func failing(n int) jetbus.Handler {
	var mu sync.Mutex
	calls := map[string]int{}
	return func(_ context.Context, d *jetbus.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		if calls[d.ID]++; calls[d.ID] <= n {
			return fmt.Errorf("call %d: %w", calls[d.ID], errHandler)
		}
		return nil
	}
}
