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
	"sync/atomic"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/seed-63e9a637/jetbus/internal/loopback"
)

// guardsWebSocket reports whether a webSocketGuard listens instead of the server. It does if the
// listener admits every program on this machine without credentials.
func (c Config) guardsWebSocket() bool {
	return c.WebSocket != "" && loopback.Address(c.WebSocket) && c.User == "" && c.Token == ""
}

// A webSocketGuard listens for WebSocket clients instead of the server. The server only compares
// the Origin of a request with its Host. With DNS rebinding, a page can set both to its own name.
// The guard checks the Host, refuses proxies and forwards accepted requests to the server. The server listens on
// another loopback port and, by default, accepts only the origins of the guard's port.
type webSocketGuard struct {
	listener net.Listener
	web      *http.Server
	served   chan struct{} // closed when web has stopped serving
	server   string        // address of the server's listener

	plain atomic.Int64 // connections that were not upgraded

	mu     sync.Mutex // guards closed and conns
	closed bool
	conns  map[net.Conn]struct{} // of clients and to the server
	busy   sync.WaitGroup        // of handlers; added to under mu
}

// listenWebSocket opens the listener of a guard, on port before if it is not 0. The error names the
// WebSocket listener.
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

// port returns the guard's port.
func (g *webSocketGuard) port() int { return g.listener.Addr().(*net.TCPAddr).Port }

// options returns the options of the server's listener.
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

// serve starts forwarding connections to the server's listener at address.
func (g *webSocketGuard) serve(address string, t *tls.Config, log *slog.Logger) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	g.server = address
	g.web = &http.Server{
		Handler: g, Protocols: new(http.Protocols), ConnState: g.count,
		ReadTimeout: authTimeout, IdleTimeout: authTimeout, MaxHeaderBytes: 32 << 10, // of connections that are not WebSockets
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug), // errors of clients
	}
	g.web.Protocols.SetHTTP1(true) // other protocols do not support Hijack
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

// maxPlain is the maximum number of connections that were not upgraded to WebSockets.
const maxPlain = 1000

// count is the ConnState of the guard. It closes a new connection if there are too many.
func (g *webSocketGuard) count(c net.Conn, s http.ConnState) {
	switch s { //nolint:exhaustive // each connection begins and ends once
	case http.StateNew:
		if g.plain.Add(1) > maxPlain {
			_ = c.Close() // web ends its goroutine, and reports StateClosed
		}
	case http.StateHijacked, http.StateClosed:
		g.plain.Add(-1)
	}
}

// close closes the listener and all connections, and waits for the handlers. It does nothing if the
// guard is nil.
func (g *webSocketGuard) close() {
	if g == nil {
		return
	}
	if g.web == nil { // serve was not called
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

// hold registers a connection for close. It reports false if the guard is closed.
func (g *webSocketGuard) hold(c net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.conns[c] = struct{}{}
	}
	return !g.closed
}

// drop closes a connection and removes it.
func (g *webSocketGuard) drop(c net.Conn) {
	g.mu.Lock()
	delete(g.conns, c)
	g.mu.Unlock()
	_ = c.Close()
}

// ServeHTTP implements [http.Handler]. It forwards the handshake of a WebSocket to the server, and
// then all bytes in both directions.
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
		http.Error(w, "the server cannot be reached", http.StatusBadGateway)
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

// handshake forwards a request to the server and the response to the client. It reports whether the
// server upgraded the connection.
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
