package proxy_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus/e2e/internal/proxy"
)

// limit bounds every wait. It only matters where a test fails.
const limit = 3 * time.Minute

// behind is a proxy in front of a server that says again what it is told.
func behind(t *testing.T) *proxy.Proxy {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				_, _ = io.Copy(conn, conn) // until the client or the proxy ends it
				_ = conn.Close()
			})
		}
	})
	p, err := proxy.New(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(p.Close(), l.Close()); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
	return p
}

// client is a connection through a proxy.
type client struct {
	*testing.T
	net.Conn
	lines *bufio.Reader
}

func dial(t *testing.T, p *proxy.Proxy) *client {
	t.Helper()
	c, err := tryDial(t, p)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func tryDial(t *testing.T, p *proxy.Proxy) (*client, error) {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(p.URL(), "nats://"))
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = conn.Close() }) // may be closed already
	return &client{T: t, Conn: conn, lines: bufio.NewReader(conn)}, nil
}

func (c *client) say(line string) {
	c.Helper()
	if _, err := io.WriteString(c.Conn, line+"\r\n"); err != nil {
		c.Fatal(err)
	}
}

func (c *client) hears(want string) {
	c.Helper()
	if err := c.SetReadDeadline(time.Now().Add(limit)); err != nil {
		c.Fatal(err)
	}
	if line, err := c.lines.ReadString('\n'); err != nil || line != want+"\r\n" {
		c.Fatalf("heard %q, %v, want %q", line, err, want)
	}
}

// ends waits for the end of the connection.
func (c *client) ends() {
	c.Helper()
	if err := c.SetReadDeadline(time.Now().Add(limit)); err != nil {
		c.Fatal(err)
	}
	if line, err := c.lines.ReadString('\n'); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		c.Fatalf("heard %q, %v, want the end", line, err)
	}
}

// silent checks that nothing comes.
func (c *client) silent() {
	c.Helper()
	if err := c.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		c.Fatal(err)
	}
	if line, err := c.lines.ReadString('\n'); !errors.Is(err, os.ErrDeadlineExceeded) {
		c.Fatalf("heard %q, %v, want nothing", line, err)
	}
}

// What falls into a hole, whichever way it goes, arrives late.
func TestHole(t *testing.T) {
	for name, ways := range map[string][]proxy.Direction{
		"to the server": {proxy.ToServer}, "to the client": {proxy.ToClient}, "both": {proxy.ToServer, proxy.ToClient},
	} {
		t.Run(name, func(t *testing.T) {
			p := behind(t)
			c := dial(t, p)
			c.say("one")
			c.hears("one")
			p.Hole(ways...)
			c.say("two")
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			if err := p.AwaitHeld(ctx, ways[0]); err != nil {
				t.Fatal(err)
			}
			c.silent()
			p.Restore()
			c.hears("two")
		})
	}
}

// A wait for what never comes ends.
func TestAwaitHeldInVain(t *testing.T) {
	p := behind(t)
	p.Hole(proxy.ToServer)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := p.AwaitHeld(ctx, proxy.ToServer); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestCut(t *testing.T) {
	p := behind(t)
	c := dial(t, p)
	c.say("one")
	c.hears("one")
	p.Hole(proxy.ToClient)
	c.say("two")
	p.Cut()
	c.ends()
	p.Restore()
	c = dial(t, p)
	c.say("three")
	c.hears("three")
}

func TestRefuse(t *testing.T) {
	p := behind(t)
	c := dial(t, p)
	c.say("one")
	c.hears("one")
	p.Refuse()
	c.ends()
	if c, err := tryDial(t, p); err == nil {
		c.ends()
	} else if !errors.Is(err, syscall.ECONNRESET) { // it may be reset before it is there
		t.Error(err)
	}
	p.Restore()
	c = dial(t, p)
	c.say("two")
	c.hears("two")
}

// A connection that is half open swallows what it is told, and others live.
func TestHalfOpen(t *testing.T) {
	p := behind(t)
	c := dial(t, p)
	c.say("one")
	c.hears("one")
	p.HalfOpen()
	for range 3 {
		c.say("two")
		c.silent()
	}
	other := dial(t, p)
	other.say("three")
	other.hears("three")
	p.Cut()
	c.ends()
	other.ends()
}

// A watcher sees what is said before the server does.
func TestWatch(t *testing.T) {
	p := behind(t)
	seen := make(chan proxy.Frame, 10)
	p.Watch(func(f proxy.Frame) {
		if f.Subject != "" {
			p.Hole(proxy.ToServer)
		}
		seen <- f
	})
	c := dial(t, p)
	c.say("PUB a 2\r\nhi")
	c.say("PING")
	c.hears("PUB a 2")
	c.hears("hi")
	c.silent()
	if f := <-seen; f.Subject != "a" || f.Body != "hi" || string(f.Raw) != "PUB a 2\r\nhi\r\n" {
		t.Errorf("seen %+v", f)
	}
	p.Watch(nil)
	p.Restore()
	c.hears("PING")
	if len(seen) > 0 {
		t.Errorf("seen %+v", <-seen)
	}
}

func TestSlow(t *testing.T) {
	const by = 50 * time.Millisecond
	p := behind(t)
	c := dial(t, p)
	p.Slow(by)
	began := time.Now()
	c.say("one")
	c.hears("one")
	if took := time.Since(began); took < 2*by {
		t.Errorf("there and back took %v, want %v", took, 2*by)
	}
}
