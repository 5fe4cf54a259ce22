package adapter

import "iter"

// lanes puts the events of an ordered group in line: in one lane for all, or in
// one for each key. The head of a lane may be handled, what is behind it waits.
// It knows nothing of time, leases and the network.
type lanes struct {
	byKey map[string]*lane
	ring  lane // sentinel of the ring of lanes
}

// lane is one line. It exists while something is in it.
type lane struct {
	key        string
	keyed      bool // in byKey
	head, tail *slot
	count      int
	prev, next *lane
}

func (q *lanes) init() {
	q.byKey = map[string]*lane{}
	q.ring.prev, q.ring.next = &q.ring, &q.ring
}

// push puts a slot at the end of its key's lane, or in a lane of its own. It
// reports whether it is the head.
func (q *lanes) push(s *slot, key string, keyed bool) (head bool) {
	n := q.byKey[key]
	if !keyed {
		n = nil
	}
	if n == nil {
		n = &lane{key: key, keyed: keyed, prev: q.ring.prev, next: &q.ring}
		n.prev.next, q.ring.prev = n, n
		if keyed {
			q.byKey[key] = n
		}
	}
	s.lane, s.behind = n, nil
	n.count++
	if n.tail == nil {
		n.head, n.tail = s, s
		return true
	}
	n.tail.behind, n.tail = s, s
	return false
}

// done takes the head of a lane out and returns the next one, nil if there is
// none. What is in no lane any more is none.
func (q *lanes) done(s *slot) (next *slot) {
	n := s.lane
	if n == nil || n.head != s {
		return nil
	}
	next = s.behind
	s.lane, s.behind = nil, nil
	n.count--
	if n.head = next; next == nil {
		q.remove(n)
	}
	return next
}

// drop takes out everything but the heads that keep wants, and returns it.
func (q *lanes) drop(keep func(*slot) bool) (dropped []*slot) {
	for n := q.ring.next; n != &q.ring; {
		following := n.next
		s := n.head
		if keep(s) {
			rest := s.behind
			n.tail, n.count, s.behind = s, 1, nil
			s = rest
		} else {
			q.remove(n)
		}
		for s != nil {
			behind := s.behind
			s.lane, s.behind = nil, nil
			dropped = append(dropped, s)
			s = behind
		}
		n = following
	}
	return dropped
}

func (q *lanes) remove(n *lane) {
	n.prev.next, n.next.prev = n.next, n.prev
	n.head, n.tail = nil, nil
	if n.keyed {
		delete(q.byKey, n.key)
	}
}

// heads are the slots in front. The one at hand may be done with meanwhile.
func (q *lanes) heads() iter.Seq[*slot] {
	return func(yield func(*slot) bool) {
		for n := q.ring.next; n != &q.ring; {
			following := n.next
			if !yield(n.head) {
				return
			}
			n = following
		}
	}
}

// all are all slots, lane by lane.
func (q *lanes) all() iter.Seq[*slot] {
	return func(yield func(*slot) bool) {
		for head := range q.heads() {
			for s := head; s != nil; s = s.behind {
				if !yield(s) {
					return
				}
			}
		}
	}
}

// blocked returns, of the lanes whose heads match, the key of the longest and how
// many wait in it.
func (q *lanes) blocked(match func(head *slot) bool) (key string, waiting int) {
	for head := range q.heads() {
		if n := head.lane; n.count-1 > waiting && match(head) {
			key, waiting = n.key, n.count-1
		}
	}
	return key, waiting
}
