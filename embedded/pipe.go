package embedded

import (
	"net"
	"sync"
	"sync/atomic"
)

// pipeConn is the client's end of an in-process connection. A pipe holds no
// bytes: if the server refuses the first half of a client's greeting while the
// client still writes the second, each waits for the other to read until the
// server's write deadline, 10 seconds later. So the greeting, which is what the
// client writes before it reads the answer, is written behind its back.
type pipeConn struct {
	net.Conn
	open atomic.Bool // the greeting is written, all goes straight through

	mu       sync.Mutex
	greeting []byte
	written  chan struct{} // closed when the greeting is written; nil before it is sent
}

// Write implements [net.Conn].
func (c *pipeConn) Write(p []byte) (int, error) {
	if !c.open.Load() {
		c.mu.Lock()
		written := c.written
		if written == nil {
			defer c.mu.Unlock()
			c.greeting = append(c.greeting, p...)
			return len(p), nil
		}
		c.mu.Unlock()
		<-written
	}
	return c.Conn.Write(p)
}

// Read implements [net.Conn].
func (c *pipeConn) Read(p []byte) (int, error) {
	if !c.open.Load() {
		c.greet()
	}
	return c.Conn.Read(p)
}

// greet begins to write the greeting, if there is one by now. The server answers
// when it has read it all or wants no more of it.
func (c *pipeConn) greet() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.greeting) == 0 || c.written != nil {
		return
	}
	c.written = make(chan struct{})
	go func() {
		defer close(c.written)
		// An error of the connection shows in the Read of the answer.
		_, _ = c.Conn.Write(c.greeting)
		c.open.Store(true)
	}()
}

// Close implements [net.Conn].
func (c *pipeConn) Close() error {
	err := c.Conn.Close()
	c.mu.Lock()
	written := c.written
	c.mu.Unlock()
	if written != nil {
		<-written
	}
	return err
}
