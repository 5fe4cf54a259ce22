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

// reservedLocked is how many bytes the puller may hold by what it has reserved, and tries to double that where
// there was no room for the next event beside what is used, or more than half of it is held. What is only
// asked for does not count, as few events may come.
func (p *puller) reservedLocked(most, used int64) int64 {
	have := jetbus.UnreservedBytes + p.reserved
	if refused := p.refused > 0 && p.refused >= have-used; (refused || 2*p.heldBytes > have) && (used == 0 || have < most) && p.s.o.Reserve(have) {
		p.reserved += have
	}
	return jetbus.UnreservedBytes + p.reserved
}

// giveBackLocked gives back what was reserved and is neither held nor asked for.
func (p *puller) giveBackLocked() {
	if surplus := min(p.reserved, p.reserved+jetbus.UnreservedBytes-p.heldBytes-p.pulls.bytes); surplus > 0 {
		p.reserved -= surplus
		p.s.o.Reserve(-surplus)
	}
}

// mostBytes is how many bytes this puller may hold.
func (p *puller) mostBytes() int64 {
	part := p.s.o.MaxInFlightBytes / int64(p.s.topics)
	if p.t.retries {
		return max(part/8, 1)
	}
	return max(part-part/8, 1)
}

// bytesLocked is how many bytes a request for n of so many events may bring: its part of
// what there is room for, so that others may be open beside it. Where a request had no
// room for the next event, that is all there is room for, and where even that was all that
// may be held, any number: then it is for this event alone. 0 stands for no request.
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
	case left <= p.refused, p.pulls.asked > 0 && left < most/4: // no room, or too little to be worth a request while another is open
		return 0, 0
	case p.refused > 0:
		return n, left
	}
	return n, max(left*int64(n)/int64(room), 1)
}

// lookLocked lets check look after a while whether the next event is still one that there is
// no room for: another member may have taken it. An event of this one that ends is
// waited for by itself.
func (p *puller) lookLocked() {
	if p.looking || p.resting || p.ended || p.wake == nil {
		return
	}
	p.looking = true
	p.wake.Reset(refusalRest)
}
