package adapter

import (
	"context"
	"sync"
	"time"
)

// insideKey is the key under which a handler's context has the subscription it
// runs in.
type insideKey struct{}

// handlerContext is the context of one run of a handler: the values of
// Subscribe's context, and canceled when the lease is lost, when Stop loses its
// patience, and at the end of the run. Most handlers never ask, so the cancelable
// context behind it is made for the first one who does.
type handlerContext struct {
	s *subscription

	mu     sync.Mutex
	inner  context.Context         //nolint:containedctx // it is one itself
	end    context.CancelCauseFunc // of inner
	over   bool
	reason error // why it is over
}

// cancel ends the context. The first reason stands; nil means context.Canceled.
func (c *handlerContext) cancel(reason error) {
	c.mu.Lock()
	if c.over {
		c.mu.Unlock()
		return
	}
	c.over, c.reason = true, reason
	end := c.end
	c.mu.Unlock()
	if end != nil {
		end(reason)
	}
}

// real returns the context that can be canceled.
func (c *handlerContext) real() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inner == nil {
		c.inner, c.end = context.WithCancelCause(c.s.ctx)
		if c.over {
			c.end(c.reason)
		}
	}
	return c.inner
}

// Deadline implements context.Context.
func (c *handlerContext) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done implements context.Context.
func (c *handlerContext) Done() <-chan struct{} { return c.real().Done() }

// Err implements context.Context.
func (c *handlerContext) Err() error { return c.real().Err() }

// Value implements context.Context.
func (c *handlerContext) Value(key any) any {
	if key == (insideKey{}) {
		return c.s
	}
	return c.real().Value(key)
}
