package adaptertest

import (
	"bytes"
	"net"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
)

// Distant is a way to the broker that is long, and as wide as can be.
type Distant struct {
	*embedded.Broker
	RTT time.Duration // all of it on the way there
}

// InProcessConn implements nats.InProcessConnProvider.
func (w *Distant) InProcessConn() (net.Conn, error) {
	inner, err := w.Broker.InProcessConn()
	if err != nil {
		return nil, err
	}
	c := &distantConn{Conn: inner, rtt: w.RTT, way: make(chan parcel, 1<<16), over: make(chan struct{})}
	go c.carry() // ends with the connection
	return c, nil
}

type distantConn struct {
	net.Conn
	rtt  time.Duration
	way  chan parcel
	over chan struct{}
	once sync.Once

	mu      sync.Mutex
	greeted bool // what follows the greeting takes its time
}

// parcel is what is on its way.
type parcel struct {
	due time.Time
	p   []byte
}

// Write implements net.Conn.
func (c *distantConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	c.greeted = c.greeted || bytes.Contains(p, []byte("SUB ")) || bytes.Contains(p, []byte("PUB "))
	greeted := c.greeted
	c.mu.Unlock()
	if !greeted {
		return c.Conn.Write(p)
	}
	select {
	case c.way <- parcel{time.Now().Add(c.rtt), bytes.Clone(p)}:
		return len(p), nil
	case <-c.over:
		return 0, net.ErrClosed
	}
}

func (c *distantConn) carry() {
	for {
		select {
		case sent := <-c.way:
			time.Sleep(time.Until(sent.due))
			if _, err := c.Conn.Write(sent.p); err != nil {
				return
			}
		case <-c.over:
			return
		}
	}
}

// Close implements net.Conn.
func (c *distantConn) Close() error {
	c.once.Do(func() { close(c.over) })
	return c.Conn.Close()
}

// OpenDistant opens a bus that far from the broker.
func (r *Rig) OpenDistant(rtt time.Duration) *adapter.Bus {
	r.Helper()
	_, b := r.Open(adapter.Config{}, nats.InProcessServer(&Distant{r.Broker, rtt}))
	return b
}
