package mongod_test

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus/embedded/mongod"
)

func TestUniqueIndexes(t *testing.T) {
	for _, tt := range []struct {
		name, keys string
		opts       *options.IndexOptionsBuilder
		docs       []string
		bad        string // is refused beside them; "" if all are well
	}{
		{"single", `{"a": 1}`, options.Index(), []string{`{"a": 1}`, `{"a": 2}`}, `{"a": 1.0}`},
		{"missing is null", `{"a": 1}`, options.Index(), []string{`{"a": 1}`, `{}`}, `{"a": null}`},
		{"compound", `{"a": 1, "b": -1}`, options.Index(), []string{`{"a": 1, "b": 1}`, `{"a": 1, "b": 2}`}, `{"a": 1, "b": 2}`},
		{"nested", `{"a.b": 1}`, options.Index(), []string{`{"a": {"b": 1}}`}, `{"a": [{"b": 2}, {"b": 1}]}`},
		{"elements of arrays", `{"a": 1}`, options.Index(), []string{`{"a": [1, 2]}`, `{"a": [3]}`}, `{"a": 2}`},
		{"sparse", `{"a": 1}`, options.Index().SetSparse(true), []string{`{"a": 1}`, `{}`, `{}`}, ``},
		{"partial", `{"a": 1}`, options.Index().SetPartialFilterExpression(doc(`{"on": true}`)), []string{`{"a": 1}`, `{"a": 1}`, `{"a": 1, "on": true}`}, `{"a": 1, "on": true}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			_, err := r.c.Indexes().CreateOne(r.ctx, mongo.IndexModel{Keys: doc(tt.keys), Options: tt.opts.SetUnique(true).SetName("u")})
			r.must(err)
			for _, d := range tt.docs {
				_, err := r.c.InsertOne(r.ctx, doc(d))
				r.must(err)
			}
			if tt.bad == "" {
				return
			}
			_, err = r.c.InsertOne(r.ctx, doc(tt.bad))
			r.wantCode(err, 11000)
			if e := keyError(t, err); e.Lookup("keyPattern").String() != bsonOf(t, doc(tt.keys)).String() {
				t.Errorf("keyPattern %v", e.Lookup("keyPattern"))
			}
			// The one in its way gone, there is room for it; and what is deleted is as
			// if it had never been.
			_, err = r.c.DeleteMany(r.ctx, bson.D{})
			r.must(err)
			_, err = r.c.InsertOne(r.ctx, doc(tt.bad))
			r.must(err)
			res, err := r.c.UpdateMany(r.ctx, bson.D{}, doc(`{"$set": {"x": 1}}`))
			r.must(err)
			if res.ModifiedCount != 1 {
				t.Errorf("modified %d", res.ModifiedCount)
			}
		})
	}
}

func bsonOf(t *testing.T, d bson.D) bson.Raw {
	t.Helper()
	raw, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestIndexConflicts(t *testing.T) {
	r := newRig(t)
	model := func(keys string, o *options.IndexOptionsBuilder) mongo.IndexModel {
		return mongo.IndexModel{Keys: doc(keys), Options: o}
	}
	_, err := r.c.Indexes().CreateOne(r.ctx, model(`{"a": 1}`, options.Index().SetName("a")))
	r.must(err)
	for _, tt := range []struct {
		name  string
		model mongo.IndexModel
		code  int
	}{
		{"the same", model(`{"a": 1}`, options.Index().SetName("a")), 0},
		{"of _id", model(`{"_id": 1}`, options.Index()), 0},
		{"other keys under the name", model(`{"b": 1}`, options.Index().SetName("a")), 86},
		{"other options under the name", model(`{"a": 1}`, options.Index().SetName("a").SetUnique(true)), 86},
		{"other name", model(`{"a": 1}`, options.Index().SetName("b")), 85},
		{"other name and expiry", model(`{"a": 1}`, options.Index().SetName("b").SetExpireAfterSeconds(5)), 85},
		{"other direction", model(`{"a": -1}`, options.Index()), 0},
		{"two fields with expiry", model(`{"a": 1, "b": 1}`, options.Index().SetExpireAfterSeconds(5)), 67},
		{"text", model(`{"t": "text"}`, options.Index()), 238},
	} {
		if _, err := r.c.Indexes().CreateOne(r.ctx, tt.model); code(err) != tt.code {
			t.Errorf("%s: error %v, want code %d", tt.name, err, tt.code)
		}
	}
	specs, err := r.c.Indexes().ListSpecifications(r.ctx)
	r.must(err)
	if len(specs) != 3 || specs[1].Name != "a" || specs[2].Name != "a_-1" {
		t.Errorf("indexes %+v", specs)
	}
	r.must(r.c.Indexes().DropOne(r.ctx, "a"))
	r.wantCode(r.c.Indexes().DropOne(r.ctx, "a"), 27)
	r.insert(doc(`{"_id": 1, "u": 1}`), doc(`{"_id": 2, "u": 1}`))
	_, err = r.c.Indexes().CreateMany(r.ctx, []mongo.IndexModel{model(`{"fine": 1}`, options.Index()), model(`{"u": 1}`, options.Index().SetUnique(true))})
	r.wantCode(err, 11000)
	if specs, err = r.c.Indexes().ListSpecifications(r.ctx); err != nil || len(specs) != 2 {
		t.Errorf("half of the indexes were made: %d, %v", len(specs), err)
	}
}

func TestTTL(t *testing.T) {
	r := newRigWith(t, mongod.Config{TTLInterval: 5 * time.Millisecond})
	cs, err := r.c.Watch(r.ctx, mongo.Pipeline{{{Key: "$match", Value: doc(`{"operationType": "delete"}`)}}})
	r.must(err)
	defer cs.Close(r.ctx)
	_, err = r.c.Indexes().CreateOne(r.ctx, mongo.IndexModel{Keys: doc(`{"at": 1}`), Options: options.Index().SetExpireAfterSeconds(60)})
	r.must(err)
	now := time.Now()
	r.insert(
		bson.D{{Key: "_id", Value: "due"}, {Key: "at", Value: now.Add(-time.Hour)}},
		bson.D{{Key: "_id", Value: "later"}, {Key: "at", Value: now}},
		bson.D{{Key: "_id", Value: "no date"}, {Key: "at", Value: "soon"}},
		bson.D{{Key: "_id", Value: "one of two"}, {Key: "at", Value: bson.A{now.Add(time.Hour), now.Add(-time.Hour)}}},
	)
	for range 2 {
		if !cs.Next(r.ctx) {
			t.Fatal(cs.Err())
		}
	}
	n, err := r.c.CountDocuments(r.ctx, doc(`{"_id": {"$in": ["later", "no date"]}}`))
	r.must(err)
	all, err := r.c.CountDocuments(r.ctx, bson.D{})
	r.must(err)
	if n != 2 || all != 2 {
		t.Errorf("%d and %d documents are left", n, all)
	}
	r.must(r.db.RunCommand(r.ctx, doc(`{"collMod": "c", "index": {"keyPattern": {"at": 1}, "expireAfterSeconds": 0}}`)).Err())
	if !cs.Next(r.ctx) || cs.Current.Lookup("documentKey", "_id").StringValue() != "later" {
		t.Errorf("%v, %v", cs.Current, cs.Err())
	}
	if n := r.srv.Expire(); n != 0 {
		t.Errorf("%d more expired", n)
	}
}

// TestDatesAsIDsDoNotExpire: the index of _id is no TTL index.
func TestDatesAsIDsDoNotExpire(t *testing.T) {
	r := newRig(t)
	r.insert(bson.D{{Key: "_id", Value: time.Unix(1, 0)}})
	if n := r.srv.Expire(); n != 0 {
		t.Errorf("%d documents expired", n)
	}
}
