package mongod

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"
)

// A reader is a transaction beside what it has to see.
type reader struct {
	*view
	sees   map[string]int32
	wrote  map[string]bool
	failed bool
}

// TestSnapshots runs transactions and other writers at random, and compares what
// each of them sees with a copy that was taken when it began. In the end nothing
// of old versions is left.
func TestSnapshots(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		st := newStore(1 << 20)
		c, err := (&view{st: st}).create("d", "c", nil)
		if err != nil {
			t.Fatal(err)
		}
		now := map[string]int32{}
		var open []*reader
		ids := rapid.SampledFrom([]string{"a", "b", "c", "d"})
		pick := func(t *rapid.T) *reader {
			if len(open) == 0 {
				return nil
			}
			return rapid.SampledFrom(open).Draw(t, "transaction")
		}
		n := int32(0)
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(t *rapid.T) {
				if len(open) < 4 {
					txn := st.begin(&session{}, 1)
					open = append(open, &reader{view: &view{st: st, txn: txn}, sees: maps.Clone(now), wrote: map[string]bool{}})
				}
			},
			"write": func(t *rapid.T) {
				n++
				write(t, &view{st: st}, c, ids.Draw(t, "id"), n, rapid.Bool().Draw(t, "delete"), now)
			},
			"write in a transaction": func(t *rapid.T) {
				r := pick(t)
				if r == nil || r.failed {
					return
				}
				n++
				id := ids.Draw(t, "id")
				wrote, conflict := write(t, r.view, c, id, n, rapid.Bool().Draw(t, "delete"), r.sees)
				r.failed = conflict
				if wrote {
					r.wrote[id] = true
				}
			},
			"end": func(t *rapid.T) {
				r := pick(t)
				if r == nil {
					return
				}
				open = slices.DeleteFunc(open, func(o *reader) bool { return o == r })
				if r.failed || rapid.Bool().Draw(t, "abort") {
					st.finish(r.txn, txnAborted)
					return
				}
				if err := st.commit(r.txn); err != nil {
					t.Fatal(err)
				}
				for id := range r.wrote {
					delete(now, id)
					if v, ok := r.sees[id]; ok {
						now[id] = v
					}
				}
			},
			"": func(t *rapid.T) {
				compareView(t, "the store", &view{st: st}, c, now)
				for i, r := range open {
					compareView(t, fmt.Sprint("transaction ", i), r.view, c, r.sees)
				}
			},
		})
		for _, r := range open {
			st.finish(r.txn, txnAborted)
		}
		if len(st.garbage) != 0 || len(c.locks) != 0 || len(st.open) != 0 || len(c.docs) != len(now) {
			t.Fatalf("left: %d old versions, %d locks, %d transactions, %d documents of %d", len(st.garbage), len(c.locks), len(st.open), len(c.docs), len(now))
		}
		for _, s := range c.docs {
			if s.head.prev != nil {
				t.Fatal("an old version is left")
			}
		}
	})
}

// write puts or deletes a document and does the same to the model, unless there
// is a conflict with another writer.
func write(t *rapid.T, v *view, c *collection, id string, n int32, remove bool, model map[string]int32) (wrote, conflict bool) {
	list, err := v.find(c, bson.D{{Key: "_id", Value: id}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	d := bson.D{{Key: "_id", Value: id}, {Key: "n", Value: n}}
	switch {
	case len(list) > 0 && remove:
		err = v.delete(c, list[0])
	case len(list) > 0:
		_, err = v.update(c, list[0], d, true)
	case remove:
		return false, false
	default:
		err = v.insert(c, d)
	}
	if errors.Is(err, errLocked) || errCode(err) == codeWriteConflict {
		return false, true
	}
	if err != nil {
		t.Fatal(err)
	}
	if remove {
		delete(model, id)
	} else {
		model[id] = n
	}
	return true, false
}

func compareView(t *rapid.T, name string, v *view, c *collection, want map[string]int32) {
	list, err := v.find(c, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int32{}
	for _, f := range list {
		got[asString(field(f.doc, "_id"))] = field(f.doc, "n").(int32)
	}
	if !maps.Equal(got, want) || len(list) != len(want) {
		t.Fatalf("%s sees %v, want %v", name, got, want)
	}
	if docs, ok, err := v.findByID(c, nil, false, 0); err != nil || ok && len(docs) != len(want) {
		t.Fatalf("%s by id: %v, %v", name, docs, err)
	}
}
