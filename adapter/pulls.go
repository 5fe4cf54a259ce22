package adapter

import (
	"slices"
	"time"
)

// pulls is the account of a puller's requests: how many events and bytes they can
// still bring, and how old at most what they bring is. It knows nothing of the network.
//
// The server takes the requests of a connection in the order they are sent, and
// what it sends arrives in order, but for words that overtake; see pullWord. So when an
// answer to a request has come, all that comes later was sent after that request was; and
// when more events have come than the older requests could bring, some were brought by a
// newer one. Which request an event belongs to is not said, and does not matter: events
// and their bytes are put down to the oldest request that has room for them.
type pulls struct {
	open  []pull // in the order they were sent
	asked int    // events to count on: the sum of credit
	bytes int64  // bytes to count on: the sum of bytes
	proof time.Time
	token uint64 // of the newest
	gone  uint64 // the newest that was given up
}

// pull is one request, as far as it is known to be open.
type pull struct {
	token  uint64
	sent   time.Time
	left   int   // events it can still bring
	credit int   // those of them to count on; 0 once it was given up
	bytes  int64 // that it can still bring, and are counted on
}

// ask adds a request for n events of so many bytes together.
func (p *pulls) ask(n int, bytes int64, now time.Time) (token uint64) {
	p.token++
	p.asked += n
	p.bytes += bytes
	p.open = append(p.open, pull{token: p.token, sent: now, left: n, credit: n, bytes: bytes})
	return p.token
}

// event accounts for an event of that size that came, and returns a time before which
// the server cannot have sent it; zero if nothing is known.
func (p *pulls) event(size int64) (since time.Time) {
	first := 0 // of those that have events left
	for first < len(p.open) && p.open[first].left == 0 {
		first++
	}
	if first == len(p.open) {
		p.spend(size)
		return p.proof
	}
	q := &p.open[first]
	p.proof = maxTime(p.proof, q.sent)
	q.left--
	if q.left > 0 && q.credit > 0 && q.bytes > size { // as nearly always
		q.credit--
		q.bytes -= size
		p.asked--
		p.bytes -= size
		return p.proof
	}
	p.spend(size)
	return p.proof
}

// spend takes an event off what the oldest requests can bring.
func (p *pulls) spend(size int64) {
	if i := slices.IndexFunc(p.open, func(q pull) bool { return q.credit > 0 }); i >= 0 {
		p.open[i].credit--
		p.asked--
	}
	for i := range p.open {
		n := min(p.open[i].bytes, size)
		p.open[i].bytes -= n
		p.bytes -= n
		size -= n
	}
	p.settle()
}

// since returns when the oldest request was sent that is counted on; zero: there is none.
func (p *pulls) since() time.Time {
	if i := slices.IndexFunc(p.open, func(q pull) bool { return q.credit > 0 }); i >= 0 {
		return p.open[i].sent
	}
	return time.Time{}
}

// answered notes a sign that a request has reached the server.
func (p *pulls) answered(token uint64) {
	if i := p.index(token); i >= 0 {
		p.proof = maxTime(p.proof, p.open[i].sent)
	}
}

// close removes a request that is over, as a word says.
func (p *pulls) close(token uint64, w pullWord) {
	i := p.index(token)
	var q pull
	if i >= 0 {
		q = p.open[i]
		p.open = slices.Delete(p.open, i, i+1)
		p.asked -= q.credit
		p.bytes -= q.bytes
		if !w.overtakes() {
			p.proof = maxTime(p.proof, q.sent)
		}
	}
	if w.events >= 0 {
		// It brought more than was put down to it: others can bring as much more, or it is
		// on its way. Or it brought less, and the newest others, as the worst case, that
		// much more. Of one that was given up nothing is counted on.
		more, less := pull{sent: q.sent, left: max(q.left-w.events, 0)}, pull{left: max(w.events-q.left, 0)}
		if token > p.gone {
			more.credit, less.credit = max(q.credit-w.events, 0), max(w.events-q.credit, 0)
			more.bytes, less.bytes = max(q.bytes-w.bytes, 0), max(w.bytes-q.bytes, 0)
		}
		if i >= 0 && more != (pull{sent: q.sent}) {
			p.asked += more.credit
			p.bytes += more.bytes
			p.open = slices.Insert(p.open, i, more)
		}
		p.take(less)
	}
	p.settle()
}

// take lowers what the newest requests can bring.
func (p *pulls) take(less pull) {
	for i := len(p.open) - 1; i >= 0; i-- {
		q := &p.open[i]
		n, m, b := min(q.left, less.left), min(q.credit, less.credit), min(q.bytes, less.bytes)
		q.left, less.left = q.left-n, less.left-n
		q.credit, less.credit = q.credit-m, less.credit-m
		q.bytes, less.bytes = q.bytes-b, less.bytes-b
		p.asked -= m
		p.bytes -= b
	}
}

// settle counts on no more events where no bytes are left, and forgets requests that can
// bring nothing. The server says nothing of one that was used up to the last byte.
func (p *pulls) settle() {
	if p.bytes == 0 && p.asked > 0 {
		for i := range p.open {
			p.open[i].credit = 0
		}
		p.asked = 0
	}
	p.tidy(0)
}

// giveUp stops counting on the open requests. They remain known as long as
// they may bring events; life is how long the server keeps one.
func (p *pulls) giveUp(life time.Duration) { p.giveUpThose(life, func(*pull) bool { return true }) }

// overdue stops counting on requests that the server must have ended without this side
// having heard of it.
func (p *pulls) overdue(life time.Duration, now time.Time) {
	p.giveUpThose(life, func(q *pull) bool { return now.Sub(q.sent) > life+pullGrace })
}

func (p *pulls) giveUpThose(life time.Duration, which func(*pull) bool) {
	for i := range p.open {
		q := &p.open[i]
		if !which(q) {
			continue
		}
		p.asked -= q.credit
		p.bytes -= q.bytes
		q.credit, q.bytes = 0, 0
		p.gone = max(p.gone, q.token)
	}
	p.tidy(life)
}

// tidy forgets requests that have brought all, or, with a life, that the server must
// have ended before it took a later one.
func (p *pulls) tidy(life time.Duration) {
	p.open = slices.DeleteFunc(p.open, func(q pull) bool {
		return q.credit == 0 && q.bytes == 0 && (q.left == 0 || life > 0 && p.proof.Sub(q.sent) > 2*life)
	})
}

// reset forgets all requests: they were made on a connection that is gone.
func (p *pulls) reset() { p.open, p.asked, p.bytes, p.gone = nil, 0, 0, p.token }

func (p *pulls) index(token uint64) int {
	return slices.IndexFunc(p.open, func(q pull) bool { return q.token == token })
}
