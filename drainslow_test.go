package jetbus_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// slowBox is an outbox that takes its time.
type slowBox struct {
	*memoryBox

	claiming time.Duration
	perRow   atomic.Int64 // nanoseconds for each of those that a claim asks for
	hangs    atomic.Int64 // how many calls of Sent are not answered
	deaf     atomic.Bool  // no call of Failed is answered
}

func (b *slowBox) Claim(ctx context.Context, o jetbus.ClaimOptions) ([]jetbus.OutboxRow, error) {
	select {
	case <-time.After(b.claiming + time.Duration(o.Max)*time.Duration(b.perRow.Load())):
		return b.memoryBox.Claim(ctx, o)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (b *slowBox) Sent(ctx context.Context, rows []jetbus.OutboxRow) error {
	if b.hangs.Add(-1) >= 0 {
		<-ctx.Done()
		return ctx.Err()
	}
	return b.memoryBox.Sent(ctx, rows)
}

func (b *slowBox) Failed(ctx context.Context, failures []jetbus.OutboxFailure) error {
	if b.deaf.Load() {
		<-ctx.Done()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return b.memoryBox.Failed(ctx, failures)
}

func (b *slowBox) Release(ctx context.Context, rows []jetbus.OutboxRow) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return b.memoryBox.Release(ctx, rows)
}

// fill adds so many rows.
func (b *slowBox) fill(n int) {
	for range n {
		b.add(orderRow(jetbus.NewID(), ""))
	}
}

// growsBack checks that a drainer that claims less claims whole windows again once claims are fast.
func (b *slowBox) growsBack(t *testing.T) {
	t.Helper()
	b.perRow.Store(0)
	b.fill(4 * jetbus.DefaultDrainWindow)
	time.Sleep(time.Minute)
	if asked := b.lastAsked(1)[0].Max; asked != jetbus.DefaultDrainWindow || len(b.left()) > 0 {
		t.Errorf("it claims %d rows at a time where that is fast, want %d; %d are left", asked, jetbus.DefaultDrainWindow, len(b.left()))
	}
}

// TestDrainSlowClaim waits for a claim that takes longer than a shutdown may.
func TestDrainSlowClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box, log := &slowBox{memoryBox: &memoryBox{}, claiming: 5 * time.Second}, &memoryLog{}
		box.add(orderRow("a", ""))
		_, stop := drained(t, box, log, jetbus.DrainOptions{ShutdownTimeout: time.Second})
		time.Sleep(time.Minute)
		if got := log.stored(); !slices.Equal(got, []string{"a"}) {
			t.Errorf("stored %v", got)
		}
		began := time.Now()
		_ = stop() // it may end in a claim
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("stopped after %v", took)
		}
	})
}

// TestDrainClaimWithinLease: a drainer whose claims take the time that is for publishing
// claims less, and as much as before when they are fast again; where claiming less does
// not help it says what is wrong.
func TestDrainClaimWithinLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box, log := &slowBox{memoryBox: &memoryBox{}}, &memoryLog{}
		box.perRow.Store(int64(10 * time.Millisecond))
		box.fill(300)
		d, stop := drained(t, box, log, jetbus.DrainOptions{Lease: time.Second})
		time.Sleep(5 * time.Minute)
		if left := box.left(); len(left) > 0 {
			t.Errorf("%d rows are left of claims that take 10 ms for each row", len(left))
		}
		if s := d.Stats(); s.Errors[jetbus.DrainStore] == 0 || s.Err != nil {
			t.Errorf("stats %+v", s)
		}
		if asked := box.lastAsked(1)[0].Max; asked >= jetbus.DefaultDrainWindow {
			t.Errorf("it claims %d rows, which it has no time for", asked)
		}
		box.growsBack(t)
		check(t, "Run", stop(), nil)
	})
	synctest.Test(t, func(t *testing.T) {
		box, log := &slowBox{memoryBox: &memoryBox{}, claiming: time.Second}, &memoryLog{}
		box.add(orderRow("a", ""))
		var said error
		_, stop := drained(t, box, log, jetbus.DrainOptions{Lease: time.Second, Observer: func(o jetbus.Observation) {
			if o.Kind == jetbus.DrainFail {
				said = o.Err
			}
		}})
		time.Sleep(5 * time.Minute)
		_ = stop()
		if said == nil || !strings.Contains(said.Error(), "use a longer one") || len(log.stored()) > 0 {
			t.Errorf("said %v, stored %v", said, log.stored())
		}
	})
}

// TestDrainClaimUnanswered does not make a claim that it gave up again at the same size for
// ever. One that a shutdown ended says nothing about its size.
func TestDrainClaimUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box, log := &slowBox{memoryBox: &memoryBox{}}, &memoryLog{}
		box.perRow.Store(int64(100 * time.Millisecond)) // 50 seconds for a window, of which a claim has 10
		box.fill(200)
		d, stop := drained(t, box, log, jetbus.DrainOptions{})
		time.Sleep(5 * time.Minute)
		if left := box.left(); len(left) > 0 {
			t.Errorf("%d rows are left of claims that take 100 ms for each row", len(left))
		}
		if s := d.Stats(); s.Errors[jetbus.DrainStore] != 3 || s.Err != nil { // of 500, 250 and 125 rows
			t.Errorf("stats %+v", s)
		}
		box.growsBack(t)
		check(t, "Run", stop(), nil)
	})
	synctest.Test(t, func(t *testing.T) {
		box := &slowBox{memoryBox: &memoryBox{}}
		box.perRow.Store(int64(time.Second))
		d, stop := drained(t, box, &memoryLog{}, jetbus.DrainOptions{Lease: time.Hour, ShutdownTimeout: time.Second})
		synctest.Wait() // until it is in a claim
		check(t, "Run that ends in a claim", stop(), context.Canceled)
		box.perRow.Store(0)
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() { result <- d.Run(ctx) }()
		time.Sleep(time.Second)
		if asked := box.lastAsked(1); len(asked) != 1 || asked[0].Max != jetbus.DefaultDrainWindow {
			t.Errorf("after a shutdown it claims %+v", asked)
		}
		cancel()
		check(t, "Run again", <-result, nil)
	})
}

// TestDrainStopUnheard ends within its time although the outbox does not answer what it is
// told of a window; the rest of the lease is not waited for.
func TestDrainStopUnheard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box, log := &slowBox{memoryBox: &memoryBox{}}, &memoryLog{}
		box.hangs.Store(100)
		box.add(orderRow("a", ""))
		_, stop := drained(t, box, log, jetbus.DrainOptions{Lease: time.Hour, ShutdownTimeout: 2 * time.Second})
		time.Sleep(time.Second)
		if log.tried() != 1 {
			t.Fatal("nothing is published of which the outbox could be told")
		}
		began := time.Now()
		err := stop()
		if took := time.Since(began); took > 5*time.Second { // for this window, and once more at the end
			t.Errorf("stopped after %v", took)
		}
		check(t, "Run", err, context.DeadlineExceeded)
	})
}

// TestDrainStopParts tells the outbox at the end what failed and what is given back, though it
// does not answer what it is told before; all of it takes no longer than one of them may.
func TestDrainStopParts(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		t.Run(fmt.Sprint("failures hang ", deaf), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				box, log := &slowBox{memoryBox: &memoryBox{}}, &memoryLog{}
				box.hangs.Store(100)
				box.deaf.Store(deaf)
				box.add(orderRow("sent", ""), orderRow("failed", ""), jetbus.Event{ID: "back", Topic: "full"})
				log.setRefuse(func(e jetbus.Event) error {
					return map[string]error{"failed": errFlaky, "back": jetbus.ErrTopicFull}[e.ID]
				})
				_, stop := drained(t, box, log, jetbus.DrainOptions{
					Lease: time.Hour, ShutdownTimeout: 3 * time.Second, Backoff: jetbus.Backoff{Min: time.Minute, NoJitter: true},
				})
				time.Sleep(time.Second)
				began := time.Now()
				check(t, "Run", stop(), context.DeadlineExceeded)
				if took := time.Since(began); took > 6*time.Second { // for this window, and once more at the end
					t.Errorf("stopped after %v", took)
				}
				want := []string{"sent", "failed1", "back"}
				if deaf {
					want[1] = "failed"
				}
				if left := box.left(); !slices.Equal(left, want) {
					t.Errorf("left %v, want %v", left, want)
				}
				rows, err := box.memoryBox.Claim(t.Context(), jetbus.ClaimOptions{Max: 9, Lease: time.Minute})
				check(t, "Claim", err, nil)
				if len(rows) != 1 || rows[0].Event.ID != "back" {
					t.Errorf("another one finds %+v, want what was not published", rows)
				}
			})
		})
	}
}

// countedBox is an outbox that counts how often it is asked what waits.
type countedBox struct {
	*memoryBox

	looks atomic.Int64
}

func (b *countedBox) OutboxStats(ctx context.Context) (jetbus.OutboxStats, error) {
	b.looks.Add(1)
	return b.memoryBox.OutboxStats(ctx)
}

// TestDrainLooksSeldom: an outbox that is emptied all the time, since its rows come one by
// one, is not counted each time.
func TestDrainLooksSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box, log := &countedBox{memoryBox: &memoryBox{}}, &memoryLog{}
		box.add(orderRow("dead", "k"))
		box.rows[0].dead = true
		d, stop := drained(t, box, log, jetbus.DrainOptions{})
		const rows = 6000 // in 10 minutes
		for i := range rows {
			box.add(orderRow(strconv.Itoa(i), ""))
			d.Kick()
			time.Sleep(100 * time.Millisecond)
		}
		if n, most := box.looks.Load(), int64(10*time.Minute/jetbus.DefaultDrainStatsEvery+10); n > most {
			t.Errorf("%d looks at an outbox that is emptied all the time, want at most %d", n, most)
		}
		time.Sleep(40 * time.Second) // into the middle of an interval
		if s := d.Stats(); s.Published != rows || s.Outbox.Pending != 0 || s.Outbox.Dead != 1 {
			t.Errorf("stats %+v", s)
		}
		n := box.looks.Load()
		box.add(orderRow("last", "")) // not one of many any more
		d.Kick()
		time.Sleep(2 * time.Second)
		if box.looks.Load() == n {
			t.Error("an outbox that is emptied once is not looked at")
		}
		check(t, "Run", stop(), nil)
	})
}

// TestDrainSentHangs goes on when the outbox answers again, though it never answered what
// it was asked meanwhile.
func TestDrainSentHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box, log := &slowBox{memoryBox: &memoryBox{}}, &memoryLog{}
		box.hangs.Store(3)
		box.add(orderRow("a", ""))
		d, stop := drained(t, box, log, jetbus.DrainOptions{})
		time.Sleep(time.Minute)
		check(t, "Ready while it hangs", d.Ready(), context.DeadlineExceeded)
		time.Sleep(10 * time.Minute)
		check(t, "Ready", d.Ready(), nil)
		if left := box.left(); len(left) > 0 || log.tried() != 1 {
			t.Errorf("left %v after %d batches", left, log.tried())
		}
		check(t, "Run", stop(), nil)
	})
}

// TestDrainTopicFillsUp leaves a topic alone that took some rows of the window in which
// it refused one.
func TestDrainTopicFillsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box, log := &memoryBox{}, &memoryLog{}
		box.add(orderRow("a", ""), orderRow("b", ""))
		log.setRefuse(func(e jetbus.Event) error {
			if e.ID == "b" {
				return jetbus.ErrTopicFull
			}
			return nil
		})
		d, stop := drained(t, box, log, jetbus.DrainOptions{Backoff: jetbus.Backoff{Min: time.Minute, NoJitter: true}})
		time.Sleep(30 * time.Second)
		if s := d.Stats(); log.tried() != 1 || !slices.Equal(s.HeldTopics, []string{"orders"}) {
			t.Errorf("%d batches within the backoff of a topic that is full, stats %+v", log.tried(), s)
		}
		check(t, "Run", stop(), nil)
	})
}

// TestDrainTopicGone does not say for ever that a topic is held whose rows somebody else
// has published.
func TestDrainTopicGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box, log := &memoryBox{}, &memoryLog{}
		box.add(orderRow("a", ""))
		log.setRefuse(func(jetbus.Event) error { return jetbus.ErrTopicFull })
		d, stop := drained(t, box, log, jetbus.DrainOptions{Backoff: jetbus.Backoff{Min: time.Minute, NoJitter: true}})
		time.Sleep(30 * time.Second)
		if s := d.Stats(); !slices.Equal(s.HeldTopics, []string{"orders"}) {
			t.Errorf("stats %+v", s)
		}
		check(t, "published by another", box.Sent(t.Context(), []jetbus.OutboxRow{{Ref: "orders|a"}}), nil)
		time.Sleep(time.Minute)
		if s := d.Stats(); len(s.HeldTopics) > 0 || log.tried() != 1 {
			t.Errorf("after %d batches: %+v", log.tried(), s)
		}
		check(t, "Run", stop(), nil)
	})
}
