package gateway

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway/internal/budget"
)

// memoryBudget returns a budget in which a subject and a connection have that many bytes, and the process more.
func memoryBudget(bytes int64) *budget.Budget {
	limit := budget.Limit{Bytes: bytes, Calls: 1, Scans: 1}
	return budget.New(budget.Limit{Bytes: 100 * bytes, Calls: 1, Scans: 1}, limit, limit)
}

// TestBoxesCountHeaders: what the boxes of a connection hold is bounded by its account, headers included.
func TestBoxesCountHeaders(t *testing.T) {
	const most, size = 4 << 20, 32 << 10
	all := memoryBudget(most)
	a := all.Account("ann")
	headers := map[string]string{}
	for i := range 4 {
		headers[fmt.Sprint("x-", i)] = strings.Repeat("x", size/4)
	}
	var boxes []*box
	held := 0
	for range 12 {
		b := newBox(1<<20, a)
		boxes = append(boxes, b)
		for i := range 400 {
			e := jetbus.Event{Topic: "t", Key: fmt.Sprint(i), Seq: uint64(i) + 1, Headers: headers, Payload: []byte("1")} //nolint:gosec // no negative number
			if !b.add(encode(&e, 0)) {
				break
			}
			held += size
		}
	}
	if held < 1<<20 || held > most || all.Used(budget.Bytes) < int64(held) {
		t.Errorf("the boxes hold %d bytes of headers, and %d are counted", held, all.Used(budget.Bytes))
	}
	for i, b := range boxes {
		if i%2 == 0 {
			b.drop() // the subscription ended
			continue
		}
		for next, ok := b.take(); ok; next, ok = b.take() {
			b.release(next)
		}
	}
	if n := all.Used(budget.Bytes); n != 0 {
		t.Errorf("%d bytes are left", n)
	}
}

// TestEventsAreChargedBeforeTheyAreBuilt has many connections of one subject get a large event at the same moment.
func TestEventsAreChargedBeforeTheyAreBuilt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, fit = 1 << 20, 4
		all := memoryBudget(2 * size * fit)
		var built atomic.Int64
		may, done := make(chan struct{}), make(chan struct{})
		var pushing sync.WaitGroup
		var queues []*queue
		for range 20 {
			q, a := newQueue(1<<20), all.Account("ann")
			q.charge(a)
			queues = append(queues, q)
			pushing.Go(func() {
				defer a.Close()
				q.pushWithin(done, 2*size, 0, func() outgoing {
					built.Add(1)
					<-may
					return outgoing{head: make([]byte, 10), text: make([]byte, size-10)}
				})
				<-done
			})
		}
		synctest.Wait()
		if n := built.Load(); n != fit {
			t.Errorf("%d events of 1 MiB are built, there is room for %d", n, fit)
		}
		close(may)
		synctest.Wait()
		if n := all.Used(budget.Bytes); n != 2*size*fit {
			t.Errorf("%d bytes are counted for %d frames and their copies", n, fit)
		}
		for _, q := range queues { // the clients read
			if frames := q.take(nil); len(frames) > 0 {
				q.written(frames)
				break
			}
		}
		<-after(2 * roomTick)
		synctest.Wait()
		if n := built.Load(); n != fit+1 {
			t.Errorf("%d events are built after one was written, not %d", n, fit+1)
		}
		close(done)
		pushing.Wait()
		if n := all.Used(budget.Bytes); n != 0 {
			t.Errorf("%d bytes are left", n)
		}
	})
}
