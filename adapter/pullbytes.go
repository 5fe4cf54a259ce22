package adapter

import (
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// What a puller holds and asks for is bounded in bytes, too: its account of requests (see
// pulls) and that of its leases are exact, and what they leave of the bound is what the
// next request may bring.

// refusalRest is how long it takes until a puller tries again whether an event that there was
// no room for is gone.
const refusalRest = time.Second

// holdLocked and dropLocked count what the puller holds.
func (p *puller) holdLocked(l *lease) { p.held, p.heldBytes = p.held+1, p.heldBytes+l.size }

func (p *puller) dropLocked(l *lease) {
	p.held, p.heldBytes = p.held-1, p.heldBytes-l.size
	if p.ended {
		p.giveBackLocked()
	}
}

// reservedLocked returns how many bytes the puller may hold with its reservation. It tries to double that if
// the next event did not fit next to the bytes in use, or if more than half of it is held. Bytes that are only
// requested do not count, because few events may arrive.
func (p *puller) reservedLocked(most, used int64) int64 {
	have := jetbus.UnreservedBytes + p.reserved
	if refused := p.refused > 0 && p.refused >= have-used; (refused || 2*p.heldBytes > have) && (used == 0 || have < most) && p.s.o.Reserve(have) {
		p.reserved += have
	}
	return jetbus.UnreservedBytes + p.reserved
}

// giveBackLocked gives back reserved bytes that are neither held nor requested.
func (p *puller) giveBackLocked() {
	if surplus := min(p.reserved, p.reserved+jetbus.UnreservedBytes-p.heldBytes-p.pulls.bytes); surplus > 0 {
		p.reserved -= surplus
		p.s.o.Reserve(-surplus)
	}
}

// mostBytes returns the maximum number of bytes that this puller may hold.
func (p *puller) mostBytes() int64 {
	part := p.s.o.MaxInFlightBytes / int64(p.s.topics)
	if p.t.retries {
		return max(part/8, 1)
	}
	return max(part-part/8, 1)
}

// bytesLocked returns how many events and bytes a request may ask for. n events are wanted, and there is room
// for room events. The bytes are their share of the free bytes, so that other requests may be open at the same
// time. If the next event did not fit into an earlier request, they are all free bytes. If it did not even fit
// into the maximum, the request is for this event alone, of any size that Reserve allows. 0 events means no
// request.
func (p *puller) bytesLocked(n, room int) (events int, bytes int64) {
	most, used := p.mostBytes(), p.heldBytes+p.pulls.bytes
	have := int64(anySize)
	if p.s.o.Reserve != nil {
		have = p.reservedLocked(most, used)
		most = min(most, have)
	}
	left := most - used
	switch {
	case p.refused >= most && used == 0 && have > p.refused:
		return 1, have
	case left <= p.refused, p.pulls.asked > 0 && left < most/4: // no room, or too little for another request while one is open
		return 0, 0
	case p.refused > 0:
		return n, left
	}
	return n, max(left*int64(n)/int64(room), 1)
}

// lookLocked makes check look again, after a while, whether the next event is still one that does not fit:
// another member may have taken it. It is not needed for events of this member, whose end wakes the puller.
func (p *puller) lookLocked() {
	if p.looking || p.resting || p.ended || p.wake == nil {
		return
	}
	p.looking = true
	p.wake.Reset(refusalRest)
}
