package faults

import (
	"bufio"
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// direction is one of the two of a connection.
type direction int

const (
	toServer direction = iota
	toClient
)

// proxy stands between NATS clients and a server on loopback, and breaks what
// goes through it. It loses no byte of a connection that lives: what falls into a
// hole arrives late, as with a network whose packets are sent again.
type proxy struct {
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
	inspect func(frame) // sees what clients say before it goes on
}

// pair is a connection of a client and the one to the server that belongs to it.
type pair struct{ client, server *net.TCPConn }

// newProxy listens on a free port of loopback. The caller must close it.
func newProxy(target string) (*proxy, error) {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{target: target, listener: l, pairs: map[*pair]struct{}{}}
	p.change = sync.NewCond(&p.mu)
	p.wg.Go(p.accept)
	return p, nil
}

// url is where clients connect to.
func (p *proxy) url() string { return "nats://" + p.listener.Addr().String() }

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.wg.Go(func() { p.serve(client.(*net.TCPConn)) })
	}
}

// serve runs one connection until either side ends.
func (p *proxy) serve(client *net.TCPConn) {
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
	both.Go(func() { p.backward(c); p.end(c) })
	both.Wait()
}

// end closes a pair in order.
func (p *proxy) end(c *pair) {
	_ = c.client.Close() // may be closed already
	_ = c.server.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pairs, c)
	p.change.Broadcast()
}

// reset closes a pair with RST on both sides.
func (c *pair) reset() {
	for _, conn := range []*net.TCPConn{c.client, c.server} {
		_ = conn.SetLinger(0) // may be closed already
		_ = conn.Close()
	}
}

// forward passes on what the client says, frame by frame.
func (p *proxy) forward(c *pair) {
	r := bufio.NewReaderSize(c.client, 64<<10)
	for {
		f, err := readFrame(r)
		if err != nil || !p.pass(c, toServer) {
			return
		}
		p.mu.Lock()
		inspect := p.inspect
		p.mu.Unlock()
		if inspect != nil {
			inspect(f)
		}
		if _, err := c.server.Write(f.raw); err != nil {
			return
		}
	}
}

// backward passes on what the server says.
func (p *proxy) backward(c *pair) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := c.server.Read(buffer)
		if err != nil || !p.pass(c, toClient) {
			return
		}
		if _, err := c.client.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// pass waits until what goes that way may go on. It reports false when its
// connection has ended.
func (p *proxy) pass(c *pair, d direction) bool {
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

// hole makes connections fall silent in the given directions, without a sign.
func (p *proxy) hole(ways ...direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range ways {
		p.holes[d], p.held[d] = true, false
	}
}

// awaitHeld waits until something has come to the hole that goes that way.
func (p *proxy) awaitHeld(ctx context.Context, d direction) error {
	stop := context.AfterFunc(ctx, p.change.Broadcast)
	defer stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for !p.held[d] {
		if ctx.Err() != nil {
			return errors.New("nothing came to the hole")
		}
		p.change.Wait()
	}
	return nil
}

// slow delays everything, each way, by that time.
func (p *proxy) slow(by time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = by
}

// cut ends all connections by RST. New ones are welcome.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutLocked()
}

func (p *proxy) cutLocked() {
	for c := range p.pairs {
		c.reset()
		delete(p.pairs, c)
	}
	p.change.Broadcast()
}

// refuse is cut, and new connections are reset as well.
func (p *proxy) refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = true
	p.cutLocked()
}

// restore ends holes, delays and refusal.
func (p *proxy) restore() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holes, p.delay, p.down = [2]bool{}, 0, false
	p.change.Broadcast()
}

// watch lets f see every frame that a client sends, before it is passed on. It
// runs on the goroutine of the connection, which waits for it.
func (p *proxy) watch(f func(frame)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inspect = f
}

// close ends the proxy and returns when nothing of it runs any more.
func (p *proxy) close() error {
	p.mu.Lock()
	p.closed = true
	p.cutLocked()
	p.mu.Unlock()
	err := p.listener.Close()
	p.wg.Wait()
	return err
}
