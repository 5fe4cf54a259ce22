package main

import (
	"container/list"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
)

// maxIdleConns is how many connections of a server may be without a request. Each costs some 20 KiB, whether or not
// its client ever sends one.
const maxIdleConns = 1000

// idleConns are the connections of a server that are without a request. Beyond most of them it closes the one
// that has been so for longest, of the address that has most: a client with many connections closes its own.
type idleConns struct {
	most int

	mu    sync.Mutex
	count int
	hosts map[string]*list.List      // of net.Conn, the longest idle first
	at    map[net.Conn]*list.Element // in the list of its host
}

func newIdleConns(most int) *idleConns {
	return &idleConns{most: most, hosts: map[string]*list.List{}, at: map[net.Conn]*list.Element{}}
}

// observe is an http.Server's ConnState.
func (c *idleConns) observe(nc net.Conn, s http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(nc)
	if s != http.StateNew && s != http.StateIdle {
		return
	}
	host := hostOf(nc)
	if c.hosts[host] == nil {
		c.hosts[host] = list.New()
	}
	c.at[nc] = c.hosts[host].PushBack(nc)
	if c.count++; c.count <= c.most {
		return
	}
	largest := c.hosts[host]
	for _, l := range c.hosts {
		if l.Len() > largest.Len() {
			largest = l
		}
	}
	oldest := largest.Front().Value.(net.Conn) //nolint:forcetypeassert // nothing else is in it
	c.removeLocked(oldest)
	if secure, ok := oldest.(*tls.Conn); ok { // its Close waits until the client takes an alert
		oldest = secure.NetConn()
	}
	_ = oldest.Close() // the server notices
}

func (c *idleConns) removeLocked(nc net.Conn) {
	e := c.at[nc]
	if e == nil {
		return
	}
	delete(c.at, nc)
	host := hostOf(nc)
	l := c.hosts[host]
	if l.Remove(e); l.Len() == 0 {
		delete(c.hosts, host)
	}
	c.count--
}

// hostOf is the address of a connection's client, without its port.
func hostOf(nc net.Conn) string {
	text := nc.RemoteAddr().String()
	if host, _, err := net.SplitHostPort(text); err == nil {
		return host
	}
	return text
}
