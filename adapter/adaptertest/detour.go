package adaptertest

import (
	"bytes"
	"net"
	"sync/atomic"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
)

// Detour is a way to the broker on which a word of what goes there is another one, as often as
// Times says. So a request is answered, and is without effect or has another: as in a cluster
// whose leader is lost with what it took up, or where somebody else was quicker.
type Detour struct {
	Broker *embedded.Broker
	Times  atomic.Int64
	is, as []byte // of one length
}

// InProcessConn implements nats.InProcessConnProvider.
func (w *Detour) InProcessConn() (net.Conn, error) {
	inner, err := w.Broker.InProcessConn()
	return &detourConn{inner, w}, err
}

type detourConn struct {
	net.Conn
	w *Detour
}

func (c *detourConn) Write(p []byte) (int, error) {
	if bytes.Contains(p, c.w.is) && c.w.Times.Add(-1) >= 0 {
		p = bytes.Replace(p, c.w.is, c.w.as, 1)
	}
	return c.Conn.Write(p)
}

// OpenDetour opens a bus on whose connection a word is to be another one of its length.
func (r *Rig) OpenDetour(is, as string) (*Detour, *adapter.Bus) {
	r.Helper()
	if len(is) != len(as) {
		r.Fatalf("%q and %q have not the same length", is, as)
	}
	w := &Detour{Broker: r.Broker, is: []byte(is), as: []byte(as)}
	_, b := r.Open(adapter.Config{}, nats.InProcessServer(w))
	return w, b
}
