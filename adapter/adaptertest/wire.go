package adaptertest

import (
	"bytes"
	"net"
	"sync/atomic"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
)

// Wire is a way to the broker on which accidents can be arranged. The
// connections made through it share the fate of the present one.
type Wire struct {
	Broker *embedded.Broker
	Deaf   atomic.Bool  // what the server says is lost
	Budget atomic.Int64 // bytes that still get through to the server before the connection breaks; 0: any number
	Asks   atomic.Int64 // how many extensions of a lease are still lost, and the connection with each
	last   atomic.Pointer[wireConn]
}

// InProcessConn implements nats.InProcessConnProvider.
func (w *Wire) InProcessConn() (net.Conn, error) {
	inner, err := w.Broker.InProcessConn()
	if err != nil {
		return nil, err
	}
	c := &wireConn{Conn: inner, w: w}
	w.last.Store(c)
	return c, nil
}

// Cut breaks the present connection.
func (w *Wire) Cut() {
	w.Deaf.Store(false)
	_ = w.last.Load().Close()
}

type wireConn struct {
	net.Conn
	w *Wire
}

func (c *wireConn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if err != nil || !c.w.Deaf.Load() {
			return n, err
		}
	}
}

func (c *wireConn) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("+WPI")) && c.w.Asks.Add(-1) >= 0 {
		_ = c.Close()
		return 0, net.ErrClosed
	}
	budget := c.w.Budget.Load()
	if budget == 0 {
		return c.Conn.Write(p)
	}
	if int64(len(p)) < budget {
		c.w.Budget.Add(-int64(len(p)))
		return c.Conn.Write(p)
	}
	c.w.Budget.Store(0)
	n, _ := c.Conn.Write(p[:budget])
	_ = c.Close()
	return n, net.ErrClosed
}

// OpenWired opens a bus whose connection can be tampered with.
func (r *Rig) OpenWired(c adapter.Config) (*Wire, *adapter.Bus) {
	r.Helper()
	w := &Wire{Broker: r.Broker}
	_, b := r.Open(c, nats.InProcessServer(w))
	return w, b
}
