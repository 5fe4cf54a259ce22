package partition

import (
	"cmp"
	"hash/fnv"
	"slices"
)

// Member is a member of a group as the others see it.
type Member struct {
	ID string
	// Weight is how large its share is beside the others'. 0 counts as 1; at most MaxWeight.
	Weight int
}

// MaxWeight bounds the weight of a member.
const MaxWeight = 100

// Assign gives each of n partitions a member, and returns its id for each; "" where
// there are no members. holders names who holds a partition now, "" where nobody
// does; members that are not in the list hold nothing. It may be shorter than n.
//
// The share of a member is n times its weight over all weights. None gets more than
// that rounded up, none less than that rounded down. A holder keeps what it has as
// far as its share goes; what it must give up, and what nobody holds, goes to the
// member with room whose score for that partition is highest (rendezvous hashing,
// Thaler and Ravishankar 1998, with a bound). The result depends on nothing but the
// arguments, and not on the order of members. Of two members with one id the
// first one counts.
//
// It takes time in proportion to members and partitions, and beyond that one score for
// each member and each partition that moves.
func Assign(n int, members []Member, holders []string) []string {
	out := make([]string, max(n, 0))
	seats := seatsOf(members)
	if len(seats) == 0 || n < 1 {
		return out
	}
	index := make(map[string]*seat, len(seats))
	for _, s := range seats {
		index[s.id] = s
	}
	for p, id := range holders[:min(len(holders), n)] {
		if s := index[id]; s != nil {
			s.held = append(s.held, p)
		}
	}
	share(n, seats)
	for _, s := range seats {
		s.keep()
		for _, p := range s.held {
			out[p] = s.id
		}
	}
	for p, id := range out {
		if id == "" {
			s := best(p, seats)
			s.held = append(s.held, p)
			out[p] = s.id
		}
	}
	return out
}

// seat is a member while partitions are given out.
type seat struct {
	id     string
	hash   uint64
	weight int
	room   int   // partitions it may have
	rest   int   // what rounding its share down has left, in parts of all weights
	held   []int // partitions it has
}

// seatsOf makes the seats of the members, sorted.
func seatsOf(members []Member) []*seat {
	seats := make([]*seat, 0, len(members))
	for _, m := range members {
		seats = append(seats, &seat{id: m.ID, hash: hashOf(m.ID), weight: min(max(m.Weight, 1), MaxWeight)})
	}
	slices.SortStableFunc(seats, func(a, b *seat) int { return cmp.Compare(a.id, b.id) })
	return slices.CompactFunc(seats, func(a, b *seat) bool { return a.id == b.id })
}

// hashOf is FNV-1a with 64 bits.
func hashOf(id string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id)) // never fails
	return h.Sum64()
}

// share says how many partitions each seat may have: its share rounded down, and
// one of those that are left over then. These go to seats that hold more than their
// share already, so that fewer partitions move, then to those that lost most by rounding.
func share(n int, seats []*seat) {
	weights, left := 0, n
	for _, s := range seats {
		weights += s.weight
	}
	for _, s := range seats {
		s.room, s.rest = n*s.weight/weights, n*s.weight%weights
		left -= s.room
	}
	order := slices.Clone(seats)
	slices.SortFunc(order, func(a, b *seat) int {
		return cmp.Or(
			cmp.Compare(btoi(len(b.held) > b.room), btoi(len(a.held) > a.room)),
			cmp.Compare(b.rest, a.rest),
			cmp.Compare(mix(b.hash), mix(a.hash)),
			cmp.Compare(a.id, b.id),
		)
	})
	for _, s := range order {
		if left > 0 && s.rest > 0 {
			s.room++
			left--
		}
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// keep gives up what is beyond the seat's room: the partitions for which its score is lowest.
func (s *seat) keep() {
	if len(s.held) <= s.room {
		return
	}
	slices.SortFunc(s.held, func(a, b int) int {
		return cmp.Or(cmp.Compare(score(b, s), score(a, s)), cmp.Compare(a, b))
	})
	s.held = s.held[:s.room]
}

// best is the seat with room whose score for the partition is highest. There is
// one: the rooms of all seats are as many as there are partitions.
func best(p int, seats []*seat) *seat {
	var found *seat
	var highest uint64
	for _, s := range seats {
		if len(s.held) >= s.room {
			continue
		}
		if h := score(p, s); found == nil || h > highest {
			found, highest = s, h
		}
	}
	return found
}

// score is how much a partition belongs to a seat.
func score(p int, s *seat) uint64 { return mix(s.hash ^ mix(uint64(p)+1)) } //nolint:gosec // a partition is not negative

// mix is the finalizer of SplitMix64 (Steele, Lea and Flood, "Fast Splittable
// Pseudorandom Number Generators", 2014): each bit of x decides about each bit of it.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
