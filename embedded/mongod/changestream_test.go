package mongod_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus/embedded/mongod"
)

type watcher interface {
	Watch(ctx context.Context, pipeline any, o ...options.Lister[options.ChangeStreamOptions]) (*mongo.ChangeStream, error)
}

// stream is a change stream of a test.
type stream struct {
	*rig
	*mongo.ChangeStream
}

func (r *rig) watch(w watcher, o *options.ChangeStreamOptionsBuilder, stages ...bson.D) *stream {
	r.Helper()
	cs, err := r.tryWatch(w, o, stages...)
	r.must(err)
	r.Cleanup(func() { cs.Close(context.WithoutCancel(r.ctx)) })
	return &stream{r, cs}
}

func (r *rig) tryWatch(w watcher, o *options.ChangeStreamOptionsBuilder, stages ...bson.D) (*mongo.ChangeStream, error) {
	if o == nil {
		o = options.ChangeStream()
	}
	return w.Watch(r.ctx, mongo.Pipeline(stages), o.SetMaxAwaitTime(50*time.Millisecond))
}

// next is the next event.
func (s *stream) next() bson.D {
	s.Helper()
	if !s.Next(s.ctx) {
		s.Fatalf("no event: %v", s.Err())
	}
	var d bson.D
	s.must(s.Decode(&d))
	return d
}

// wantOps reads events and compares what they are: the operation and the _id.
func (s *stream) wantOps(want ...string) (tokens []bson.Raw) {
	s.Helper()
	for _, w := range want {
		d := s.next()
		got := s.Current.Lookup("operationType").StringValue()
		if id, err := s.Current.LookupErr("documentKey", "_id"); err == nil {
			got += " " + strings.Trim(id.String(), `"`)
			if n, ok := id.AsInt64OK(); ok {
				got = s.Current.Lookup("operationType").StringValue() + " " + string(rune('0'+n))
			}
		}
		if got != w {
			s.Fatalf("event %s, want %s: %s", got, w, show(d))
		}
		tokens = append(tokens, slices.Clone(s.ResumeToken()))
	}
	return tokens
}

func at(d bson.D, path ...string) any {
	var v any = d
	for _, p := range path {
		d, ok := v.(bson.D)
		if !ok {
			return nil
		}
		v = nil
		for _, e := range d {
			if e.Key == p {
				v = e.Value
			}
		}
	}
	return v
}

func (r *rig) exec(commands ...string) {
	r.Helper()
	for _, c := range commands {
		r.must(r.db.RunCommand(r.ctx, doc(c)).Err())
	}
}

func TestChangeEvents(t *testing.T) {
	r := newRig(t)
	s := r.watch(r.c, options.ChangeStream().SetFullDocument(options.UpdateLookup))
	r.insert(doc(`{"_id": 1, "a": 1, "b": [1, 2, 3]}`))
	r.exec(`{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"x": {"y": 1}}, "$unset": {"a": 1}, "$push": {"b": {"$each": [], "$slice": 1}}}}]}`,
		`{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"x.y": 1}}}]}`, // changes nothing
		`{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"z": 1}}]}`,
		`{"delete": "c", "deletes": [{"q": {}, "limit": 0}]}`)
	d := s.next()
	if at(d, "operationType") != "insert" || show(at(d, "fullDocument").(bson.D)) != `{"_id":1,"a":1,"b":[1,2,3]}` || show(at(d, "ns").(bson.D)) != `{"db":"d","coll":"c"}` {
		t.Errorf("insert: %s", show(d))
	}
	d = s.next()
	if got := show(at(d, "updateDescription").(bson.D)); got != `{"updatedFields":{"x":{"y":1}},"removedFields":["a"],"truncatedArrays":[{"field":"b","newSize":1}]}` {
		t.Errorf("update: %s", got)
	}
	if at(d, "fullDocument") != nil {
		t.Errorf("the looked up document is gone by now: %s", show(d))
	}
	s.wantOps("replace 1", "delete 1")
	if _, ok := at(d, "clusterTime").(bson.Timestamp); !ok {
		t.Errorf("clusterTime: %s", show(d))
	}
}

func TestImages(t *testing.T) {
	r := newRig(t)
	opts := func(full, before options.FullDocument) *options.ChangeStreamOptionsBuilder {
		return options.ChangeStream().SetFullDocument(full).SetFullDocumentBeforeChange(before)
	}
	r.insert(doc(`{"_id": 1, "a": 1}`))
	required := r.watch(r.c, opts(options.Required, options.Required))
	available := r.watch(r.c, opts(options.WhenAvailable, options.WhenAvailable))
	r.exec(`{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": 2}}}]}`)
	if d := available.next(); at(d, "fullDocument") != nil || at(d, "fullDocumentBeforeChange") != nil {
		t.Errorf("without images: %s", show(d))
	}
	if required.Next(r.ctx) {
		t.Error("an event without the images that are required")
	}
	r.wantCode(required.Err(), 47)
	r.exec(`{"collMod": "c", "changeStreamPreAndPostImages": {"enabled": true}}`,
		`{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": 3}}}]}`,
		`{"delete": "c", "deletes": [{"q": {}, "limit": 1}]}`)
	d := available.next()
	if show(at(d, "fullDocument").(bson.D)) != `{"_id":1,"a":3}` || show(at(d, "fullDocumentBeforeChange").(bson.D)) != `{"_id":1,"a":2}` {
		t.Errorf("update: %s", show(d))
	}
	if d = available.next(); show(at(d, "fullDocumentBeforeChange").(bson.D)) != `{"_id":1,"a":3}` {
		t.Errorf("delete: %s", show(d))
	}
}

func TestResume(t *testing.T) {
	r := newRig(t)
	s := r.watch(r.c, nil)
	start := s.ResumeToken()
	r.insert(doc(`{"_id": 1}`), doc(`{"_id": 2}`), doc(`{"_id": 3}`))
	tokens := s.wantOps("insert 1", "insert 2", "insert 3")
	r.watch(r.c, options.ChangeStream().SetResumeAfter(tokens[0])).wantOps("insert 2", "insert 3")
	r.watch(r.c, options.ChangeStream().SetStartAfter(tokens[1])).wantOps("insert 3")
	r.watch(r.c, options.ChangeStream().SetResumeAfter(start)).wantOps("insert 1")
	ts := s.Current.Lookup("clusterTime")
	tt, i := ts.Timestamp()
	r.watch(r.db, options.ChangeStream().SetStartAtOperationTime(&bson.Timestamp{T: tt, I: i})).wantOps("insert 3")
	for i := 1; i < len(tokens); i++ {
		if a, b := tokens[i-1].Lookup("_data").StringValue(), tokens[i].Lookup("_data").StringValue(); a >= b {
			t.Errorf("token %s is not before %s", a, b)
		}
	}
}

// A stream that begins at a time to come, or at the first moment of a second.
func TestStartAt(t *testing.T) {
	r := newRig(t)
	seen := r.watch(r.c, nil)
	r.insert(doc(`{"_id": 1}`))
	seen.wantOps("insert 1")
	now, _ := seen.Current.Lookup("clusterTime").Timestamp()
	later := r.watch(r.c, options.ChangeStream().SetStartAtOperationTime(&bson.Timestamp{T: now + 3600, I: 0}))
	start := later.ResumeToken()
	resumed := r.watch(r.c, options.ChangeStream().SetResumeAfter(start))
	r.insert(doc(`{"_id": 2}`))
	seen.wantOps("insert 2")
	for _, s := range []*stream{later, resumed} {
		if s.TryNext(r.ctx) || s.Err() != nil {
			t.Errorf("a change of before the start: %v, %v", s.Current, s.Err())
		}
		if got := s.ResumeToken().Lookup("_data").StringValue(); got != start.Lookup("_data").StringValue() {
			t.Errorf("the token goes from %v to %s", start, got)
		}
	}
	next := r.watch(r.c, options.ChangeStream().SetStartAtOperationTime(&bson.Timestamp{T: now + 3600, I: 1})).ResumeToken()
	if a, b := start.Lookup("_data").StringValue(), next.Lookup("_data").StringValue(); a >= b {
		t.Errorf("the token of a start, %s, is not before that of a later one, %s", a, b)
	}
}

func TestResumeRefuses(t *testing.T) {
	r := newRig(t)
	s := r.watch(r.c, nil)
	r.insert(doc(`{"_id": 1}`))
	token := s.wantOps("insert 1")[0]
	isDelete := bson.D{{Key: "$match", Value: doc(`{"operationType": "delete"}`)}}
	for _, tt := range []struct {
		name string
		opts *options.ChangeStreamOptionsBuilder
		w    watcher
		pipe []bson.D
		code int
	}{
		{"no token", options.ChangeStream().SetResumeAfter(doc(`{"_data": "82"}`)), r.c, nil, 50811},
		{"another collection", options.ChangeStream().SetResumeAfter(token), r.db.Collection("x"), nil, 280},
		{"another pipeline", options.ChangeStream().SetResumeAfter(token), r.c, []bson.D{isDelete}, 280},
		{"too old", options.ChangeStream().SetStartAtOperationTime(&bson.Timestamp{T: 1, I: 1}), r.c, nil, 286},
		{"two starts", options.ChangeStream().SetResumeAfter(token).SetStartAfter(token), r.c, nil, 40674},
		{"a stage", nil, r.c, []bson.D{{{Key: "$sort", Value: doc(`{"a": 1}`)}}}, 20},
		{"admin", nil, r.client.Database("admin"), nil, 73},
	} {
		cs, err := r.tryWatch(tt.w, tt.opts, tt.pipe...)
		if err == nil {
			cs.Close(r.ctx)
		}
		if code(err) != tt.code {
			t.Errorf("%s: error %v, want code %d", tt.name, err, tt.code)
		}
	}
	s = r.watch(r.c, nil, bson.D{{Key: "$project", Value: doc(`{"_id": 0}`)}})
	r.insert(doc(`{"_id": 2}`))
	if s.Next(r.ctx) {
		t.Error("an event without its token")
	}
	r.wantCode(s.Err(), 280)
	alone := newRigWith(t, mongod.Config{Standalone: true})
	_, err := alone.tryWatch(alone.c, nil)
	alone.wantCode(err, 40573)
}

func TestInvalidate(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(r *rig)
		coll []string // events of the collection
		db   []string // and of its database
	}{
		{"drop", func(r *rig) { r.must(r.c.Drop(r.ctx)) }, []string{"drop", "invalidate"}, []string{"drop"}},
		{"rename", func(r *rig) {
			r.must(r.client.Database("admin").RunCommand(r.ctx, doc(`{"renameCollection": "d.c", "to": "d.new"}`)).Err())
		}, []string{"rename", "invalidate"}, []string{"rename"}},
		{"drop database", func(r *rig) { r.must(r.db.Drop(r.ctx)) }, []string{"drop", "invalidate"}, []string{"drop", "dropDatabase", "invalidate"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.insert(doc(`{"_id": 1}`))
			coll, db := r.watch(r.c, nil), r.watch(r.db, nil)
			tt.end(r)
			db.wantOps(tt.db...)
			tokens := coll.wantOps(tt.coll...)
			if coll.Next(r.ctx) || coll.Err() != nil || coll.ID() != 0 {
				t.Errorf("after the end: %v, cursor %d", coll.Err(), coll.ID())
			}
			_, err := r.tryWatch(r.c, options.ChangeStream().SetResumeAfter(tokens[1]))
			r.wantCode(err, 260)
			r.watch(r.c, options.ChangeStream().SetResumeAfter(tokens[0])).wantOps("invalidate")
			r.insert(doc(`{"_id": 2}`))
			r.watch(r.c, options.ChangeStream().SetStartAfter(tokens[1])).wantOps("insert 2")
		})
	}
}

func TestSplitEvents(t *testing.T) {
	r := newRigWith(t, mongod.Config{MaxEventBytes: 4 << 10})
	r.must(r.db.CreateCollection(r.ctx, "c", options.CreateCollection().SetChangeStreamPreAndPostImages(doc(`{"enabled": true}`))))
	opts := func() *options.ChangeStreamOptionsBuilder {
		return options.ChangeStream().SetFullDocument(options.Required).SetFullDocumentBeforeChange(options.Required)
	}
	split := bson.D{{Key: "$changeStreamSplitLargeEvent", Value: bson.D{}}}
	whole, parts := r.watch(r.c, opts()), r.watch(r.c, opts(), split)
	r.insert(bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: strings.Repeat("x", 3<<10)}})
	r.exec(`{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"b": 1}}}]}`, `{"insert": "c", "documents": [{"_id": 2}]}`)
	whole.wantOps("insert 1")
	if whole.Next(r.ctx) {
		t.Error("an event over the limit")
	}
	r.wantCode(whole.Err(), 10334)
	tokens := parts.wantOps("insert 1")
	seen := map[string]bool{}
	for i := range 2 {
		d := parts.next()
		if show(at(d, "splitEvent").(bson.D)) != `{"fragment":`+string(rune('1'+i))+`,"of":2}` {
			t.Fatalf("fragment %d: %s", i, show(d))
		}
		for _, e := range d {
			seen[e.Key] = true
		}
		tokens = append(tokens, slices.Clone(parts.ResumeToken()))
	}
	if !seen["fullDocument"] || !seen["fullDocumentBeforeChange"] || !seen["updateDescription"] {
		t.Errorf("fields %v", seen)
	}
	parts.wantOps("insert 2")
	d := r.watch(r.c, opts().SetResumeAfter(tokens[1]), split).next()
	if at(d, "splitEvent", "fragment") != int32(2) {
		t.Errorf("resumed behind the first fragment: %s", show(d))
	}
	r.watch(r.c, opts().SetResumeAfter(tokens[2]), split).wantOps("insert 2")
	_, err := r.tryWatch(r.c, options.ChangeStream().SetResumeAfter(tokens[1]), split)
	r.wantCode(err, 280) // without the images it is no longer split
}

// TestIdleToken checks that the token of a stream that shows nothing moves with
// what happens elsewhere.
func TestIdleToken(t *testing.T) {
	r := newRig(t)
	s := r.watch(r.c, nil)
	if s.TryNext(r.ctx) {
		t.Fatal("an event")
	}
	before := s.ResumeToken().Lookup("_data").StringValue()
	_, err := r.db.Collection("other").InsertOne(r.ctx, bson.D{})
	r.must(err)
	s.TryNext(r.ctx)
	after := s.ResumeToken()
	if after.Lookup("_data").StringValue() <= before {
		t.Errorf("token %s after %s", after, before)
	}
	r.insert(doc(`{"_id": 1}`))
	r.watch(r.c, options.ChangeStream().SetResumeAfter(after)).wantOps("insert 1")
}

func TestOplogIsBounded(t *testing.T) {
	r := newRigWith(t, mongod.Config{OplogBytes: 64 << 10})
	s := r.watch(r.c, nil)
	r.insert(doc(`{"_id": 1}`))
	token := s.wantOps("insert 1")[0]
	pad := strings.Repeat("x", 1<<10)
	for i := range 100 {
		r.insert(bson.D{{Key: "_id", Value: i + 2}, {Key: "pad", Value: pad}})
	}
	_, err := r.tryWatch(r.c, options.ChangeStream().SetResumeAfter(token))
	r.wantCode(err, 286)
	if s.Next(r.ctx) {
		t.Error("a stream that lags goes on")
	}
	r.wantCode(s.Err(), 286)
}

func TestExpandedEvents(t *testing.T) {
	r := newRig(t)
	plain, expanded := r.watch(r.db, nil), r.watch(r.db, options.ChangeStream().SetShowExpandedEvents(true))
	_, err := r.c.Indexes().CreateOne(r.ctx, mongo.IndexModel{Keys: doc(`{"a": 1}`)})
	r.must(err)
	r.insert(doc(`{"_id": 1}`))
	plain.wantOps("insert 1")
	expanded.wantOps("create", "createIndexes", "insert 1")
}
