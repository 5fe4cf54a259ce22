package bustest

import (
	"net"
	"sync"

	"github.com/nats-io/nats.go"
)

// pipe connects to a broker and can hold up, in both directions, what passes. It
// loses nothing: a network that is cut and comes back before anybody noticed.
type pipe struct {
	broker nats.InProcessConnProvider

	mu  sync.Mutex
	in  chan struct{} // closed while what the broker says passes
	out chan struct{} // closed while what the client says passes
}

func newPipe(broker nats.InProcessConnProvider) *pipe {
	open := make(chan struct{})
	close(open)
	return &pipe{broker: broker, in: open, out: open}
}

// option makes a connection pass through the pipe.
func (p *pipe) option() nats.Option { return nats.InProcessServer(p) }

// InProcessConn implements nats.InProcessConnProvider.
func (p *pipe) InProcessConn() (net.Conn, error) {
	c, err := p.broker.InProcessConn()
	if err != nil {
		return nil, err
	}
	pc := &pipedConn{Conn: c, pipe: p, written: make(chan struct{}, 1), closed: make(chan struct{})}
	pc.pump.Go(pc.pass)
	return pc, nil
}

// hold holds up both directions.
func (p *pipe) hold() {
	p.holdAnswers()
	p.mu.Lock()
	defer p.mu.Unlock()
	if isClosed(p.out) {
		p.out = make(chan struct{})
	}
}

// holdAnswers holds up what the broker says.
func (p *pipe) holdAnswers() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if isClosed(p.in) {
		p.in = make(chan struct{})
	}
}

// release lets everything pass.
func (p *pipe) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ch := range []chan struct{}{p.in, p.out} {
		if !isClosed(ch) {
			close(ch)
		}
	}
}

// passes reports whether what the client says passes.
func (p *pipe) passes() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return isClosed(p.out)
}

func isClosed(ch chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// pipedConn is one connection through a pipe. Its Write does not block, as one into
// a buffer of the network does not while it is held up: the client writes under a lock, and a wait
// for a lock is not idle in the sense of a bubble.
type pipedConn struct {
	net.Conn
	pipe    *pipe
	written chan struct{} // signaled by Write; capacity 1
	once    sync.Once
	closed  chan struct{}
	pump    sync.WaitGroup

	mu    sync.Mutex
	queue []byte
}

// Read passes on what the broker says.
func (c *pipedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if !c.await(&c.pipe.in) {
		return 0, net.ErrClosed
	}
	return n, err
}

// await waits until a direction is open, and reports false when the connection
// is closed first.
func (c *pipedConn) await(direction *chan struct{}) bool {
	c.pipe.mu.Lock()
	ch := *direction
	c.pipe.mu.Unlock()
	select {
	case <-ch:
		return true
	default:
	}
	select {
	case <-ch:
		return true
	case <-c.closed:
		return false
	}
}

// Write passes on what the client says.
func (c *pipedConn) Write(b []byte) (int, error) {
	if isClosed(c.closed) {
		return 0, net.ErrClosed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queue) == 0 && c.pipe.passes() {
		return c.Conn.Write(b)
	}
	c.queue = append(c.queue, b...)
	select {
	case c.written <- struct{}{}:
	default:
	}
	return len(b), nil
}

// pass writes to the broker what was held up.
func (c *pipedConn) pass() {
	for last := false; !last; {
		select {
		case <-c.written:
		case <-c.closed:
			last = true
		}
		if !c.await(&c.pipe.out) {
			return
		}
		if err := c.passQueue(); err != nil {
			return
		}
	}
}

func (c *pipedConn) passQueue() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queue) == 0 {
		return nil
	}
	_, err := c.Conn.Write(c.queue)
	c.queue = nil
	return err
}

// Close ends the connection, and what is held up in it.
func (c *pipedConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	c.pump.Wait()
	return c.Conn.Close()
}
