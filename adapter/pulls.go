package adapter

import (
	"slices"
	"time"
)

// pulls is the account of a puller's requests: how many events they can still
// bring, and how old at most what they bring is. It knows nothing of the network.
//
// The server takes the requests of a connection in the order they are sent, and
// what it sends arrives in order. So when an answer to a request has come, all
// that comes later was sent after that request was; and when more events have
// come than the older requests could bring, some were brought by a newer one.
// Which request an event belongs to is not said, and does not matter: events
// are put down to the oldest request that has room for them.
type pulls struct {
	open  []pull // in the order they were sent
	asked int    // events to count on: the sum of credit
	proof time.Time
	token uint64 // of the newest
}

// pull is one request, as far as it is known to be open.
type pull struct {
	token  uint64
	sent   time.Time
	left   int // events it can still bring
	credit int // those of them to count on; 0 once it was given up
}

// ask adds a request for n events.
func (p *pulls) ask(n int, now time.Time) (token uint64) {
	p.token++
	p.asked += n
	p.open = append(p.open, pull{token: p.token, sent: now, left: n, credit: n})
	return p.token
}

// event accounts for an event that came, and returns a time before which the
// server cannot have sent it; zero if nothing is known.
func (p *pulls) event() (since time.Time) {
	if len(p.open) > 0 && p.open[0].left > 1 && p.open[0].credit > 0 { // as nearly always
		q := &p.open[0]
		q.left--
		q.credit--
		p.asked--
		p.proof = maxTime(p.proof, q.sent)
		return p.proof
	}
	if i := slices.IndexFunc(p.open, func(q pull) bool { return q.left > 0 }); i >= 0 {
		p.open[i].left--
		p.proof = maxTime(p.proof, p.open[i].sent)
	}
	if i := slices.IndexFunc(p.open, func(q pull) bool { return q.credit > 0 }); i >= 0 {
		p.open[i].credit--
		p.asked--
	}
	p.tidy(0)
	return p.proof
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

// close removes a request that is over. pending is how many events it did not
// bring, -1 where that is not known.
func (p *pulls) close(token uint64, pending int) {
	var q pull
	if i := p.index(token); i >= 0 {
		q = p.open[i]
		p.proof = maxTime(p.proof, q.sent)
		p.open = slices.Delete(p.open, i, i+1)
		p.asked -= q.credit
	}
	if pending < 0 {
		return
	}
	// It brought more than was put down to it: others can bring as much more, and
	// all that comes from now on was sent after this one was. Or it brought less,
	// and the newest others, as the worst case, that much more.
	left, credit := q.left-pending, q.credit-pending
	if left > 0 || credit > 0 {
		p.asked += max(credit, 0)
		p.open = slices.Insert(p.open, 0, pull{sent: q.sent, left: max(left, 0), credit: max(credit, 0)})
	}
	p.take(max(-left, 0), max(-credit, 0))
}

// take lowers what the newest requests can bring.
func (p *pulls) take(left, credit int) {
	for i := len(p.open) - 1; i >= 0; i-- {
		q := &p.open[i]
		n, m := min(q.left, left), min(q.credit, credit)
		q.left, left = q.left-n, left-n
		q.credit, credit = q.credit-m, credit-m
		p.asked -= m
	}
	p.tidy(0)
}

// giveUp stops counting on the open requests. They remain known as long as
// they may bring events; life is how long the server keeps one.
func (p *pulls) giveUp(life time.Duration) {
	for i := range p.open {
		p.open[i].credit = 0
	}
	p.asked = 0
	p.tidy(life)
}

// tidy forgets requests that can bring nothing more: that have brought all, or,
// with a life, that the server must have ended before it took a later one.
func (p *pulls) tidy(life time.Duration) {
	p.open = slices.DeleteFunc(p.open, func(q pull) bool {
		return q.credit == 0 && (q.left == 0 || life > 0 && p.proof.Sub(q.sent) > 2*life)
	})
}

// reset forgets all requests: they were made on a connection that is gone.
func (p *pulls) reset() { p.open, p.asked = nil, 0 }

func (p *pulls) index(token uint64) int {
	return slices.IndexFunc(p.open, func(q pull) bool { return q.token == token })
}
