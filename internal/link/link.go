// Package link follows the state of a connection that somebody else owns: whether
// it is up, when it was lost, and whether it is closed for good.
package link

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
)

// Link is what is known of one connection. Requests that are on their way when it
// breaks get no answer, ever; those who wait for one watch what Wait returned. It
// is safe for concurrent use.
type Link struct {
	nc      *nats.Conn
	changes chan nats.Status // closed by RemoveStatusListener
	done    chan struct{}    // closed when follow returns
	// reconnects is what the connection had counted of them at the last one that was
	// noted; follow's own.
	reconnects uint64
	abort      chan struct{} // closed when nobody is to wait any more
	ready      atomic.Bool   // as IsUp says; changed under mu
	refusals   *refusals
	stop       sync.Once

	mu     sync.Mutex
	lost   chan struct{} // closed when the present connection is gone; new with the next one
	up     chan struct{} // closed while there is a connection
	closed chan struct{} // closed when the connection was closed for good
	since  time.Time     // when the present connection was noted, zero for the first one
	onUp   map[int]func()
	nextID int
}

// New follows a connection until Stop.
func New(nc *nats.Conn) *Link {
	l := &Link{
		nc: nc, changes: nc.StatusChanged(nats.CONNECTED, nats.DISCONNECTED, nats.RECONNECTING, nats.CLOSED),
		done: make(chan struct{}), lost: make(chan struct{}), up: make(chan struct{}), closed: make(chan struct{}),
		onUp: map[int]func(){}, abort: make(chan struct{}), refusals: watchRefusals(nc),
	}
	close(l.up)
	l.ready.Store(true)
	l.reconnects = nc.Stats().Reconnects
	if !nc.IsConnected() {
		l.down()
	}
	if nc.IsClosed() {
		close(l.closed)
	}
	go l.follow()
	return l
}

// follow owns the transitions; it ends when the listener is removed.
func (l *Link) follow() {
	defer close(l.done)
	for status := range l.changes {
		l.turn(status)
		if len(l.changes) == 0 {
			l.agree()
		}
	}
}

// turn takes in a status of the connection.
func (l *Link) turn(status nats.Status) {
	var callbacks []func()
	switch status {
	case nats.CONNECTED:
		callbacks = l.connected()
	case nats.CLOSED:
		l.down()
		l.mu.Lock()
		if !isClosed(l.closed) {
			close(l.closed)
		}
		callbacks = l.callbacks()
		l.mu.Unlock()
	default:
		l.down()
	}
	for _, f := range callbacks {
		f()
	}
}

// agree makes up for statuses that were dropped because the listener lagged: the
// last of them may be among them, after which there would be no other. One that has
// come since is a turn that makes no difference.
func (l *Link) agree() {
	switch reconnects := l.nc.Stats().Reconnects; {
	case l.nc.IsClosed():
		if !l.IsClosed() {
			l.turn(nats.CLOSED)
		}
	case !l.nc.IsConnected():
		l.down()
	case !l.IsUp() || reconnects != l.reconnects:
		l.turn(nats.CONNECTED)
	}
}

func (l *Link) down() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !isClosed(l.lost) {
		close(l.lost)
	}
	if isClosed(l.up) {
		l.up = make(chan struct{})
	}
	l.ready.Store(false)
}

// connected notes a new connection. A break that was too short to be seen in
// between (statuses are dropped when the listener lags) counts as one all the same.
func (l *Link) connected() []func() {
	l.reconnects = l.nc.Stats().Reconnects
	l.mu.Lock()
	defer l.mu.Unlock()
	if !isClosed(l.lost) {
		close(l.lost)
	}
	l.lost = make(chan struct{})
	l.since = time.Now()
	if !isClosed(l.up) {
		close(l.up)
	}
	l.ready.Store(true)
	return l.callbacks()
}

func (l *Link) callbacks() []func() {
	out := make([]func(), 0, len(l.onUp))
	for _, f := range l.onUp {
		out = append(out, f)
	}
	return out
}

// Watch calls f after every reconnect, and when the connection was closed for
// good, until the returned function is called.
func (l *Link) Watch(f func()) (unwatch func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.nextID++
	id := l.nextID
	l.onUp[id] = f
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.onUp, id)
	}
}

// Wait returns what is closed when the connection is lost, waiting for one that is
// up within ctx. The error is jetbus.ErrClosed where there will be none, or the
// cause of ctx.
func (l *Link) Wait(ctx context.Context) (lost <-chan struct{}, err error) {
	for {
		l.mu.Lock()
		up, lost := l.up, l.lost
		l.mu.Unlock()
		if isClosed(up) && !isClosed(lost) {
			return lost, nil
		}
		select {
		case <-up:
		case <-l.closed:
			return nil, jetbus.ErrClosed
		case <-l.abort:
			return nil, jetbus.ErrClosed
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Flush waits until the server has taken in what was sent before, or until there is
// nothing to wait for: without a connection, or when the present one is lost, it is
// nil, since what was under way then may be lost as well. The error is the cause of
// ctx, which must have a deadline.
func (l *Link) Flush(ctx context.Context) error {
	l.mu.Lock()
	lost := l.lost
	l.mu.Unlock()
	if isClosed(lost) {
		return nil
	}
	// What nats.go is asked to flush when it has noticed the loss, and l has not, waits
	// for the next connection, which may never be.
	connected, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with connected
		select {
		case <-lost:
			cancel()
		case <-connected.Done():
		}
	}()
	switch err := l.nc.FlushWithContext(connected); {
	case err == nil, errors.Is(err, nats.ErrConnectionClosed): // of a loss, too
		return nil
	case isClosed(lost):
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	default:
		return err
	}
}

// IsUp reports whether the connection is up. It costs next to nothing.
func (l *Link) IsUp() bool { return l.ready.Load() }

// IsClosed reports whether the connection was closed for good.
func (l *Link) IsClosed() bool { return isClosed(l.closed) }

// GiveUp makes everybody fail who waits for an answer or for the connection. It may be
// called once.
func (l *Link) GiveUp() {
	close(l.abort)
	l.down()
}

// IsOver reports whether waiting for an answer is of no use any more.
func (l *Link) IsOver() bool { return isClosed(l.closed) || isClosed(l.abort) }

// Closed is closed when the connection was closed for good.
func (l *Link) Closed() <-chan struct{} { return l.closed }

// Stop ends following, and returns when no callback of Watch runs any more.
func (l *Link) Stop() {
	l.stop.Do(func() {
		l.nc.RemoveStatusListener(l.changes)
		l.refusals.release(l.nc)
	})
	<-l.done
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
