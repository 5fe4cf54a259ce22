package gateway

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// writeBytes is how much of what waits goes out at once: a system call is what a small frame
// costs most.
const writeBytes = 16 << 10

// write writes what is in the queue until that is closed and empty.
func (c *conn) write() {
	defer close(c.wrote)
	stuck := time.AfterFunc(time.Hour, func() { c.end(closeSlow) })
	stuck.Stop()
	var items []outgoing
	for over := false; ; {
		select {
		case <-c.out.ready:
		case <-c.out.over:
			over = true
		}
		items = c.out.take(items)
		for left := items; len(left) > 0; {
			if c.out.isDropped() {
				return
			}
			some := upTo(left, writeBytes)
			stuck.Reset(c.g.c.Limits.WriteTimeout)
			err := c.writeSome(some)
			stuck.Stop()
			if err != nil {
				c.end(closeNormal)
				return
			}
			c.out.written(some)
			left = left[len(some):]
		}
		if over && c.out.isDone() {
			return
		}
	}
}

// upTo is the first frame, and those behind it that fit into as many bytes.
func upTo(frames []outgoing, most int) []outgoing {
	size := 0
	for i := range frames {
		if size += frames[i].size(); size > most && i > 0 {
			return frames[:i]
		}
	}
	return frames
}

// writeSome writes frames, several at once.
func (c *conn) writeSome(frames []outgoing) error {
	if len(frames) == 1 {
		return c.writeFrame(&frames[0])
	}
	c.nc.cork()
	for i := range frames {
		if err := c.writeFrame(&frames[i]); err != nil {
			_ = c.nc.uncork() // which says the same
			return err
		}
	}
	return c.nc.uncork()
}

func (c *conn) writeFrame(o *outgoing) error {
	if o.kind == pingFrame { // before it is out: the answer may be faster than this goroutine
		c.awaitPong()
	}
	text := o.text
	if len(o.head) > 0 {
		buf, _ := buffers.Get().(*[]byte)
		*buf = append(append((*buf)[:0], o.head...), o.text...)
		text = *buf
		defer putBuffer(buf)
	}
	return c.ws.Write(context.Background(), websocket.MessageText, text)
}

// buffers are for what is on its way into a socket.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// putBuffer gives a buffer back, unless it was for something big.
func putBuffer(buf *[]byte) {
	if cap(*buf) <= 4*writeBytes {
		buffers.Put(buf)
	}
}

// corked is a socket that holds back what is written to it while it is corked.
type corked struct {
	net.Conn

	mu  sync.Mutex
	on  bool
	buf *[]byte // nil: nothing is held back
}

// Write implements net.Conn.
func (c *corked) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.on {
		return c.Conn.Write(p)
	}
	if c.buf == nil {
		c.buf, _ = buffers.Get().(*[]byte)
		*c.buf = (*c.buf)[:0]
	}
	*c.buf = append(*c.buf, p...)
	return len(p), nil
}

// cork begins to hold back what is written.
func (c *corked) cork() {
	c.mu.Lock()
	c.on = true
	c.mu.Unlock()
}

// uncork writes what was held back.
func (c *corked) uncork() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.on = false
	buf := c.buf
	if buf == nil {
		return nil
	}
	c.buf = nil
	_, err := c.Conn.Write(*buf)
	putBuffer(buf)
	return err
}
