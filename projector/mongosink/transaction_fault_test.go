package mongosink_test

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

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-63e9a637/jetbus/embedded/mongod"
	"github.com/seed-63e9a637/jetbus/projector"
	"github.com/seed-63e9a637/jetbus/projector/mongosink"
)

// newCountingStandIn is a counting with a server of its own whose faults are made.
func newCountingStandIn(t *testing.T) (*counting, *mongod.Server) {
	t.Helper()
	beside(t)
	c := &counting{T: t}
	return c, c.standIn()
}

// persist writes a batch until it is written, as a projection does while its sink
// is away, and fails the test where a change is blamed for that.
func (c *counting) persist(sink *mongosink.Transaction, b projector.Batch) (applied, failures int) {
	c.Helper()
	for {
		out, err := sink.Write(c.Context(), b)
		if err == nil {
			return applied + out.Applied, failures
		}
		failures++
		if _, ok := errors.AsType[*projector.ChangeError](err); ok || errors.Is(err, projector.ErrFenced) || failures > 1_000 {
			c.Fatalf("failure %d: %v", failures, err)
		}
	}
}

// TestTransactionUnknownCommit: the answer to a commit is lost, and the driver's
// own retries of it too.
func TestTransactionUnknownCommit(t *testing.T) {
	for _, lost := range []int{1, 3, 9} {
		t.Run(fmt.Sprint(lost), func(t *testing.T) {
			c, srv := newCountingStandIn(t)
			var mu sync.Mutex
			left := lost
			srv.OnReply(func(cmd mongod.Command) error {
				mu.Lock()
				defer mu.Unlock()
				if cmd.Name != "commitTransaction" || left == 0 {
					return nil
				}
				left--
				return mongod.ErrCut
			})
			sink := c.open(0)
			for last := uint64(10); last <= 200; last += 10 { // what is lost is commits, however much is in them
				if applied, _ := c.persist(sink, counterBatch(last-9, last)); applied != 10 {
					t.Errorf("%d applied up to %d", applied, last)
				}
			}
			c.want(200)
			if mu.Lock(); left > 0 {
				t.Errorf("%d answers were not lost", left)
			}
			mu.Unlock()
		})
	}
}

// TestTransactionDiesInCommit: a replica is gone before it learns of its commit,
// and the next one goes on behind it.
func TestTransactionDiesInCommit(t *testing.T) {
	c, srv := newCountingStandIn(t)
	const last, size = 300, 30
	for at := uint64(0); at < last; at += size {
		sink := c.open(at)
		ctx, cancel := context.WithCancel(t.Context())
		remove := srv.OnReply(func(cmd mongod.Command) error {
			if cmd.Name != "commitTransaction" {
				return nil
			}
			cancel()
			return mongod.ErrCut
		})
		if _, err := sink.Write(ctx, counterBatch(at+1, at+size)); err == nil {
			t.Fatal("the write did not fail")
		}
		remove()
		if at == last/2 { // it was not dead after all
			if applied, _ := c.persist(sink, counterBatch(at+1, at+size)); applied != size {
				t.Errorf("%d applied", applied)
			}
		}
	}
	c.want(last)
}

// TestTransactionCrashes cuts and steps down at random commands, before they are
// run and behind that.
func TestTransactionCrashes(t *testing.T) {
	c, srv := newCountingStandIn(t)
	sink := c.open(0)
	var faults atomic.Int32 // each takes the driver up to a second
	chaos := func(cmd mongod.Command) error {
		odds := 280 // of some 4,000 commands and replies
		if cmd.Name == "commitTransaction" {
			odds = 8
		}
		if cmd.Name == "hello" || rand.N(odds) > 0 || faults.Add(1) > 15 {
			return nil
		}
		switch rand.N(4) {
		case 0:
			srv.StepDown()
			srv.StepUp()
		case 1:
			srv.CutConnections()
		default:
			return mongod.ErrCut
		}
		return nil
	}
	before, after := srv.OnCommand(chaos), srv.OnReply(chaos)
	const last = 1_000
	applied, failures := 0, 0
	for at := uint64(0); at < last; {
		upTo := min(at+1+rand.N(uint64(80)), last)
		a, f := c.persist(sink, counterBatch(at+1, upTo))
		applied, failures, at = applied+a, failures+f, upTo
	}
	before()
	after()
	t.Logf("%d faults, %d writes failed", faults.Load(), failures)
	if applied != last {
		t.Errorf("%d applied", applied)
	}
	c.want(last)
}

// TestTransactionHiddenError: the server goes away within Apply, which hides that.
// No change is to blame.
func TestTransactionHiddenError(t *testing.T) {
	c, srv := newCountingStandIn(t)
	sink := c.open(0)
	c.fail = func(_ context.Context, seq uint64) error {
		if seq != 5 {
			return nil
		}
		srv.Suspend()
		return errors.New("something failed")
	}
	_, err := sink.Write(t.Context(), counterBatch(1, 10))
	if _, ok := errors.AsType[*projector.ChangeError](err); ok || err == nil || !strings.Contains(err.Error(), "something failed") {
		t.Errorf("error %v", err)
	}
	srv.Resume()
	c.fail = nil
	c.persist(sink, counterBatch(1, 10))
	c.want(10)
}

// TestTransactionTooLarge: the server has no room for more than 60 writes at once.
func TestTransactionTooLarge(t *testing.T) {
	c, srv := newCountingStandIn(t)
	var mu sync.Mutex
	room, writes := 60, 0
	srv.OnCommand(func(cmd mongod.Command) error {
		mu.Lock()
		defer mu.Unlock()
		switch cmd.Name {
		case "update", "insert":
			if slices.ContainsFunc(cmd.Body, func(e bson.E) bool { return e.Key == "startTransaction" }) {
				writes = 0
			}
			writes++
		case "commitTransaction":
			if writes > room {
				return &mongod.CommandError{Code: 257, Name: "TransactionTooLarge", Message: "too large", Labels: []string{}}
			}
		}
		return nil
	})
	sink := c.open(0)
	if applied, failures := c.persist(sink, counterBatch(1, 120)); applied != 120 || failures != 0 {
		t.Errorf("%d applied after %d failures", applied, failures)
	}
	c.want(120)
	mu.Lock()
	room = 2 // the position and one more
	mu.Unlock()
	_, err := sink.Write(t.Context(), counterBatch(121, 130))
	if bad, ok := errors.AsType[*projector.ChangeError](err); !ok || bad.Index != 0 {
		t.Errorf("error %v", err)
	}
	c.want(120)
}
