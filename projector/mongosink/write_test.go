package mongosink_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-63e9a637/jetbus/projector"
	"github.com/seed-63e9a637/jetbus/projector/mongosink"
)

// Row 2: a write replaces what is older only.
func TestA8Row02Guard(t *testing.T) {
	r := newRig(t)
	s := r.open(mongosink.Options{}, source())
	r.wantOutcome(r.write(s, put("a", 5, `{"n": 5}`), put("b", 6, `{"n": 6}`)), 2, 0, 0)
	r.wantOutcome(r.write(s, put("a", 4, `{"n": 4}`), put("b", 7, `{"n": 7}`), put("c", 8, `{"n": 8}`)), 2, 1, 0)
	r.wantOutcome(r.write(s, put("a", 5, `{"n": 55}`), put("b", 7, `{"n": 77}`)), 0, 2, 0)
	r.want(`a@5 {"n":5}`, `b@7 {"n":7}`, `c@8 {"n":8}`)

	d := r.docs("things", bson.D{{Key: "_id", Value: "a"}})[0]
	if d["_key"] != "a" || d["_src"] != "EV_thing.changed" || d["_ts"] != bson.NewDateTimeFromTime(created.Add(5*time.Second)) {
		t.Errorf("document %v", d)
	}
	if _, ok := d["_v"]; ok {
		t.Error("a document without a version has one")
	}
}

// Row 2, with versions: they come before the sequence.
func TestA8Row02Versions(t *testing.T) {
	r := newRig(t)
	s := r.open(mongosink.Options{}, source())
	r.wantOutcome(r.write(s, versioned(put("a", 5, `{"n": 5}`), 3)), 1, 0, 0)
	for _, tt := range []struct {
		seq     uint64
		version int64
		applied bool
		want    string
	}{
		{9, 2, false, `a@5v3 {"n":5}`}, // later, but of a lower version
		{4, 3, false, `a@5v3 {"n":5}`},
		{5, 3, false, `a@5v3 {"n":5}`},
		{6, 3, true, `a@6v3 {"n":6}`}, // the same version, later
		{2, 4, true, `a@2v4 {"n":2}`}, // a higher one, earlier
		{7, -1, false, `a@2v4 {"n":2}`},
	} {
		out := r.write(s, versioned(put("a", tt.seq, fmt.Sprintf(`{"n": %d}`, tt.seq)), tt.version))
		if (out.Applied == 1) != tt.applied || (out.Stale == 1) == tt.applied {
			t.Errorf("sequence %d, version %d: %+v", tt.seq, tt.version, out)
		}
		r.want(tt.want)
	}
	r.wantOutcome(r.write(s, versioned(del("a", 8), 5)), 1, 0, 0)
	r.wantOutcome(r.write(s, versioned(put("a", 9, `{"n": 9}`), 4)), 0, 1, 0)
	// What was written before the projection had versions goes by its sequence.
	r.write(s, put("b", 10, `{"n": 10}`))
	r.wantOutcome(r.write(s, versioned(put("b", 9, `{"n": 9}`), 1)), 0, 1, 0)
	r.wantOutcome(r.write(s, versioned(put("b", 11, `{"n": 11}`), 1)), 1, 0, 0)
	r.want("a@8v5 deleted", `b@11v1 {"n":11}`)
}

// Row 3: a state replaces the document: a field that it does not have goes.
func TestA8Row03ReplaceNotSet(t *testing.T) {
	r := newRig(t)
	s := r.open(mongosink.Options{}, source())
	r.write(s, put("a", 1, `{"x": 1, "y": 1}`))
	r.write(s, put("a", 2, `{"x": 2}`))
	r.want(`a@2 {"x":2}`)
}

// Row 3, the option: Merge keeps the fields that a state does not have, those of
// other services among them, but not those of a deleted key.
func TestA8Row03Merge(t *testing.T) {
	r := newRig(t)
	s := r.open(mongosink.Options{Merge: true}, source())
	r.write(s, put("a", 1, `{"x": 1, "y": 1}`))
	r.wantOutcome(r.write(s, put("a", 3, `{"x": 3, "z": {"q": 1}}`)), 1, 0, 0)
	r.wantOutcome(r.write(s, put("a", 2, `{"y": 2}`)), 0, 1, 0)
	r.want(`a@3 {"x":3,"y":1,"z":{"q":1}}`)
	r.write(s, del("a", 4))
	r.want("a@4 deleted")
	r.write(s, put("a", 5, `{"w": 5}`), put("b", 6, `{}`))
	r.want(`a@5 {"w":5}`, "b@6")
	if d := r.docs("things", bson.D{})[0]; d["_expireAt"] != nil || d["_key"] != "a" {
		t.Errorf("document %v", d)
	}

	every := source()
	every.Exclusive, every.Every = true, true
	s = r.open(mongosink.Options{Merge: true}, every)
	r.wantOutcome(r.write(s, put("c", 7, `{"x": 7}`), put("c", 8, `{"y": 8}`), put("d", 9, `{}`), del("c", 10), put("c", 11, `{"z": 11}`)), 5, 0, 0)
	r.want(`a@5 {"w":5}`, "b@6", `c@11 {"z":11}`, "d@9")
}

// Row 9: readers see the keys that are not deleted.
func TestA8Row09Live(t *testing.T) {
	r := newRig(t)
	s := r.open(mongosink.Options{}, source())
	r.write(s, put("a", 1, `{"n": 1}`), put("b", 2, `{"n": 2}`), del("c", 3))
	r.write(s, del("a", 4))
	live := r.docs("things", mongosink.Live())
	if len(live) != 1 || show(live[0]) != `b@2 {"n":2}` {
		t.Errorf("live: %v", live)
	}
	r.want("a@4 deleted", `b@2 {"n":2}`, "c@3 deleted")
}

// Row 8, the sink's part: a deleted key stays as a document, so that a late event
// does not bring it back, and goes when its time is over.
func TestTombstones(t *testing.T) {
	r := newRig(t)
	s := r.open(mongosink.Options{TombstoneTTL: time.Millisecond}, source())
	r.write(s, put("a", 1, `{"n": 1}`), put("b", 2, `{"n": 2}`))
	r.write(s, del("a", 4), del("b", 5))
	r.wantOutcome(r.write(s, put("a", 3, `{"n": 3}`), del("b", 5)), 0, 2, 0)
	r.wantOutcome(r.write(s, put("b", 6, `{"n": 6}`)), 1, 0, 0) // written anew
	r.want("a@4 deleted", `b@6 {"n":6}`)
	for _, d := range r.docs("things", bson.D{}) {
		_, expires := d["_expireAt"]
		_, deleted := d["_deleted"]
		if want := d["_id"] == "a"; expires != want || deleted != want {
			t.Errorf("document %v", d)
		}
	}
	if standIn := r.srv.StandIn(); standIn != nil { // a real one does so within a minute
		for range time.Tick(5 * time.Millisecond) {
			if standIn.Expire() == 1 {
				break
			}
		}
		r.want(`b@6 {"n":6}`)
	}
	keep := r.open(mongosink.Options{TombstoneTTL: -1}, source())
	r.write(keep, del("b", 7))
	if d := r.docs("things", bson.D{{Key: "_id", Value: "b"}})[0]; d["_expireAt"] != nil {
		t.Errorf("document %v", d)
	}
	month := r.open(mongosink.Options{}, source())
	r.write(month, del("b", 8))
	d := r.docs("things", bson.D{{Key: "_id", Value: "b"}})[0]
	at, _ := d["_expireAt"].(bson.DateTime)
	if left := time.Until(at.Time()); left < 30*24*time.Hour || left > mongosink.DefaultTombstoneTTL {
		t.Errorf("a tombstone goes in %v", left)
	}
}

// Row 14: what MongoDB does not store is rejected, each with a reason, and takes
// nothing else with it.
func TestA8Row14Rejected(t *testing.T) {
	r := newRig(t)
	s := r.open(mongosink.Options{}, source())
	for _, tt := range []struct {
		name string
		doc  any
		is   error
		want string
	}{
		{"dollar", json.RawMessage(`{"$x": 1}`), mongosink.ErrInvalidDocument, `"$x" begins with $`},
		{"dollar within", json.RawMessage(`{"a": [{"$x": 1}]}`), mongosink.ErrInvalidDocument, `"$x" begins with $`},
		{"dot", json.RawMessage(`{"a.b": 1}`), mongosink.ErrInvalidDocument, `"a.b" has a dot`},
		{"NUL", json.RawMessage(`{"a\u0000b": 1}`), mongosink.ErrInvalidDocument, "NUL"},
		{"empty", json.RawMessage(`{"": 1}`), mongosink.ErrInvalidDocument, "empty"},
		{"reserved", json.RawMessage(`{"_seq": 1}`), mongosink.ErrInvalidDocument, "_seq is the sink's own"},
		{"twice", json.RawMessage(`{"a": 1, "a": 2}`), mongosink.ErrInvalidDocument, `"a" is there twice`},
		{"no object", json.RawMessage(`[1]`), mongosink.ErrInvalidDocument, "no JSON object"},
		{"no JSON", json.RawMessage(`{"a": }`), mongosink.ErrInvalidDocument, "at byte 6"},
		{"nothing", nil, mongosink.ErrInvalidDocument, "there is none"},
		{"dot in a bson.D", bson.D{{Key: "a", Value: bson.D{{Key: "b.c", Value: 1}}}}, mongosink.ErrInvalidDocument, `"b.c" has a dot`},
		{"twice in a bson.D", bson.D{{Key: "a", Value: 1}, {Key: "a", Value: 1}}, mongosink.ErrInvalidDocument, "twice"},
		{"reserved in a map", bson.M{"_expireAt": 1}, mongosink.ErrInvalidDocument, "_expireAt is the sink's own"},
		{"a channel", bson.M{"a": make(chan int)}, mongosink.ErrInvalidDocument, "chan int"},
		{"a number", 5, mongosink.ErrInvalidDocument, "int"},
		{"bad bytes", bson.Raw{1, 2, 3}, mongosink.ErrInvalidDocument, ""},
		{"no UTF-8", bson.M{"a": "\xff"}, mongosink.ErrInvalidDocument, "UTF-8"},
		{"panic", panicky{}, mongosink.ErrInvalidDocument, "panic: no"},
		{"too large", bson.M{"a": strings.Repeat("x", 16<<20)}, mongosink.ErrTooLarge, "16777"},
		{"too large as BSON", json.RawMessage(`{"a": [` + strings.Repeat("1,", 2<<20) + `1]}`), mongosink.ErrTooLarge, ""},
	} {
		bad := projector.Change{Key: "bad", Doc: tt.doc, Event: event("bad", 2)}
		out, err := s.Write(t.Context(), projector.Batch{Changes: []projector.Change{put("a", 1, `{}`), bad, put("b", 3, `{}`)}, UpTo: 3})
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if out.Applied+out.Stale != 2 || len(out.Rejected) != 1 || out.Rejected[0].Index != 1 {
			t.Fatalf("%s: %+v", tt.name, out)
		}
		if err := out.Rejected[0].Err; !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	r.want("a@1", "b@3")
	if p, err := r.sink(mongosink.Options{}).Open(t.Context(), source()); err != nil || p.Known {
		t.Errorf("position %+v, %v: a batch with a rejected change stored it", p, err)
	}
	for _, key := range []string{"", "a\x00b", "\xff"} {
		out := r.write(s, put(key, 9, `{}`))
		r.wantOutcome(out, 0, 0, 1)
	}
}

type panicky struct{}

func (panicky) MarshalBSON() ([]byte, error) { panic("no") }

// A document of exactly 16 MiB is stored.
func TestLargest(t *testing.T) {
	r := newRig(t)
	s := r.open(mongosink.Options{}, source())
	size := func(n int) int {
		d := bson.D{
			{Key: "_id", Value: "a"},
			{Key: "_key", Value: "a"},
			{Key: "_seq", Value: int64(1)},
			{Key: "_ts", Value: created},
			{Key: "_src", Value: source().Stream},
			{Key: "_srcCreated", Value: created.UnixNano()},
			{Key: "x", Value: strings.Repeat("x", n)},
		}
		raw, err := bson.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		return len(raw)
	}
	room := 16<<20 - size(0)
	r.wantOutcome(r.write(s, projector.Change{Key: "a", Doc: bson.M{"x": strings.Repeat("x", room+1)}, Event: event("a", 1)}), 0, 0, 1)
	r.wantOutcome(r.write(s, projector.Change{Key: "a", Doc: bson.M{"x": strings.Repeat("x", room)}, Event: event("a", 1)}), 1, 0, 0)
}

// What is no event's business is dropped, what the driver can store is stored.
func TestDocuments(t *testing.T) {
	r := newRig(t)
	s := r.open(mongosink.Options{}, source())
	type thing struct {
		ID   string `bson:"_id"`
		Name string `bson:"name"`
		Skip string `bson:"-"`
	}
	r.wantOutcome(r.write(s,
		put("a", 1, ` {"_id": {"x": 1}, "n": 1, "_deleted": false} `),
		projector.Change{Key: "b", Doc: thing{ID: "other", Name: "n"}, Event: event("b", 2)},
		projector.Change{Key: "c", Doc: bson.D{{Key: "n", Value: 3}}, Event: event("c", 3)},
		projector.Change{Key: "d", Doc: map[string]any{"n": 4}, Event: event("d", 4)},
	), 4, 0, 0)
	r.want(`a@1 {"n":1}`, `b@2 {"name":"n"}`, `c@3 {"n":3}`, `d@4 {"n":4}`)
	if d := r.docs("things", bson.D{})[0]; d["_deleted"] != nil {
		t.Errorf("document %v", d)
	}
}

// Row 16: a key belongs to the topic whose event came first; another's is rejected.
func TestA8Row16OtherSource(t *testing.T) {
	r := newRig(t)
	s := r.open(mongosink.Options{}, source())
	src := source()
	src.Topic, src.Stream = "other.changed", "EV_other.changed"
	other := r.open(mongosink.Options{}, src)
	r.write(s, put("a", 5, `{"n": 5}`))
	out := r.write(other, put("a", 9, `{"n": 9}`), put("b", 1, `{"n": 1}`), del("a", 10))
	r.wantOutcome(out, 1, 0, 2)
	if err := out.Rejected[0].Err; !errors.Is(err, mongosink.ErrKeyTaken) || !strings.Contains(err.Error(), `EV_thing.changed`) {
		t.Errorf("rejected: %v", err)
	}
	r.write(s, put("a", 6, `{"n": 6}`))
	r.want(`a@6 {"n":6}`, `b@1 {"n":1}`)
}

// Documents that no sink has written are adopted, whatever is in them.
func TestForeignDocuments(t *testing.T) {
	r := newRig(t)
	r.insert("things",
		bson.M{"_id": "a", "n": 0}, bson.M{"_id": "b", "_seq": "x"}, bson.M{"_id": "c", "_seq": nil, "_src": nil},
		bson.M{"_id": "d", "_seq": int32(5)}, bson.M{"_id": "e", "_seq": 4.5}, bson.M{"_id": "f", "_src": 7},
		bson.M{"_id": "g", "_v": "x"}, bson.M{"_id": 1})
	s := r.open(mongosink.Options{}, source())
	out := r.write(s, put("a", 1, `{}`), put("b", 2, `{}`), put("c", 3, `{}`), put("d", 4, `{}`), put("e", 5, `{}`), put("f", 6, `{}`))
	r.wantOutcome(out, 4, 1, 1)
	out = r.write(s, versioned(put("g", 7, `{}`), 1), versioned(put("a", 8, `{}`), 1))
	r.wantOutcome(out, 1, 0, 1)
	r.want("1@<nil>", "a@8v1", "b@2", "c@3", "d@5", "e@5", "f@<nil>", "g@<nil>vx")
}

// Sinks that write the same keys in any order end equal to the newest of each.
func TestConcurrentSinks(t *testing.T) {
	r := newRig(t)
	const keys, events, replicas = 20, 600, 3
	rnd := rand.New(rand.NewPCG(1, 2))
	all := make([]projector.Change, events)
	newest := map[string]projector.Change{}
	for i := range all {
		key := fmt.Sprintf("k%02d", rnd.IntN(keys))
		all[i] = put(key, uint64(i+1), fmt.Sprintf(`{"n": %d}`, i))
		if rnd.IntN(4) == 0 {
			all[i] = del(key, uint64(i+1))
		}
		newest[key] = all[i]
	}
	var wg sync.WaitGroup
	for n := range replicas {
		s := r.open(mongosink.Options{}, source())
		mine := rand.New(rand.NewPCG(3, uint64(n)))
		wg.Go(func() {
			for _, i := range mine.Perm(events / 10) {
				b := projector.Batch{Changes: all[i*10 : i*10+10]} // with keys that repeat
				if out, err := s.Write(t.Context(), b); err != nil || out.Applied+out.Stale != len(b.Changes) {
					t.Errorf("%+v, %v", out, err)
					return
				}
			}
		})
	}
	wg.Wait()
	var want []string
	for n := range keys {
		c := newest[fmt.Sprintf("k%02d", n)]
		line := fmt.Sprintf("%s@%d", c.Key, c.Event.Seq)
		if c.Deleted {
			line += " deleted"
		} else {
			line += fmt.Sprintf(` {"n":%d}`, c.Event.Seq-1)
		}
		want = append(want, line)
	}
	r.want(want...)
}
