package mongosink_test

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-63e9a637/jetbus/projector"
	"github.com/seed-63e9a637/jetbus/projector/mongosink"
)

// Row 10: a replica sleeps while its topic is made anew and the collection rebuilt from that,
// and wakes up with events of the topic as it was. Their sequences are higher, and they are older.
func TestA8Row10FrozenWhileMadeAnew(t *testing.T) {
	asItIs := func(c projector.Change) projector.Change { return c }
	for name, c := range map[string]struct {
		o      mongosink.Options
		change func(projector.Change) projector.Change
	}{
		"replaced": {mongosink.Options{}, asItIs},
		"merged":   {mongosink.Options{Merge: true}, asItIs},
		"versions": {mongosink.Options{}, func(c projector.Change) projector.Change {
			return versioned(c, int64(c.Event.Seq)) //nolint:gosec // a test
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			frozen := r.open(c.o, source())
			r.write(frozen, c.change(put("a", 900, `{"of": "old"}`)))
			anew := source()
			anew.Created = created.Add(time.Hour)
			sh := r.shadow(r.sink(c.o), anew)
			r.writeUpTo(sh, 1, c.change(put("a", 1, `{"of": "new"}`)))
			r.swap(sh)
			_, err := frozen.Write(t.Context(), projector.Batch{Changes: []projector.Change{
				c.change(put("a", 901, `{"of": "old"}`)), c.change(put("gone", 902, `{"of": "old"}`)),
			}})
			wantError(t, "frozen", err, projector.ErrNewStream, "EV_thing.changed")
			// What it has left under a key that was free gives way to the key's next event.
			r.wantOutcome(r.write(r.open(c.o, anew), c.change(put("gone", 2, `{"of": "new"}`))), 1, 0, 0)
			docs := r.docs("things", bson.D{})
			if len(docs) != 2 {
				t.Errorf("documents %v", docs)
			}
			for _, d := range docs {
				if d["of"] != "new" || d["_srcCreated"] != anew.Created.UnixNano() {
					t.Errorf("document %v", d)
				}
			}
		})
	}
}

// Documents from before they said when their stream was made count as of the present one.
func TestDocumentsWithoutCreation(t *testing.T) {
	r := newRig(t)
	s := r.open(mongosink.Options{}, source())
	r.insert("things",
		bson.M{"_id": "a", "_key": "a", "_seq": int64(5), "_src": source().Stream, "n": 5},
		bson.M{"_id": "b", "_key": "b", "_seq": int64(5), "_src": source().Stream, "n": 5})
	r.wantOutcome(r.write(s, put("a", 4, `{"n": 4}`), put("b", 6, `{"n": 6}`)), 1, 1, 0)
	r.want(`a@5 {"n":5}`, `b@6 {"n":6}`)
}
