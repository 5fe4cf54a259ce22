package main

import (
	"container/list"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
)

// maxIdleConns is how many connections of a server may be idle, without a request. Each takes about 20 KiB, even if
// its client never sends a request.
const maxIdleConns = 1000

// maxActiveConns is how many connections of a server may have a request in progress. WebSockets do not count.
// A gateway with a larger Limits.Connections has a larger limit.
const maxActiveConns = 10_000

// While a request header arrives, it takes up to 30 times its size in memory. So at most maxLargeHeaders connections
// may have sent largeHeader bytes or more of an unfinished header.
const (
	largeHeader     = 8 << 10
	maxLargeHeaders = 64
)

// webConns holds the connections of a server, other than WebSockets. It closes connections if more than
// maxIdle are idle or more than maxActive have a request. It closes a connection of the address with the
// most connections of that kind. So a client with many connections loses its own.
//
// Of the idle connections, it closes the oldest one that never had a request, or else the one that has been
// idle for longest. A connection that was just accepted is closed only if its address has no other idle
// connection. Of the active connections, it closes the one with the newest request, so that event streams
// continue.
//
// Of the connections from which a large header arrives, it closes the oldest one beyond maxLargeHeaders.
type webConns struct {
	maxIdle, maxActive int

	mu           sync.Mutex
	idle, active int // connections in the lists
	hosts        map[string]*hostConns
	at           map[net.Conn]webConn
	large        list.List // of *headerConn, from which a large header arrives; the oldest first
}

// hostConns are the connections of one address. The elements of the lists are net.Conn.
type hostConns struct {
	fresh  list.List // never had a request; the oldest first
	used   list.List // the longest idle first
	active list.List // the oldest request first
}

func (h *hostConns) idle() int { return h.fresh.Len() + h.used.Len() }

// webConn is the place of a connection in a list.
type webConn struct {
	in    *list.List
	e     *list.Element
	count *int // idle or active of webConns
}

// headerListener is a listener of connections that count the bytes of request headers.
type headerListener struct {
	net.Listener
	conns *webConns
}

// Accept implements net.Listener.
func (l headerListener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if socket, ok := nc.(*net.TCPConn); ok {
		_ = socket.SetWriteBuffer(sendBuffer)
		nc = &headerConn{TCPConn: socket, conns: l.conns}
	}
	return nc, err
}

// sendBuffer bounds the send buffer that the operating system keeps for a connection, which would grow to megabytes
// for a client that reads slowly. Linux doubles the value.
const sendBuffer = 256 << 10

// headerConn counts the bytes that arrive while the server waits for a request.
type headerConn struct {
	*net.TCPConn
	conns   *webConns
	waiting atomic.Bool   // it has no request
	read    atomic.Int64  // bytes since it began to wait
	large   *list.Element // in conns.large, or nil; guarded by conns.mu
}

// Read implements net.Conn.
func (c *headerConn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	if c.waiting.Load() && c.read.Add(int64(n)) >= largeHeader {
		c.conns.addLarge(c)
	}
	return n, err
}

// addLarge records that a large header arrives on a connection. It may close another one.
func (c *webConns) addLarge(nc *headerConn) {
	c.mu.Lock()
	if nc.large != nil || !nc.waiting.Load() {
		c.mu.Unlock()
		return
	}
	nc.large = c.large.PushBack(nc)
	var victim net.Conn
	if c.large.Len() > maxLargeHeaders {
		oldest := c.large.Front().Value.(*headerConn) //nolint:forcetypeassert // nothing else is in it
		c.waitLocked(oldest, false)
		victim = oldest
	}
	c.mu.Unlock()
	closeVictim(victim)
}

// closeVictim closes a connection unless it is nil. The caller must not hold the mutex: the system call may take
// milliseconds, and all other connections would wait for it.
func closeVictim(nc net.Conn) {
	if secure, ok := nc.(*tls.Conn); ok { // Close of a tls.Conn waits for the client to read an alert
		nc = secure.NetConn()
	}
	if nc != nil {
		_ = nc.Close() // the server ends its goroutine
	}
}

// waitLocked records whether a connection waits for a request.
func (c *webConns) waitLocked(nc net.Conn, waits bool) {
	if secure, ok := nc.(*tls.Conn); ok {
		nc = secure.NetConn()
	}
	head, ok := nc.(*headerConn)
	if !ok {
		return
	}
	if head.large != nil {
		c.large.Remove(head.large)
		head.large = nil
	}
	head.read.Store(0)
	head.waiting.Store(waits)
}

func newWebConns(maxIdle, maxActive int) *webConns {
	return &webConns{maxIdle: maxIdle, maxActive: maxActive, hosts: map[string]*hostConns{}, at: map[net.Conn]webConn{}}
}

// observe is the ConnState of an http.Server.
func (c *webConns) observe(nc net.Conn, s http.ConnState) { closeVictim(c.record(nc, s)) }

// record records the state of a connection. It returns the connection that must be closed for it, or nil.
func (c *webConns) record(nc net.Conn, s http.ConnState) (victim net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(nc)
	c.waitLocked(nc, s == http.StateNew || s == http.StateIdle)
	if s == http.StateHijacked || s == http.StateClosed {
		return nil
	}
	host := hostOf(nc)
	h := c.hosts[host]
	if h == nil {
		h = &hostConns{}
		c.hosts[host] = h
	}
	in, count := &h.used, &c.idle
	switch s { //nolint:exhaustive // the others are above
	case http.StateNew:
		in = &h.fresh
	case http.StateActive:
		in, count = &h.active, &c.active
	}
	c.at[nc] = webConn{in, in.PushBack(nc), count}
	*count++
	var e *list.Element
	switch {
	case c.idle > c.maxIdle:
		e = c.largestLocked(h, (*hostConns).idle).oldestIdle(nc)
	case c.active > c.maxActive:
		e = c.largestLocked(h, func(h *hostConns) int { return h.active.Len() }).active.Back()
	default:
		return nil
	}
	victim = e.Value.(net.Conn) //nolint:forcetypeassert // nothing else is in it
	c.removeLocked(victim)
	return victim
}

// largestLocked returns the address with the most connections, and preferred if several have the most.
func (c *webConns) largestLocked(preferred *hostConns, size func(*hostConns) int) *hostConns {
	largest := preferred
	for _, h := range c.hosts {
		if size(h) > size(largest) {
			largest = h
		}
	}
	return largest
}

// oldestIdle returns the idle connection to close. It prefers an idle connection to accepted, which was just
// accepted.
func (h *hostConns) oldestIdle(accepted net.Conn) *list.Element {
	first := h.fresh.Front()
	if first == nil || h.fresh.Len() == 1 && first.Value == accepted && h.used.Len() > 0 {
		first = h.used.Front()
	}
	return first
}

func (c *webConns) removeLocked(nc net.Conn) {
	at, ok := c.at[nc]
	if !ok {
		return
	}
	delete(c.at, nc)
	at.in.Remove(at.e)
	*at.count--
	host := hostOf(nc)
	if h := c.hosts[host]; h.idle()+h.active.Len() == 0 {
		delete(c.hosts, host)
	}
}

// hostOf returns the address of a connection's client without the port.
func hostOf(nc net.Conn) string {
	text := nc.RemoteAddr().String()
	if host, _, err := net.SplitHostPort(text); err == nil {
		return host
	}
	return text
}
