package mongosink_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/projector"
	"github.com/seed-63e9a637/jetbus/projector/mongosink"
)

func wantError(t *testing.T, name string, err, is error, texts ...string) {
	t.Helper()
	if !errors.Is(err, is) {
		t.Errorf("%s: error %v, want one that is %q", name, err, is)
		return
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%s: error %q does not say %q", name, err, text)
		}
	}
}

func TestOptions(t *testing.T) {
	r := newRig(t)
	key := bson.D{{Key: "a", Value: 1}}
	for _, tt := range []struct {
		o    mongosink.Options
		want string
	}{
		{mongosink.Options{}, "Collection is required"},
		{mongosink.Options{Collection: "a$b"}, "no $"},
		{mongosink.Options{Collection: "system.x"}, "system."},
		{mongosink.Options{Collection: ".x"}, "dot"},
		{mongosink.Options{Collection: "_projections"}, "recorded"},
		{mongosink.Options{Collection: "x__rebuild"}, "rebuilds"},
		{mongosink.Options{Collection: strings.Repeat("x", 161)}, "161 bytes"},
		{mongosink.Options{Collection: "x", TombstoneTTL: -2}, "TombstoneTTL"},
		{mongosink.Options{Collection: "x", TombstoneTTL: 1, HardDelete: true}, "HardDelete"},
		{mongosink.Options{Collection: "x", Timeout: -1}, "Timeout"},
		{mongosink.Options{Collection: "x", Indexes: []mongosink.Index{{}}}, "no Keys"},
		{mongosink.Options{Collection: "x", Indexes: []mongosink.Index{{Keys: bson.D{{Key: "a", Value: 1}, {Key: "b", Value: "hashed"}}}}}, `of the kind "hashed", use 1, -1 or "2dsphere"`},
		{mongosink.Options{Collection: "x", Indexes: []mongosink.Index{{Keys: key}, {Keys: key}}}, "name a_1"},
		{mongosink.Options{Collection: "x", Indexes: []mongosink.Index{{Keys: key, Sparse: true, Partial: key}}}, "Partial"},
		{mongosink.Options{Collection: "x", Indexes: []mongosink.Index{{Name: "_expireAt_1", Keys: key}}}, "_expireAt_1"},
	} {
		_, err := mongosink.New(r.db, tt.o)
		wantError(t, tt.want, err, jetbus.ErrInvalidOption, tt.want)
	}
	_, err := mongosink.New(nil, mongosink.Options{Collection: "x"})
	wantError(t, "no database", err, jetbus.ErrInvalidOption)

	s := r.sink(mongosink.Options{})
	_, err = s.Write(t.Context(), projector.Batch{})
	wantError(t, "write before open", err, mongosink.ErrNotOpen)
	_, err = s.Open(t.Context(), projector.Source{Projection: "p"})
	wantError(t, "no source", err, jetbus.ErrInvalidOption)
	_, err = r.sink(mongosink.Options{HardDelete: true}).Open(t.Context(), source())
	wantError(t, "hard deletes of several replicas", err, jetbus.ErrInvalidOption, "exclusive")
	counted := exclusive()
	counted.Versioned = true
	_, err = r.sink(mongosink.Options{HardDelete: true}).Open(t.Context(), counted)
	wantError(t, "versions", err, jetbus.ErrInvalidOption, "HardDelete", "VersionOf")
	if names, err := r.db.ListCollectionNames(t.Context(), bson.D{}); err != nil || len(names) > 0 {
		t.Errorf("collections %v, %v after nothing but errors", names, err)
	}
}

// Row 10: a topic that was made anew has sequences of its own: refused. A collection
// of another projection is refused as well, and nothing is touched.
func TestA8Row10Identity(t *testing.T) {
	r := newRig(t)
	s := r.open(mongosink.Options{}, source())
	r.writeUpTo(s, 7, put("a", 5, `{}`))
	again := r.sink(mongosink.Options{})
	if p, err := again.Open(t.Context(), source()); err != nil || p != (projector.Position{Known: true, Seq: 7}) {
		t.Errorf("position %+v, %v", p, err)
	}
	anew := source()
	anew.Created = created.Add(time.Nanosecond)
	_, err := r.sink(mongosink.Options{}).Open(t.Context(), anew)
	wantError(t, "made anew", err, projector.ErrNewStream, "things", "thing.changed", "12:00:00.123456789Z", "12:00:00.12345679Z", "rebuild")
	moved := source()
	moved.Stream = "SHARED"
	_, err = r.sink(mongosink.Options{}).Open(t.Context(), moved)
	wantError(t, "made anew in another stream", err, projector.ErrNewStream, "thing.changed", "filled from EV_thing.changed", "SHARED", "rebuild")
	owned := source()
	owned.Projection = "q"
	index := []mongosink.Index{{Keys: bson.D{{Key: "x", Value: 1}}}}
	_, err = r.sink(mongosink.Options{Indexes: index}).Open(t.Context(), owned)
	wantError(t, "owned", err, projector.ErrOwned, "things", ": p,", "thing.changed", "_projections")
	if n := len(r.indexes()); n != 2 {
		t.Errorf("%d indexes: the collection of another was touched", n)
	}
	// Another topic of the same projection is one more source.
	other := source()
	other.Topic, other.Stream = "other.changed", "EV.$%_other"
	if p, err := r.sink(mongosink.Options{}).Open(t.Context(), other); err != nil || p.Known {
		t.Errorf("position %+v, %v", p, err)
	}
	// Each topic has its position, also where topics share a stream.
	other.Topic, other.Stream = "third.changed", source().Stream
	if p, err := r.sink(mongosink.Options{}).Open(t.Context(), other); err != nil || p.Known {
		t.Errorf("position %+v, %v", p, err)
	}
	list, err := mongosink.ReadStatus(t.Context(), r.db)
	if err != nil || len(list) != 1 || len(list[0].Sources) != 3 {
		t.Fatalf("status %+v, %v", list, err)
	}
	st := list[0]
	if st.Collection != "things" || st.Projection != "p" || st.Rebuilding || st.Sources[0].Stream != "EV.$%_other" || st.Sources[0].Position.Known {
		t.Errorf("status %+v", st)
	}
	if src := st.Sources[1]; st.Sources[2].Position.Known || src.Position.Seq != 7 || !src.Created.Equal(created) || src.Topic != "thing.changed" || time.Since(src.At) > time.Hour {
		t.Errorf("source %+v", src)
	}
}

// Replicas open a sink at the same time; one owner comes of two projections.
func TestOpenTogether(t *testing.T) {
	r := newRig(t)
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		s := r.sink(mongosink.Options{Indexes: []mongosink.Index{{Keys: bson.D{{Key: "n", Value: 1}}, Unique: true}}})
		src := source()
		src.Projection = []string{"p", "q"}[i%2]
		wg.Go(func() { _, errs[i] = s.Open(t.Context(), src) })
	}
	wg.Wait()
	owned := 0
	for i, err := range errs {
		if (err == nil) != (errs[i%2] == nil) || err != nil && !errors.Is(err, projector.ErrOwned) {
			t.Errorf("replica %d: %v", i, err)
		}
		if err != nil {
			owned++
		}
	}
	if owned != len(errs)/2 {
		t.Errorf("%d of %d were refused", owned, len(errs))
	}
}

func (r *rig) indexes() []bson.M {
	r.Helper()
	cur, err := r.db.Collection("things").Indexes().List(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	var list []bson.M
	if err := cur.All(r.Context(), &list); err != nil {
		r.Fatal(err)
	}
	return list
}

// Row 11: indexes are there after Open, again and again; one that is in the way is
// an error with both specifications.
func TestA8Row11Indexes(t *testing.T) {
	r := newRig(t)
	partial := bson.D{{Key: "n", Value: bson.D{{Key: "$gt", Value: 5}}}}
	o := mongosink.Options{Indexes: []mongosink.Index{
		{Keys: bson.D{{Key: "a", Value: 1}, {Key: "b.c", Value: -1}}},
		{Name: "mine", Keys: bson.D{{Key: "m", Value: 1}}, Unique: true},
		{Keys: bson.D{{Key: "n", Value: 1}}, Unique: true, Partial: partial},
		{Keys: bson.D{{Key: "s", Value: 1}}, Sparse: true},
	}}
	for range 2 {
		r.open(o, source())
	}
	names := map[string]bson.M{}
	for _, ix := range r.indexes() {
		name, _ := ix["name"].(string)
		names[name] = ix
	}
	if len(names) != 6 || names["a_1_b.c_-1"] == nil || names["mine"]["unique"] != true || names["mine"]["sparse"] != true ||
		names["n_1"]["partialFilterExpression"] == nil || names["s_1"]["sparse"] != true || names["_expireAt_1"]["expireAfterSeconds"] != int32(0) {
		t.Errorf("indexes %v", names)
	}
	for _, tt := range []struct {
		name    string
		ix      mongosink.Index
		want    []string
		already bool
	}{
		{"other options", mongosink.Index{Keys: bson.D{{Key: "s", Value: 1}}}, []string{`wanted {"key":{"s":1},"name":"s_1"}`, `"sparse":true`, "drop that one"}, true},
		{"other keys", mongosink.Index{Name: "mine", Keys: bson.D{{Key: "z", Value: 1}}}, []string{`{"z":1}`, `{"m":1}`}, true},
		{"other name", mongosink.Index{Name: "yours", Keys: bson.D{{Key: "m", Value: 1}}, Unique: true}, []string{`"yours"`, `"mine"`}, true},
	} {
		_, err := r.sink(mongosink.Options{Indexes: []mongosink.Index{tt.ix}}).Open(t.Context(), source())
		wantError(t, tt.name, err, mongosink.ErrIndexConflict, tt.want...)
		if ie, ok := errors.AsType[*mongosink.IndexError](err); !ok || ie.Collection != "things" || (ie.Existing != "") != tt.already {
			t.Errorf("%s: %+v", tt.name, ie)
		}
	}
	r.insert("things", bson.M{"_id": 1, "d": "x"}, bson.M{"_id": 2, "d": "x"})
	_, err := r.sink(mongosink.Options{Indexes: []mongosink.Index{{Keys: bson.D{{Key: "d", Value: 1}}, Unique: true}}}).Open(t.Context(), source())
	wantError(t, "duplicates", err, mongosink.ErrIndexConflict, `{"d":1}`, `"x"`, "change the documents")
}

// What only looks like a collection is refused.
func TestOpenKinds(t *testing.T) {
	r := newRig(t)
	if err := r.db.CreateView(t.Context(), "things", "x", bson.A{}); err != nil {
		t.Fatal(err)
	}
	_, err := r.sink(mongosink.Options{}).Open(t.Context(), source())
	wantError(t, "view", err, jetbus.ErrInvalidOption, "view")
}

// A server that is away, and one that does not know the user.
func TestOpenServer(t *testing.T) {
	const addr = "127.0.0.1:1" // nobody is there
	open := func(uri string, timeout time.Duration) error {
		t.Helper()
		s, err := mongosink.New(connect(t, uri).Database("shop"), mongosink.Options{Collection: "things", Timeout: timeout})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = s.Open(ctx, source())
		if ctx.Err() != nil {
			t.Error("it takes a minute and more")
		}
		return err
	}
	wantError(t, "away", open("mongodb://"+addr+"/?replicaSet=rs0", time.Second), mongosink.ErrUnreachable, "URI", "shop", addr)

	srv := startStandIn(t, "user", "right")
	wantError(t, "password", open(strings.Replace(srv.URI(), "right", "wrong", 1), 0), mongosink.ErrCredentials, "authSource")
	wantError(t, "nobody", open(strings.Replace(srv.URI(), "user:right@", "", 1), 0), mongosink.ErrDenied, "readWrite", "shop")
	wantError(t, "wrong set", open(strings.Replace(srv.URI(), "replicaSet=rs0", "replicaSet=rs9", 1), time.Second), mongosink.ErrUnreachable, "replica set")
}

// A connection that breaks while a sink is opened is no reason to fail: all that
// Open does can be done again. The driver does so once, and not for every command.
func TestOpenThroughCuts(t *testing.T) {
	c := newCounting(t)
	r := &rig{TB: t, srv: c.srv, db: c.db}
	plain, err := mongosink.New(c.db, mongosink.Options{Collection: "plain", Indexes: []mongosink.Index{{Keys: bson.D{{Key: "a", Value: 1}}}}})
	if err != nil {
		t.Fatal(err)
	}
	for name, open := range map[string]func() error{
		"collection":   func() error { _, err := plain.Open(t.Context(), source()); return err },
		"transactions": func() error { _, err := c.sink().Open(t.Context(), counterSource); return err },
	} {
		for _, command := range []string{"find", "insert", "createIndexes", "hello"} {
			if command == "hello" { // the driver's own monitors say it, too
				if standIn := c.srv.StandIn(); standIn != nil {
					standIn.CutConnections()
				}
			} else {
				r.fail(times(3), bson.D{{Key: "failCommands", Value: bson.A{command}}, {Key: "closeConnection", Value: true}})
			}
			if err := open(); err != nil {
				t.Errorf("%s, %s: %v", name, command, err)
			}
		}
	}
}

// Who asks for the position learns what Open would say, and leaves nothing behind.
func TestPosition(t *testing.T) {
	r := newRig(t)
	sink := r.sink(mongosink.Options{})
	transactions, err := mongosink.NewTransaction(r.db, mongosink.TransactionOptions{
		Collections: []string{"counted"}, Apply: func(context.Context, projector.Change) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	counting := exclusive()
	counting.Projection, counting.Every = "counting", true
	anew := func(s projector.Source) projector.Source {
		s.Created = s.Created.Add(time.Second)
		return s
	}
	cases := map[string]struct {
		sink   projector.Positioner
		source projector.Source
	}{"sink": {sink, exclusive()}, "transactions": {transactions, counting}}
	for name, c := range cases {
		if at, err := c.sink.Position(t.Context(), c.source); err != nil || at != (projector.Position{}) {
			t.Errorf("%s, before Open: position %+v, %v", name, at, err)
		}
	}
	if names, err := r.db.ListCollectionNames(t.Context(), bson.D{}); err != nil || len(names) > 0 {
		t.Errorf("asking has made %v, %v", names, err)
	}
	for name, c := range cases {
		if _, err := c.sink.Open(t.Context(), c.source); err != nil {
			t.Fatal(err)
		}
		if _, err := c.sink.Write(t.Context(), projector.Batch{Changes: []projector.Change{put("a", 3, `{}`)}, UpTo: 3}); err != nil {
			t.Fatal(err)
		}
		if at, err := c.sink.Position(t.Context(), c.source); err != nil || at != (projector.Position{Known: true, Seq: 3}) {
			t.Errorf("%s: position %+v, %v", name, at, err)
		}
		_, err := c.sink.Position(t.Context(), anew(c.source))
		wantError(t, name+", made anew", err, projector.ErrNewStream, c.source.Topic)
		other := c.source
		if name == "sink" {
			other.Projection = "other"
		} else {
			other.Topic = "other.topic"
		}
		_, err = c.sink.Position(t.Context(), other)
		wantError(t, name+", another's", err, projector.ErrOwned, c.source.Projection)
	}
}
