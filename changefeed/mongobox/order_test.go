package mongobox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/changefeed/mongobox"
)

// TestOrderOfCommits has transactions that add events of the same keys at once, some
// early and some late in what they do. The rows of a key are claimed in the order in
// which they were committed, which is that of the change stream.
func TestOrderOfCommits(t *testing.T) {
	r := newRig(t)
	stream, err := r.coll.Watch(r.Context(), mongo.Pipeline{})
	r.ok(err)
	defer func() { _ = stream.Close(context.Background()) }()
	const workers, each = 4, 12
	var work sync.WaitGroup
	for w := range workers {
		work.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 1)) //nolint:gosec // a test that can be repeated
			for i := range each {
				r.work(random, fmt.Sprintf("%d-%02d", w, i))
			}
		})
	}
	work.Wait()

	committed, claimed := map[string]ids{}, map[string]ids{}
	for range 2 * workers * each {
		if !stream.Next(r.Context()) {
			r.Fatal(stream.Err())
		}
		key := stream.Current.Lookup("fullDocument", "key").StringValue()
		committed[key] = append(committed[key], stream.Current.Lookup("fullDocument", "id").StringValue())
	}
	_, rows := r.claim(r.box, 5000, time.Minute)
	for i := range rows {
		e := &rows[i].Event
		claimed[e.Key] = append(claimed[e.Key], e.ID)
	}
	r.want("claimed", claimed, committed)
}

// work commits two events with a document that nobody else has.
func (r *rig) work(random *rand.Rand, id string) {
	early := random.IntN(2) == 0
	keys := []string{fmt.Sprint("k", random.IntN(2)), fmt.Sprint("k", random.IntN(2))}
	session, err := r.client.StartSession()
	if err != nil {
		r.Error(err)
		return
	}
	defer session.EndSession(context.Background())
	_, err = session.WithTransaction(r.Context(), func(ctx context.Context) (any, error) {
		add := func() error { return r.box.Add(ctx, order(id+"a", keys[0]), order(id+"b", keys[1])) }
		if early {
			if err := add(); err != nil {
				return nil, err
			}
		}
		_, err := r.db.Collection("things").InsertOne(ctx, bson.M{"_id": id})
		if err == nil && !early {
			err = add()
		}
		return nil, err
	})
	if err != nil {
		r.Error(err)
	}
}

// TestConflict fails the second of two transactions that add events of one key, in a way
// that WithTransaction understands; with several keys, too.
func TestConflict(t *testing.T) {
	for name, second := range map[string][]jetbus.Event{
		"one key":    {order("2", "a")},
		"some keys":  {order("2", "b"), order("3", "a")},
		"other keys": {order("2", "b"), order("3", "")},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			a, first := r.begin()
			b, other := r.begin()
			r.ok(r.box.Add(a, order("1", "a"), order("0", "")))
			err := r.box.Add(b, second...)
			if name == "other keys" {
				r.ok(err)
				r.ok(other.CommitTransaction(b))
			} else if e, ok := errors.AsType[mongo.LabeledError](err); !ok || !e.HasErrorLabel("TransientTransactionError") {
				r.Errorf("the second one got %v", err)
			}
			r.ok(first.CommitTransaction(a))
		})
	}
}

// TestConflictBehind fails a transaction that began before another one of the key has
// committed, and adds after that.
func TestConflictBehind(t *testing.T) {
	r := newRig(t)
	ctx, session := r.begin()
	_, err := r.db.Collection("things").InsertOne(ctx, bson.M{"n": 1}) // sees what there is now
	r.ok(err)
	r.ok(r.box.Add(r.Context(), order("1", "a")))
	err = r.box.Add(ctx, order("2", "a"))
	if e, ok := errors.AsType[mongo.LabeledError](err); !ok || !e.HasErrorLabel("TransientTransactionError") {
		r.Errorf("it got %v", err)
	}
	session.EndSession(ctx)
	r.want("rows", r.list(mongobox.Query{}), ids{"1"})
}

// TestCounter goes on above what was given before, whatever the clock says, and from the
// clock when it was removed.
func TestCounter(t *testing.T) {
	r := newRig(t)
	counters := r.db.Collection("outbox.keys")
	ahead := time.Now().Add(time.Hour).UnixMicro()
	_, err := counters.InsertOne(r.Context(), bson.M{"_id": "orders|a", "n": ahead})
	r.ok(err)
	r.ok(r.box.Add(r.Context(), order("1", "a"), order("2", "a")))
	r.ok(r.box.Add(r.Context(), order("3", "a"), order("4", "b"), order("5", "a")))
	var rows []struct {
		ID  string
		Pos int64
	}
	cursor, err := r.coll.Find(r.Context(), bson.M{"key": "a"})
	r.ok(err)
	r.ok(cursor.All(r.Context(), &rows))
	for i, id := range []string{"1", "2", "3", "5"} {
		if rows[i].ID != id || rows[i].Pos < ahead || i > 0 && rows[i].Pos <= rows[i-1].Pos {
			r.Errorf("row %d is %+v", i, rows[i])
		}
	}
	got, _ := r.claim(r.box, 10, time.Minute)
	r.want("claimed", got, ids{"4", "1", "2", "3", "5"})

	_, err = counters.DeleteMany(r.Context(), bson.M{"_id": "orders|b"}) // as its index does after a day
	r.ok(err)
	r.ok(r.box.Add(r.Context(), order("6", "b")))
	r.want("rows", r.list(mongobox.Query{Key: "b"}), ids{"4", "6"})
}

// TestLateCommit claims what was added before what has been sent.
func TestLateCommit(t *testing.T) {
	r := newRig(t)
	ctx, session := r.begin()
	r.ok(r.box.Add(ctx, order("old", "a"), order("older", "")))
	r.ok(r.box.Add(r.Context(), order("new", "b")))
	got, rows := r.claim(r.box, 10, time.Minute)
	r.want("claimed", got, ids{"new"})
	r.ok(r.box.Sent(r.Context(), rows))
	r.ok(session.CommitTransaction(ctx))
	got, _ = r.claim(r.box, 10, time.Minute)
	r.want("claimed", got, ids{"old", "older"})
}
