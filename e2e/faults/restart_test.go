//go:build unix

package faults

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/e2e/internal/broker"
	"github.com/seed-63e9a637/jetbus/e2e/internal/rig"
)

// load publishes from several goroutines at once, each with a key of its own:
// one by one and in batches.
type load struct {
	bus     *adapter.Bus
	topic   string
	acked   atomic.Int64
	refused atomic.Int64 // events of batches that were given up; see outOfOrder
	wg      sync.WaitGroup

	mu       sync.Mutex
	receipts []jetbus.Receipt
	errs     []error
}

// single publishes n events one by one, each of them until it is acknowledged.
func (l *load) single(ctx context.Context, key string, n int) {
	l.wg.Go(func() {
		for i := range n {
			r, err := l.bus.Publish(ctx, l.event(key, i))
			l.note(err, r)
			if err != nil {
				return
			}
		}
	})
}

// batches publishes n events in batches of a size.
func (l *load) batches(ctx context.Context, key string, n, size int) {
	l.wg.Go(func() {
		for from := 0; from < n; from += size {
			events := make([]jetbus.Event, size)
			for i := range events {
				events[i] = l.event(key, from+i)
			}
			receipts, err := l.bus.PublishBatch(ctx, events, jetbus.BatchOptions{})
			if n := outOfOrder(err); n > 0 {
				l.refused.Add(int64(n))
				err = nil
			}
			l.note(err, receipts...)
			if err != nil {
				return
			}
		}
	})
}

// outOfOrder counts the events of a batch that was given up because one of them
// was stored ahead of others of its key: what nats.go is handed while the connection breaks
// goes out first after a reconnect. The bus sends nothing then that would turn
// the order around, and says so; that is rare, and no loss.
func outOfOrder(err error) int {
	failed, ok := errors.AsType[*jetbus.BatchError](err)
	if !ok || !errors.Is(err, jetbus.ErrOvertaken) {
		return 0
	}
	return len(failed.Failed)
}

func (l *load) event(key string, i int) jetbus.Event {
	return jetbus.Event{Topic: l.topic, Key: key, ID: fmt.Sprintf("%s-%06d", key, i), Payload: []byte(`{"n":1}`)}
}

func (l *load) note(err error, receipts ...jetbus.Receipt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.errs = append(l.errs, err)
	}
	for _, r := range receipts {
		if r.Event.Seq > 0 {
			l.receipts = append(l.receipts, r)
			l.acked.Add(1)
		}
	}
}

// at waits until that many events are acknowledged.
func (l *load) at(t *testing.T, n int64) {
	t.Helper()
	rig.Eventually(t, func() string {
		if l.acked.Load() >= n {
			return ""
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		return fmt.Sprintf("%d events are acknowledged, want %d; errors: %v", l.acked.Load(), n, l.errs)
	})
}

// check compares what was acknowledged with what is stored: nothing lost, nothing
// twice, the events of a key in their order. It returns the ids.
func (l *load) check(t *testing.T, total int) []string {
	t.Helper()
	l.wg.Wait()
	for _, err := range l.errs {
		t.Errorf("publish: %v", err)
	}
	stored := readLog(t, l.bus, l.topic)
	var ids []string
	last := map[string]jetbus.Event{} // by key, in the order of publishing
	for _, r := range l.receipts {
		ids = append(ids, r.Event.ID)
		e, ok := stored[r.Event.ID]
		switch before := last[r.Event.Key]; {
		case !ok:
			t.Errorf("%s was acknowledged and is not stored", r.Event.ID)
		case e.Seq != r.Event.Seq:
			t.Errorf("%s is stored at %d, its receipt says %d", e.ID, e.Seq, r.Event.Seq)
		case e.Seq <= before.Seq || e.ID <= before.ID:
			t.Errorf("%s is stored at %d, before %s at %d", e.ID, e.Seq, before.ID, before.Seq)
		}
		last[r.Event.Key] = e
		if r.Duplicate {
			t.Errorf("%s was published once and called a duplicate", r.Event.ID)
		}
	}
	refused := int(l.refused.Load())
	if len(ids)+refused != total || len(stored) < len(ids) || len(stored) > total {
		t.Errorf("%d events are stored, %d are acknowledged, %d were refused, %d were published", len(stored), len(ids), refused, total)
	}
	return ids
}

// TestBrokerKilled ends the broker by SIGKILL, again and again, under 10,000
// publishes and a group that processes them.
func TestBrokerKilled(t *testing.T) {
	t.Parallel()
	const (
		total = 10_000
		kills = 4
	)
	b := broker.Start(t)
	l := &load{bus: rig.OpenBus(t, b.URL()), topic: "load"}
	rig.Declare(t, l.bus, jetbus.TopicConfig{Name: "load"})
	config := consumerConfig{URL: b.URL(), Topic: "load", Group: "g", AckTimeout: 2 * time.Second}
	members := []*rig.Process{rig.Spawn(t, "consumer", config), rig.Spawn(t, "consumer", config)}
	for _, m := range members {
		m.First(t, "ready")
	}

	ctx, cancel := context.WithTimeout(t.Context(), 2*rig.Limit)
	defer cancel()
	for i := range 4 {
		l.single(ctx, fmt.Sprintf("single%d", i), 1000)
	}
	for i := range 2 {
		l.batches(ctx, fmt.Sprintf("batch%d", i), 3000, 60)
	}
	for i := range int64(kills) {
		l.at(t, (i+1)*total/(kills+1))
		rig.KillAndRestart(t, b)
	}
	ids := l.check(t, total)
	rig.AwaitHandled(t, ids, members...)
	rig.AwaitSettled(t, l.bus, "load", "g")
}
