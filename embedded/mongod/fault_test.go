package mongod_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/seed-63e9a637/jetbus/embedded/mongod"
)

// TestStreamSurvives has the driver resume a change stream by itself.
func TestStreamSurvives(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault func(r *rig)
	}{
		{"cut connections", func(r *rig) { r.srv.CutConnections() }},
		{"killed cursors", func(r *rig) { r.srv.KillCursors() }},
		{"step down", func(r *rig) { r.srv.StepDown(); r.srv.StepUp() }},
		{"error of getMore", func(r *rig) {
			r.must(r.client.Database("admin").RunCommand(r.ctx, doc(`{"configureFailPoint": "failGetMoreAfterCursorCheckout", "mode": {"times": 1}, "data": {"errorCode": 10107}}`)).Err())
		}},
		{"connection closed in getMore", func(r *rig) {
			r.must(r.client.Database("admin").RunCommand(r.ctx, doc(`{"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": {"failCommands": ["getMore"], "closeConnection": true}}`)).Err())
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			other := r.connect().Database("d").Collection("c")
			s := r.watch(r.c, nil)
			r.insert(doc(`{"_id": 1}`))
			s.wantOps("insert 1")
			tt.fault(r)
			_, err := other.InsertOne(r.ctx, doc(`{"_id": 2}`))
			r.must(err)
			s.wantOps("insert 2")
		})
	}
}

func TestTruncateOplog(t *testing.T) {
	r := newRig(t)
	s := r.watch(r.c, nil)
	r.insert(doc(`{"_id": 1}`))
	token := s.wantOps("insert 1")[0]
	lagging := r.watch(r.c, nil)
	r.insert(doc(`{"_id": 2}`))
	r.srv.TruncateOplog()
	_, err := r.tryWatch(r.c, options.ChangeStream().SetStartAfter(token))
	r.wantCode(err, 286)
	if !hasLabel(err, "NonResumableChangeStreamError") {
		t.Errorf("labels of %v", err)
	}
	if lagging.Next(r.ctx) {
		t.Error("a stream shows what is forgotten")
	}
	r.wantCode(lagging.Err(), 286)
	s = r.watch(r.c, nil)
	r.insert(doc(`{"_id": 3}`))
	s.wantOps("insert 3")
}

func TestSuspend(t *testing.T) {
	r := newRig(t)
	r.insert(doc(`{"_id": 1}`))
	r.srv.Suspend()
	client := r.connect(options.Client().SetServerSelectionTimeout(50 * time.Millisecond))
	if err := client.Ping(r.ctx, nil); err == nil {
		t.Error("a server that is away answers")
	}
	r.srv.Resume()
	r.wantDocs(r.c, `{"_id":1}`)
}

func TestStepDown(t *testing.T) {
	r := newRig(t)
	cs := r.watch(r.c, nil)
	ctx, s := r.begin()
	_, err := r.c.InsertOne(ctx, doc(`{"_id": 1}`))
	r.must(err)
	r.srv.StepDown()
	if cs.TryNext(r.ctx) || cs.Err() != nil {
		t.Errorf("stream: %v", cs.Err())
	}
	client := r.connect(options.Client().SetServerSelectionTimeout(50 * time.Millisecond))
	// A stream that is open is interrupted, and one of the driver's goes on later.
	go r.srv.StepUp()
	r.insert(doc(`{"_id": 3}`))
	cs.wantOps("insert 3")
	r.srv.StepDown()
	if _, err := client.Database("d").Collection("c").InsertOne(r.ctx, doc(`{"_id": 2}`)); err == nil {
		t.Error("a secondary takes writes")
	}
	r.srv.StepUp()
	if err := s.CommitTransaction(r.ctx); !hasLabel(err, "TransientTransactionError") {
		t.Errorf("commit in the next term: %v", err)
	}
	r.insert(doc(`{"_id": 4}`))
	r.wantDocs(r.c, `{"_id":3}`, `{"_id":4}`)
}

func TestLoseMajority(t *testing.T) {
	r := newRig(t)
	s := r.watch(r.c, nil)
	r.insert(doc(`{"_id": 1}`))
	s.wantOps("insert 1")
	r.srv.LoseMajority()
	err := r.db.RunCommand(r.ctx, doc(`{"insert": "c", "documents": [{"_id": 2}], "writeConcern": {"w": "majority", "wtimeout": 10}}`)).Err()
	var we mongo.WriteException
	if !errors.As(err, &we) || we.WriteConcernError == nil || we.WriteConcernError.Code != 64 {
		t.Errorf("write without a majority: %v", err)
	}
	_, err = r.db.Collection("c", options.Collection().SetWriteConcern(writeconcern.W1())).InsertOne(r.ctx, doc(`{"_id": 3}`))
	r.must(err)
	if s.TryNext(r.ctx) || s.Err() != nil {
		t.Errorf("a change that no majority has: %v, %v", s.Current, s.Err())
	}
	r.srv.RegainMajority()
	s.wantOps("insert 2", "insert 3")
}

func TestHooks(t *testing.T) {
	r := newRigWith(t, mongod.Config{})
	r.client = r.connect(options.Client().SetAppName("app").SetRetryWrites(false).SetRetryReads(false))
	c := r.client.Database("d").Collection("c")
	var seen atomic.Pointer[mongod.Command]
	remove := r.srv.OnCommand(func(cmd mongod.Command) error {
		if cmd.Name != "insert" {
			return nil
		}
		seen.Store(&cmd)
		return &mongod.CommandError{Code: 189, Message: "no"}
	})
	_, err := c.InsertOne(r.ctx, doc(`{"_id": 1}`))
	r.wantCode(err, 189)
	var ce mongo.CommandError
	if !errors.As(err, &ce) || ce.Name != "PrimarySteppedDown" || ce.Message != "no" {
		t.Errorf("error %+v", ce)
	}
	if cmd := seen.Load(); cmd.Database != "d" || cmd.Collection != "c" || cmd.AppName != "app" || len(cmd.Body) == 0 {
		t.Errorf("the hook was told %+v", cmd)
	}
	remove()
	remove()
	_, err = c.InsertOne(r.ctx, doc(`{"_id": 1}`))
	r.must(err)
	remove = r.srv.OnReply(func(cmd mongod.Command) error {
		if cmd.Name == "insert" {
			return mongod.ErrCut
		}
		return nil
	})
	if _, err = c.InsertOne(r.ctx, doc(`{"_id": 2}`)); !mongo.IsNetworkError(err) {
		t.Errorf("lost reply: %v", err)
	}
	remove()
	r.wantDocs(c, `{"_id":1}`, `{"_id":2}`)
	began := time.Now()
	remove = r.srv.Delay(20*time.Millisecond, "find")
	defer remove()
	r.must(c.FindOne(r.ctx, bson.D{}).Err())
	if took := time.Since(began); took < 20*time.Millisecond {
		t.Errorf("took %v", took)
	}
}

// TestChangeWithinWatch has a change commit between the moment in which a stream begins and
// its first batch, which has it unless it is to have none.
func TestChangeWithinWatch(t *testing.T) {
	for _, size := range []int32{0, 10} {
		r := newRig(t)
		remove := r.srv.OnWatch(func(string) {
			_, _ = r.c.InsertOne(r.ctx, bson.D{{Key: "_id", Value: int32(1)}}) // it is read below
		})
		s := r.watch(r.c, options.ChangeStream().SetBatchSize(size))
		remove()
		if says := s.ResumeToken() != nil; says != (size == 0) {
			t.Errorf("batch size %d: the stream says where it begins: %v", size, says)
		}
		s.wantOps("insert 1")
	}
}

// TestStepDownWithinCommand has a member step down while it runs a bulk: the
// statements up to then are done, and the driver's retry does the others.
func TestStepDownWithinCommand(t *testing.T) {
	r := newRig(t)
	stepped := false
	remove := r.srv.OnUpsert(func(_ string, id any) {
		if id == int32(2) && !stepped {
			stepped = true
			r.srv.StepDown()
		}
	})
	defer remove()
	models := make([]mongo.WriteModel, 5)
	for i := range models {
		id := bson.D{{Key: "_id", Value: int32(i)}}
		models[i] = mongo.NewReplaceOneModel().SetFilter(id).SetReplacement(id).SetUpsert(true)
	}
	ctx, cancel := context.WithCancel(r.ctx) // the driver would wait for another primary
	defer cancel()
	answered := r.srv.OnReply(func(c mongod.Command) error {
		if c.Name == "update" && stepped { // the monitor of the driver asks at any time
			cancel()
		}
		return nil
	})
	defer answered()
	if _, err := r.c.BulkWrite(ctx, models, options.BulkWrite().SetOrdered(false)); err == nil {
		t.Error("no error")
	}
	r.srv.StepUp()
	r.wantDocs(r.c, `{"_id":0}`, `{"_id":1}`, `{"_id":2}`)
	res, err := r.c.BulkWrite(r.ctx, models)
	r.must(err)
	if res.UpsertedCount != 2 || res.MatchedCount != 3 {
		t.Errorf("result %+v", res)
	}
}

func TestFailCommand(t *testing.T) {
	for _, tt := range []struct {
		name, data string
		txn        bool
		code       int
		labels     []string
	}{
		{"error", `{"failCommands": ["insert"], "errorCode": 2}`, false, 2, nil},
		{"own labels", `{"failCommands": ["insert"], "errorCode": 2, "errorLabels": ["X"]}`, false, 2, []string{"X"}},
		{"in a transaction", `{"failCommands": ["insert"], "errorCode": 112}`, true, 112, []string{"TransientTransactionError"}},
		{"other command", `{"failCommands": ["update"], "errorCode": 2}`, false, 0, nil},
		{"other app", `{"failCommands": ["insert"], "errorCode": 2, "appName": "x"}`, false, 0, nil},
		{"slow", `{"failCommands": ["insert"], "blockConnection": true, "blockTimeMS": 5}`, false, 0, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			fail := doc(`{"configureFailPoint": "failCommand", "mode": {"times": 1}}`)
			r.must(r.client.Database("admin").RunCommand(r.ctx, append(fail, bson.E{Key: "data", Value: doc(tt.data)})).Err())
			ctx := r.ctx
			if tt.txn {
				ctx, _ = r.begin()
			}
			_, err := r.c.InsertOne(ctx, doc(`{"_id": 1}`))
			r.wantCode(err, tt.code)
			var ce mongo.CommandError
			if errors.As(err, &ce) && !slices.Equal(ce.Labels, tt.labels) {
				t.Errorf("labels %v, want %v", ce.Labels, tt.labels)
			}
		})
	}
}

// TestCommitLabels checks what a failed commit says about trying again.
func TestCommitLabels(t *testing.T) {
	for _, tt := range []struct {
		name, data string
		unknown    bool // UnknownTransactionCommitResult
		transient  bool
		committed  bool
	}{
		{"retryable error is tried again", `{"failCommands": ["commitTransaction"], "errorCode": 10107}`, false, false, true},
		{"no such transaction", `{"failCommands": ["commitTransaction"], "errorCode": 251}`, false, true, false},
		{"write conflict", `{"failCommands": ["commitTransaction"], "errorCode": 112}`, false, true, false},
		{"other error", `{"failCommands": ["commitTransaction"], "errorCode": 51}`, false, false, false},
		{"write concern", `{"failCommands": ["commitTransaction"], "writeConcernError": {"code": 64, "errmsg": "slow"}}`, true, false, true},
		{"write concern that never can be", `{"failCommands": ["commitTransaction"], "writeConcernError": {"code": 100, "errmsg": "no"}}`, false, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.insert(doc(`{"_id": 0}`))
			ctx, s := r.begin()
			_, err := r.c.InsertOne(ctx, doc(`{"_id": 1}`))
			r.must(err)
			fail := doc(`{"configureFailPoint": "failCommand", "mode": {"times": 1}}`)
			r.must(r.client.Database("admin").RunCommand(r.ctx, append(fail, bson.E{Key: "data", Value: doc(tt.data)})).Err())
			err = s.CommitTransaction(r.ctx)
			if hasLabel(err, "UnknownTransactionCommitResult") != tt.unknown || hasLabel(err, "TransientTransactionError") != tt.transient {
				t.Errorf("commit: %#v", err)
			}
			n, err := r.c.CountDocuments(r.ctx, doc(`{"_id": 1}`))
			r.must(err)
			if (n == 1) != tt.committed {
				t.Errorf("%d documents", n)
			}
		})
	}
}
