package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
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

// patience is how long a test waits for what must come.
const patience = 2 * time.Minute

// wsRig is a gateway over a broker, in a bubble of fake time. It ends with the test.
type wsRig struct {
	*testing.T
	broker *embedded.Broker
	bus    *adapter.Bus
	g      *gateway.Gateway
	net    *pipeNet
	bulk   string // a large payload that frames are parsed without; empty: none
}

// inBubble runs f with a gateway, and the topic "orders".
func inBubble(t *testing.T, c gateway.Config, f func(r *wsRig)) {
	t.Helper()
	inBubbleOn(t, c, func(t *testing.T) *embedded.Broker { return bustest.Start(t, embedded.Config{}) }, f)
}

// inBubbleOn is inBubble with a broker of the test's own.
func inBubbleOn(t *testing.T, c gateway.Config, start func(*testing.T) *embedded.Broker, f func(r *wsRig)) {
	t.Helper()
	bustest.Run(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Second) }) // what the server writes behind
		r := &wsRig{T: t, broker: start(t)}
		r.bus = bustest.Open(t, r.broker, adapter.Config{})
		r.ensure(jetbus.TopicConfig{Name: "orders"})
		r.serve(c)
		f(r)
	})
}

// serve starts the gateway.
func (r *wsRig) serve(c gateway.Config) {
	r.Helper()
	r.serveBus(r.bus, c)
}

// serveBus starts a gateway over a bus, in place of the one before.
func (r *wsRig) serveBus(b jetbus.Backend, c gateway.Config) {
	r.Helper()
	g, err := gateway.New(b, c)
	if err != nil {
		r.Fatal(err)
	}
	network := newPipeNet()
	r.g, r.net = g, network
	server := &http.Server{Handler: g, ReadHeaderTimeout: time.Minute, Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	var served sync.WaitGroup
	served.Go(func() { _ = server.Serve(network) })
	r.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := g.Drain(ctx); err != nil {
			r.Errorf("drain: %v", err)
		}
		_ = server.Close()
		served.Wait()
	})
}

func (r *wsRig) ensure(c jetbus.TopicConfig) {
	r.Helper()
	if _, err := r.bus.EnsureTopic(r.Context(), c); err != nil {
		r.Fatal(err)
	}
}

// publish stores events with the given payloads.
func (r *wsRig) publish(topic string, payloads ...string) []jetbus.Event {
	r.Helper()
	var out []jetbus.Event
	for _, p := range payloads {
		receipt, err := r.bus.Publish(r.Context(), jetbus.Event{Topic: topic, Payload: []byte(p)})
		if err != nil {
			r.Fatal(err)
		}
		out = append(out, receipt.Event)
	}
	return out
}

// wsClient is a client whose frames are taken in as they come.
type wsClient struct {
	r      *wsRig
	ws     *websocket.Conn
	frames chan []byte   // more than any test leaves there; closed when the connection is over
	early  []string      // events that were faster than an answer
	gone   error         // why; valid when frames is closed
	pongs  bool          // answer PING
	gate   chan struct{} // each frame passes it; full: the client reads no more
}

// dial connects with the subprotocol. header are pairs.
func (r *wsRig) dial(header ...string) *wsClient {
	r.Helper()
	return r.dialAs([]string{frame.Subprotocol}, header...)
}

func (r *wsRig) dialAs(protocols []string, header ...string) *wsClient {
	r.Helper()
	c, _, err := r.tryDial(protocols, header...)
	if err != nil {
		r.Fatal(err)
	}
	return c
}

func (r *wsRig) tryDial(protocols []string, header ...string) (c *wsClient, status int, err error) {
	r.Helper()
	return r.tryDialFrom("", protocols, header...)
}

// tryDialFrom connects from an address, "192.0.2.1:1000"; empty: a pipe's, which is none.
func (r *wsRig) tryDialFrom(from string, protocols []string, header ...string) (c *wsClient, status int, err error) {
	r.Helper()
	h := http.Header{}
	for i := 0; i < len(header); i += 2 {
		h.Add(header[i], header[i+1])
	}
	ws, response, err := websocket.Dial(r.Context(), "ws://localhost/ws", &websocket.DialOptions{
		HTTPClient:   &http.Client{Transport: &http.Transport{DialContext: r.net.from(from), DisableKeepAlives: true}},
		Subprotocols: protocols, HTTPHeader: h,
	})
	if response != nil {
		status = response.StatusCode
	}
	if err != nil {
		if response != nil {
			_ = response.Body.Close()
		}
		return nil, status, err
	}
	ws.SetReadLimit(-1)
	c = &wsClient{r: r, ws: ws, frames: make(chan []byte, 2000), pongs: true, gate: make(chan struct{}, 1)}
	var reading sync.WaitGroup
	reading.Go(c.read)
	r.Cleanup(func() {
		_ = ws.CloseNow()
		reading.Wait()
	})
	return c, status, nil
}

func (c *wsClient) read() {
	defer close(c.frames)
	for {
		_, text, err := c.ws.Read(context.Background())
		if err != nil {
			c.gone = err
			return
		}
		c.gate <- struct{}{}
		<-c.gate
		if bytes.HasPrefix(text, []byte(`{"op":"PING",`)) {
			if c.pongs {
				_ = c.ws.Write(context.Background(), websocket.MessageText, []byte(`{"op":"PONG"}`))
			}
			continue
		}
		c.frames <- text
	}
}

// stall lets the client read one more frame, and then no more until unstall.
func (c *wsClient) stall() { c.gate <- struct{}{} }

func (c *wsClient) unstall() { <-c.gate }

// send sends a frame.
func (c *wsClient) send(text string) {
	c.r.Helper()
	if err := c.ws.Write(c.r.Context(), websocket.MessageText, []byte(text)); err != nil {
		c.r.Fatalf("send %.100s: %v", text, err)
	}
}

// text is the next frame.
func (c *wsClient) text() string {
	c.r.Helper()
	if len(c.early) > 0 {
		text := c.early[0]
		c.early = c.early[1:]
		return text
	}
	return c.arrived()
}

// arrived is the next frame that ask has not seen.
func (c *wsClient) arrived() string {
	c.r.Helper()
	select {
	case text, ok := <-c.frames:
		if !ok {
			c.r.Fatalf("the connection is over: %v", c.gone)
		}
		return string(text)
	case <-time.After(patience):
		c.r.Fatal("no frame came")
		return ""
	}
}

// next is the next frame, which must have that op.
func (c *wsClient) next(op string) frame.Message {
	c.r.Helper()
	text := c.text()
	m := c.parsed(text)
	if m.Op != op {
		c.r.Fatalf("%s came, not %s", text, op)
	}
	return m
}

// parsed is a frame. The bulk is compared and not decoded: under the race detector that takes
// long by the byte. What is not the bulk to the last byte is decoded like all else.
func (c *wsClient) parsed(text string) frame.Message {
	c.r.Helper()
	short := text
	if c.r.bulk != "" {
		short = strings.Replace(text, c.r.bulk, `"bulk"`, 1)
	}
	m, err := frame.ParseMessage([]byte(short))
	if err != nil {
		c.r.Fatalf("%s: %v", text, err)
	}
	return m
}

// ask sends a frame and returns its answer, which must have that op and be the next frame. Only
// an event may be faster, and is kept for next: what is published or given back may be
// delivered before that is told. None is faster than the answer to a SUBSCRIBE.
func (c *wsClient) ask(text, op string) frame.Message {
	c.r.Helper()
	c.send(text)
	for {
		got := c.arrived()
		m := c.parsed(got)
		if m.Op == frame.Event && op != frame.Event && !strings.Contains(text, `"SUBSCRIBE"`) {
			c.early = append(c.early, got)
			continue
		}
		if m.Op != op {
			c.r.Fatalf("%s came, not %s", got, op)
		}
		return m
	}
}

// quiet fails if a frame comes within that time.
func (c *wsClient) quiet(d time.Duration) {
	c.r.Helper()
	if len(c.early) > 0 {
		c.r.Fatalf("%s came", c.early[0])
	}
	select {
	case text := <-c.frames:
		c.r.Fatalf("%s came", text)
	case <-time.After(d):
	}
}

// closed waits for the end of the connection, and returns its code.
func (c *wsClient) closed() int {
	c.r.Helper()
	for {
		select {
		case _, ok := <-c.frames:
			if !ok {
				return int(websocket.CloseStatus(c.gone))
			}
		case <-time.After(patience):
			c.r.Fatal("the connection is not closed")
		}
	}
}

// object is a frame as it came.
func object(t *testing.T, text string) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return m
}

// pipeNet is a network in memory: connections come from and to 127.0.0.1.
type pipeNet struct {
	conns chan net.Conn
	over  chan struct{}
	once  sync.Once
}

func newPipeNet() *pipeNet { return &pipeNet{conns: make(chan net.Conn), over: make(chan struct{})} }

func (n *pipeNet) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	return n.dialFrom(ctx, "")
}

// from returns a dial function of a client with that address.
func (n *pipeNet) from(address string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) { return n.dialFrom(ctx, address) }
}

func (n *pipeNet) dialFrom(ctx context.Context, from string) (net.Conn, error) {
	here, there := net.Pipe()
	var client net.Addr
	if from != "" {
		client = net.TCPAddrFromAddrPort(netip.MustParseAddrPort(from))
	}
	select {
	case n.conns <- loopbackConn{there, client}:
		return here, nil
	case <-n.over:
		return nil, errors.New("closed")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
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

type loopbackConn struct {
	net.Conn
	client net.Addr // nil: the pipe's
}

// LocalAddr says that the connection is one of this machine.
func (loopbackConn) LocalAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80}
}

// RemoteAddr returns the client's address.
func (c loopbackConn) RemoteAddr() net.Addr {
	if c.client == nil {
		return c.Conn.RemoteAddr()
	}
	return c.client
}

// tokens are tokens of tests: "subject scope scope ...", with "~" and seconds behind it for
// those that end.
type tokens struct{}

// Authenticate implements gateway.Authenticator.
func (tokens) Authenticate(_ context.Context, token string) (gateway.Principal, error) {
	token, life, ends := strings.Cut(token, "~")
	fields := strings.Fields(token)
	if len(fields) == 0 || strings.HasPrefix(token, "bad") {
		return gateway.Principal{}, gateway.ErrBadToken
	}
	scopes, err := gateway.ParseScopes(fields[0], fields[1:]...)
	if err != nil {
		return gateway.Principal{}, err
	}
	p := gateway.Principal{Subject: fields[0], Scopes: scopes}
	if ends {
		d, err := time.ParseDuration(life)
		if err != nil {
			return gateway.Principal{}, err
		}
		// The end is counted from the beginning of the bubble.
		p.Expires = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Add(d)
	}
	return p, nil
}
