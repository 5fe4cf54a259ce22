package client

import (
	"context"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus/gateway/client"
)

// proxy passes TCP connections on, slowly, and cuts them.
type proxy struct {
	net.Listener
	to    string
	delay time.Duration // of each piece that passes, at most
	made  atomic.Int64  // connections
	work  sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	over  bool
}

// startProxy starts a proxy until the end of the test.
func startProxy(t *testing.T, to string, delay time.Duration) *proxy {
	t.Helper()
	on, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{Listener: on, to: to, delay: delay, conns: map[net.Conn]struct{}{}}
	p.work.Go(p.serve)
	t.Cleanup(func() {
		p.mu.Lock()
		p.over = true
		p.mu.Unlock()
		_ = on.Close()
		p.cut()
		p.work.Wait()
	})
	return p
}

// url is where a client finds the proxy.
func (p *proxy) url() string { return "http://" + p.Addr().String() }

func (p *proxy) serve() {
	for {
		here, err := p.Accept()
		if err != nil {
			return
		}
		there, err := net.Dial("tcp", p.to)
		if err != nil {
			_ = here.Close()
			continue
		}
		if !p.keep(here, there) {
			return
		}
		p.made.Add(1) // cut reaches it from here on
		p.work.Go(func() { p.pass(here, there) })
		p.work.Go(func() { p.pass(there, here) })
	}
}

func (p *proxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		if p.over {
			_ = c.Close()
			continue
		}
		p.conns[c] = struct{}{}
	}
	return !p.over
}

// pass passes on what one side says until either closes.
func (p *proxy) pass(from, to net.Conn) {
	defer func() {
		_, _ = from.Close(), to.Close()
		p.mu.Lock()
		delete(p.conns, from)
		p.mu.Unlock()
	}()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		if p.delay > 0 {
			<-time.After(rand.N(p.delay))
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// cut breaks all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // a reset, and what is on its way is lost
		}
		_ = c.Close()
	}
}

// cutting breaks all connections again and again until the end of the test. Between two cuts are each,
// more or less, and ten times what it takes a client to connect now: a cut that always comes before a
// client has got anywhere would be an outage, and any fixed time is too short on a busy enough machine.
func (p *proxy) cutting(t *testing.T, each time.Duration) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		for ctx.Err() == nil {
			select {
			case <-time.After(each/2 + rand.N(each) + 10*p.connects(ctx, t)):
				p.cut()
			case <-ctx.Done():
			}
		}
	})
	t.Cleanup(func() {
		stop()
		work.Wait()
	})
}

// connects is how long it takes a client to connect.
func (p *proxy) connects(ctx context.Context, t *testing.T) time.Duration {
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	began := time.Now()
	c, err := client.Dial(within, client.Config{URL: p.url(), Token: withToken})
	took := time.Since(began)
	if err == nil {
		err = c.Close(within)
	}
	if err != nil && ctx.Err() == nil {
		t.Errorf("connect: %v", err)
	}
	return took
}

// open is how many connections there are.
func (p *proxy) open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}
