package mongosink_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus/embedded/mongod"
	"github.com/seed-63e9a637/jetbus/projector"
	"github.com/seed-63e9a637/jetbus/projector/mongosink"
)

// uniqueOn are options with unique indexes on some fields.
func uniqueOn(fields ...string) mongosink.Options {
	var o mongosink.Options
	for _, f := range fields {
		o.Indexes = append(o.Indexes, mongosink.Index{Keys: bson.D{{Key: f, Value: 1}}, Unique: true})
	}
	return o
}

// eachKind runs f for the ways in which a sink with these indexes stores a batch.
func eachKind(t *testing.T, indexes []mongosink.Index, f func(r *rig, s *mongosink.Sink)) {
	t.Helper()
	for _, kind := range []string{"tombstones", "hard delete", "merge"} {
		t.Run(kind, func(t *testing.T) {
			r := newRig(t)
			o, src := mongosink.Options{Indexes: indexes}, source()
			o.HardDelete, o.Merge = kind == "hard delete", kind == "merge"
			if o.HardDelete {
				src = exclusive()
			}
			f(r, r.open(o, src))
		})
	}
}

// values are the values of a field by key, of the documents that are not deleted.
func (r *rig) values(field string) map[string]int64 {
	r.Helper()
	out := map[string]int64{}
	for _, d := range r.docs("things", mongosink.Live()) {
		out[d["_id"].(string)], _ = d[field].(int64)
	}
	return out
}

// Keys that swap the values of a unique index have them after one batch, in whatever
// order the batch has the changes.
func TestSwapInUniqueIndex(t *testing.T) {
	eachKind(t, uniqueOn("n").Indexes, func(r *rig, s *mongosink.Sink) {
		r.wantOutcome(r.write(s, put("ann", 1, `{"n": 1}`), put("bob", 2, `{"n": 2}`), put("eve", 3, `{"n": 3}`)), 3, 0, 0)
		r.wantOutcome(r.write(s, put("bob", 5, `{"n": 1}`), put("ann", 6, `{"n": 2}`)), 2, 0, 0) // ann had 4 for a moment
		r.wantOutcome(r.write(s, put("ann", 7, `{"n": 3}`), put("bob", 8, `{"n": 2}`), put("eve", 9, `{"n": 1}`)), 3, 0, 0)
		// A chain behind a swap, and one into what a deleted key leaves.
		r.wantOutcome(r.write(s, put("new", 10, `{"n": 3}`), put("ann", 11, `{"n": 2}`), put("bob", 12, `{"n": 4}`), del("eve", 13)), 4, 0, 0)
		r.wantOutcome(r.write(s, put("eve", 14, `{"n": 2}`), put("ann", 15, `{"n": 3}`), put("new", 16, `{"n": 5}`)), 3, 0, 0)
		want := map[string]int64{"ann": 3, "bob": 4, "eve": 2, "new": 5}
		if got := r.values("n"); fmt.Sprint(got) != fmt.Sprint(want) {
			r.Errorf("the collection has %v, want %v", got, want)
		}
	})
}

// A swap in two unique indexes at once, and beside changes that are real duplicates: those
// are rejected and take nothing with them.
func TestSwapBesideDuplicates(t *testing.T) {
	eachKind(t, uniqueOn("n", "m").Indexes, func(r *rig, s *mongosink.Sink) {
		r.write(s, put("a", 1, `{"n": 1, "m": 1}`), put("b", 2, `{"n": 2, "m": 2}`), put("c", 3, `{"n": 3, "m": 3}`), put("d", 4, `{"n": 4, "m": 4}`))
		out := r.write(s,
			put("x", 5, `{"n": 4, "m": 9}`),                                  // d keeps that
			put("a", 6, `{"n": 2, "m": 3}`), put("b", 7, `{"n": 3, "m": 1}`), // each another cycle
			put("c", 8, `{"n": 1, "m": 2}`),
			put("y", 9, `{"n": 2, "m": 8}`)) // a takes that
		r.wantOutcome(out, 3, 0, 2)
		for _, rejected := range out.Rejected {
			if !errors.Is(rejected.Err, mongosink.ErrDuplicate) {
				r.Errorf("rejected: %v", rejected.Err)
			}
		}
		for field, want := range map[string]map[string]int64{"n": {"a": 2, "b": 3, "c": 1, "d": 4}, "m": {"a": 3, "b": 1, "c": 2, "d": 4}} {
			if got := r.values(field); fmt.Sprint(got) != fmt.Sprint(want) {
				r.Errorf("%s: %v, want %v", field, got, want)
			}
		}
	})
}

// Random permutations: a source in which values are unique at any moment moves them, one
// key after the other over a free value, and deletes and adds keys. A batch has the last
// change of each key, from one moment of the source to another.
func TestRandomPermutationsInUniqueIndex(t *testing.T) {
	const keys, batches = 12, 60
	eachKind(t, uniqueOn("n").Indexes, func(r *rig, s *mongosink.Sink) {
		rng := rand.New(rand.NewPCG(1, uint64(len(r.Name()))))
		state, seq := map[string]int64{}, uint64(0)
		for range batches {
			last := map[string]projector.Change{}
			set := func(key string, n int64) {
				seq++
				state[key] = n
				last[key] = put(key, seq, fmt.Sprintf(`{"n": %d}`, n))
			}
			for range 1 + rng.IntN(3*keys) {
				key := fmt.Sprint("k", rng.IntN(keys))
				n, other := int64(rng.IntN(keys+2)), ""
				for k, v := range state {
					if v == n && k != key {
						other = k
					}
				}
				had, there := state[key]
				switch {
				case rng.IntN(8) == 0 && there:
					seq++
					delete(state, key)
					last[key] = del(key, seq)
				case other == "":
					set(key, n)
				case there: // the other one steps aside first
					set(other, 1000)
					set(key, n)
					set(other, had)
				}
			}
			var changes []projector.Change
			for _, c := range last {
				changes = append(changes, c)
			}
			slices.SortFunc(changes, func(a, b projector.Change) int { return int(a.Event.Seq) - int(b.Event.Seq) })
			out := r.write(s, changes...)
			if got := r.values("n"); len(out.Rejected) > 0 || fmt.Sprint(got) != fmt.Sprint(state) {
				r.Fatalf("at %d: the collection has %v, want %v; rejected %v", seq, got, state, out.Rejected)
			}
		}
	})
}

// partial is a unique index that has the active documents only.
var partial = []mongosink.Index{{Keys: bson.D{{Key: "in.n", Value: 1}, {Key: "m", Value: 1}}, Unique: true, Partial: bson.D{{Key: "active", Value: true}}}}

// unique creates an index as another program would.
func (r *rig) unique(keys bson.D) {
	r.Helper()
	_, err := r.db.Collection("things").Indexes().CreateOne(r.Context(), mongo.IndexModel{Keys: keys, Options: options.Index().SetUnique(true)})
	if err != nil {
		r.Fatal(err)
	}
}

// A document that lacks the fields of a partial index, or of one that is not sparse, is still
// in the index.
func TestSwapInOtherUniqueIndexes(t *testing.T) {
	for _, byHand := range []bool{false, true} {
		t.Run(fmt.Sprint("made by hand ", byHand), func(t *testing.T) {
			indexes := partial
			if byHand {
				indexes = nil
			}
			eachKind(t, indexes, func(r *rig, s *mongosink.Sink) {
				if byHand {
					r.unique(bson.D{{Key: "_src", Value: 1}, {Key: "in.n", Value: 1}, {Key: "in", Value: 1}})
				}
				r.wantOutcome(r.write(s, put("ann", 1, `{"in": {"n": 1}, "m": 0, "active": true}`), put("bob", 2, `{"in": {"n": 2}, "m": 0, "active": true}`)), 2, 0, 0)
				out := r.write(s, put("bob", 4, `{"in": {"n": 1}, "m": 0, "active": true}`), put("ann", 5, `{"in": {"n": 2}, "m": 0, "active": true}`))
				r.wantOutcome(out, 2, 0, 0)
				r.want(`ann@5 {"active":true,"in":{"n":2},"m":0}`, `bob@4 {"active":true,"in":{"n":1},"m":0}`)
			})
		})
	}
}

// A document that is not in a partial index may have the values of one that is.
func TestSwapIgnoresDocumentsOutsidePartialIndex(t *testing.T) {
	eachKind(t, partial, func(r *rig, s *mongosink.Sink) {
		r.write(s, put("a1", 1, `{"in": {"n": 1}, "m": 0}`), put("a2", 2, `{"in": {"n": 2}, "m": 0}`),
			put("ann", 3, `{"in": {"n": 1}, "m": 0, "active": true}`), put("bob", 4, `{"in": {"n": 2}, "m": 0, "active": true}`))
		out := r.write(s, put("bob", 6, `{"in": {"n": 1}, "m": 0, "active": true}`), put("ann", 7, `{"in": {"n": 2}, "m": 0, "active": true}`))
		r.wantOutcome(out, 2, 0, 0)
	})
}

// A swap that a validator of the collection refuses becomes dead letters, and does not stop
// the projection.
func TestSwapThatAValidatorRefuses(t *testing.T) {
	eachKind(t, uniqueOn("n").Indexes, func(r *rig, s *mongosink.Sink) {
		valid := bson.D{{Key: "$or", Value: bson.A{bson.D{{Key: "n", Value: bson.D{{Key: "$type", Value: "number"}}}}, bson.D{{Key: "_deleted", Value: true}}}}}
		if err := r.db.RunCommand(r.Context(), bson.D{{Key: "collMod", Value: "things"}, {Key: "validator", Value: valid}}).Err(); err != nil {
			r.Fatal(err)
		}
		r.write(s, put("ann", 1, `{"n": 1}`), put("bob", 2, `{"n": 2}`))
		out := r.write(s, put("bob", 4, `{"n": 1}`), put("ann", 5, `{"n": 2}`), put("new", 6, `{"n": 3}`))
		r.wantOutcome(out, 1, 0, 2)
		for _, rejected := range out.Rejected {
			if err := rejected.Err; !errors.Is(err, mongosink.ErrRefused) && !errors.Is(err, mongosink.ErrDuplicate) {
				r.Errorf("rejected: %v", err)
			}
		}
	})
}

// A server without transactions cannot swap: the dead letters say what helps.
func TestSwapOnAStandalone(t *testing.T) {
	srv, err := mongod.Start(t.Context(), mongod.Config{Standalone: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Stop)
	r := &rig{TB: t, db: connect(t, srv.URI()).Database("test")}
	s := r.open(uniqueOn("n"), source())
	r.write(s, put("ann", 1, `{"n": 1}`), put("bob", 2, `{"n": 2}`))
	out := r.write(s, put("bob", 4, `{"n": 1}`), put("ann", 5, `{"n": 2}`))
	r.wantOutcome(out, 0, 0, 2)
	for _, rejected := range out.Rejected {
		if err := rejected.Err; !errors.Is(err, mongosink.ErrDuplicate) || !strings.Contains(err.Error(), "replica set") || !strings.Contains(err.Error(), "rebuild") {
			t.Errorf("rejected: %v", err)
		}
	}
	if got := r.values("n"); got["ann"] != 1 || got["bob"] != 2 {
		t.Errorf("the collection has %v", got)
	}
}
