package main

import (
	"net"
	"net/http"
	"testing"
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

// TestIdleConnsAreBounded: of too many connections without a request the oldest of the address that has most is
// closed, and those that have a request stay.
func TestIdleConnsAreBounded(t *testing.T) {
	t.Parallel()
	c := newIdleConns(4)
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
	if c.count != 0 || len(c.at) != 0 || len(c.hosts) != 0 {
		t.Errorf("%d connections leak", c.count)
	}
}

// TestUsedConnsOutliveUnusedOnes: a client that makes requests keeps its connection while others of its
// address open connections that make none; but not all places are taken by such clients.
func TestUsedConnsOutliveUnusedOnes(t *testing.T) {
	t.Parallel()
	c := newIdleConns(4)
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
