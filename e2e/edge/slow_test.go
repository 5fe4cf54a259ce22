package edge

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// TestSlowClientOverTCP: of two readers one does not read. It is closed and the other has every
// event, over sockets, whose buffers fill first; no more than that has gone to the one.
func TestSlowClientOverTCP(t *testing.T) {
	broker := bustest.Start(t, embedded.Config{})
	bus := bustest.Open(t, broker, adapter.Config{})
	if _, err := bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "orders"}); err != nil {
		t.Fatal(err)
	}
	// A client that reads must never be taken for one that does not, however busy the machine is.
	closed := make(closings, 10)
	g, err := gateway.New(bus, gateway.Config{Log: slog.New(closed), Limits: gateway.Limits{WriteTimeout: 20 * time.Second, PongTimeout: limit}})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(g)
	sockets := &counting{Listener: server.Listener}
	server.Listener = sockets
	server.Start()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if err := g.Drain(ctx); err != nil {
			t.Errorf("drain: %v", err)
		}
		server.Close()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 4*limit) // for 20 MB, beside much else
	defer cancel()
	slow, fast := followOrders(ctx, t, server.URL), followOrders(ctx, t, server.URL)
	stuck := sockets.first()

	const n = 2000 // of 10 KiB: more than the buffers of both sides
	payload := []byte(`"` + strings.Repeat("x", 10<<10) + `"`)
	published := make(chan error, 1)
	go func() { published <- publishMany(ctx, bus, n/100, payload) }() // ends below
	for last := uint64(0); last < n; {
		m := read(ctx, t, fast)
		if m.Op == frame.Event {
			if m.Seq != last+1 {
				t.Fatalf("%d came behind %d", m.Seq, last)
			}
			last = m.Seq
		}
	}
	if err := <-published; err != nil {
		t.Fatal(err)
	}
	select {
	case code := <-closed:
		if code != frame.CloseSlow {
			t.Errorf("closed with %d", code)
		}
	case <-ctx.Done():
		t.Fatal("the slow client is not closed")
	}
	// The client's own buffer takes as much as it likes, up to 128 KiB; the gateway's is twice what it asks for.
	if n := stuck.written.Load(); n > 1<<20 {
		t.Errorf("%d bytes went to a client that does not read", n)
	}
	for err == nil {
		_, _, err = slow.Read(ctx)
	}
	if ctx.Err() != nil {
		t.Error("the slow client's socket stays")
	}
}

// counting is a listener that counts what is written to its connections.
type counting struct {
	net.Listener

	mu    sync.Mutex
	conns []*counted
}

// counted is one connection.
type counted struct {
	*net.TCPConn
	written atomic.Int64
}

// Accept implements net.Listener.
func (l *counting) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &counted{TCPConn: nc.(*net.TCPConn)} //nolint:forcetypeassert // of a test's server
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns = append(l.conns, c)
	return c, nil
}

// first is the connection that was made first.
func (l *counting) first() *counted {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conns[0]
}

// Write implements net.Conn.
func (c *counted) Write(p []byte) (int, error) {
	n, err := c.TCPConn.Write(p)
	c.written.Add(int64(n))
	return n, err
}

// publishMany stores batches of a hundred events in orders.
func publishMany(ctx context.Context, bus jetbus.Batcher, batches int, payload []byte) error {
	for range batches {
		events := make([]jetbus.Event, 100)
		for i := range events {
			events[i] = jetbus.Event{Topic: "orders", Payload: payload}
		}
		if _, err := bus.PublishBatch(ctx, events, jetbus.BatchOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// closings is a log that hands on the codes of connections that are closed.
type closings chan int

// Enabled implements slog.Handler.
func (closings) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (c closings) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "code" && a.Value.Kind() == slog.KindInt64 {
			c <- int(a.Value.Int64())
		}
		return true
	})
	return nil
}

// WithAttrs implements slog.Handler.
func (c closings) WithAttrs([]slog.Attr) slog.Handler { return c }

// WithGroup implements slog.Handler.
func (c closings) WithGroup(string) slog.Handler { return c }

// followOrders connects a reader of orders.
func followOrders(ctx context.Context, t *testing.T, url string) *websocket.Conn {
	t.Helper()
	ws, _, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(url, "http")+"/ws", &websocket.DialOptions{ //nolint:bodyclose // an answer that became a WebSocket has no body to close
		Subprotocols: []string{frame.Subprotocol},
		HTTPClient:   &http.Client{Transport: &http.Transport{DialContext: smallBuffer}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ws.CloseNow() })
	ws.SetReadLimit(1 << 20)
	if err := ws.Write(ctx, websocket.MessageText, []byte(`{"op":"SUBSCRIBE","topic":"orders"}`)); err != nil {
		t.Fatal(err)
	}
	for read(ctx, t, ws).Op != frame.CaughtUp {
		continue
	}
	return ws
}

// smallBuffer connects a client whose system keeps little of what it does not read.
func smallBuffer(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if err := nc.(*net.TCPConn).SetReadBuffer(64 << 10); err != nil { //nolint:forcetypeassert // of TCP
		return nil, err
	}
	return nc, nil
}

func read(ctx context.Context, t *testing.T, ws *websocket.Conn) frame.Message {
	t.Helper()
	_, text, err := ws.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	m, err := frame.ParseMessage(text)
	if err != nil {
		t.Fatal(err)
	}
	return m
}
