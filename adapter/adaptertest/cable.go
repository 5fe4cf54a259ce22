package adaptertest

import (
	"bytes"
	"net"
	"sync/atomic"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
)

// Cable is a way to the broker on which accidents can be arranged. The
// connections made through it share the fate of the present one.
type Cable struct {
	Broker *embedded.Broker
	Deaf   atomic.Bool  // what the server says is lost
	Budget atomic.Int64 // bytes that still get through to the server before the connection breaks; 0: any number
	Asks   atomic.Int64 // how many extensions of a lease are still lost, and the connection with each
	last   atomic.Pointer[cableConn]
}

// InProcessConn implements nats.InProcessConnProvider.
func (w *Cable) InProcessConn() (net.Conn, error) {
	inner, err := w.Broker.InProcessConn()
	if err != nil {
		return nil, err
	}
	c := &cableConn{Conn: inner, w: w}
	w.last.Store(c)
	return c, nil
}

// Cut breaks the present connection.
func (w *Cable) Cut() {
	w.Deaf.Store(false)
	_ = w.last.Load().Close()
}

type cableConn struct {
	net.Conn
	w *Cable
}

func (c *cableConn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if err != nil || !c.w.Deaf.Load() {
			return n, err
		}
	}
}

func (c *cableConn) Write(p []byte) (int, error) {
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

// OpenCabled opens a bus whose connection can be tampered with.
func (r *Rig) OpenCabled(c adapter.Config) (*Cable, *adapter.Bus) {
	r.Helper()
	w := &Cable{Broker: r.Broker}
	_, b := r.Open(c, nats.InProcessServer(w))
	return w, b
}
