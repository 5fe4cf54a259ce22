package main

import (
	"net"
	"net/http"
	"testing"
)

// idleConn is a connection of an address.
type idleConn struct {
	net.Conn
	host   string
	closed bool
}

// RemoteAddr implements net.Conn.
func (c *idleConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(c.host), Port: 1} }

// Close implements net.Conn.
func (c *idleConn) Close() error {
	c.closed = true
	return nil
}

// TestIdleConnsAreBounded: of too many connections without a request the oldest of the address that has most is
// closed, and those that have a request stay.
func TestIdleConnsAreBounded(t *testing.T) {
	t.Parallel()
	c := newIdleConns(4)
	connect := func(host string) *idleConn {
		nc := &idleConn{host: host}
		c.observe(nc, http.StateNew)
		return nc
	}
	bystander := connect("10.0.0.1")
	busy := connect("10.0.0.2")
	c.observe(busy, http.StateActive)
	var crowd []*idleConn
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
