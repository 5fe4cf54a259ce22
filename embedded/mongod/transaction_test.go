package mongod_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus/embedded/mongod"
)

// begin starts a transaction and returns the context of its operations.
func (r *rig) begin() (context.Context, *mongo.Session) {
	r.Helper()
	s, err := r.client.StartSession()
	r.must(err)
	r.Cleanup(func() { s.EndSession(context.WithoutCancel(r.ctx)) })
	r.must(s.StartTransaction())
	return mongo.NewSessionContext(r.ctx, s), s
}

func hasLabel(err error, label string) bool {
	var le mongo.LabeledError
	return errors.As(err, &le) && le.HasErrorLabel(label)
}

func TestTransactionIsolation(t *testing.T) {
	r := newRig(t)
	r.insert(doc(`{"_id": 1, "a": 1}`), doc(`{"_id": 2, "a": 1}`))
	cs := r.watch(r.db, nil)
	ctx, s := r.begin()
	count := func(ctx context.Context, want int64) {
		t.Helper()
		n, err := r.c.CountDocuments(ctx, doc(`{"a": {"$gte": 1}}`))
		r.must(err)
		if n != want {
			t.Errorf("%d documents, want %d", n, want)
		}
	}
	count(ctx, 2)
	_, err := r.c.InsertOne(r.ctx, doc(`{"_id": 3, "a": 1}`)) // outside
	r.must(err)
	_, err = r.c.DeleteOne(r.ctx, doc(`{"_id": 2}`))
	r.must(err)
	count(ctx, 2)
	_, err = r.c.InsertOne(ctx, doc(`{"_id": 4, "a": 1}`))
	r.must(err)
	_, err = r.c.UpdateOne(ctx, doc(`{"_id": 1}`), doc(`{"$inc": {"a": 1}}`))
	r.must(err)
	_, err = r.db.Collection("new").InsertOne(ctx, doc(`{"_id": 1}`))
	r.must(err)
	count(ctx, 3)
	count(r.ctx, 2)
	r.must(s.CommitTransaction(r.ctx))
	r.must(s.CommitTransaction(r.ctx)) // again
	r.wantDocs(r.c, `{"_id":1,"a":2}`, `{"_id":3,"a":1}`, `{"_id":4,"a":1}`)
	r.wantDocs(r.db.Collection("new"), `{"_id":1}`)
	cs.wantOps("insert 3", "delete 2")
	var times []any
	for range 3 {
		d := cs.next()
		times = append(times, at(d, "clusterTime"))
		if at(d, "lsid") == nil || at(d, "txnNumber") == nil {
			t.Errorf("event of a transaction: %s", show(d))
		}
	}
	if times[0] != times[1] || times[1] != times[2] {
		t.Errorf("cluster times %v", times)
	}
}

func TestTransactionAbort(t *testing.T) {
	r := newRig(t)
	r.insert(doc(`{"_id": 1}`))
	ctx, s := r.begin()
	_, err := r.c.DeleteOne(ctx, doc(`{"_id": 1}`))
	r.must(err)
	_, err = r.db.Collection("new").InsertOne(ctx, doc(`{"_id": 1}`))
	r.must(err)
	r.must(s.AbortTransaction(r.ctx))
	r.wantDocs(r.c, `{"_id":1}`)
	names, err := r.db.ListCollectionNames(r.ctx, bson.D{})
	r.must(err)
	if len(names) != 1 {
		t.Errorf("collections %v", names)
	}
}

func TestWriteConflicts(t *testing.T) {
	for _, tt := range []struct {
		name          string
		inside, after string // what a transaction does, and another writer before it
		index         bool
	}{
		{"update of what changed", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"a": 1}}}]}`, `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"a": 1}}}]}`, false},
		{"delete of what changed", `{"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]}`, `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"a": 1}}}]}`, false},
		{"insert of what appeared", `{"insert": "c", "documents": [{"_id": 9}]}`, `{"insert": "c", "documents": [{"_id": 9}]}`, false},
		{"entry that was taken", `{"insert": "c", "documents": [{"_id": 8, "u": 5}]}`, `{"insert": "c", "documents": [{"_id": 9, "u": 5}]}`, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.insert(doc(`{"_id": 1, "a": 1}`))
			if tt.index {
				_, err := r.c.Indexes().CreateOne(r.ctx, mongo.IndexModel{Keys: doc(`{"u": 1}`), Options: options.Index().SetUnique(true).SetSparse(true)})
				r.must(err)
			}
			ctx, _ := r.begin()
			r.must(r.db.Collection("x").FindOne(ctx, bson.D{}, options.FindOne()).Err(), mongo.ErrNoDocuments)
			r.exec(tt.after)
			err := r.db.RunCommand(ctx, doc(tt.inside)).Err()
			if code(err) != 112 || !hasLabel(err, "TransientTransactionError") {
				t.Errorf("error %v, want a transient write conflict", err)
			}
		})
	}
}

// TestUniqueAtCommit has another writer take an entry of a unique index that a
// transaction has already written.
func TestUniqueAtCommit(t *testing.T) {
	r := newRig(t)
	_, err := r.c.Indexes().CreateOne(r.ctx, mongo.IndexModel{Keys: doc(`{"u": 1}`), Options: options.Index().SetUnique(true)})
	r.must(err)
	r.insert(doc(`{"_id": 1, "u": 1}`))
	ctx, s := r.begin()
	// Within a transaction entries may move.
	_, err = r.c.UpdateOne(ctx, doc(`{"_id": 1}`), doc(`{"$set": {"u": 2}}`))
	r.must(err)
	_, err = r.c.InsertOne(ctx, doc(`{"_id": 2, "u": 1}`))
	r.must(err)
	_, err = r.c.InsertOne(r.ctx, doc(`{"_id": 3, "u": 2}`))
	r.must(err)
	err = s.CommitTransaction(r.ctx)
	if code(err) != 112 || !hasLabel(err, "TransientTransactionError") {
		t.Errorf("commit: %v", err)
	}
	r.wantDocs(r.c, `{"_id":1,"u":1}`, `{"_id":3,"u":2}`)
}

// TestWriterWaits checks that a write outside waits for a transaction.
func TestWriterWaits(t *testing.T) {
	r := newRig(t)
	r.insert(doc(`{"_id": 1, "a": 0}`))
	ctx, s := r.begin()
	_, err := r.c.UpdateOne(ctx, doc(`{"_id": 1}`), doc(`{"$set": {"a": 10}}`))
	r.must(err)
	err = r.db.RunCommand(r.ctx, doc(`{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"a": 1}}}], "maxTimeMS": 20}`)).Err()
	r.wantCode(err, 50)
	done := make(chan error, 1)
	arrived := make(chan struct{})
	remove := r.srv.OnCommand(func(c mongod.Command) error {
		if c.Name == "update" {
			close(arrived)
		}
		return nil
	})
	defer remove()
	go func() {
		_, err := r.c.UpdateOne(r.ctx, doc(`{"_id": 1}`), doc(`{"$inc": {"a": 1}}`))
		done <- err
	}()
	<-arrived
	r.must(s.CommitTransaction(r.ctx))
	r.must(<-done)
	r.wantDocs(r.c, `{"_id":1,"a":11}`)
}

// TestWithTransaction is a projection that loses a race and runs again.
func TestWithTransaction(t *testing.T) {
	r := newRig(t)
	r.insert(doc(`{"_id": "pos", "seq": 0}`))
	s, err := r.client.StartSession()
	r.must(err)
	defer s.EndSession(r.ctx)
	tries := 0
	_, err = s.WithTransaction(r.ctx, func(ctx context.Context) (any, error) {
		tries++
		if _, err := r.db.Collection("counts").UpdateOne(ctx, doc(`{"_id": 1}`), doc(`{"$inc": {"n": 1}}`), options.UpdateOne().SetUpsert(true)); err != nil {
			return nil, err
		}
		if tries == 1 {
			_, err := r.c.UpdateOne(r.ctx, doc(`{"_id": "pos"}`), doc(`{"$inc": {"seq": 5}}`))
			r.must(err)
		}
		_, err := r.c.UpdateOne(ctx, doc(`{"_id": "pos"}`), doc(`{"$inc": {"seq": 1}}`))
		return nil, err
	})
	r.must(err)
	if tries != 2 {
		t.Errorf("%d tries", tries)
	}
	r.wantDocs(r.c, `{"_id":"pos","seq":6}`)
	r.wantDocs(r.db.Collection("counts"), `{"_id":1,"n":1}`)
}

func TestTransactionLifetime(t *testing.T) {
	r := newRigWith(t, mongod.Config{TransactionLifetime: 20 * time.Millisecond})
	r.insert(doc(`{"_id": 0}`))
	ctx, s := r.begin()
	_, err := r.c.InsertOne(ctx, doc(`{"_id": 1}`))
	r.must(err)
	_, err = r.c.InsertOne(r.ctx, doc(`{"_id": 1, "outside": true}`)) // waits for the end of the transaction
	r.must(err)
	err = s.CommitTransaction(r.ctx)
	if code(err) != 251 || !hasLabel(err, "TransientTransactionError") {
		t.Errorf("commit: %v", err)
	}
	r.wantDocs(r.c, `{"_id":0}`, `{"_id":1,"outside":true}`)
}

// TestRetriedWrites loses the replies of writes after they were done.
func TestRetriedWrites(t *testing.T) {
	r := newRig(t)
	r.insert(doc(`{"_id": 1, "n": 0}`))
	lost := 0
	r.srv.OnReply(func(c mongod.Command) error {
		switch c.Name {
		case "insert", "update", "delete", "findAndModify", "commitTransaction":
			if lost++; lost%2 == 1 {
				return mongod.ErrCut
			}
		}
		return nil
	})
	_, err := r.c.UpdateOne(r.ctx, doc(`{"_id": 1}`), doc(`{"$inc": {"n": 1}}`))
	r.must(err)
	res, err := r.c.BulkWrite(r.ctx, []mongo.WriteModel{
		mongo.NewUpdateOneModel().SetFilter(doc(`{"_id": 1}`)).SetUpdate(doc(`{"$inc": {"n": 10}}`)),
		mongo.NewUpdateOneModel().SetFilter(doc(`{"_id": 2}`)).SetUpdate(doc(`{"$inc": {"n": 1}}`)).SetUpsert(true),
	})
	r.must(err)
	if res.MatchedCount != 1 || res.UpsertedCount != 1 || res.UpsertedIDs[1] != int32(2) {
		t.Errorf("bulk %+v", res)
	}
	var d bson.D
	r.must(r.c.FindOneAndUpdate(r.ctx, doc(`{"_id": 1}`), doc(`{"$inc": {"n": 100}}`)).Decode(&d))
	if show(d) != `{"_id":1,"n":11}` {
		t.Errorf("found %s", show(d))
	}
	_, err = r.c.DeleteOne(r.ctx, bson.D{{Key: "n", Value: 1}})
	r.must(err)
	ctx, s := r.begin()
	lost++ // the insert's reply arrives
	_, err = r.c.InsertOne(ctx, doc(`{"_id": 3}`))
	r.must(err)
	r.must(s.CommitTransaction(r.ctx))
	r.wantDocs(r.c, `{"_id":1,"n":111}`, `{"_id":3}`)
	if lost != 12 {
		t.Errorf("%d replies and losses, want each write twice", lost)
	}
}
