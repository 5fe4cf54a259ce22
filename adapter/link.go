package adapter

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
)

// link follows the state of the borrowed connection. Requests that are on their
// way when it breaks get no answer, ever; those who wait for one watch lost.
type link struct {
	nc      *nats.Conn
	changes chan nats.Status // closed by RemoveStatusListener
	done    chan struct{}    // closed when follow returns
	abort   chan struct{}    // closed when nobody is to wait any more
	ready   atomic.Bool      // as isUp says; changed under mu

	mu     sync.Mutex
	lost   chan struct{} // closed when the present connection is gone; new with the next one
	up     chan struct{} // closed while there is a connection
	closed chan struct{} // closed when the connection was closed for good
	onUp   map[int]func()
	nextID int
}

func newLink(nc *nats.Conn) *link {
	l := &link{
		nc: nc, changes: nc.StatusChanged(nats.CONNECTED, nats.DISCONNECTED, nats.RECONNECTING, nats.CLOSED),
		done: make(chan struct{}), lost: make(chan struct{}), up: make(chan struct{}), closed: make(chan struct{}),
		onUp: map[int]func(){}, abort: make(chan struct{}),
	}
	close(l.up)
	l.ready.Store(true)
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
func (l *link) follow() {
	defer close(l.done)
	for status := range l.changes {
		switch status {
		case nats.CONNECTED:
			for _, f := range l.connected() {
				f()
			}
		case nats.CLOSED:
			l.down()
			l.mu.Lock()
			if !isClosed(l.closed) {
				close(l.closed)
			}
			callbacks := l.callbacks()
			l.mu.Unlock()
			for _, f := range callbacks {
				f()
			}
		default:
			l.down()
		}
	}
}

func (l *link) down() {
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
func (l *link) connected() []func() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !isClosed(l.lost) {
		close(l.lost)
	}
	l.lost = make(chan struct{})
	if !isClosed(l.up) {
		close(l.up)
	}
	l.ready.Store(true)
	return l.callbacks()
}

func (l *link) callbacks() []func() {
	out := make([]func(), 0, len(l.onUp))
	for _, f := range l.onUp {
		out = append(out, f)
	}
	return out
}

// watch calls f after every reconnect, and when the connection was closed for
// good, until the returned function is called.
func (l *link) watch(f func()) (unwatch func()) {
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

// wait returns the lost channel of a connection that is up, waiting for one
// within ctx.
func (l *link) wait(ctx context.Context) (lost <-chan struct{}, err error) {
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

func (l *link) isUp() bool { return l.ready.Load() }

func (l *link) isClosed() bool { return isClosed(l.closed) }

// giveUp makes everybody fail who waits for an answer or for the connection.
func (l *link) giveUp() {
	close(l.abort)
	l.down()
}

// isOver reports whether waiting for an answer is of no use any more.
func (l *link) isOver() bool { return isClosed(l.closed) || isClosed(l.abort) }

func (l *link) stop() {
	l.nc.RemoveStatusListener(l.changes)
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
