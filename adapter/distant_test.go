package adapter_test

import (
	"bytes"
	"net"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
)

// distant is a way to the broker that is long, and as wide as can be.
type distant struct {
	*embedded.Broker
	rtt time.Duration // all of it on the way there
}

func (w *distant) InProcessConn() (net.Conn, error) {
	inner, err := w.Broker.InProcessConn()
	if err != nil {
		return nil, err
	}
	c := &distantConn{Conn: inner, rtt: w.rtt, way: make(chan parcel, 1<<16), over: make(chan struct{})}
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

func (c *distantConn) Close() error {
	c.once.Do(func() { close(c.over) })
	return c.Conn.Close()
}

// openDistant opens a bus that far from the broker.
func (r *rig) openDistant(rtt time.Duration) *adapter.Bus {
	r.Helper()
	_, b := r.open(adapter.Config{}, nats.InProcessServer(&distant{r.broker, rtt}))
	return b
}
