package adapter

import (
	"sync"
	"sync/atomic"
)

// calls counts the calls under way.
type calls struct {
	wg sync.WaitGroup
	n  atomic.Int64
}

// begin counts a call. Not beside wait, unless another call is under way.
func (c *calls) begin() {
	c.n.Add(1)
	c.wg.Add(1)
}

func (c *calls) end() {
	c.n.Add(-1)
	c.wg.Done()
}

// none reports whether no call is under way.
func (c *calls) none() bool { return c.n.Load() == 0 }

// wait waits until none is.
func (c *calls) wait() { c.wg.Wait() }
