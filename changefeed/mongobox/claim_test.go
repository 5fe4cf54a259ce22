package mongobox_test

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

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/changefeed/mongobox"
	"github.com/seed-63e9a637/jetbus/embedded/mongod"
)

// between calls f once, after a claim has looked and before it takes.
func (r *rig) between(server *mongod.Server, f func()) {
	var called atomic.Bool
	r.Cleanup(server.OnCommand(func(c mongod.Command) error {
		if c.Name == "abortTransaction" && called.CompareAndSwap(false, true) { // the end of the look
			f()
		}
		return nil
	}))
}

// TestClaimLosesPart gives back what is behind a row of the key that changed between the
// look and the claim.
func TestClaimLosesPart(t *testing.T) {
	late := []jetbus.OutboxFailure{{Err: errors.New("late"), RetryIn: time.Hour}}
	for _, c := range []struct {
		name string
		then func(r *rig, old []jetbus.OutboxRow) error
		want ids
	}{
		{"a failure in the middle", func(r *rig, old []jetbus.OutboxRow) error {
			late[0].Row = old[1]
			return r.box.Failed(r.Context(), late)
		}, ids{"1", "n"}},
		{"a dead one in the middle", func(r *rig, old []jetbus.OutboxRow) error {
			return r.box.Failed(r.Context(), []jetbus.OutboxFailure{{Row: old[1], Dead: true}})
		}, ids{"1", "n"}},
		{"another has the first", func(r *rig, _ []jetbus.OutboxRow) error {
			rows, err := r.box.Claim(r.Context(), jetbus.ClaimOptions{Max: 1, Lease: time.Hour})
			r.want("the other one", idsOf(rows), ids{"1"})
			return err
		}, ids{"n"}},
		{"the first is sent", func(r *rig, old []jetbus.OutboxRow) error {
			return r.box.Sent(r.Context(), old[:1])
		}, ids{"n"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, server := newFaultyRig(t)
			r.ok(r.box.Add(r.Context(), order("1", "a"), order("2", "a"), order("3", "a"), order("n", "")))
			_, old := r.claim(r.box, 3, time.Millisecond)
			slices.SortFunc(old, func(a, b jetbus.OutboxRow) int { return strings.Compare(a.Event.ID, b.Event.ID) })
			r.until("the lease is over", func() bool {
				rows, err := r.box.List(r.Context(), mongobox.Query{})
				r.ok(err)
				return !slices.ContainsFunc(rows, func(row mongobox.Row) bool { return !row.ClaimedUntil.IsZero() })
			})
			r.between(server, func() {
				if err := c.then(r, old); err != nil {
					r.Error(err)
				}
			})
			got, _ := r.claim(r.box, 10, time.Hour)
			r.want("claimed", got, c.want)
			rows, err := r.box.List(r.Context(), mongobox.Query{IDs: ids{"3"}})
			r.ok(err)
			if !rows[0].ClaimedUntil.IsZero() {
				r.Error("the last one is not given back")
			}
		})
	}
}

// TestClaimElsewhere looks for other rows when others got what it has seen.
func TestClaimElsewhere(t *testing.T) {
	r, server := newFaultyRig(t)
	r.ok(r.box.Add(r.Context(), order("1", "a"), order("2", "b"), order("3", "")))
	other := r.open(mongobox.Options{})
	r.between(server, func() {
		rows, err := other.Claim(r.Context(), jetbus.ClaimOptions{Max: 2, Lease: time.Hour})
		if err != nil || len(rows) != 2 {
			r.Errorf("the other one got %d, %v", len(rows), err)
		}
	})
	got, _ := r.claim(r.box, 2, time.Hour)
	r.want("claimed", got, ids{"3"})
}

// TestClaimUnanswered gives back what it took when it does not get to know.
func TestClaimUnanswered(t *testing.T) {
	for _, command := range []string{"update", "find"} {
		r, server := newFaultyRig(t)
		r.ok(r.box.Add(r.Context(), order("1", "a"), order("2", "a"), order("3", "")))
		var took, failed atomic.Bool
		remove := server.OnReply(func(c mongod.Command) error {
			took.CompareAndSwap(false, c.Name == "update")
			if took.Load() && c.Name == command && failed.CompareAndSwap(false, true) {
				return &mongod.CommandError{Code: 8, Name: "UnknownError", Message: "lost"}
			}
			return nil
		})
		if _, err := r.box.Claim(r.Context(), jetbus.ClaimOptions{Max: 10, Lease: time.Hour}); err == nil {
			r.Error("a claim without an answer is no error")
		}
		remove()
		got, _ := r.claim(r.box, 10, time.Hour)
		r.want("claimed", got, ids{"1", "2", "3"})
	}
}

// TestClaimSnapshotGone looks again.
func TestClaimSnapshotGone(t *testing.T) {
	r, server := newFaultyRig(t)
	r.ok(r.box.Add(r.Context(), order("1", "a")))
	var failed atomic.Bool
	r.Cleanup(server.OnCommand(func(c mongod.Command) error {
		if c.Name == "find" && failed.CompareAndSwap(false, true) {
			return &mongod.CommandError{Code: 246, Name: "SnapshotUnavailable", Message: "gone", Labels: []string{"TransientTransactionError"}}
		}
		return nil
	}))
	got, _ := r.claim(r.box, 10, time.Hour)
	r.want("claimed", got, ids{"1"})
	for _, o := range []jetbus.ClaimOptions{{Max: 0, Lease: time.Second}, {Max: 5001, Lease: time.Second}, {Max: 1}} {
		_, err := r.box.Claim(r.Context(), o)
		r.wantErr(fmt.Sprintf("%+v", o), err, jetbus.ErrInvalidOption)
	}
}

// TestLateFailure does not come through to a row that another claim has.
func TestLateFailure(t *testing.T) {
	r := newRig(t)
	r.ok(r.box.Add(r.Context(), order("1", "a")))
	_, old := r.claim(r.box, 1, time.Millisecond)
	r.until("another has it", func() bool {
		got, _ := r.claim(r.box, 1, time.Hour)
		return len(got) == 1
	})
	r.ok(r.box.Failed(r.Context(), []jetbus.OutboxFailure{{Row: old[0], Dead: true}}))
	r.ok(r.box.Release(r.Context(), old))
	old[0].Ref = "of another outbox"
	r.ok(r.box.Sent(r.Context(), old))
	r.ok(r.box.Failed(r.Context(), []jetbus.OutboxFailure{{Row: old[0]}}))
	rows, err := r.box.List(r.Context(), mongobox.Query{})
	r.ok(err)
	if len(rows) != 1 || rows[0].State != mongobox.Pending || rows[0].ClaimedUntil.IsZero() {
		r.Errorf("rows %+v", rows)
	}
}

// away is a bus whose broker does not answer for a while.
type away struct {
	*adapter.Bus

	calls atomic.Int64
}

func (a *away) PublishBatch(ctx context.Context, events []jetbus.Event, o jetbus.BatchOptions) ([]jetbus.Receipt, error) {
	if a.calls.Add(1) <= 5 {
		return nil, jetbus.ErrUnavailable
	}
	return a.Bus.PublishBatch(ctx, events, o)
}

// TestBrokerAway counts no attempts.
func TestBrokerAway(t *testing.T) {
	r := newRig(t)
	bus := &away{Bus: r.startBus()}
	r.ok(r.box.Add(r.Context(), order("1", "a"), order("2", "a")))
	d, err := jetbus.NewDrainer(r.box, bus, jetbus.DrainOptions{
		MaxAttempts: 1, PollMin: 5 * time.Millisecond, Backoff: jetbus.Backoff{Min: time.Millisecond, Max: 10 * time.Millisecond},
	})
	r.ok(err)
	r.run(d.Run)
	r.until("it is published", func() bool { return d.Stats().Published == 2 })
	if s := d.Stats(); s.Errors[jetbus.DrainBroker] < 5 || s.Dead != 0 || s.Retried != 0 {
		r.Errorf("stats %+v", s)
	}
	r.until("nothing is left", func() bool { return len(r.list(mongobox.Query{})) == 0 })
}

// TestDrainersCut ends drainers at any point of their work while events are added, cuts
// their connections, and changes the primary. The log has each event once, those of a
// key in the order of their commits.
func TestDrainersCut(t *testing.T) {
	r, server := newFaultyRig(t)
	bus := r.startBus()
	var adding sync.WaitGroup
	const keys, each = 4, 60
	for k := range keys {
		adding.Go(func() {
			for i := range each {
				e := order(fmt.Sprintf("%d-%03d", k, i), fmt.Sprint("k", k))
				r.until("the event is added", func() bool { // a cut may take its connection, and the answer
					err := r.box.Add(context.Background(), e)
					return err == nil || mongo.IsDuplicateKeyError(err)
				})
			}
		})
	}
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test that can be repeated
	var running sync.WaitGroup
	boxes := []*mongobox.Box{r.box, r.open(mongobox.Options{}), r.open(mongobox.Options{})}
	for i := range 30 {
		d, err := jetbus.NewDrainer(&cutOff{Outbox: boxes[i%len(boxes)]}, bus, jetbus.DrainOptions{
			Window: 10, Lease: time.Second, PollMin: time.Millisecond, PollMax: 5 * time.Millisecond, ShutdownTimeout: time.Millisecond,
		})
		r.ok(err)
		ctx, cancel := context.WithTimeout(r.Context(), time.Duration(random.IntN(60))*time.Millisecond)
		running.Go(func() {
			defer cancel()
			_ = d.Run(ctx) // it may have been waiting for the outbox
		})
		<-ctx.Done()
		if random.IntN(5) == 0 {
			server.CutConnections()
		}
	}
	adding.Wait()
	running.Wait()
	last, err := jetbus.NewDrainer(r.box, bus, jetbus.DrainOptions{PollMin: 5 * time.Millisecond})
	r.ok(err)
	r.run(last.Run)
	r.until("nothing is left", func() bool { return r.pending() == 0 })
	got, want := map[string]ids{}, map[string]ids{}
	for e, err := range bus.Scan(r.Context(), "orders", jetbus.ScanQuery{}) {
		r.ok(err)
		got[e.Key] = append(got[e.Key], e.ID)
	}
	for k := range keys {
		for i := range each {
			want[fmt.Sprint("k", k)] = append(want[fmt.Sprint("k", k)], fmt.Sprintf("%d-%03d", k, i))
		}
	}
	r.want("the log", got, want)
}

// cutOff is an outbox that does not hear of every second window that was sent, as of a
// drainer that was killed.
type cutOff struct {
	jetbus.Outbox

	n int
}

func (c *cutOff) Sent(ctx context.Context, rows []jetbus.OutboxRow) error {
	if c.n++; c.n%2 == 0 {
		return nil
	}
	return c.Outbox.Sent(ctx, rows)
}
