package adapter

import (
	"cmp"
	"sync/atomic"
)

// Bytes of a scan's events that are on their way or wait to be read, about, and how many events it asks for
// before it knows their size.
const (
	scanAhead = 4 << 20
	scanFirst = 16
)

// tailWindows are how many bytes one request of a reader may bring, of which two are open at most. A reader that keeps
// up moves to the next one. They are primes: the server does not say that a request is over which was
// used up to the last byte, as one of events of one size would be.
var tailWindows = [...]int64{32_749, 65_521, 131_071, 262_139, 524_287, 1_048_573, 2_097_143, 4_194_301, 8_388_593}

// readAhead is how many bytes the readers of a bus may have under way besides the first window of each.
const readAhead = 64 << 20

// tailWindow is how far one reader reads ahead. It begins with little, so that readers whose consumers do not read
// hold little, however many they are. What it has beyond that comes out of the bus's readAhead.
type tailWindow struct {
	used  *atomic.Int64 // of readAhead
	at    int           // index into tailWindows
	taken int64         // of used
}

// bytes is how many bytes one request may bring.
func (w *tailWindow) bytes() int64 { return tailWindows[w.at] }

// grow moves to the next window, if there is one and readAhead allows it.
func (w *tailWindow) grow() {
	if w.at+1 == len(tailWindows) {
		return
	}
	more := 2 * (tailWindows[w.at+1] - tailWindows[w.at])
	if w.used.Add(more) > readAhead {
		w.used.Add(-more)
		return
	}
	w.at++
	w.taken += more
}

// close gives back what was taken.
func (w *tailWindow) close() {
	w.used.Add(-w.taken)
	w.at, w.taken = 0, 0
}

// tailPulls is the account of a tail's requests at one consumer: what they can still
// bring, in events and, each by itself, in bytes.
type tailPulls struct {
	bytes   int64  // that a request may bring; 0: any number
	most    int    // events that are asked for and have not come, at most; 0: tailBatch
	largest int    // of the events that came, in bytes; see fit
	asked   int    // events that are asked for and have not come
	seen    uint64 // deliveries of the consumer
	refused uint64 // seen when the server last said that a request has no room for the next event
	large   bool   // none has: the next event is asked for alone
}

// request is what to ask for now; no events: those requests that are open will do. The
// server goes on while their events are read.
func (p *tailPulls) request() pullOrder {
	most := cmp.Or(p.most, tailBatch)
	n, bytes := most-p.asked, p.bytes
	switch {
	case p.large && p.asked > 0, p.asked > most/2:
		return pullOrder{}
	case p.large:
		n, bytes = 1, 0
	}
	p.asked += n
	return pullOrder{events: n, bytes: bytes, expires: pullExpiry, heartbeat: pullHeartbeat}
}

// fit chooses how many events to ask for where their bytes cannot be bounded, by the size of one that came:
// few at first, and no more than fit into scanAhead where all are as large as the largest.
func (p *tailPulls) fit(size int) {
	p.largest = max(p.largest, size)
	p.most = min(tailBatch, scanFirst+int(min(p.seen, tailBatch)), max(1, scanAhead/p.largest)) //nolint:gosec // no more than tailBatch
}

// event accounts for an event that came.
func (p *tailPulls) event() { p.asked, p.seen, p.large = p.asked-1, p.seen+1, false }

// status handles what the server says instead of an event: it reports whether nothing comes
// for now. The error says that the consumer is of no more use.
func (p *tailPulls) status(w pullWord) (idle bool, err error) {
	switch w.kind {
	case pullBeat:
		return true, nil
	case pullDone:
		return false, nil
	case pullFull:
		p.large = p.refused == p.seen+1 // it had no room for a single one
		p.refused = p.seen + 1
	case pullOver:
		idle = true
	default:
		return false, errTailBroken
	}
	n := w.events
	if n < 0 {
		n = p.asked
	}
	p.asked = max(p.asked-n, 0)
	return idle, nil
}
