package jetbus_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// silentLog is a bus that says nothing of some topics.
type silentLog struct {
	*memoryLog

	mu     sync.Mutex
	silent []string
	// whole says that nothing of a batch is stored in which there is an event of such a
	// topic; else the others are.
	whole bool
}

func (l *silentLog) set(topics ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.silent = topics
}

func (l *silentLog) PublishBatch(ctx context.Context, events []jetbus.Event, o jetbus.BatchOptions) ([]jetbus.Receipt, error) {
	l.mu.Lock()
	silent := l.silent
	l.mu.Unlock()
	receipts := make([]jetbus.Receipt, len(events))
	failed := &jetbus.BatchError{Total: len(events)}
	for i, e := range events {
		receipts[i].Event = e
		if slices.Contains(silent, e.Topic) {
			failed.Failed = append(failed.Failed, &jetbus.PublishError{Event: e, Err: jetbus.ErrUnavailable})
		}
	}
	if len(failed.Failed) == 0 {
		return l.memoryLog.PublishBatch(ctx, events, o)
	}
	for i, e := range events {
		if l.whole || slices.Contains(silent, e.Topic) {
			continue
		}
		one, err := l.memoryLog.PublishBatch(ctx, []jetbus.Event{e}, o)
		if err != nil {
			return nil, err
		}
		receipts[i] = one[0]
	}
	<-ctx.Done()
	if l.whole {
		return nil, ctx.Err()
	}
	return receipts, failed
}

// TestDrainSilentTopic goes on with the others while one topic does not answer.
func TestDrainSilentTopic(t *testing.T) {
	for _, whole := range []bool{false, true} {
		t.Run(fmt.Sprint("whole ", whole), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				box, log := &memoryBox{}, &silentLog{memoryLog: &memoryLog{}, whole: whole, silent: []string{"orders"}}
				for i := range 100 {
					box.add(orderRow(fmt.Sprint("a", i), fmt.Sprint("k", i%3)))
				}
				d, stop := drained(t, box, log, jetbus.DrainOptions{MaxAttempts: 1})
				sent := 0
				for range 600 { // 10 minutes
					box.add(jetbus.Event{ID: fmt.Sprint("b", sent), Topic: fmt.Sprint("other", sent%3), Key: "k"})
					sent++
					time.Sleep(time.Second)
				}
				s := d.Stats()
				if late := sent - len(log.stored()); late > 30 {
					t.Errorf("%d of %d rows of other topics are not published", late, sent)
				}
				if !slices.Equal(s.HeldTopics, []string{"orders"}) || !s.BrokerAway.IsZero() || s.Dead+s.Retried > 0 {
					t.Errorf("stats %+v", s)
				}
				if n := s.Errors[jetbus.DrainBroker] + s.Errors[jetbus.DrainTopic]; n > 30 {
					t.Errorf("%d failures in 10 minutes", n)
				}
				log.set()
				time.Sleep(5*time.Minute + 30*time.Second) // the longest Backoff, behind a try that was under way
				if left := box.left(); len(left) > 0 || len(d.Stats().HeldTopics) > 0 {
					t.Errorf("left %v, stats %+v", left, d.Stats())
				}
				check(t, "Ready", d.Ready(), nil)
				check(t, "Run", stop(), nil)
			})
		})
	}
}

// TestDrainSilentAlone takes the only topic that rows wait for as the broker, until
// another one answers.
func TestDrainSilentAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box, log := &memoryBox{}, &silentLog{memoryLog: &memoryLog{}, silent: []string{"orders"}}
		box.add(orderRow("a", ""))
		d, stop := drained(t, box, log, jetbus.DrainOptions{MaxAge: -1, Backoff: jetbus.Backoff{Min: time.Minute, NoJitter: true}})
		time.Sleep(2 * time.Minute)
		check(t, "Ready", d.Ready(), jetbus.ErrUnavailable)
		box.add(jetbus.Event{ID: "b", Topic: "other"})
		time.Sleep(30 * time.Second)
		if got := log.stored(); !slices.Equal(got, []string{"b"}) {
			t.Errorf("stored %v", got)
		}
		check(t, "Ready with another topic", d.Ready(), nil)
		time.Sleep(20 * time.Second) // orders was tried again, after an answer of another
		check(t, "Ready later", d.Ready(), nil)
		check(t, "Run", stop(), nil)
	})
}

// TestDrainSilentBroker has a broker away that some topics wait for.
func TestDrainSilentBroker(t *testing.T) {
	for _, whole := range []bool{false, true} {
		t.Run(fmt.Sprint("whole ", whole), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				box, log := &memoryBox{}, &silentLog{memoryLog: &memoryLog{}, whole: whole}
				var topics []string
				for i := range 5 {
					topics = append(topics, fmt.Sprint("topic", i))
				}
				for i := range 1000 {
					box.add(jetbus.Event{ID: fmt.Sprint(i), Topic: topics[i%5], Key: fmt.Sprint(i % 7)})
				}
				log.set(topics...)
				d, stop := drained(t, box, log, jetbus.DrainOptions{MaxAttempts: 1})
				time.Sleep(time.Hour)
				check(t, "Ready", d.Ready(), jetbus.ErrUnavailable)
				if s := d.Stats(); len(s.HeldTopics) > 0 || s.Dead+s.Retried > 0 {
					t.Errorf("stats %+v", s)
				}
				log.set()
				time.Sleep(time.Minute)
				if left := box.left(); len(left) > 0 {
					t.Errorf("%d rows left", len(left))
				}
				check(t, "Ready again", d.Ready(), nil)
				check(t, "Run", stop(), nil)
			})
		})
	}
}

// TestDrainSilentReason says what the time was up for.
func TestDrainSilentReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box, log := &memoryBox{}, &silentLog{memoryLog: &memoryLog{}, whole: true, silent: []string{"orders"}}
		box.add(orderRow("a", ""), jetbus.Event{ID: "b", Topic: "other"})
		var reasons []string // by the drainer's goroutine alone
		_, stop := drained(t, box, log, jetbus.DrainOptions{Observer: func(o jetbus.Observation) {
			if o.Kind == jetbus.DrainFail {
				reasons = append(reasons, o.Err.Error())
			}
		}})
		time.Sleep(5 * time.Minute)
		check(t, "Run", stop(), jetbus.ErrUnavailable) // nothing is heard of the last row
		probed := func(reason string) bool { return strings.Contains(reason, "has not answered before") }
		if len(reasons) < 2 || !strings.Contains(reasons[0], "of the lease") || !slices.ContainsFunc(reasons, probed) {
			t.Errorf("reasons %q", reasons)
		}
	})
}

// TestDrainSilentGone forgets a topic that did not answer and for which nothing waits.
func TestDrainSilentGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box, log := &memoryBox{}, &silentLog{memoryLog: &memoryLog{}, silent: []string{"orders"}}
		box.add(orderRow("a", ""), jetbus.Event{ID: "b", Topic: "other"})
		d, stop := drained(t, box, log, jetbus.DrainOptions{})
		time.Sleep(time.Minute)
		check(t, "removed by hand", box.Sent(t.Context(), []jetbus.OutboxRow{{Ref: "orders|a"}}), nil)
		time.Sleep(5 * time.Minute)
		if s := d.Stats(); len(s.HeldTopics) > 0 {
			t.Errorf("stats %+v", s)
		}
		check(t, "Run", stop(), nil)
	})
}

// cleanedBox keeps rows that were sent.
type cleanedBox struct {
	*memoryBox

	kept, calls int
	hang        bool
}

func (b *cleanedBox) Clean(ctx context.Context) (int, error) {
	if b.calls++; b.hang {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	n := min(b.kept, 5000)
	b.kept -= n
	return n, nil
}

// TestDrainCleans has an outbox remove what it kept bit by bit, and waits no longer for
// one that does not answer than a lease.
func TestDrainCleans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box := &cleanedBox{memoryBox: &memoryBox{}, kept: 50_000}
		_, stop := drained(t, box, &memoryLog{}, jetbus.DrainOptions{})
		time.Sleep(time.Minute - time.Millisecond)
		check(t, "Run", stop(), nil)
		if box.kept != 0 || box.calls != 11 {
			t.Errorf("%d rows left after %d calls", box.kept, box.calls)
		}
		box.hang = true
		log := &memoryLog{}
		box.add(orderRow("a", ""))
		_, stop = drained(t, box, log, jetbus.DrainOptions{Lease: 10 * time.Second})
		time.Sleep(12 * time.Second)
		_ = stop()
		if got := log.stored(); len(got) != 1 {
			t.Errorf("stored %v while a Clean hangs", got)
		}
	})
}
