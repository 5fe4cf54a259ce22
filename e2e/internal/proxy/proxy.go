// Package proxy breaks the network between NATS clients and a server on loopback: it
// cuts connections, lets them fall silent in one direction or both, leaves them half
// open, delays what goes through them, and refuses new ones. It also shows a test what
// the clients say, so that a fault can be made to hit a certain request.
//
// No byte of a connection that lives is lost: what falls into a hole arrives late, as
// with a network whose packets are sent again.
package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Direction is one of the two of a connection.
type Direction int

// The directions.
const (
	ToServer Direction = iota
	ToClient
)

// Proxy stands between clients and one server. It is safe for concurrent use.
type Proxy struct {
	target   string
	listener net.Listener
	wg       sync.WaitGroup

	mu      sync.Mutex
	change  *sync.Cond // of what is below
	holes   [2]bool
	held    [2]bool // something has come to the hole
	delay   time.Duration
	down    bool
	closed  bool
	pairs   map[*pair]struct{}
	inspect func(Frame) // sees what clients say before it goes on
}

// pair is a connection of a client and the one to the server that belongs to it.
type pair struct {
	client, server *net.TCPConn
	halfOpen       bool // the server's is gone, and the client does not know
}

// New listens on a free port of loopback, in front of the server at a host and port,
// which may be away. The caller must close it.
func New(target string) (*Proxy, error) {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("proxy of %s: %w", target, err)
	}
	p := &Proxy{target: target, listener: l, pairs: map[*pair]struct{}{}}
	p.change = sync.NewCond(&p.mu)
	p.wg.Go(p.accept)
	return p, nil
}

// URL is where clients connect to.
func (p *Proxy) URL() string { return "nats://" + p.listener.Addr().String() }

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.wg.Go(func() { p.serve(client.(*net.TCPConn)) })
	}
}

// serve runs one connection until either side ends.
func (p *Proxy) serve(client *net.TCPConn) {
	server, err := new(net.Dialer).Dial("tcp", p.target)
	if err != nil {
		_ = client.Close() // the server is away; the client sees the same
		return
	}
	c := &pair{client: client, server: server.(*net.TCPConn)}
	p.mu.Lock()
	refused := p.down || p.closed
	if !refused {
		p.pairs[c] = struct{}{}
	}
	p.mu.Unlock()
	if refused {
		c.reset()
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.forward(c); p.end(c) })
	both.Go(func() {
		if p.backward(c); !p.isHalfOpen(c) { // else it ends with its client
			p.end(c)
		}
	})
	both.Wait()
}

// end closes a pair in order.
func (p *Proxy) end(c *pair) {
	_ = c.client.Close() // may be closed already
	_ = c.server.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pairs, c)
	p.change.Broadcast()
}

// reset closes a pair with RST on both sides.
func (c *pair) reset() {
	reset(c.client)
	reset(c.server)
}

func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0) // may be closed already
	_ = conn.Close()
}

func (p *Proxy) isHalfOpen(c *pair) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return c.halfOpen
}

// forward passes on what the client says, frame by frame.
func (p *Proxy) forward(c *pair) {
	r := bufio.NewReaderSize(c.client, 64<<10)
	for {
		f, err := readFrame(r)
		if err != nil || !p.pass(c, ToServer) {
			return
		}
		p.mu.Lock()
		inspect, nobody := p.inspect, c.halfOpen
		p.mu.Unlock()
		if nobody {
			continue
		}
		if inspect != nil {
			inspect(f)
		}
		if _, err := c.server.Write(f.Raw); err != nil && !p.isHalfOpen(c) {
			return
		}
	}
}

// backward passes on what the server says.
func (p *Proxy) backward(c *pair) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := c.server.Read(buffer)
		if err != nil || !p.pass(c, ToClient) {
			return
		}
		if _, err := c.client.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// pass waits until what goes that way may go on. It reports false when its
// connection has ended.
func (p *Proxy) pass(c *pair, d Direction) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.holes[d] {
		if _, alive := p.pairs[c]; !alive {
			return false
		}
		p.held[d] = true
		p.change.Broadcast()
		p.change.Wait()
	}
	if wait := p.delay; wait > 0 {
		p.mu.Unlock()
		time.Sleep(wait)
		p.mu.Lock()
	}
	_, alive := p.pairs[c]
	return alive
}

// Hole lets connections fall silent in the given directions as well, those that are and
// those to come, without a sign.
func (p *Proxy) Hole(ways ...Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range ways {
		p.holes[d], p.held[d] = true, false
	}
}

// AwaitHeld waits until something has come to the hole that goes that way.
func (p *Proxy) AwaitHeld(ctx context.Context, d Direction) error {
	stop := context.AfterFunc(ctx, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.change.Broadcast()
	})
	defer stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for !p.held[d] {
		if ctx.Err() != nil {
			return fmt.Errorf("nothing came to the hole: %w", context.Cause(ctx))
		}
		p.change.Wait()
	}
	return nil
}

// HalfOpen ends the connections that are at the server, and leaves their clients to
// believe that they have one: what they say is swallowed, and nothing comes. It lasts
// until they give up, or are cut. New connections are welcome.
func (p *Proxy) HalfOpen() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.pairs {
		c.halfOpen = true
		reset(c.server)
	}
}

// Slow delays everything, each way, by that time, until Restore.
func (p *Proxy) Slow(by time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = by
}

// Cut ends all connections by RST. New ones are welcome.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutLocked()
}

func (p *Proxy) cutLocked() {
	for c := range p.pairs {
		c.reset()
		delete(p.pairs, c)
	}
	p.change.Broadcast()
}

// Refuse is Cut, and new connections are reset as well, until Restore.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = true
	p.cutLocked()
}

// Restore ends holes, delays and refusal.
func (p *Proxy) Restore() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holes, p.delay, p.down = [2]bool{}, 0, false
	p.change.Broadcast()
}

// Watch lets f see every frame that a client sends, before it is passed on. It runs on
// the goroutine of the connection, which waits for it. Nil: nobody.
func (p *Proxy) Watch(f func(Frame)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inspect = f
}

// Close ends the proxy and returns when nothing of it runs any more. Closing twice is
// fine.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	p.cutLocked()
	p.mu.Unlock()
	err := p.listener.Close()
	p.wg.Wait()
	if err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("close the proxy of %s: %w", p.target, err)
	}
	return nil
}
