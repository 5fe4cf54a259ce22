package gateway

import (
	"slices"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus/gateway/internal/budget"
)

// box queues the events of a slow reader. It keeps only the last event of each key, in the order
// of the topic.
type box struct {
	limit   int
	account *budget.Account // the connection's; counts the queued bytes
	ready   chan struct{}   // signaled when there is something to send; capacity 1
	room    chan struct{}   // signaled when something was sent; capacity 1

	mu    sync.Mutex
	items []boxed // at most one event of each key
	bytes int
}

// boxed is one event that waits, or a frame of a topic that is no event.
type boxed struct {
	topic, key string
	e          *encoded
	text       []byte
	lost       gap // what was replaced in front of it, behind the one before it of the topic
}

func newBox(limit int, a *budget.Account) *box {
	return &box{limit: limit, account: a, ready: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// putWithin queues an event and drops a queued event of the same key. It waits until there is room. It
// returns stalled after patience, unless patience is 0, and ok false when done is closed.
func (b *box) putWithin(e *encoded, done <-chan struct{}, patience time.Duration) (ok, stalled bool) {
	if ok, stalled = b.within(done, patience, func() bool { return b.add(e) }); ok {
		signal(b.ready)
	}
	return ok, stalled
}

// within calls try until it returns true, whenever there may be more room. It returns what putWithin returns.
func (b *box) within(done <-chan struct{}, patience time.Duration, try func() bool) (ok, stalled bool) {
	for late := (<-chan time.Time)(nil); !try(); {
		if late == nil {
			late = after(patience)
		}
		select {
		case <-b.room:
		case <-time.After(roomTick): // other holders of the account release bytes without a signal to b.room
		case <-late:
			return false, true
		case <-done:
			return false, false
		}
	}
	return true, false
}

// hasRoom reports whether there is room for that many bytes.
func (b *box) hasRoom(bytes int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.acquireLocked(bytes) {
		return false
	}
	return b.acquireLocked(-bytes)
}

func (b *box) add(e *encoded) bool {
	key := e.Topic + "\x00" + e.Key
	b.mu.Lock()
	defer b.mu.Unlock()
	at, size := b.indexLocked(key), 0
	if at >= 0 {
		size = b.items[at].e.size
	}
	if !b.acquireLocked(e.size - size) {
		return false
	}
	b.items = append(b.items, boxed{topic: e.Topic, key: key, e: e})
	if at >= 0 {
		b.replaceLocked(at)
	}
	return true
}

// acquireLocked acquires bytes for an event if there is room. The box exceeds its limit by one event at most.
// An empty box accepts a small event even if the account is full. A negative number releases bytes.
func (b *box) acquireLocked(bytes int) bool {
	switch {
	case bytes <= 0:
		b.account.Release(budget.Bytes, int64(-bytes))
	case b.bytes >= b.limit:
		return false
	case b.bytes == 0 && bytes <= smallBytes:
		b.account.Add(budget.Bytes, int64(bytes))
	case !b.account.TryAdd(budget.Bytes, int64(bytes)):
		return false
	}
	b.bytes += bytes
	return true
}

// indexLocked returns the index of the queued event of a key, or -1. The loop is short: a limit of 1 MiB has room for
// about 1,000 events.
func (b *box) indexLocked(key string) int {
	return slices.IndexFunc(b.items, func(it boxed) bool { return it.e != nil && it.key == key })
}

// replaceLocked removes a queued event and records the gap before the next event of its topic. There is one: the
// event that replaces it.
func (b *box) replaceLocked(i int) {
	it := &b.items[i]
	lost := gap{it.topic, it.e.Seq, it.e.Seq, gapConflated}
	if it.lost.from != 0 {
		lost.from = it.lost.from
	}
	b.items = slices.Delete(b.items, i, i+1)
	for b.items[i].topic != lost.topic {
		i++
	}
	if b.items[i].lost.from != 0 {
		lost.to = b.items[i].lost.to
	}
	b.items[i].lost = lost
}

// mark adds a frame of a topic behind the events that wait.
func (b *box) mark(topic string, text []byte) {
	b.mu.Lock()
	b.items = append(b.items, boxed{topic: topic, text: text})
	b.mu.Unlock()
	signal(b.ready)
}

// take returns the next one: what was replaced in front of an event or a frame, then that. The account counts
// an event until release.
func (b *box) take() (next boxed, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.items) == 0 {
		return boxed{}, false
	}
	if lost := b.items[0].lost; lost.from != 0 {
		b.items[0].lost = gap{}
		return boxed{lost: lost}, true
	}
	next = b.items[0]
	b.items[0] = boxed{}
	b.items = b.items[1:]
	if next.e != nil {
		b.bytes -= next.e.size
	}
	signal(b.room)
	return next, true
}

// release releases the bytes of an event that take returned.
func (b *box) release(next boxed) {
	if next.e != nil {
		b.account.Release(budget.Bytes, int64(next.e.size))
	}
}

// drop releases the bytes of the queued events. Nothing may be queued after it.
func (b *box) drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.account.Release(budget.Bytes, int64(b.bytes))
	b.items, b.bytes = nil, 0
}

// sendBoxed sends what waits, when there is room.
func (r *reader) sendBoxed() {
	for {
		select {
		case <-r.box.ready:
		case <-r.s.ctx.Done():
			return
		}
		for more := true; more; {
			var next boxed
			ok := r.s.ses.pushFrame(r.s.done, func() outgoing {
				next, more = r.box.take()
				switch {
				case next.e != nil:
					return r.s.readFrame(next.e)
				case next.lost.from != 0 && !r.s.ses.sketch: // the first clients know no such frame
					next.text = gapFrame(r.s.id, next.lost)
				}
				return outgoing{text: next.text}
			})
			r.box.release(next) // the connection's queue counts its frame now
			if !ok {
				return
			}
		}
	}
}
