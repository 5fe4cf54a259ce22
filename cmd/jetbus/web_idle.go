package main

import (
	"container/list"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
)

// maxIdleConns is how many connections of a server may be idle, without a request. Each takes about 20 KiB, even if
// its client never sends a request.
const maxIdleConns = 1000

// idleConns holds the idle connections of a server. If there are more than most, it closes a connection of
// the address with the most idle connections. So a client with many connections loses its own. It closes the
// oldest connection that never had a request, or else the one that has been idle for longest. A connection
// that was just accepted is closed only if its address has no other idle connection.
type idleConns struct {
	most int

	mu    sync.Mutex
	count int
	hosts map[string]*hostConns
	at    map[net.Conn]idleConn
}

// hostConns are the connections of one address. The elements of the lists are net.Conn.
type hostConns struct {
	fresh list.List // never had a request; the oldest first
	used  list.List // the longest idle first
}

func (h *hostConns) len() int { return h.fresh.Len() + h.used.Len() }

// idleConn is the place of a connection in a list.
type idleConn struct {
	in *list.List
	e  *list.Element
}

func newIdleConns(most int) *idleConns {
	return &idleConns{most: most, hosts: map[string]*hostConns{}, at: map[net.Conn]idleConn{}}
}

// observe is the ConnState of an http.Server.
func (c *idleConns) observe(nc net.Conn, s http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(nc)
	if s != http.StateNew && s != http.StateIdle {
		return
	}
	host := hostOf(nc)
	if c.hosts[host] == nil {
		c.hosts[host] = &hostConns{}
	}
	in := &c.hosts[host].used
	if s == http.StateNew {
		in = &c.hosts[host].fresh
	}
	c.at[nc] = idleConn{in, in.PushBack(nc)}
	if c.count++; c.count <= c.most {
		return
	}
	largest := c.hosts[host]
	for _, h := range c.hosts {
		if h.len() > largest.len() {
			largest = h
		}
	}
	first := largest.fresh.Front()
	if first == nil || largest.fresh.Len() == 1 && first.Value == nc && largest.used.Len() > 0 { // prefer an idle one to the new one
		first = largest.used.Front()
	}
	oldest := first.Value.(net.Conn) //nolint:forcetypeassert // nothing else is in it
	c.removeLocked(oldest)
	if secure, ok := oldest.(*tls.Conn); ok { // Close of a tls.Conn waits for the client to read an alert
		oldest = secure.NetConn()
	}
	_ = oldest.Close() // the server ends its goroutine
}

func (c *idleConns) removeLocked(nc net.Conn) {
	at, ok := c.at[nc]
	if !ok {
		return
	}
	delete(c.at, nc)
	at.in.Remove(at.e)
	if host := hostOf(nc); c.hosts[host].len() == 0 {
		delete(c.hosts, host)
	}
	c.count--
}

// hostOf returns the address of a connection's client without the port.
func hostOf(nc net.Conn) string {
	text := nc.RemoteAddr().String()
	if host, _, err := net.SplitHostPort(text); err == nil {
		return host
	}
	return text
}
