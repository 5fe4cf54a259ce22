package groups_test

import (
	"bytes"
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
	"github.com/seed-63e9a637/jetbus/embedded"
)

// toll is a way to the broker that is slow for extensions of leases, and for what is sent
// behind them.
type toll struct {
	*embedded.Broker
	each time.Duration
}

func (w *toll) InProcessConn() (net.Conn, error) {
	inner, err := w.Broker.InProcessConn()
	if err != nil {
		return nil, err
	}
	c := &tollConn{Conn: inner, more: make(chan struct{}, 1), over: make(chan struct{})}
	go c.pass(w.each) // ends with the connection
	return c, nil
}

type tollConn struct {
	net.Conn
	more chan struct{} // capacity 1
	over chan struct{}
	once sync.Once

	mu   sync.Mutex
	slow bool // from the first extension on
	sent [][]byte
}

// Write does not wait for the toll: nats.go holds a lock meanwhile, and in a bubble time
// stands still for a lock.
func (c *tollConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	if c.slow = c.slow || bytes.Contains(p, []byte("+WPI")); !c.slow {
		c.mu.Unlock()
		return c.Conn.Write(p)
	}
	c.sent = append(c.sent, bytes.Clone(p))
	c.mu.Unlock()
	select {
	case c.more <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (c *tollConn) pass(each time.Duration) {
	for {
		c.mu.Lock()
		sent := c.sent
		c.sent = nil
		c.mu.Unlock()
		for _, p := range sent {
			time.Sleep(each * time.Duration(bytes.Count(p, []byte("+WPI"))))
			if _, err := c.Conn.Write(p); err != nil {
				return
			}
		}
		select {
		case <-c.more:
		case <-c.over:
			return
		}
	}
}

func (c *tollConn) Close() error {
	c.once.Do(func() { close(c.over) })
	return c.Conn.Close()
}

// A member that cannot extend the leases of all events that it may hold, in their time,
// holds fewer, and gets somewhere.
func TestHoldsWhatItCanKeep(t *testing.T) {
	inBubble(t, func(r *rig) {
		const events, each = 600, 20 * time.Millisecond // that the network takes for an extension: enough for the twelfth part of what may be held
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("a", events), jetbus.BatchOptions{}))(r.T)
		_, b := r.Open(adapter.Config{}, nats.InProcessServer(&toll{r.Broker, each}))
		var mu sync.Mutex
		var waiting []*jetbus.Delivery
		r.Subscribe(b, func(_ context.Context, d *jetbus.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			waiting = append(waiting, d)
			return nil
		}, jetbus.SubscribeOptions{ManualAck: true, MaxInFlight: 200, AckTimeout: time.Second, MaxAttempts: -1})
		began := time.Now()
		for r.Group("a", "g").AckedSeq < events {
			if time.Since(began) > 90*time.Second {
				r.Fatalf("after %v: %+v", time.Since(began), r.Group("a", "g"))
			}
			time.Sleep(1200 * time.Millisecond) // longer than a lease that is not extended
			mu.Lock()
			batch := waiting
			waiting = nil
			mu.Unlock()
			for _, d := range batch {
				_ = d.Ack(r.Context()) // or its lease is lost, and it comes again
			}
		}
		r.Logf("%d events took %v", events, time.Since(began))
	})
}
