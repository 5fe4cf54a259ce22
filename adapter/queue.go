package adapter

import "time"

// queue is a first-in first-out ring of leases that grows as needed and lets go
// of what it held.
type queue struct {
	ring []*lease
	head int
	size int
}

func (q *queue) len() int { return q.size }

func (q *queue) push(l *lease) {
	if q.size == len(q.ring) {
		grown := make([]*lease, max(2*len(q.ring), 8))
		for i := range q.size {
			grown[i] = q.ring[(q.head+i)%len(q.ring)]
		}
		q.ring, q.head = grown, 0
	}
	q.ring[(q.head+q.size)%len(q.ring)] = l
	q.size++
}

// pop returns the oldest, nil if there is none.
func (q *queue) pop() *lease {
	if q.size == 0 {
		return nil
	}
	l := q.ring[q.head]
	q.ring[q.head] = nil
	q.head = (q.head + 1) % len(q.ring)
	q.size--
	return l
}

// rate counts what happened in the last second, give or take: the running
// second and the part of the one before that is less than a second ago.
type rate struct {
	second    time.Time // start of the running one
	now, last int
}

func (r *rate) advance(now time.Time) {
	switch passed := now.Sub(r.second); {
	case passed < time.Second:
	case passed < 2*time.Second:
		r.second, r.last, r.now = r.second.Add(time.Second), r.now, 0
	default:
		r.second, r.last, r.now = now, 0, 0
	}
}

func (r *rate) add(now time.Time) {
	r.advance(now)
	r.now++
}

func (r *rate) lastSecond(now time.Time) int {
	r.advance(now)
	left := time.Second - now.Sub(r.second)
	return r.now + int(float64(r.last)*left.Seconds())
}

// grip is how many leases a holder is able to keep. Each is extended three times within
// its time, and what that takes is not always to be had: when leases run out for want of
// an answer to that, fewer are held, and then more again, little by little. Else a member
// whose machine, connection or server is busy would hold as many as ever, lose them all
// again before it settles one, and get nowhere.
type grip struct {
	able int       // 0: as many as there may be
	as   time.Time // when it was found out, or grew
}

// slipped notes that one of so many leases has run out. Within the time of a lease that
// says the same thing once.
func (g *grip) slipped(held int, now time.Time, lease time.Duration) {
	if g.able > 0 && now.Sub(g.as) < lease {
		return
	}
	g.grow(held, now, lease)
	if g.able > 0 {
		held = min(held, g.able)
	}
	g.able, g.as = max(held/2, 1), now
}

// hold returns how many leases to hold, where there may be most.
func (g *grip) hold(most int, now time.Time, lease time.Duration) int {
	if g.grow(most, now, lease); g.able == 0 {
		return most
	}
	return min(g.able, most)
}

// grow allows for a quarter more with each time of a lease that has passed. With most it
// is forgotten what there was.
func (g *grip) grow(most int, now time.Time, lease time.Duration) {
	for g.able > 0 && now.Sub(g.as) >= lease {
		g.able, g.as = g.able+max(g.able/4, 1), g.as.Add(lease)
		if g.able >= most {
			g.able = 0
		}
	}
}
