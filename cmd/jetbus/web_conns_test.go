package main

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// fakeConn is a connection of an address.
type fakeConn struct {
	net.Conn
	host   string
	closed bool
}

// RemoteAddr implements net.Conn.
func (c *fakeConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(c.host), Port: 1} }

// Close implements net.Conn.
func (c *fakeConn) Close() error {
	c.closed = true
	return nil
}

// TestIdleConnsAreBounded: if too many connections are idle, the oldest of the address with the most is closed.
// Active connections stay.
func TestIdleConnsAreBounded(t *testing.T) {
	t.Parallel()
	c := newWebConns(4, 4)
	connect := func(host string) *fakeConn {
		nc := &fakeConn{host: host}
		c.observe(nc, http.StateNew)
		return nc
	}
	bystander := connect("10.0.0.1")
	busy := connect("10.0.0.2")
	c.observe(busy, http.StateActive)
	var crowd []*fakeConn
	for range 10 {
		crowd = append(crowd, connect("10.0.0.2"))
	}
	for i, nc := range crowd {
		if nc.closed != (i < 7) {
			t.Errorf("connection %d: closed is %v", i, nc.closed)
		}
	}
	if bystander.closed || busy.closed {
		t.Error("another one is closed")
	}
	c.observe(busy, http.StateIdle)
	if !crowd[7].closed || busy.closed {
		t.Error("a connection without a request any more does not count")
	}
	for _, nc := range append(crowd, bystander, busy) {
		c.observe(nc, http.StateClosed)
		c.observe(nc, http.StateClosed)
	}
	if c.idle != 0 || c.active != 0 || len(c.at) != 0 || len(c.hosts) != 0 {
		t.Errorf("%d connections leak", c.idle+c.active)
	}
}

// TestUsedConnsOutliveUnusedOnes: a client that makes requests keeps its connection while others of its
// address open connections that make none; but not all places are taken by such clients.
func TestUsedConnsOutliveUnusedOnes(t *testing.T) {
	t.Parallel()
	c := newWebConns(4, 4)
	connect := func() *fakeConn {
		nc := &fakeConn{host: "10.0.0.1"}
		c.observe(nc, http.StateNew)
		return nc
	}
	request := func(nc *fakeConn) {
		c.observe(nc, http.StateActive)
		c.observe(nc, http.StateIdle)
	}
	client := connect()
	request(client)
	for range 10 {
		connect()
	}
	if client.closed {
		t.Error("the connection of a client is closed, and not one that never had a request")
	}
	clients := []*fakeConn{client}
	for range 4 {
		nc := connect()
		if nc.closed {
			t.Fatal("a new connection is closed at once")
		}
		request(nc)
		clients = append(clients, nc)
	}
	if !client.closed {
		t.Error("the connection that is idle for longest stays")
	}
	for _, nc := range clients[1:] {
		if nc.closed {
			t.Error("another one is closed")
		}
	}
}

// TestActiveConnsAreBounded: if too many connections have a request, the newest of the address with the most is
// closed. Hijacked connections do not count.
func TestActiveConnsAreBounded(t *testing.T) {
	t.Parallel()
	c := newWebConns(100, 4)
	request := func(host string) *fakeConn {
		nc := &fakeConn{host: host}
		c.observe(nc, http.StateNew)
		c.observe(nc, http.StateActive)
		return nc
	}
	stream := request("10.0.0.2")
	crowd := []*fakeConn{request("10.0.0.2"), request("10.0.0.2"), request("10.0.0.2")}
	bystander := request("10.0.0.1")
	if bystander.closed || stream.closed || !crowd[2].closed {
		t.Errorf("closed: bystander %v, stream %v, newest of the crowd %v", bystander.closed, stream.closed, crowd[2].closed)
	}
	for range 10 {
		if nc := request("10.0.0.2"); !nc.closed {
			t.Error("the newest of the crowd stays")
		}
	}
	c.observe(crowd[1], http.StateHijacked)
	c.observe(crowd[0], http.StateIdle)
	for range 2 {
		if nc := request("10.0.0.2"); nc.closed {
			t.Error("an upgraded or idle connection counts")
		}
	}
	if bystander.closed || stream.closed || c.active != 4 || c.idle != 1 {
		t.Errorf("bystander closed %v, stream closed %v, %d active, %d idle", bystander.closed, stream.closed, c.active, c.idle)
	}
}

// TestLargeHeadersAreBounded: of too many connections that have sent a large part of a header one is closed, and
// the others get an answer.
func TestLargeHeadersAreBounded(t *testing.T) {
	t.Parallel()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conns := newWebConns(maxIdleConns, maxActiveConns)
	server := &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: 2 * patience, ConnState: conns.observe}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(headerListener{l, conns})
	}()
	defer func() {
		_ = server.Close()
		<-served
	}()
	type result struct {
		of     int
		status int // 0: closed
	}
	results := make(chan result, maxLargeHeaders+1)
	clients := make([]net.Conn, maxLargeHeaders+1)
	for i := range clients {
		nc, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = nc.Close() }()
		clients[i] = nc
		go func() {
			response, err := http.ReadResponse(bufio.NewReader(nc), nil)
			if err != nil {
				results <- result{of: i}
				return
			}
			_ = response.Body.Close()
			results <- result{i, response.StatusCode}
		}()
		if _, err := io.WriteString(nc, "GET / HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("x", largeHeader)); err != nil {
			t.Fatal(err)
		}
	}
	next := func() result {
		select {
		case r := <-results:
			return r
		case <-time.After(patience):
			t.Fatal("no connection is closed or answered")
			return result{}
		}
	}
	first := next()
	if first.status != 0 {
		t.Errorf("status %d for half a header", first.status)
	}
	for i, nc := range clients {
		if i != first.of {
			if _, err := io.WriteString(nc, "\r\n\r\n"); err != nil {
				t.Error(err)
			}
		}
	}
	for range maxLargeHeaders {
		if r := next(); r.status != http.StatusNotFound {
			t.Errorf("connection %d: status %d", r.of, r.status)
		}
	}
}
