package projector

import (
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// maxBatchBytes bounds the payloads of a batch, apart from its first event.
const maxBatchBytes = 16 << 20

// queue holds what has been delivered until the loop takes it.
type queue struct {
	linger time.Duration
	ready  chan struct{} // signaled when there is something; capacity 1

	mu      sync.Mutex
	waiting []*jetbus.Delivery
	shut    bool      // nothing is taken in
	ended   bool      // and never will be
	urgent  bool      // what waits came after a silence
	first   time.Time // when the oldest came
	last    time.Time // when the newest ever came
	taken   int       // in the loop's hands
}

func (q *queue) init(linger time.Duration) {
	q.linger, q.ready = linger, make(chan struct{}, 1)
}

// put takes in a delivery, or reports that nothing is taken in.
func (q *queue) put(d *jetbus.Delivery) bool {
	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.shut {
		return false
	}
	if len(q.waiting) == 0 {
		q.first, q.urgent = now, now.Sub(q.last) > q.linger
	}
	q.last = now
	q.waiting = append(q.waiting, d)
	select {
	case q.ready <- struct{}{}:
	default:
	}
	return true
}

// take returns up to most deliveries, or how long to wait for more to come; 0: until
// something does.
func (q *queue) take(most int) (batch []*jetbus.Delivery, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		return nil, 0
	}
	if wait = q.linger - time.Since(q.first); len(q.waiting) < most && !q.urgent && wait > 0 {
		return nil, wait
	}
	n, bytes := 0, 0
	for n < len(q.waiting) && n < most && (n == 0 || bytes+len(q.waiting[n].Payload) <= maxBatchBytes) {
		bytes += len(q.waiting[n].Payload)
		n++
	}
	batch = q.waiting[:n:n]
	q.waiting = append(make([]*jetbus.Delivery, 0, max(len(q.waiting)-n, 64)), q.waiting[n:]...)
	q.urgent, q.taken = false, n
	return batch, 0
}

// done notes that the loop has settled what it took.
func (q *queue) done() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.taken = 0
}

// close takes in nothing more, until open, and returns what waits.
func (q *queue) close() []*jetbus.Delivery { return q.closeFor(false) }

// end is close for good.
func (q *queue) end() []*jetbus.Delivery { return q.closeFor(true) }

func (q *queue) closeFor(good bool) []*jetbus.Delivery {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = q.ended || good
	waiting := q.waiting
	q.waiting, q.shut = nil, true
	return waiting
}

func (q *queue) open() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.shut = q.ended
}

// held is how many deliveries are here or in the loop's hands.
func (q *queue) held() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting) + q.taken
}
