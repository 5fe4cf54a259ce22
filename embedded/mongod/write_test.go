package mongod_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/seed-63e9a637/jetbus/embedded/mongod"
)

func TestBulkWrite(t *testing.T) {
	for _, tt := range []struct {
		name    string
		ordered bool
		failed  []int // indexes of the write errors
		want    []string
	}{
		{"ordered stops at the first error", true, []int{2}, []string{`{"_id":1,"a":1}`, `{"_id":2,"a":2}`}},
		{"unordered goes on", false, []int{2, 4}, []string{`{"_id":1,"a":1}`, `{"_id":2,"a":9}`, `{"_id":3,"a":3}`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			_, err := r.c.BulkWrite(r.ctx, []mongo.WriteModel{
				mongo.NewInsertOneModel().SetDocument(doc(`{"_id": 1, "a": 1}`)),
				mongo.NewReplaceOneModel().SetFilter(doc(`{"_id": 2}`)).SetReplacement(doc(`{"a": 2}`)).SetUpsert(true),
				mongo.NewInsertOneModel().SetDocument(doc(`{"_id": 1}`)),
				mongo.NewInsertOneModel().SetDocument(doc(`{"_id": 3, "a": 3}`)),
				mongo.NewInsertOneModel().SetDocument(doc(`{"_id": 3}`)),
				mongo.NewUpdateOneModel().SetFilter(doc(`{"_id": 2}`)).SetUpdate(doc(`{"$set": {"a": 9}}`)),
			}, options.BulkWrite().SetOrdered(tt.ordered))
			var bulk mongo.BulkWriteException
			if !errors.As(err, &bulk) || len(bulk.WriteErrors) != len(tt.failed) {
				t.Fatalf("error %v, want %d write errors", err, len(tt.failed))
			}
			for i, e := range bulk.WriteErrors {
				if e.Index != tt.failed[i] || e.Code != 11000 {
					t.Errorf("write error %d: index %d, code %d, want index %d, code 11000", i, e.Index, e.Code, tt.failed[i])
				}
			}
			r.wantDocs(r.c, tt.want...)
		})
	}
}

// Inserts and replacements set empty timestamps in top-level fields to the time, as MongoDB's own
// test of bypassEmptyTsReplacement has it.
func TestEmptyTimestamps(t *testing.T) {
	r := newRig(t)
	for i := range 7 {
		if i != 2 && i < 5 {
			r.insert(bson.D{{Key: "_id", Value: i}, {Key: "a", Value: bson.Timestamp{}}})
		}
	}
	empty := bson.D{{Key: "a", Value: bson.Timestamp{}}, {Key: "in", Value: bson.D{{Key: "a", Value: bson.Timestamp{}}}}}
	upsert := options.Replace().SetUpsert(true)
	by := func(id int) bson.D { return bson.D{{Key: "_id", Value: id}} }
	for i := 1; i <= 2; i++ {
		_, err := r.c.ReplaceOne(r.ctx, by(i), empty, upsert)
		r.must(err)
	}
	for i := 3; i <= 6; i++ {
		update := any(bson.D{{Key: "$set", Value: empty}})
		if i%2 == 0 {
			update = mongo.Pipeline{{{Key: "$replaceWith", Value: bson.D{{Key: "$literal", Value: append(by(i), empty...)}}}}}
		}
		_, err := r.c.UpdateOne(r.ctx, by(i), update, options.UpdateOne().SetUpsert(true))
		r.must(err)
	}
	for i := range 7 {
		raw, err := r.c.FindOne(r.ctx, by(i)).Raw()
		r.must(err)
		seconds, _, _ := raw.Lookup("a").TimestampOK()
		if stamped := seconds > 0; stamped != (i <= 2) {
			t.Errorf("%d: %v", i, raw)
		}
		if in, ok := raw.Lookup("in").DocumentOK(); ok {
			if seconds, _, _ := in.Lookup("a").TimestampOK(); seconds != 0 {
				t.Errorf("%d, nested: %v", i, raw)
			}
		}
	}
}

func TestUpdateCounts(t *testing.T) {
	r := newRig(t)
	r.insert(doc(`{"_id": 1, "a": 1}`), doc(`{"_id": 2, "a": 1}`), doc(`{"_id": 3, "a": 2}`))
	res, err := r.c.UpdateMany(r.ctx, doc(`{"a": {"$gte": 1}}`), doc(`{"$set": {"a": 2}}`))
	r.must(err)
	if res.MatchedCount != 3 || res.ModifiedCount != 2 || res.UpsertedCount != 0 {
		t.Errorf("many: %+v", res)
	}
	up, err := r.c.UpdateOne(r.ctx, doc(`{"_id": 4, "b": 1}`), doc(`{"$set": {"z": 1, "c": 2}, "$setOnInsert": {"d": 3}}`), options.UpdateOne().SetUpsert(true))
	r.must(err)
	if up.MatchedCount != 0 || up.UpsertedCount != 1 || up.UpsertedID != int32(4) {
		t.Errorf("upsert: %+v", up)
	}
	del, err := r.c.DeleteMany(r.ctx, doc(`{"a": 2}`))
	r.must(err)
	if del.DeletedCount != 3 {
		t.Errorf("deleted %d", del.DeletedCount)
	}
	r.wantDocs(r.c, `{"_id":4,"b":1,"c":2,"d":3,"z":1}`)
	_, err = r.db.Collection("none").UpdateOne(r.ctx, doc(`{"_id": 1}`), doc(`{"$set": {"a": 1}}`))
	r.must(err)
	names, err := r.db.ListCollectionNames(r.ctx, bson.D{})
	r.must(err)
	if len(names) != 1 {
		t.Errorf("an update without effect made collections: %v", names)
	}
}

// TestGuardedReplace is how projections write: an older version never takes the
// place of a newer one.
func TestGuardedReplace(t *testing.T) {
	r := newRig(t)
	write := func(seq int, upsert bool) (*mongo.UpdateResult, error) {
		filter := bson.D{{Key: "_id", Value: "k"}, {Key: "_seq", Value: bson.D{{Key: "$not", Value: bson.D{{Key: "$gte", Value: seq}}}}}}
		return r.c.ReplaceOne(r.ctx, filter, bson.D{{Key: "_seq", Value: seq}}, options.Replace().SetUpsert(upsert))
	}
	_, err := write(5, true)
	r.must(err)
	_, err = write(3, true)
	if !mongo.IsDuplicateKeyError(err) {
		t.Fatalf("stale upsert: %v", err)
	}
	if e := keyError(t, err); e.Lookup("keyPattern", "_id").AsInt64() != 1 || e.Lookup("keyValue", "_id").StringValue() != "k" {
		t.Errorf("details %v", e)
	}
	res, err := write(3, false)
	r.must(err)
	if res.MatchedCount != 0 {
		t.Errorf("a stale write matched: %+v", res)
	}
	r.wantDocs(r.c, `{"_id":"k","_seq":5}`)
}

// keyError is the raw document of the first write error.
func keyError(t *testing.T, err error) bson.Raw {
	t.Helper()
	var we mongo.WriteException
	if !errors.As(err, &we) || len(we.WriteErrors) == 0 {
		t.Fatalf("no write error: %v", err)
	}
	return we.WriteErrors[0].Raw
}

func TestUpsertRace(t *testing.T) {
	for _, tt := range []struct {
		name   string
		filter string
		code   int
		want   string
	}{
		{"a filter with more than the key fails", `{"_id": 1, "v": {"$not": {"$gte": 1}}}`, 11000, `{"_id":1,"v":7}`},
		{"a filter by key alone is tried again", `{"_id": 1}`, 0, `{"_id":1,"v":1}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			other := r.connect().Database("d").Collection("c")
			remove := r.srv.OnUpsert(func(ns string, id any) {
				if ns == "d.c" && id == int32(1) {
					_, err := other.InsertOne(r.ctx, doc(`{"_id": 1, "v": 7}`))
					r.must(err)
				}
			})
			_, err := r.c.UpdateOne(r.ctx, doc(tt.filter), doc(`{"$set": {"v": 1}}`), options.UpdateOne().SetUpsert(true))
			remove()
			r.wantCode(err, tt.code)
			r.wantDocs(r.c, tt.want)
		})
	}
}

func TestFindAndModify(t *testing.T) {
	r := newRig(t)
	r.insert(doc(`{"_id": 1, "a": 1, "s": 2}`), doc(`{"_id": 2, "a": 1, "s": 1}`))
	var got bson.D
	r.must(r.c.FindOneAndUpdate(r.ctx, doc(`{"a": 1}`), doc(`{"$inc": {"a": 1}}`),
		options.FindOneAndUpdate().SetSort(doc(`{"s": 1}`)).SetReturnDocument(options.After).SetProjection(doc(`{"s": 0}`))).Decode(&got))
	if show(got) != `{"_id":2,"a":2}` {
		t.Errorf("after: %s", show(got))
	}
	got = nil
	r.must(r.c.FindOneAndReplace(r.ctx, doc(`{"_id": 1}`), doc(`{"b": 1}`)).Decode(&got))
	if show(got) != `{"_id":1,"a":1,"s":2}` {
		t.Errorf("before: %s", show(got))
	}
	got = nil
	r.must(r.c.FindOneAndDelete(r.ctx, doc(`{"_id": 1}`)).Decode(&got))
	if show(got) != `{"_id":1,"b":1}` {
		t.Errorf("deleted: %s", show(got))
	}
	if err := r.c.FindOneAndUpdate(r.ctx, doc(`{"_id": 9}`), doc(`{"$set": {"a": 1}}`)).Err(); !errors.Is(err, mongo.ErrNoDocuments) {
		t.Errorf("no document: %v", err)
	}
	got = nil
	r.must(r.c.FindOneAndUpdate(r.ctx, doc(`{"_id": 9}`), doc(`{"$set": {"a": 1}}`), options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After)).Decode(&got))
	if show(got) != `{"_id":9,"a":1}` {
		t.Errorf("upserted: %s", show(got))
	}
}

func TestReads(t *testing.T) {
	r := newRig(t)
	for i := range 300 {
		r.insert(bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i % 3}, {Key: "pad", Value: "x"}})
	}
	cur, err := r.c.Find(r.ctx, doc(`{"k": {"$ne": 0}}`), options.Find().SetSort(doc(`{"k": -1, "_id": -1}`)).SetSkip(1).SetLimit(150).SetBatchSize(20).SetProjection(doc(`{"pad": 0}`)))
	r.must(err)
	var got []bson.D
	r.must(cur.All(r.ctx, &got))
	if len(got) != 150 || show(got[0]) != `{"_id":296,"k":2}` || show(got[149]) != `{"_id":148,"k":1}` {
		t.Errorf("%d documents, %s to %s", len(got), show(got[0]), show(got[len(got)-1]))
	}
	n, err := r.c.CountDocuments(r.ctx, doc(`{"k": 1}`))
	r.must(err)
	est, err := r.c.EstimatedDocumentCount(r.ctx)
	r.must(err)
	if n != 100 || est != 300 {
		t.Errorf("counts %d and %d", n, est)
	}
	var ks []int
	r.must(r.c.Distinct(r.ctx, "k", bson.D{}).Decode(&ks))
	if fmt.Sprint(ks) != "[0 1 2]" {
		t.Errorf("distinct %v", ks)
	}
	cur, err = r.c.Aggregate(r.ctx, pipeline(`[{"$match": {"_id": {"$in": [7, 8, 9, 999]}}}, {"$group": {"_id": "$k", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}]`))
	r.must(err)
	got = nil
	r.must(cur.All(r.ctx, &got))
	if show(got...) != `{"_id":0,"n":1} {"_id":1,"n":1} {"_id":2,"n":1}` {
		t.Errorf("aggregate %s", show(got...))
	}
	r.must(r.db.CreateView(r.ctx, "live", "c", pipeline(`[{"$match": {"k": 2}}, {"$project": {"_id": 1}}]`)))
	n, err = r.db.Collection("live").CountDocuments(r.ctx, doc(`{"_id": {"$lt": 30}}`))
	r.must(err)
	if n != 10 {
		t.Errorf("%d in the view", n)
	}
	_, err = r.db.Collection("live").InsertOne(r.ctx, bson.D{})
	r.wantCode(err, 166)
}

func TestWriteRefuses(t *testing.T) {
	r := newRig(t)
	r.insert(doc(`{"_id": 1}`))
	big := strings.Repeat("x", 16<<20-20)
	for _, tt := range []struct {
		name string
		run  func() error
		code int
	}{
		{"array as _id", func() error { _, err := r.c.InsertOne(r.ctx, doc(`{"_id": [1]}`)); return err }, 53},
		{"operator as _id", func() error { _, err := r.c.InsertOne(r.ctx, doc(`{"_id": {"$a": 1}}`)); return err }, 52},
		{"namespace", func() error { _, err := r.db.Collection("a$b").InsertOne(r.ctx, bson.D{}); return err }, 73},
		{"growing over 16 MB", func() error {
			_, err := r.c.UpdateOne(r.ctx, doc(`{"_id": 1}`), bson.D{{Key: "$set", Value: bson.D{{Key: "a", Value: big}, {Key: "b", Value: "123456"}}}})
			return err
		}, 17419},
		{"changing the _id", func() error {
			_, err := r.c.UpdateOne(r.ctx, doc(`{"_id": 1}`), doc(`{"$set": {"_id": 2}}`))
			return err
		}, 66},
		{"array filters", func() error {
			_, err := r.c.UpdateOne(r.ctx, doc(`{"_id": 1}`), doc(`{"$set": {"a.$[x]": 2}}`), options.UpdateOne().SetArrayFilters([]any{doc(`{"x": 1}`)}))
			return err
		}, 238},
		{"collation", func() error {
			return r.c.FindOne(r.ctx, bson.D{}, options.FindOne().SetCollation(&options.Collation{Locale: "de"})).Err()
		}, 238},
		{"unknown command", func() error { return r.db.RunCommand(r.ctx, doc(`{"mapReduce": "c"}`)).Err() }, 59},
		{"capped collection", func() error {
			return r.db.CreateCollection(r.ctx, "cap", options.CreateCollection().SetCapped(true).SetSizeInBytes(1))
		}, 238},
	} {
		if err := tt.run(); code(err) != tt.code {
			t.Errorf("%s: error %v, want code %d", tt.name, err, tt.code)
		}
	}
}

func TestWriteConcern(t *testing.T) {
	r := newRig(t)
	insert := func(w *writeconcern.WriteConcern) error {
		_, err := r.db.Collection("c", options.Collection().SetWriteConcern(w)).InsertOne(r.ctx, bson.D{})
		return err
	}
	r.must(insert(writeconcern.Majority()))
	for _, tt := range []struct {
		w    *writeconcern.WriteConcern
		code int
	}{
		{&writeconcern.WriteConcern{W: 3}, 100},
		{&writeconcern.WriteConcern{W: "nowhere"}, 79},
	} {
		var we mongo.WriteException
		if err := insert(tt.w); !errors.As(err, &we) || we.WriteConcernError == nil || we.WriteConcernError.Code != tt.code {
			t.Errorf("%v: %v, want a write concern error with code %d", tt.w.W, err, tt.code)
		}
	}
	n, err := r.c.CountDocuments(r.ctx, bson.D{})
	r.must(err)
	if n != 3 {
		t.Errorf("%d documents: one whose write concern fails is written", n)
	}
}

func TestValidator(t *testing.T) {
	r := newRig(t)
	r.must(r.db.CreateCollection(r.ctx, "v", options.CreateCollection().SetValidator(doc(`{"a": {"$type": "int"}}`))))
	_, err := r.db.Collection("v").InsertOne(r.ctx, doc(`{"a": "x"}`))
	r.wantCode(err, 121)
	_, err = r.db.Collection("v").InsertOne(r.ctx, doc(`{"a": 1}`))
	r.must(err)
}

func TestCatalog(t *testing.T) {
	r := newRig(t)
	r.insert(doc(`{"_id": 1}`))
	admin := r.client.Database("admin")
	_, err := r.db.Collection("old").InsertOne(r.ctx, doc(`{"_id": 2}`))
	r.must(err)
	rename := func(extra ...bson.E) error {
		return admin.RunCommand(r.ctx, append(bson.D{{Key: "renameCollection", Value: "d.c"}, {Key: "to", Value: "d.old"}}, extra...)).Err()
	}
	r.wantCode(rename(), 48)
	r.must(rename(bson.E{Key: "dropTarget", Value: true}))
	r.wantDocs(r.db.Collection("old"), `{"_id":1}`)
	r.wantCode(rename(), 26)
	r.wantCode(r.db.CreateCollection(r.ctx, "old", options.CreateCollection().SetValidator(doc(`{"a": 1}`))), 48)
	names, err := r.db.ListCollectionNames(r.ctx, doc(`{"name": {"$regex": "^o"}}`))
	r.must(err)
	if len(names) != 1 || names[0] != "old" {
		t.Errorf("collections %v", names)
	}
	r.must(r.db.Collection("none").Drop(r.ctx))
	r.must(r.db.Drop(r.ctx))
	if dbs := r.srv.Databases(); len(dbs) != 0 {
		t.Errorf("databases %v", dbs)
	}
}

func TestStandInSaysSo(t *testing.T) {
	r := newRigWith(t, mongod.Config{Version: "6.0.1"})
	var info struct {
		Version string
		StandIn string `bson:"standIn"`
	}
	r.must(r.db.RunCommand(r.ctx, doc(`{"buildInfo": 1}`)).Decode(&info))
	if info.Version != "6.0.1" || !strings.Contains(info.StandIn, "no database") {
		t.Errorf("buildInfo %+v", info)
	}
}

// TestReadById reads a collection piece by piece while it changes.
func TestReadById(t *testing.T) {
	r := newRig(t)
	rnd := rand.New(rand.NewPCG(1, 2))
	have := map[int]bool{}
	for range 30 {
		for range 20 {
			if id := rnd.IntN(500); rnd.IntN(3) == 0 {
				delete(have, id)
				_, err := r.c.DeleteOne(r.ctx, bson.D{{Key: "_id", Value: id}})
				r.must(err)
			} else {
				have[id] = true
				_, err := r.c.ReplaceOne(r.ctx, bson.D{{Key: "_id", Value: id}}, bson.D{{Key: "even", Value: id%2 == 0}}, options.Replace().SetUpsert(true))
				r.must(err)
			}
		}
		from, even := rnd.IntN(500), rnd.IntN(2) == 0
		sorted := 1
		cond := bson.D{{Key: "$gt", Value: from}}
		if even {
			sorted, cond = -1, bson.D{{Key: "$lt", Value: from}}
		}
		var want []int
		for _, id := range slices.Sorted(maps.Keys(have)) {
			if (sorted == 1 && id > from || sorted == -1 && id < from) && (id%2 == 0) == even {
				want = append(want, id)
			}
		}
		if even {
			slices.Reverse(want)
		}
		want = want[:min(len(want), 10)]
		cur, err := r.c.Find(r.ctx, bson.D{{Key: "_id", Value: cond}, {Key: "even", Value: even}}, options.Find().SetSort(bson.D{{Key: "_id", Value: sorted}}).SetLimit(10))
		r.must(err)
		var docs []struct {
			ID int `bson:"_id"`
		}
		r.must(cur.All(r.ctx, &docs))
		var got []int
		for _, d := range docs {
			got = append(got, d.ID)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("from %d by %d: %v, want %v", from, sorted, got, want)
		}
	}
}
