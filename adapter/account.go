package adapter

import (
	"maps"
	"slices"
	"time"
)

// account is what an owner knows of a durable whose events must arrive in order:
// what it has received, and what of that is not settled. Everything else that it
// received is settled, whether or not the server knows. It knows nothing of the
// network.
type account struct {
	last uint64           // the highest sequence received, or settled before
	open map[uint64]*slot // received and not settled; nil: not in hand, to be delivered again

	// Of the present round, in which what arrives must ascend.
	next   uint64 // the durable's own count of what it delivers next
	newest uint64 // sequence of the last arrival
}

// arrival is what becomes of an event that arrives.
type arrival int

const (
	arrivalNew      arrival = iota
	arrivalAgain            // of a slot in hand
	arrivalSettled          // to be acknowledged unseen
	arrivalDisorder         // something was lost, or given to somebody else
)

// reset starts anew: everything up to settled is.
func (a *account) reset(settled uint64) {
	*a = account{last: settled, open: map[uint64]*slot{}}
}

// rest is an account as one owner hands it to the next: the highest sequence
// received, and the ranges of what of that is open.
type rest struct {
	Durable string      `json:"durable"`
	Created time.Time   `json:"created"` // the durable: of a group that was deleted another may have its name
	Last    uint64      `json:"last"`
	Open    [][2]uint64 `json:"open,omitempty"` // first and last of each range
}

// maxRanges bounds a rest. What is behind them is handled again.
const maxRanges = 10_000

// rest is what is left when nothing is in hand.
func (a *account) rest(durable string) rest {
	r := rest{Durable: durable, Last: a.last}
	for _, seq := range slices.Sorted(maps.Keys(a.open)) {
		if n := len(r.Open); n > 0 && r.Open[n-1][1] == seq-1 {
			r.Open[n-1][1] = seq
			continue
		}
		if len(r.Open) == maxRanges {
			r.Last = r.Open[maxRanges-1][1]
			break
		}
		r.Open = append(r.Open, [2]uint64{seq, seq})
	}
	return r
}

// resume starts with what another owner has left.
func (a *account) resume(r rest) {
	a.reset(r.Last)
	for _, span := range r.Open {
		for seq := span[0]; seq <= span[1]; seq++ {
			a.open[seq] = nil
		}
	}
}

// from is where a durable must begin that is to bring everything that is open.
func (a *account) from() uint64 {
	first := a.last + 1
	for seq := range a.open {
		first = min(first, seq)
	}
	return first
}

// begin starts a round, with a durable that has delivered that many events.
func (a *account) begin(delivered uint64) { a.next, a.newest = delivered+1, 0 }

// arrive says what becomes of an event, by its sequence and the durable's count.
// Why it is in disorder is told in words.
func (a *account) arrive(seq, count uint64) (what arrival, why string) {
	switch {
	case count != a.next:
		return arrivalDisorder, "a delivery is missing"
	case seq <= a.newest:
		return arrivalDisorder, "an event was delivered twice"
	}
	a.next, a.newest = count+1, seq
	s, open := a.open[seq]
	known := seq <= a.last
	a.last = max(a.last, seq)
	switch {
	case s != nil:
		return arrivalAgain, ""
	case open || !known:
		return arrivalNew, ""
	default:
		return arrivalSettled, ""
	}
}
