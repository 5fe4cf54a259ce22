package client_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/gateway/client"
)

// patience is how long a test waits for what must come.
const patience = 2 * time.Minute

// limits of gateways under test: nothing that the suite does is too much.
func limits() gateway.Limits { return gateway.Limits{Rate: -1, FrameBytes: 4 << 20, BatchEvents: 1000} }

// serve serves a bus by a gateway until the end of the test.
func serve(t *testing.T, b jetbus.Backend, c gateway.Config, on net.Listener) {
	t.Helper()
	g, err := gateway.New(b, c)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: g, ReadHeaderTimeout: time.Minute}
	var served sync.WaitGroup
	served.Go(func() { _ = server.Serve(on) })
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := g.Drain(ctx); err != nil {
			t.Errorf("drain: %v", err)
		}
		_ = server.Close()
		served.Wait()
	})
}

// dial makes a client until the end of the test.
func dial(t *testing.T, c client.Config) *client.Client {
	t.Helper()
	bus, err := client.Dial(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := bus.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return bus
}

// pipeNet is a network within the process, for bubbles of fake time.
type pipeNet struct {
	made  atomic.Int64 // connections
	conns chan net.Conn
	over  chan struct{}
	once  sync.Once
}

func newPipeNet() *pipeNet { return &pipeNet{conns: make(chan net.Conn), over: make(chan struct{})} }

func (n *pipeNet) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case n.conns <- loopbackConn{there}:
		n.made.Add(1)
		return here, nil
	case <-n.over:
		return nil, errors.New("closed")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// config is that of a client in this network.
func (n *pipeNet) config() client.Config {
	return client.Config{URL: "http://localhost", HTTPClient: &http.Client{Transport: &http.Transport{DialContext: n.dial, DisableKeepAlives: true}}}
}

// Accept implements net.Listener.
func (n *pipeNet) Accept() (net.Conn, error) {
	select {
	case c := <-n.conns:
		return c, nil
	case <-n.over:
		return nil, http.ErrServerClosed
	}
}

// Close implements net.Listener.
func (n *pipeNet) Close() error {
	n.once.Do(func() { close(n.over) })
	return nil
}

// Addr implements net.Listener.
func (n *pipeNet) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80} }

type loopbackConn struct{ net.Conn }

// LocalAddr says that the connection is one of this machine.
func (loopbackConn) LocalAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80}
}
