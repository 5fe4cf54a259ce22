package adapter

import (
	"cmp"
	"sync/atomic"
)

// scanAhead is the approximate number of bytes of a scan's events that are in flight or wait to be read. scanFirst is
// how many events a scan requests before it knows their size.
const (
	scanAhead = 4 << 20
	scanFirst = 16
)

// tailWindows are the numbers of bytes that one request of a reader may return; at most two requests are open. A
// reader that keeps up advances to the next window. The numbers are primes, because the server does not report the end
// of a request whose last byte was used, as could happen with events of equal size.
var tailWindows = [...]int64{32_749, 65_521, 131_071, 262_139, 524_287, 1_048_573, 2_097_143, 4_194_301, 8_388_593}

// readAhead is how many bytes the readers of a bus may have in flight in addition to the first window of each.
const readAhead = 64 << 20

// tailWindow is how far one reader reads ahead. It starts small, so that any number of readers whose consumers do not
// read hold little memory. Everything beyond the first window counts against the bus's readAhead.
type tailWindow struct {
	used  *atomic.Int64 // of readAhead
	at    int           // index into tailWindows
	taken int64         // of used
}

// bytes returns how many bytes one request may return.
func (w *tailWindow) bytes() int64 { return tailWindows[w.at] }

// grow advances to the next window, if there is one and readAhead allows it.
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

// close gives back the bytes that the window took from readAhead.
func (w *tailWindow) close() {
	w.used.Add(-w.taken)
	w.at, w.taken = 0, 0
}

// tailPulls counts what a tail's requests at one consumer may still return, in events and, separately, in bytes.
type tailPulls struct {
	bytes   int64  // that a request may return; 0: any number
	most    int    // maximum of asked; 0: tailBatch
	largest int    // size of the largest event so far, in bytes; see fit
	asked   int    // events that are requested and have not arrived
	seen    uint64 // deliveries of the consumer
	refused uint64 // seen when the server last reported that the next event does not fit into a request
	large   bool   // it fits into no request: the next event is requested alone
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

// fit limits the number of requested events when their bytes cannot be bounded. It starts with few, and allows only as
// many as fit into scanAhead if all are as large as the largest so far. size is the size of an event that arrived.
func (p *tailPulls) fit(size int) {
	p.largest = max(p.largest, size)
	p.most = min(tailBatch, scanFirst+int(min(p.seen, tailBatch)), max(1, scanAhead/p.largest)) //nolint:gosec // no more than tailBatch
}

// event counts an event that arrived.
func (p *tailPulls) event() { p.asked, p.seen, p.large = p.asked-1, p.seen+1, false }

// status handles a status message from the server. It reports whether no event will arrive for now. An error means
// that the consumer can no longer be used.
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
