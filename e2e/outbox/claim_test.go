//go:build unix

package outbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/outbox"
)

func (r *rig) want(what string, got, want any) {
	r.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		r.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

type ids = []string

// TestClaim takes rows of a key together, in order, and never past one that is not to be had.
func TestClaim(t *testing.T) {
	onDatabases(t, func(r *rig) {
		r.add(order("a1", "a"), order("b1", "b"), order("a2", "a"), order("n1", ""), order("a3", "a"), jetbus.Event{ID: "x", Topic: "other", Key: "a"})
		got, rows := r.claim(r.box, 3, time.Minute, "other")
		r.want("heads first", got, ids{"a1", "b1", "n1"})
		got, _ = r.claim(r.box, 10, time.Minute)
		r.want("a2 waits for a1", got, ids{"x"})
		r.ok(r.box.Release(r.Context(), rows))
		got, rows = r.claim(r.box, 4, time.Minute)
		r.want("one follower", got, ids{"a1", "b1", "a2", "n1"})
		r.ok(r.box.Sent(r.Context(), rows[:2])) // a1, b1
		got, _ = r.claim(r.box, 10, time.Minute)
		r.want("a3 waits for a2", got, ids{})
		r.ok(r.box.Failed(r.Context(), []jetbus.OutboxFailure{{Row: rows[2], Err: errors.New("bad \x00\xff"), RetryIn: time.Hour}}))
		got, _ = r.claim(r.box, 10, time.Minute)
		r.want("a3 waits for a2's next attempt", got, ids{})
		n, err := r.box.Retry(r.Context(), outbox.Query{IDs: ids{"a2"}})
		r.ok(err)
		r.want("retried", n, 1)
		got, rows = r.claim(r.box, 10, time.Minute)
		r.want("a2 with a3", got, ids{"a2", "a3"})
		r.want("attempts", rows[0].Attempts, 0)
	})
}

// TestClaimExpires gives rows to another claim when their lease is over, after which the
// first one may say what was sent and nothing else.
func TestClaimExpires(t *testing.T) {
	onDatabases(t, func(r *rig) {
		r.add(order("a1", "a"), order("a2", "a"), order("n1", ""))
		_, old := r.claim(r.box, 10, 50*time.Millisecond)
		var now []jetbus.OutboxRow
		r.until("the lease is over", func() bool {
			_, now = r.claim(r.box, 10, time.Minute)
			return len(now) > 0
		})
		r.want("all at once", len(now), 3)
		r.ok(r.box.Release(r.Context(), old))
		r.ok(r.box.Failed(r.Context(), []jetbus.OutboxFailure{{Row: old[0], Err: errors.New("late"), Dead: true}}))
		got, _ := r.claim(r.box, 10, time.Minute)
		r.want("the second claim holds", got, ids{})
		r.ok(r.box.Sent(r.Context(), old[2:]))
		r.want("what is left", r.list(outbox.Query{}), ids{"a1 pending 0 claimed", "a2 pending 0 claimed"})
		r.ok(r.box.Sent(r.Context(), now))
		r.want("what is left", r.list(outbox.Query{}), ids{})
	})
}

// TestDeadRow holds back its key, or does not.
func TestDeadRow(t *testing.T) {
	onDatabases(t, func(r *rig) {
		skipping := r.openBox(outbox.Options{SkipDead: true})
		r.add(order("a1", "a"), order("a2", "a"), order("a3", "a"), order("a4", "a"))
		_, rows := r.claim(r.box, 1, time.Minute)
		r.ok(r.box.Failed(r.Context(), []jetbus.OutboxFailure{{Row: rows[0], Err: jetbus.ErrSchema, Dead: true}}))
		got, _ := r.claim(r.box, 10, time.Minute)
		r.want("behind a dead row", got, ids{})
		got, rows = r.claim(skipping, 10, time.Minute)
		r.want("behind a dead row that is skipped", got, ids{"a2", "a3", "a4"})
		r.ok(r.box.Release(r.Context(), rows))
		_, err := r.box.Retry(r.Context(), outbox.Query{State: outbox.Dead, Topic: "orders", Key: "a"})
		r.ok(err)
		_, err = r.box.Kill(r.Context(), outbox.Query{IDs: ids{"a3"}})
		r.ok(err)
		got, rows = r.claim(r.box, 10, time.Minute)
		r.want("up to the dead row", got, ids{"a1", "a2"})
		r.ok(r.box.Sent(r.Context(), rows))
		killed, err := r.box.Kill(r.Context(), outbox.Query{State: outbox.Sent})
		r.want("killed what was sent", killed, 0)
		r.ok(err)
		removed, err := r.box.Remove(r.Context(), outbox.Query{})
		r.ok(err)
		r.want("removed", removed, 1)
		got, _ = r.claim(r.box, 10, time.Minute)
		r.want("when it is removed", got, ids{"a4"})
		killed, err = r.box.Kill(r.Context(), outbox.Query{})
		r.want("killed what is claimed", killed, 0)
		r.ok(err)
	})
}

// TestClaimBacklog looks for rows behind thousands that are not to be had.
func TestClaimBacklog(t *testing.T) {
	onDatabases(t, func(r *rig) {
		last, next := 12_999, []ids{{"10000", "10001", "10002"}, {"b1", "b2"}} // found in a few steps
		if r.quick() {
			last = 34_998 // with n1 25 whole steps, more than a claim takes once it has something: the next one goes on there
			slices.Reverse(next)
		}
		r.ok(r.backlog(r.Context(), 10_000, last))
		r.add(order("n1", ""), order("b1", "b"), order("b2", "b"))
		_, first := r.claim(r.box, 1, time.Hour)
		got, _ := r.claim(r.box, 1, time.Hour)
		r.want("behind a key that is claimed", got, ids{"n1"})
		r.ok(r.box.Release(r.Context(), first))
		got, _ = r.claim(r.box, 3, time.Hour)
		r.want("then", got, next[0])
		got, _ = r.claim(r.box, 3, time.Hour)
		r.want("and then", got, next[1])
	})
}

// TestClaimFollowers takes rows of a key together that are far from each other, with more
// rows between them than a claim looks at in a step; and goes no further than a dead one.
func TestClaimFollowers(t *testing.T) {
	onSQL(t, func(r *rig, _ *sqlDatabase) {
		r.add(order("b1", "b"))
		r.ok(r.backlog(r.Context(), 10_000, 11_499))
		r.add(order("b2", "b"), order("n1", ""), order("b3", "b"))
		got, rows := r.claim(r.box, 2, time.Hour)
		r.want("heads", got, ids{"b1", "10000"})
		r.ok(r.box.Release(r.Context(), rows[:1]))
		got, rows = r.claim(r.box, 10, time.Hour)
		r.want("with what follows", got, ids{"b1", "b2", "n1", "b3"})
		r.ok(r.box.Release(r.Context(), rows))
		_, err := r.box.Kill(r.Context(), outbox.Query{IDs: ids{"b2"}})
		r.ok(err)
		got, _ = r.claim(r.box, 10, time.Hour)
		r.want("up to a dead row", got, ids{"b1", "n1"})
	})
}

// TestClaimFollowersNotDue goes no further than a row of the key that is not due, though that
// is in a step in which no row is, and the next one of the key in the step behind it.
func TestClaimFollowersNotDue(t *testing.T) {
	onSQL(t, func(r *rig, d *sqlDatabase) {
		r.add(order("b1", "b"))
		r.ok(d.backlog(r.Context(), 10_000, 11_499))
		r.add(order("b2", "b"))
		r.ok(d.backlog(r.Context(), 20_000, 21_499))
		r.add(order("b3", "b"))
		_, err := d.db.ExecContext(r.Context(), `UPDATE outbox SET due_at = 9000000000000 WHERE id NOT IN ('b1', 'b3')`)
		r.ok(err)
		got, _ := r.claim(r.box, 10, time.Hour)
		r.want("up to a row that is not due", got, ids{"b1"})
	})
}

// TestClaimBehindSkipped finds a row behind thousands of a topic that is skipped, and behind
// as many that are not due.
func TestClaimBehindSkipped(t *testing.T) {
	onSQL(t, func(r *rig, d *sqlDatabase) {
		r.ok(d.backlog(r.Context(), 10_000, 20_999))
		r.add(jetbus.Event{ID: "x", Topic: "other"}, jetbus.Event{ID: "y", Topic: "other"})
		got, _ := r.claim(r.box, 1, time.Hour, "orders")
		r.want("behind a topic that is skipped", got, ids{"x"})
		_, err := d.db.ExecContext(r.Context(), `UPDATE outbox SET due_at = 9000000000000 WHERE topic = 'orders'`)
		r.ok(err)
		got, _ = r.claim(r.box, 10, time.Hour)
		r.want("behind rows that are not due", got, ids{"y"})
	})
}

// TestCreateAtOnce makes one table in several places at once, as services do that start
// together.
func TestCreateAtOnce(t *testing.T) {
	onSQL(t, func(r *rig, d *sqlDatabase) {
		if d.dialect != outbox.PostgreSQL {
			r.Skip("SQLite has one writer at a time")
		}
		for i := range 10 {
			table := fmt.Sprint("many", i)
			errs := make([]error, 4)
			var work sync.WaitGroup
			for n := range errs {
				work.Go(func() { errs[n] = outbox.Create(r.Context(), d.db, d.dialect, table) })
			}
			work.Wait()
			r.ok(errors.Join(errs...))
			_, err := outbox.Open(r.Context(), d.db, outbox.Options{Dialect: d.dialect, Table: table})
			r.ok(err)
		}
	})
}

// TestClaimRace has claims at the same time that send, fail, release and forget rows,
// and looks whether the rows of a key stay in order.
func TestClaimRace(t *testing.T) {
	onDatabases(t, func(r *rig) {
		rows, workers := 150, 3
		if r.quick() {
			rows, workers = 1000, 6
		}
		var events []jetbus.Event
		for i := range rows {
			key := fmt.Sprint("k", i%7)
			if i%10 == 0 {
				key = ""
			}
			events = append(events, order(fmt.Sprintf("%04d", i), key))
		}
		var mu sync.Mutex
		var log []string
		var work sync.WaitGroup
		var adding atomic.Bool
		adding.Store(true)
		for w := range workers {
			work.Go(func() {
				random := rand.New(rand.NewPCG(uint64(w), 1)) //nolint:gosec // a test that can be repeated
				for adding.Load() || r.pending() > 0 {
					r.workOn(random, &mu, &log)
				}
			})
		}
		for len(events) > 0 {
			n := min(len(events), 50)
			r.add(events[:n]...)
			events = events[n:]
		}
		adding.Store(false)
		work.Wait()
		// A row that was forgotten after it was sent is sent again, as of a drainer that dies.
		seen, once := map[string]bool{}, []string{}
		for _, s := range log {
			if !seen[s] {
				seen[s] = true
				once = append(once, s)
			}
		}
		r.inOrder(once, rows)
	})
}

// workOn claims rows and does something with each, in their order. A lease is long enough
// for that: where claims take their time, all rows would be given back for ever.
func (r *rig) workOn(random *rand.Rand, mu *sync.Mutex, log *[]string) {
	lease := time.Duration(200+random.IntN(200))*time.Millisecond + 4*time.Duration(r.claiming.Load())
	began := time.Now()
	deadline := began.Add(lease / 2)
	rows, err := r.box.Claim(context.Background(), jetbus.ClaimOptions{Max: 1 + random.IntN(40), Lease: lease})
	if err != nil {
		r.Error(err)
		return
	}
	r.claiming.Store(int64(time.Since(began)))
	stuck := map[string]bool{}
	var sent, back []jetbus.OutboxRow
	for _, row := range rows {
		key := row.Event.Key
		switch n := random.IntN(40); {
		case stuck[key] || n == 0 || time.Now().After(deadline):
			back = append(back, row)
			stuck[key] = key != ""
		case n == 1:
			stuck[key] = key != ""
			err = errors.Join(err, r.box.Failed(context.Background(), []jetbus.OutboxFailure{{Row: row, Err: errors.New("flaky"), RetryIn: 20 * time.Millisecond}}))
		default:
			mu.Lock()
			*log = append(*log, strings.TrimPrefix(key+"/"+row.Event.ID, "/"))
			mu.Unlock()
			sent = append(sent, row)
		}
	}
	if random.IntN(10) > 0 { // else it dies, and the lease runs out
		err = errors.Join(err, r.box.Sent(context.Background(), sent), r.box.Release(context.Background(), back))
	}
	if err != nil {
		r.Error(err)
	}
}
