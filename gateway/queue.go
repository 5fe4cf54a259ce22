package gateway

import (
	"errors"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus/gateway/internal/budget"
)

// errSlow: what waits to be written to a connection is more than it may be.
var errSlow = errors.New("the client does not read")

// errQueueClosed: the connection is over.
var errQueueClosed = errors.New("the connection is closed")

// highWater is how many bytes wait to be written before events are not taken from the bus
// any more.
const highWater = 256 << 10

// roomTick is how often a waiting event checks whether the account of its connection has room.
const roomTick = 50 * time.Millisecond

// keepItems is how many frames there is room for in a queue that has nothing to do.
const keepItems = 512

// queue holds the frames that wait to be written to a connection. An event is added only when there
// is room, so that the events exceed highWater by one event at most. Answers are added immediately,
// and a connection whose answers exceed the limit is closed.
type queue struct {
	high, limit int
	turn        chan struct{} // semaphore of the callers that push an event; capacity 1
	ready       chan struct{} // signaled when there is something to write; capacity 1
	room        chan struct{} // signaled when there is less than high; capacity 1
	over        chan struct{} // closed by close

	mu      sync.Mutex
	account *budget.Account // counts all queued bytes; nil: the connection has no subject yet
	items   []outgoing
	bytes   int // queued
	answers int // queued bytes of frames that are not events
	closed  bool
	dropped bool
}

// outgoing is one frame on its way: head and text, one behind the other. The text may be
// that of other connections, too.
type outgoing struct {
	head, text []byte
	kind       kindOfFrame
}

func (o *outgoing) size() int { return len(o.head) + len(o.text) }

// memory returns how many bytes a frame takes. A frame in two parts counts twice, because writeFrame copies it.
func (o *outgoing) memory() int64 {
	if len(o.head) > 0 {
		return 2 * int64(o.size())
	}
	return int64(o.size())
}

type kindOfFrame int

const (
	answerFrame kindOfFrame = iota
	eventFrame
	pingFrame // the client must say something in time
)

func newQueue(limit int) *queue {
	return &queue{
		high: min(highWater, max(limit/4, 1)), limit: limit, turn: make(chan struct{}, 1),
		ready: make(chan struct{}, 1), room: make(chan struct{}, 1), over: make(chan struct{}),
	}
}

// push adds a frame that is not an event. The error is errSlow or errQueueClosed.
func (q *queue) push(text []byte, kind kindOfFrame) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return errQueueClosed
	case kind != eventFrame && q.answers > 0 && q.answers+len(text) > q.limit:
		return errSlow
	case kind != eventFrame && q.answers > smallBytes && !q.account.HasRoom(budget.Bytes, int64(len(text))):
		return errSlow // the client does not read, and the budget has no room for its answers
	}
	q.addLocked(outgoing{text: text, kind: kind})
	return nil
}

func (q *queue) addLocked(o outgoing) {
	q.items = append(q.items, o)
	q.bytes += o.size()
	q.account.Add(budget.Bytes, o.memory())
	if o.kind != eventFrame {
		q.answers += o.size()
	}
	signal(q.ready)
}

// pushEvent waits until there is room, and adds what build makes then. It reports false,
// and does not call build, where done was closed or the connection is over first.
func (q *queue) pushEvent(done <-chan struct{}, build func() []byte) bool {
	return q.pushFrame(done, func() outgoing { return outgoing{text: build()} })
}

// pushFrame is pushEvent of a frame in two parts; a nil text is none.
func (q *queue) pushFrame(done <-chan struct{}, build func() outgoing) bool {
	ok, _ := q.pushWithin(done, 0, 0, build)
	return ok
}

// pushWithin is like pushFrame, for an event that takes about size bytes. It acquires them before it calls build, and
// charges what the frame really takes afterwards. It waits for patience at most, unless that is 0. If that is too
// short, it returns stalled and does not call build.
func (q *queue) pushWithin(done <-chan struct{}, size int, patience time.Duration, build func() outgoing) (ok, stalled bool) {
	var late <-chan time.Time
	select {
	case q.turn <- struct{}{}:
	default:
		late = after(patience)
		select {
		case q.turn <- struct{}{}:
		case <-late:
			return false, true
		case <-done:
			return false, false
		case <-q.over:
			return false, false
		}
	}
	defer func() { <-q.turn }()
	for {
		room, acquired := q.acquire(int64(size))
		if acquired {
			break
		}
		var again <-chan time.Time
		if room { // other holders of the account release bytes without a signal to q.room
			again = time.After(roomTick)
		}
		if late == nil {
			late = after(patience)
		}
		select {
		case <-q.room:
		case <-again:
		case <-late:
			return false, true
		case <-done:
			return false, false
		case <-q.over:
			return false, false
		}
	}
	defer q.release(int64(size)) // addLocked has counted the frame by then
	select {
	case <-done:
		return false, false
	default:
	}
	o := build()
	if o.text == nil {
		return true, false
	}
	o.kind = eventFrame
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false, false
	}
	q.addLocked(o)
	return true, false
}

// after is like time.After, but never fires for 0.
func after(d time.Duration) <-chan time.Time {
	if d == 0 {
		return nil
	}
	return time.After(d)
}

// acquire acquires bytes of the account for an event, and reports whether the queue has room and whether the bytes
// were acquired. An empty queue accepts a small event even if the account is full. A size of 0 is for frames
// that are small or were counted before.
func (q *queue) acquire(size int64) (room, acquired bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.bytes >= q.high {
		return false, false
	}
	if q.bytes == 0 && size <= smallBytes {
		q.account.Add(budget.Bytes, size)
		return true, true
	}
	return true, q.account.TryAdd(budget.Bytes, size)
}

// release releases bytes that acquire acquired.
func (q *queue) release(size int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.account.Release(budget.Bytes, size)
}

// charge sets the account that counts the queued bytes, from now on.
func (q *queue) charge(a *budget.Account) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.account = a
	a.Add(budget.Bytes, int64(q.bytes))
}

// take returns all that waits, for the one writer, which gives the slice back.
func (q *queue) take(into []outgoing) []outgoing {
	q.mu.Lock()
	defer q.mu.Unlock()
	items := q.items
	clear(into)
	if cap(into) > keepItems {
		into = nil
	}
	q.items = into[:0]
	return items
}

// written makes room when frames are out.
func (q *queue) written(frames []outgoing) {
	q.mu.Lock()
	for i := range frames {
		o := &frames[i]
		q.bytes -= o.size()
		q.account.Release(budget.Bytes, o.memory())
		if o.kind != eventFrame {
			q.answers -= o.size()
		}
	}
	room := q.bytes < q.high
	q.mu.Unlock()
	if room {
		signal(q.room)
	}
}

// close lets nothing in any more. What waits is still written.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.closed = true
		close(q.over)
	}
}

// drop discards the queued frames.
func (q *queue) drop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.items, q.dropped = nil, true // their bytes are released when the connection ends and closes its account
}

// isDropped reports whether nothing is to be written any more.
func (q *queue) isDropped() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.dropped
}

// isDone reports whether nothing is left to write.
func (q *queue) isDone() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.dropped || q.bytes == 0
}

// signal wakes whoever waits at a channel of capacity 1.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
