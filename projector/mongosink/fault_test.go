package mongosink_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	mongoevent "go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus/embedded/mongod"
	"github.com/seed-63e9a637/jetbus/embedded/mongod/mongotest"
	"github.com/seed-63e9a637/jetbus/projector"
	"github.com/seed-63e9a637/jetbus/projector/mongosink"
)

// expiring is a context whose deadline passes when the test says so: when the server has got
// what it is to get, however long that takes.
type expiring struct {
	context.Context
	done chan struct{}
	once sync.Once
}

func expires(ctx context.Context) *expiring {
	return &expiring{Context: ctx, done: make(chan struct{})}
}

func (e *expiring) expire() { e.once.Do(func() { close(e.done) }) }

func (e *expiring) Done() <-chan struct{} { return e.done }

func (e *expiring) Err() error {
	select {
	case <-e.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// fail sets the fail point failCommand, which is cleared with the test.
func (r *rig) fail(mode any, data bson.D) {
	r.Helper()
	mongotest.FailCommand(r, r.srv.URI(), mode, data)
}

func times(n int) bson.D { return bson.D{{Key: "times", Value: n}} }

// Row 4: the server's own duplicate key, where the guard does not match.
func TestA8Row04Guard(t *testing.T) {
	r := newRig(t)
	s := r.open(mongosink.Options{}, source())
	r.write(s, put("old", 5, `{}`))
	r.wantOutcome(r.write(s, put("old", 5, `{}`), put("old", 4, `{}`)), 0, 2, 0)
}

// Row 4: of two upserts of a key one fails with a duplicate key. It looks again:
// what lost to an older event is written once more, what lost to a newer is stale.
func TestA8Row04Race(t *testing.T) {
	r, standIn := newFaultRig(t)
	s := r.open(mongosink.Options{}, source())
	r.write(s, put("old", 5, `{}`))
	rival := r.open(mongosink.Options{}, source())
	racing := false
	remove := standIn.OnUpsert(func(ns string, id any) {
		if racing || !strings.HasSuffix(ns, ".things") {
			return
		}
		racing = true
		defer func() { racing = false }()
		switch id {
		case "a": // the rival's is older
			r.write(rival, put("a", 1, `{"by": "rival"}`))
		case "b": // newer
			r.write(rival, put("b", 9, `{"by": "rival"}`))
		case "c": // a tombstone
			r.write(rival, del("c", 9))
		case "d": // of another source
			r.insert("things", bson.M{"_id": "d", "_src": "EV_other", "_seq": int64(1)})
		}
	})
	defer remove()
	out := r.write(s, put("a", 5, `{"by": "me"}`), put("b", 6, `{"by": "me"}`), put("c", 7, `{"by": "me"}`), put("d", 8, `{"by": "me"}`))
	r.wantOutcome(out, 1, 2, 1)
	if out.Raced != 1 {
		t.Errorf("raced: %+v", out)
	}
	r.want(`a@5 {"by":"me"}`, `b@9 {"by":"rival"}`, "c@9 deleted", "d@1", "old@5")
}

// Row 4, when the race is lost again and again: an error, and the next Write goes
// on. Here the document is removed whenever it was found.
func TestA8Row04LostAlways(t *testing.T) {
	r, standIn := newFaultRig(t)
	s := r.open(mongosink.Options{}, source())
	things := r.db.Collection("things")
	ctx := t.Context()
	var rounds atomic.Int32
	removeUpsert := standIn.OnUpsert(func(_ string, id any) {
		if id == "a" {
			rounds.Add(1)
			_, _ = things.InsertOne(ctx, bson.M{"_id": "a"}) // the next reply tells
		}
	})
	removeReply := standIn.OnReply(func(c mongod.Command) error {
		if c.Name == "update" && c.Collection == "things" {
			_, _ = things.DeleteOne(ctx, bson.M{"_id": "a"})
		}
		return nil
	})
	if _, err := s.Write(ctx, projector.Batch{Changes: []projector.Change{put("a", 5, `{}`)}}); err == nil || !strings.Contains(err.Error(), `"a": the race`) {
		t.Errorf("error %v", err)
	}
	if n := rounds.Load(); n < 2 || n > 20 {
		t.Errorf("%d rounds", n)
	}
	removeUpsert()
	removeReply()
	r.wantOutcome(r.write(s, put("a", 5, `{}`)), 1, 0, 0)
}

// Row 4, another index: a duplicate there is no race. It is rejected, unless other
// changes of the batch make room.
func TestA8Row04UniqueIndex(t *testing.T) {
	r := newRig(t)
	s := r.open(mongosink.Options{Indexes: []mongosink.Index{{Keys: bson.D{{Key: "mail", Value: 1}}, Unique: true}}}, source())
	r.write(s, put("a", 1, `{"mail": "x"}`), put("b", 2, `{"mail": "y"}`))
	out := r.write(s, put("c", 3, `{"mail": "x"}`), put("d", 4, `{"mail": "z"}`))
	r.wantOutcome(out, 1, 0, 1)
	if err := out.Rejected[0].Err; !errors.Is(err, mongosink.ErrDuplicate) || !strings.Contains(err.Error(), `mail_1`) || !strings.Contains(err.Error(), `"x"`) {
		t.Errorf("rejected: %v", err)
	}
	// b takes what a leaves, in the wrong order, and a that of b's.
	r.wantOutcome(r.write(s, put("b", 5, `{"mail": "x"}`), put("a", 6, `{"mail": "w"}`)), 2, 0, 0)
	// An old event that would collide is stale, not a dead letter.
	r.wantOutcome(r.write(s, put("a", 4, `{"mail": "z"}`)), 0, 1, 0)
	// Deleted keys, and documents without the field, do not collide.
	r.wantOutcome(r.write(s, del("a", 7), del("b", 8), put("e", 9, `{}`), put("f", 10, `{}`)), 4, 0, 0)
	r.want("a@7 deleted", "b@8 deleted", `d@4 {"mail":"z"}`, "e@9", "f@10")
}

// Row 5: one statement that fails takes none of the others with it.
func TestA8Row05PartialBulk(t *testing.T) {
	r := newRig(t)
	s := r.open(mongosink.Options{Indexes: []mongosink.Index{{Keys: bson.D{{Key: "u", Value: 1}}, Unique: true}}}, source())
	r.write(s, put("k0700", 9000, `{"u": -1}`), put("other", 9001, `{"u": 1300}`))
	var b projector.Batch
	for i := range 2500 {
		b.Changes = append(b.Changes, put(fmt.Sprintf("k%04d", i), uint64(i+1), fmt.Sprintf(`{"u": %d}`, i)))
	}
	out, err := s.Write(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	r.wantOutcome(out, 2498, 1, 1)
	if len(out.Rejected) == 1 && out.Rejected[0].Index != 1300 {
		t.Errorf("rejected: %+v", out.Rejected)
	}
	if n := len(r.docs("things", bson.D{})); n != 2500 {
		t.Errorf("%d documents", n)
	}
}

// Row 5, write concern: what no majority has is not written; the same batch again
// finds it there.
func TestA8Row05WriteConcern(t *testing.T) {
	r := newRig(t)
	s := r.open(mongosink.Options{}, source())
	r.fail(times(1), bson.D{
		{Key: "failCommands", Value: bson.A{"update"}},
		{Key: "writeConcernError", Value: bson.D{{Key: "code", Value: 64}, {Key: "errmsg", Value: "waiting for replication timed out"}}},
	})
	b := projector.Batch{Changes: []projector.Change{put("a", 1, `{}`), put("b", 2, `{}`)}}
	if out, err := s.Write(t.Context(), b); err == nil || !strings.Contains(err.Error(), "no majority") || out.Applied != 0 {
		t.Errorf("%+v, %v", out, err)
	}
	r.want("a@1", "b@2")
	r.wantOutcome(r.write(s, b.Changes...), 0, 2, 0)
}

// Row 6: the connection goes when the server has applied the bulk. The driver asks
// once more and gets the answer; where that is lost for good, the same batch again
// does no harm.
func TestA8Row06Network(t *testing.T) {
	r := newRig(t)
	var updates atomic.Int32
	late := expires(t.Context())
	r.db = r.client(options.Client().SetMonitor(&mongoevent.CommandMonitor{Started: func(_ context.Context, e *mongoevent.CommandStartedEvent) {
		if e.CommandName == "update" && updates.Add(1) == 5 { // three of them asked again and again
			late.expire()
		}
	}})).Database(r.db.Name())
	s := r.open(mongosink.Options{}, source())
	cut := bson.D{{Key: "failCommands", Value: bson.A{"update"}}, {Key: "closeConnection", Value: true}}
	r.fail(times(1), cut)
	r.wantOutcome(r.write(s, put("a", 1, `{}`)), 1, 0, 0)
	r.fail("alwaysOn", cut)
	if _, err := s.Write(late, projector.Batch{Changes: []projector.Change{put("a", 2, `{}`)}}); !errors.Is(err, mongosink.ErrUnreachable) {
		t.Errorf("error %v", err)
	}
	r.fail("off", bson.D{})
	r.wantOutcome(r.write(s, put("a", 2, `{}`)), 1, 0, 0)
}

// Row 6: the answers get lost, and the connection with them.
func TestA8Row06AnswersLost(t *testing.T) {
	r, standIn := newFaultRig(t)
	s := r.open(mongosink.Options{}, source())
	r.write(s, put("a", 2, `{}`))
	var lose, lost atomic.Int32
	unheard := expires(t.Context())
	remove := standIn.OnReply(func(c mongod.Command) error {
		if c.Name == "update" && lost.Load() < lose.Load() {
			if lost.Add(1) > 2 {
				unheard.expire()
			}
			return mongod.ErrCut
		}
		return nil
	})
	defer remove()
	lose.Store(1) // the driver's own retry is answered from what the server remembers
	r.wantOutcome(r.write(s, put("a", 3, `{}`), put("b", 4, `{}`)), 2, 0, 0)
	lose.Store(1 << 30)
	b := projector.Batch{Changes: []projector.Change{put("a", 5, `{}`), put("b", 6, `{}`)}, UpTo: 6}
	if _, err := s.Write(unheard, b); !errors.Is(err, mongosink.ErrUnreachable) {
		t.Errorf("error %v", err)
	}
	r.want("a@5", "b@6")
	lose.Store(0)
	r.wantOutcome(r.writeUpTo(s, 6, b.Changes...), 0, 2, 0)
	if lost.Load() < 2 {
		t.Errorf("%d answers were lost", lost.Load())
	}
}

// Row 15: a step-down in the middle of a bulk. Some of it is written, nothing is
// reported; the same batch again completes it.
func TestA8Row15StepDown(t *testing.T) {
	r := newRig(t)
	s := r.open(mongosink.Options{}, source())
	b := projector.Batch{}
	for i := range 1500 {
		b.Changes = append(b.Changes, put(fmt.Sprintf("k%04d", i), uint64(i+1), `{}`))
	}
	standIn := r.srv.StandIn()
	if standIn == nil {
		r.fail(times(2), bson.D{{Key: "failCommands", Value: bson.A{"update"}}, {Key: "errorCode", Value: 11602}})
		if _, err := s.Write(t.Context(), b); err == nil {
			t.Error("no error")
		}
	} else {
		var stepped atomic.Bool
		remove := standIn.OnUpsert(func(_ string, id any) {
			if id == "k1200" && stepped.CompareAndSwap(false, true) {
				standIn.StepDown()
			}
		})
		ctx, cancel := context.WithCancel(t.Context()) // the driver would wait for another primary
		answered := standIn.OnReply(func(c mongod.Command) error {
			if c.Name == "update" && stepped.Load() {
				cancel()
			}
			return nil
		})
		if _, err := s.Write(ctx, b); err == nil {
			t.Error("no error")
		}
		cancel()
		answered()
		remove()
		standIn.StepUp()
	}
	out := r.write(s, b.Changes...)
	if out.Applied+out.Stale != len(b.Changes) || len(out.Rejected) > 0 {
		t.Errorf("%+v", out)
	}
	if n := len(r.docs("things", bson.D{})); n != len(b.Changes) {
		t.Errorf("%d documents", n)
	}
}

// Row 15: without a majority nothing is acknowledged, neither what is applied nor
// what is stale, whatever the client is set to.
func TestA8Row15Majority(t *testing.T) {
	r, standIn := newFaultRig(t)
	r.db = r.client().Database(r.db.Name())
	s := r.open(mongosink.Options{}, source())
	r.write(s, put("b", 7, `{}`))
	rival := r.open(mongosink.Options{}, source())
	standIn.LoseMajority()
	var arrived atomic.Int32
	defer standIn.OnCommand(func(c mongod.Command) error {
		if c.Name == "update" {
			arrived.Add(1)
		}
		return nil
	})()
	ctx, cancel := context.WithCancel(t.Context())
	var writes sync.WaitGroup
	for w, c := range map[*mongosink.Sink]projector.Change{s: put("a", 1, `{}`), rival: put("b", 6, `{}`)} {
		writes.Go(func() {
			if out, err := w.Write(ctx, projector.Batch{Changes: []projector.Change{c}}); err == nil {
				t.Errorf("%s: %+v", c.Key, out)
			}
		})
	}
	for arrived.Load() < 2 || len(r.docs("things", bson.D{})) < 2 { // it is applied, and not acknowledged
		r.docs("things", bson.D{}) // as long as an answer takes
	}
	cancel()
	writes.Wait()
	standIn.RegainMajority()
	r.wantOutcome(r.write(s, put("a", 1, `{}`), put("b", 6, `{}`)), 0, 2, 0)
}

// What the server refuses for good is rejected, what it may accept later is an error.
func TestServerRefuses(t *testing.T) {
	r, standIn := newFaultRig(t)
	s := r.open(mongosink.Options{}, source())
	for _, tt := range []struct {
		code  int
		again bool
	}{{112, true}, {11602, true}, {14031, true}, {50, true}} {
		remove := standIn.OnCommand(func(c mongod.Command) error {
			if c.Name == "update" && c.Collection == "things" {
				return &mongod.CommandError{Code: int32(tt.code), Message: "no", Labels: []string{}}
			}
			return nil
		})
		_, err := s.Write(t.Context(), projector.Batch{Changes: []projector.Change{put("a", 1, `{}`)}})
		remove()
		if (err != nil) != tt.again {
			t.Errorf("code %d: %v", tt.code, err)
		}
		se, ok := errors.AsType[mongo.ServerError](err)
		if !ok || !se.HasErrorCode(tt.code) {
			t.Errorf("code %d: %v", tt.code, err)
		}
	}
	r.want()
	// A merge that makes a document too large is one document's matter.
	merge := r.open(mongosink.Options{Merge: true}, source())
	half := strings.Repeat("x", 9<<20)
	r.wantOutcome(r.write(merge, projector.Change{Key: "a", Doc: bson.M{"x": half}, Event: event("a", 1)}), 1, 0, 0)
	out := r.write(merge, projector.Change{Key: "a", Doc: bson.M{"y": half}, Event: event("a", 2)}, put("b", 3, `{}`))
	r.wantOutcome(out, 1, 0, 1)
	if len(out.Rejected) == 1 && !errors.Is(out.Rejected[0].Err, mongosink.ErrTooLarge) {
		t.Errorf("rejected: %v", out.Rejected[0].Err)
	}
}

// A Write ends with its context.
func TestWriteCanceled(t *testing.T) {
	s := newRig(t).open(mongosink.Options{}, source())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Write(ctx, projector.Batch{Changes: []projector.Change{put("a", 1, `{}`)}}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

// A Write ends within the timeout, and says what is wrong.
func TestWriteEnds(t *testing.T) {
	r, standIn := newFaultRig(t)
	s := r.open(mongosink.Options{Timeout: 15 * time.Second}, source())
	b := projector.Batch{Changes: []projector.Change{put("a", 1, `{}`)}}
	standIn.Suspend()
	began := time.Now()
	if _, err := s.Write(t.Context(), b); !errors.Is(err, mongosink.ErrUnreachable) {
		t.Errorf("unreachable: %v", err)
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("took %v", took)
	}
	standIn.Resume()
	long := r.open(mongosink.Options{}, source())
	r.wantOutcome(r.write(long, b.Changes...), 1, 0, 0)
}
