package gateway

import (
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"sync"
)

// preAuth holds the WebSockets whose clients have not authenticated yet, at most Limits.PreAuth. They
// do not count against the limit of authenticated WebSockets.
//
// If preAuth is full, a new socket is accepted and another one is evicted: the oldest socket of the
// largest group. A group is all sockets of an address that have sent a token, or all that have not.
// So many sockets of one address cannot evict clients of other addresses. A client that shares the
// address of an attacker, as all clients of a reverse proxy do, is evicted only if Limits.PreAuth
// sockets arrive between its handshake and its AUTH.
type preAuth struct {
	mu    sync.Mutex
	list  []*pending           // oldest first
	sizes map[pendingGroup]int // of the groups in list
}

// pending is a WebSocket in preAuth.
type pending struct {
	group pendingGroup // guarded by preAuth.mu
	evict func()       // closes the socket; called once at most
}

type pendingGroup struct {
	from     netip.Prefix
	checking bool // the client has sent a token
}

// add adds a socket. If there are already most sockets, it evicts one of them.
func (p *preAuth) add(one *pending, most int) {
	p.mu.Lock()
	p.countLocked(one.group, 1)
	var out *pending
	if len(p.list) >= most {
		out = p.oldestOfLargestLocked(one.group)
		p.removeLocked(out)
	}
	p.list = append(p.list, one)
	p.mu.Unlock()
	if out != nil {
		out.evict()
	}
}

func (p *preAuth) countLocked(group pendingGroup, n int) {
	if p.sizes == nil {
		p.sizes = map[pendingGroup]int{}
	}
	if p.sizes[group] += n; p.sizes[group] == 0 {
		delete(p.sizes, group)
	}
}

// oldestOfLargestLocked returns the oldest socket of the largest group. If several groups are largest,
// it prefers the group next of the new socket, then the group with the oldest socket.
func (p *preAuth) oldestOfLargestLocked(next pendingGroup) *pending {
	most := slices.Max(slices.Collect(maps.Values(p.sizes)))
	if p.sizes[next] == most {
		if i := slices.IndexFunc(p.list, func(one *pending) bool { return one.group == next }); i >= 0 {
			return p.list[i]
		}
	}
	// If next is largest but has no socket in the list, most is 1, and the first socket matches.
	return p.list[slices.IndexFunc(p.list, func(one *pending) bool { return p.sizes[one.group] == most })]
}

// remove removes a socket that has authenticated or ended. It does nothing if the socket was evicted.
func (p *preAuth) remove(one *pending) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.removeLocked(one)
}

func (p *preAuth) removeLocked(one *pending) {
	if i := slices.Index(p.list, one); i >= 0 {
		p.list = slices.Delete(p.list, i, i+1)
		p.countLocked(one.group, -1)
	}
}

// check moves a socket to the other group of its address when the check of its token begins or ends.
func (p *preAuth) check(one *pending, checking bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	there := slices.Contains(p.list, one)
	if there {
		p.countLocked(one.group, -1)
	}
	one.group.checking = checking
	if there {
		p.countLocked(one.group, 1)
	}
}

// addressOf returns the address that a request came from: an IPv4 address, or the /64 network of an
// IPv6 address, because one client usually has a whole network. It ignores forwarding headers, which
// any client can send. Clients without an IP address share the zero prefix.
func addressOf(r *http.Request) netip.Prefix {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Prefix{}
	}
	a := from.Addr().Unmap().WithZone("")
	bits := 64
	if a.Is4() {
		bits = 32
	}
	return netip.PrefixFrom(a, bits).Masked()
}
