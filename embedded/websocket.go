package embedded

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/seed-63e9a637/jetbus/internal/loopback"
)

// guardsWebSocket reports whether a webSocketGuard listens in place of the server: where the
// listener admits every program on this machine, without credentials.
func (c Config) guardsWebSocket() bool {
	return c.WebSocket != "" && loopback.Address(c.WebSocket) && c.User == "" && c.Token == ""
}

// A webSocketGuard listens for WebSocket clients in place of the server. The server compares
// the Origin of a request with its Host, and by DNS rebinding a page makes both its own name.
// The guard checks the Host and forwards what passes to the server, which listens on another
// loopback port and accepts the origins of the guard's port alone.
type webSocketGuard struct {
	listener net.Listener
	web      *http.Server
	served   chan struct{} // closed when web has stopped to serve
	server   string        // address of the server's listener

	mu     sync.Mutex // guards the following
	closed bool
	conns  map[net.Conn]struct{} // of clients and to the server
	busy   sync.WaitGroup        // handlers
}

// listenWebSocket opens the listener of a guard. The error says that it is the WebSocket's.
func listenWebSocket(ctx context.Context, c Config, before int) (*webSocketGuard, error) {
	host, port, err := splitAddr(c.WebSocket)
	if err != nil {
		return nil, err
	}
	if before != 0 {
		port = before
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("listen for websocket connections: %w", err)
	}
	return &webSocketGuard{listener: l, served: make(chan struct{}), conns: map[net.Conn]struct{}{}}, nil
}

// port is the guard's port.
func (g *webSocketGuard) port() int { return g.listener.Addr().(*net.TCPAddr).Port }

// options are those of the server's listener.
func (g *webSocketGuard) options(c Config) server.WebsocketOpts {
	host, _, _ := splitAddr(c.WebSocket)
	port := strconv.Itoa(g.port())
	o := server.WebsocketOpts{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoTLS: true,
		Advertise: net.JoinHostPort(host, port), AllowedOrigins: c.WebSocketOrigins,
	}
	if len(o.AllowedOrigins) == 0 {
		scheme := "http://"
		if c.WebSocketTLS != nil {
			scheme = "https://"
		}
		for _, name := range []string{"localhost", "127.0.0.1", "::1"} {
			o.AllowedOrigins = append(o.AllowedOrigins, scheme+net.JoinHostPort(name, port))
		}
	}
	return o
}

// serve begins to forward connections to the server, which listens at the address.
func (g *webSocketGuard) serve(address string, t *tls.Config, log *slog.Logger) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	g.server = address
	g.web = &http.Server{
		Handler: g, ReadHeaderTimeout: authTimeout, Protocols: new(http.Protocols),
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug), // what clients do wrong
	}
	g.web.Protocols.SetHTTP1(true) // the only one that a connection can be taken from
	l := g.listener
	if t != nil {
		l = tls.NewListener(l, t.Clone())
	}
	go func() {
		defer close(g.served)
		if err := g.web.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.LogAttrs(context.Background(), slog.LevelError, "the WebSocket listener stopped", slog.Any("err", err))
		}
	}()
}

// close ends the guard and its connections, and returns when all of it is gone. A nil guard
// is closed.
func (g *webSocketGuard) close() {
	if g == nil {
		return
	}
	if g.web == nil { // it did not serve yet
		_ = g.listener.Close()
		return
	}
	_ = g.web.Close()
	<-g.served
	g.mu.Lock()
	g.closed = true
	for c := range g.conns {
		_ = c.Close()
	}
	g.mu.Unlock()
	g.busy.Wait()
}

// enter registers a handler. It reports false if the guard is closed.
func (g *webSocketGuard) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.busy.Add(1)
	}
	return !g.closed
}

// hold registers a connection, which close ends. It reports false if the guard is closed.
func (g *webSocketGuard) hold(c net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.conns[c] = struct{}{}
	}
	return !g.closed
}

// drop ends a connection.
func (g *webSocketGuard) drop(c net.Conn) {
	g.mu.Lock()
	delete(g.conns, c)
	g.mu.Unlock()
	_ = c.Close()
}

// ServeHTTP implements [http.Handler]: it forwards the handshake of a WebSocket to the server,
// and then all bytes of the connection in both directions.
func (g *webSocketGuard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !g.enter() {
		return
	}
	defer g.busy.Done()
	if err := loopback.Check(r); err != nil {
		http.Error(w, "forbidden: "+err.Error(), http.StatusForbidden)
		return
	}
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		http.Error(w, "connect with a WebSocket", http.StatusBadRequest)
		return
	}
	to, err := (&net.Dialer{}).DialContext(r.Context(), "tcp", g.server)
	if err != nil {
		http.Error(w, "the server does not listen", http.StatusBadGateway)
		return
	}
	defer g.drop(to)
	client, in, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, "the connection cannot be upgraded", http.StatusInternalServerError)
		return
	}
	defer g.drop(client)
	if !g.hold(to) || !g.hold(client) {
		return
	}
	out := bufio.NewReader(to)
	if !handshake(client, to, out, r) {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(to, in.Reader)
		_ = to.Close()
	}()
	_, _ = io.Copy(client, out)
	_ = client.Close()
	<-done
}

// handshake forwards a request to the server and the answer to the client. It reports whether
// the server has upgraded the connection.
func handshake(client, to net.Conn, out *bufio.Reader, r *http.Request) bool {
	r.Body, r.ContentLength, r.TransferEncoding = nil, 0, nil
	if err := r.Write(to); err != nil {
		return false
	}
	answer, err := http.ReadResponse(out, r)
	if err != nil {
		return false
	}
	upgraded := answer.StatusCode == http.StatusSwitchingProtocols
	answer.Close = !upgraded
	err = answer.Write(client)
	if !upgraded {
		_ = answer.Body.Close()
	}
	return upgraded && err == nil
}
