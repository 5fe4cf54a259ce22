package gateway

import (
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"sync"
)

// preAuth holds the WebSockets whose clients have not authenticated yet, at most
// Limits.PreAuth. They take none of the room of those that have.
//
// A socket that comes when there is no room is accepted, and evicts another one: the oldest of
// the largest group, where a group has the same address and either waits for a token or for the
// check of one. So sockets from elsewhere cannot evict a client, and a client that shares its
// address with them, as all do behind a reverse proxy, is only evicted when as many sockets as
// there is room for come between its handshake and its AUTH.
type preAuth struct {
	mu    sync.Mutex
	list  []*pending           // oldest first
	sizes map[pendingGroup]int // of the groups in list
}

// pending is one of these WebSockets.
type pending struct {
	group pendingGroup // guarded by preAuth.mu
	evict func()       // closes the socket; called once at most
}

type pendingGroup struct {
	from     netip.Prefix
	checking bool // the client has sent a token
}

// add adds a socket. If there are most already, it evicts one of them.
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

// oldestOfLargestLocked returns the oldest socket of the largest group. Of several largest groups it
// takes that of the socket that comes, else the one that has the oldest socket.
func (p *preAuth) oldestOfLargestLocked(next pendingGroup) *pending {
	most := slices.Max(slices.Collect(maps.Values(p.sizes)))
	if p.sizes[next] == most {
		if i := slices.IndexFunc(p.list, func(one *pending) bool { return one.group == next }); i >= 0 {
			return p.list[i]
		}
	}
	// If the largest group is that of next alone, most is 1 and the first socket matches.
	return p.list[slices.IndexFunc(p.list, func(one *pending) bool { return p.sizes[one.group] == most })]
}

// remove removes a socket that has authenticated or ended. One that was evicted is gone already.
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

// check notes that a socket's token is being checked, or is not any more.
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

// addressOf returns the network address that a request came from: an IPv4 address, or the 64 bits
// of an IPv6 network, of which one client has all addresses. It does not go by forwarding headers,
// which any client can send. The zero prefix stands for all that have no IP address.
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
