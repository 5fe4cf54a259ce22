package adapter

import "time"

// queue is what waits for the handlers of a member: of each of its topics, and of each one's
// retries, a flow. The flows take turns, in the manner of deficit round robin (M. Shreedhar and
// G. Varghese, "Efficient Fair Queueing Using Deficit Round Robin", 1996). A flow that gets
// something again before it has used up its turn keeps what is left of that, and goes before those
// that have used up theirs, as new flows do in RFC 8290, 4.2: an event of a topic that has few
// does not wait for the backlogs of others.
//
// To go from topic to topic with each event would be as fair. But the broker writes down the
// state of a durable ten times a second, from the first delivery or acknowledgement until the
// last, and where hundreds of topics are busy all the time that is most of its work.
type queue struct {
	fresh line // flows that have something and have not used up a turn
	spent line // those that have, and then perhaps nothing more; the first may have begun another
	size  int
}

// flow is what waits of one topic. The zero value is an empty one.
type flow struct {
	waiting ring
	left    int   // of its turn, in events; 0: it has not begun
	queued  bool  // in one of the lines
	next    *flow // there
}

func (q *queue) len() int { return q.size }

func (q *queue) push(f *flow, l *lease) {
	q.size++
	f.waiting.push(l)
	if !f.queued {
		f.queued = true
		q.fresh.push(f)
	}
}

// pop returns the oldest lease of the flow whose turn it is, nil if there is none. A turn is
// for so many events, at least one; what is left of one that began when it was for more, too.
func (q *queue) pop(turn int) *lease {
	at := &q.fresh
	if at.head == nil {
		at = &q.spent
	}
	for at.head != nil && at.head.waiting.len() == 0 {
		at.shift().queued = false
	}
	f := at.head
	if f == nil {
		return nil
	}
	if turn = max(turn, 1); f.left == 0 || f.left > turn {
		f.left = turn
	}
	q.size--
	l := f.waiting.pop()
	switch f.left--; {
	case f.left == 0:
		q.spent.push(at.shift())
	case f.waiting.len() == 0:
		at.shift().queued = false
	}
	return l
}

// line is a first-in first-out list of flows.
type line struct{ head, tail *flow }

func (n *line) push(f *flow) {
	if n.head == nil {
		n.head = f
	} else {
		n.tail.next = f
	}
	n.tail = f
}

func (n *line) shift() *flow {
	f := n.head
	n.head, f.next = f.next, nil
	return f
}

// ring is a first-in first-out ring of leases that grows as needed and lets go
// of what it held.
type ring struct {
	slots []*lease
	head  int
	size  int
}

func (r *ring) len() int { return r.size }

func (r *ring) push(l *lease) {
	if r.size == len(r.slots) {
		grown := make([]*lease, max(2*len(r.slots), 8))
		for i := range r.size {
			grown[i] = r.slots[(r.head+i)%len(r.slots)]
		}
		r.slots, r.head = grown, 0
	}
	r.slots[(r.head+r.size)%len(r.slots)] = l
	r.size++
}

// pop returns the oldest, nil if there is none.
func (r *ring) pop() *lease {
	if r.size == 0 {
		return nil
	}
	l := r.slots[r.head]
	r.slots[r.head] = nil
	r.head = (r.head + 1) % len(r.slots)
	r.size--
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
