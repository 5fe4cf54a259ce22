package mongosink_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/embedded/mongod"
	"github.com/seed-63e9a637/jetbus/projector"
	"github.com/seed-63e9a637/jetbus/projector/mongosink"
)

// shadow begins a rebuild and opens it.
func (r *rig) shadow(s *mongosink.Sink, src projector.Source) projector.Shadow {
	r.Helper()
	sh, err := s.Shadow(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	if p, err := sh.Open(r.Context(), src); err != nil || p.Known {
		r.Fatalf("open a shadow: %+v, %v", p, err)
	}
	return sh
}

func (r *rig) swap(sh projector.Shadow) {
	r.Helper()
	if err := sh.Swap(r.Context()); err != nil {
		r.Fatal(err)
	}
}

// position opens another sink, and returns where it is.
func (r *rig) position(src projector.Source) projector.Position {
	r.Helper()
	p, err := r.sink(mongosink.Options{}).Open(r.Context(), src)
	if err != nil {
		r.Fatal(err)
	}
	return p
}

// wantClean checks that nothing of a rebuild is left.
func (r *rig) wantClean() {
	r.Helper()
	names, err := r.db.ListCollectionNames(r.Context(), bson.D{})
	if err != nil {
		r.Fatal(err)
	}
	for _, name := range names {
		if strings.Contains(name, "__rebuild") {
			r.Errorf("collection %s is left", name)
		}
	}
	if list, err := mongosink.ReadStatus(r.Context(), r.db); err != nil || len(list) > 1 || len(list) == 1 && list[0].Rebuilding {
		r.Errorf("status %+v, %v", list, err)
	}
}

// Row 12: a rebuild fills another collection while the old one serves, takes its
// place, and goes on in what it has become. Writers of the old one do no harm.
func TestA8Row12Rebuild(t *testing.T) {
	r := newRig(t)
	o := mongosink.Options{Indexes: []mongosink.Index{{Keys: bson.D{{Key: "n", Value: 1}}, Unique: true}}}
	live := r.open(o, source())
	r.writeUpTo(live, 2, put("a", 1, `{"n": 1}`), put("gone", 2, `{"n": 2}`))
	sh := r.shadow(live, source())
	r.writeUpTo(sh, 3, put("a", 1, `{"n": 10}`), put("b", 3, `{"n": 3}`))
	r.want(`a@1 {"n":1}`, `gone@2 {"n":2}`)
	if list, err := mongosink.ReadStatus(t.Context(), r.db); err != nil || len(list) != 1 || !list[0].Rebuilding || list[0].Sources[0].Position.Seq != 2 {
		t.Errorf("status %+v, %v", list, err)
	}
	r.write(live, put("c", 4, `{"n": 4}`))
	r.swap(sh)
	r.want(`a@1 {"n":10}`, `b@3 {"n":3}`)
	r.wantClean()
	if n := len(r.indexes()); n != 3 {
		t.Errorf("%d indexes", n)
	}
	// Until the shadow has caught up with what live replicas wrote to the old
	// collection, the position is unknown: a crash now means that it is filled again.
	if p := r.position(source()); p.Known {
		t.Errorf("position %+v", p)
	}
	r.wantOutcome(r.write(live, put("b", 2, `{"n": 22}`), put("d", 5, `{"n": 5}`)), 1, 1, 0)
	r.wantOutcome(r.writeUpTo(sh, 5, put("c", 4, `{"n": 4}`), put("d", 5, `{"n": 5}`)), 1, 1, 0)
	r.want(`a@1 {"n":10}`, `b@3 {"n":3}`, `c@4 {"n":4}`, `d@5 {"n":5}`)
	if p := r.position(source()); p != (projector.Position{Known: true, Seq: 5}) {
		t.Errorf("position %+v", p)
	}
	if err := errors.Join(sh.Swap(t.Context()), sh.Drop(t.Context())); err != nil {
		t.Errorf("again: %v", err)
	}
	r.want(`a@1 {"n":10}`, `b@3 {"n":3}`, `c@4 {"n":4}`, `d@5 {"n":5}`)
}

// Row 12: what another rebuild left is removed, and what is left of it, should it
// come back, has lost its place.
func TestA8Row12Leftover(t *testing.T) {
	r := newRig(t)
	live := r.open(mongosink.Options{}, source())
	r.write(live, put("a", 1, `{}`))
	zombie := r.shadow(live, source())
	r.write(zombie, put("z", 9, `{}`))
	sh := r.shadow(live, source())
	r.writeUpTo(sh, 1, put("a", 1, `{}`))
	_, err := zombie.Write(t.Context(), projector.Batch{Changes: []projector.Change{put("y", 9, `{}`)}, UpTo: 9})
	wantError(t, "write", err, projector.ErrFenced)
	wantError(t, "swap", zombie.Swap(t.Context()), projector.ErrFenced)
	if err := zombie.Drop(t.Context()); err != nil {
		t.Error(err)
	}
	r.swap(sh)
	r.want("a@1")
	r.wantClean()
	sh = r.shadow(live, source())
	r.write(sh, put("b", 2, `{}`))
	for range 2 {
		if err := sh.Drop(t.Context()); err != nil {
			t.Error(err)
		}
	}
	_, err = sh.Write(t.Context(), projector.Batch{})
	wantError(t, "dropped", err, mongosink.ErrNotOpen)
	r.want("a@1")
	r.wantClean()
}

// A rebuild that is refused, since the collection is another projection's, does not disturb
// that one's rebuild.
func TestRebuildBesideForeignOne(t *testing.T) {
	r := newRig(t)
	live := r.open(mongosink.Options{}, source())
	r.writeUpTo(live, 1, put("a", 1, `{}`))
	sh := r.shadow(live, source())
	r.writeUpTo(sh, 2, put("b", 2, `{}`))
	other := source()
	other.Projection = "other"
	foreign, err := r.sink(mongosink.Options{}).Shadow(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = foreign.Open(t.Context(), other)
	wantError(t, "open", err, projector.ErrOwned)
	if err := foreign.Drop(t.Context()); err != nil {
		t.Error(err)
	}
	r.writeUpTo(sh, 3, put("c", 3, `{}`))
	r.swap(sh)
	r.want("b@2", "c@3")
	r.wantClean()
}

// Row 12: a crash between any two steps of a swap leaves the old content or the new
// one, and in the new one what the book says of it.
func TestA8Row12Crashes(t *testing.T) {
	r, standIn := newFaultRig(t)
	src := exclusive() // its position has to be that of the content, always
	live := r.open(mongosink.Options{}, src)
	r.writeUpTo(live, 50, put("old", 50, `{}`))
	for step := 0; ; step++ {
		sh := r.shadow(live, src)
		r.writeUpTo(sh, 7, put("new", 7, `{}`))
		calls, dead := 0, false
		remove := standIn.OnCommand(func(c mongod.Command) error {
			if c.Name == "renameCollection" || c.Collection == "_projections" || c.Name == "listCollections" {
				calls++
				if dead = dead || calls > step; dead {
					return &mongod.CommandError{Code: 8, Message: "crash"}
				}
			}
			return nil
		})
		err := sh.Swap(t.Context())
		remove()
		if !dead {
			if err != nil {
				t.Fatal(err)
			}
			break
		}
		if err == nil {
			t.Fatalf("step %d: no error", step)
		}
		p := r.position(src)
		if docs := r.docs("things", bson.D{}); len(docs) != 1 || p.Seq != 50 && p.Seq != 7 || docs[0]["_id"] != map[uint64]string{50: "old", 7: "new"}[p.Seq] {
			t.Errorf("step %d: position %+v, documents %v", step, p, docs)
		}
		if p.Seq == 50 { // a rebuild that is told of the error cleans up
			if err := sh.Drop(t.Context()); err != nil {
				t.Error(err)
			}
		} else if err := sh.Swap(t.Context()); err != nil { // or tries again
			t.Errorf("step %d: again: %v", step, err)
		}
		r.wantClean()
		if p.Seq == 7 { // back to where it was
			if _, err := r.db.Collection("things").DeleteMany(t.Context(), bson.D{}); err != nil {
				t.Fatal(err)
			}
			if _, err := live.Open(t.Context(), src); err != nil {
				t.Fatal(err)
			}
			r.writeUpTo(live, 50, put("old", 50, `{}`))
		}
	}
	r.want("new@7")
	r.wantClean()
}

// Row 12: the answer to the rename gets lost.
func TestA8Row12LostAnswer(t *testing.T) {
	r, standIn := newFaultRig(t)
	live := r.open(mongosink.Options{}, source())
	for _, again := range []string{"swap", "drop"} {
		sh := r.shadow(live, source())
		r.writeUpTo(sh, 7, put("new-"+again, 7, `{}`))
		remove := standIn.OnReply(func(c mongod.Command) error {
			if c.Name == "renameCollection" {
				return mongod.ErrCut
			}
			return nil
		})
		if err := sh.Swap(t.Context()); err == nil {
			t.Error("no error")
		}
		remove()
		if again == "swap" {
			r.swap(sh)
			r.writeUpTo(sh, 8, put("x", 8, `{}`))
			r.want("new-swap@7", "x@8")
		} else {
			if err := sh.Drop(t.Context()); err != nil {
				t.Error(err)
			}
			r.want("new-drop@7")
		}
		r.wantClean()
	}
}

// A swap that the server will always refuse says so, whatever it is refused for, and leaves
// the old content.
func TestSwapRefused(t *testing.T) {
	r, standIn := newFaultRig(t)
	live := r.open(mongosink.Options{}, source())
	r.write(live, put("old", 1, `{}`))
	for code, refused := range map[int32]bool{13: true, 20: true, 8: false} {
		sh := r.shadow(live, source())
		r.writeUpTo(sh, 2, put("new", 2, `{}`))
		remove := standIn.OnCommand(func(c mongod.Command) error {
			if c.Name == "renameCollection" {
				return &mongod.CommandError{Code: code, Message: "no"}
			}
			return nil
		})
		err := sh.Swap(t.Context())
		remove()
		if err == nil || errors.Is(err, projector.ErrSwapRefused) != refused || errors.Is(err, mongosink.ErrDenied) != (code == 13) {
			t.Errorf("code %d: %v", code, err)
		}
		if err := sh.Drop(t.Context()); err != nil {
			t.Error(err)
		}
		r.want("old@1")
		r.wantClean()
	}
}

// A rebuild on a server without renameCollection fails before it writes anything.
func TestRebuildWithoutRename(t *testing.T) {
	r, standIn := newFaultRig(t)
	live := r.open(mongosink.Options{}, source())
	r.write(live, put("old", 1, `{}`))
	for _, code := range []int32{59, 115, 238} {
		writes := 0
		remove := standIn.OnCommand(func(c mongod.Command) error {
			switch c.Name {
			case "renameCollection":
				return &mongod.CommandError{Code: code, Message: "no such command: 'renameCollection'"}
			case "insert", "update", "create":
				writes++
			}
			return nil
		})
		sh, err := live.Shadow(t.Context())
		if err == nil {
			_, err = sh.Open(t.Context(), source())
		}
		remove()
		if !errors.Is(err, projector.ErrSwapRefused) || writes > 0 {
			t.Errorf("code %d: %v, after %d writes", code, err, writes)
		}
	}
	r.want("old@1")
	r.wantClean()
}

// Row 10 and 12: a rebuild is the way out of a topic that was made anew.
func TestRebuildNewStream(t *testing.T) {
	r := newRig(t)
	live := r.open(mongosink.Options{}, source())
	r.writeUpTo(live, 900, put("a", 900, `{"of": "old"}`))
	anew := source()
	anew.Created = created.Add(time.Hour)
	sh := r.shadow(r.sink(mongosink.Options{}), anew)
	r.writeUpTo(sh, 1, put("a", 1, `{"of": "new"}`))
	r.swap(sh)
	r.writeUpTo(sh, 1)
	r.want(`a@1 {"of":"new"}`)
	if p := r.position(anew); p != (projector.Position{Known: true, Seq: 1}) {
		t.Errorf("position %+v", p)
	}
}

// A rebuild of a collection that nobody fills, of another's, and of one that has
// more sources.
func TestShadowOpen(t *testing.T) {
	r := newRig(t)
	sh := r.shadow(r.sink(mongosink.Options{}), source())
	r.write(sh, put("a", 1, `{}`))
	wantError(t, "not open", r.mustShadow().Swap(t.Context()), mongosink.ErrNotOpen)
	sh = r.shadow(r.sink(mongosink.Options{}), source())
	r.writeUpTo(sh, 2, put("a", 2, `{}`))
	r.swap(sh)
	r.want("a@2")
	owned := source()
	owned.Projection = "q"
	_, err := r.mustShadow().Open(t.Context(), owned)
	wantError(t, "owned", err, projector.ErrOwned)
	other := source()
	other.Topic, other.Stream = "other.changed", "EV_other.changed"
	r.open(mongosink.Options{}, other)
	_, err = r.mustShadow().Open(t.Context(), other)
	wantError(t, "more sources", err, jetbus.ErrInvalidOption, "thing.changed")
}

func (r *rig) mustShadow() projector.Shadow {
	r.Helper()
	sh, err := r.sink(mongosink.Options{}).Shadow(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	return sh
}

// An exclusive projection: its position moves with what was written, by one writer
// at a time.
func TestExclusive(t *testing.T) {
	r := newRig(t)
	one, two := r.open(mongosink.Options{}, exclusive()), r.open(mongosink.Options{}, exclusive())
	r.writeUpTo(one, 3, put("a", 3, `{}`))
	r.writeUpTo(one, 5, put("a", 5, `{}`))
	_, err := two.Write(t.Context(), projector.Batch{Changes: []projector.Change{put("a", 3, `{}`)}, UpTo: 3})
	wantError(t, "behind", err, projector.ErrFenced)
	if p, err := two.Open(t.Context(), exclusive()); err != nil || p != (projector.Position{Known: true, Seq: 5}) {
		t.Errorf("position %+v, %v", p, err)
	}
	r.writeUpTo(two, 8, put("a", 8, `{}`))
	_, err = one.Write(t.Context(), projector.Batch{Changes: []projector.Change{put("a", 7, `{}`)}, UpTo: 7})
	wantError(t, "another took over", err, projector.ErrFenced)
	_, err = two.Write(t.Context(), projector.Batch{UpTo: 6})
	wantError(t, "back", err, projector.ErrFenced)
	r.want("a@8")
	// A swap takes the position with it: who wrote to the old content begins again.
	sh := r.shadow(two, exclusive())
	r.writeUpTo(sh, 6, put("a", 6, `{}`))
	r.swap(sh)
	_, err = two.Write(t.Context(), projector.Batch{Changes: []projector.Change{put("b", 9, `{}`)}, UpTo: 9})
	wantError(t, "swapped", err, projector.ErrFenced)
	if p := r.position(exclusive()); p.Seq != 6 {
		t.Errorf("position %+v", p)
	}
	r.writeUpTo(sh, 8, put("a", 8, `{}`))
}

// Hard deletes are exact although nothing is left that says so: a replica that
// another has taken over from writes nothing.
func TestHardDelete(t *testing.T) {
	r := newRig(t)
	o := mongosink.Options{HardDelete: true, Indexes: []mongosink.Index{{Keys: bson.D{{Key: "u", Value: 1}}, Unique: true}}}
	src := exclusive()
	src.Every = true
	one, two := r.open(o, src), r.open(o, src)
	out := r.writeUpTo(one, 6, put("a", 1, `{"u": 1}`), put("b", 2, `{"u": 2}`), del("a", 3), put("c", 4, `{"u": 1}`), del("c", 5), put("c", 6, `{"u": 3}`))
	r.wantOutcome(out, 6, 0, 0)
	r.want(`b@2 {"u":2}`, `c@6 {"u":3}`)
	_, err := two.Write(t.Context(), projector.Batch{Changes: []projector.Change{put("a", 1, `{"u": 1}`)}, UpTo: 1})
	wantError(t, "taken over", err, projector.ErrFenced)
	r.want(`b@2 {"u":2}`, `c@6 {"u":3}`)
	// Rejected changes are left out, and the position stays where it was.
	out = r.writeUpTo(one, 10, put("d", 7, `{"u": 2}`), put("e", 8, `{"$x": 1}`), del("b", 9), put("f", 10, `{"u": 10}`))
	if len(out.Rejected) == 0 || out.Rejected[0].Index != 0 {
		t.Errorf("outcome %+v", out)
	}
	if p, err := two.Open(t.Context(), src); err != nil || p.Seq != 6 {
		t.Errorf("position %+v, %v", p, err)
	}
	out = r.writeUpTo(two, 10, del("b", 9), put("f", 10, `{"u": 10}`))
	if out.Applied+out.Stale != 2 || len(out.Rejected) != 0 {
		t.Errorf("outcome %+v", out)
	}
	r.want(`c@6 {"u":3}`, `f@10 {"u":10}`)
	if n := len(r.indexes()); n != 2 {
		t.Errorf("%d indexes, want no TTL", n)
	}
}

// A committed batch whose answer is lost, written again: it was committed.
func TestHardDeleteAnswerLost(t *testing.T) {
	r, standIn := newFaultRig(t)
	src := exclusive()
	src.Every = true
	o := mongosink.Options{HardDelete: true, Indexes: []mongosink.Index{{Keys: bson.D{{Key: "u", Value: 1}}, Unique: true}}}
	r.writeUpTo(r.open(o, src), 10, put("c", 6, `{"u": 3}`), put("f", 10, `{"u": 10}`))
	one := r.open(o, src)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var lost atomic.Int32
	remove := standIn.OnReply(func(c mongod.Command) error {
		if c.Name != "commitTransaction" {
			return nil
		}
		if lost.Add(1) == 2 { // the driver has asked again
			cancel()
		}
		return mongod.ErrCut
	})
	b := projector.Batch{Changes: []projector.Change{put("g", 11, `{}`), del("f", 12)}, UpTo: 12}
	if _, err := one.Write(ctx, b); err == nil {
		t.Error("no error")
	}
	remove()
	r.wantOutcome(r.writeUpTo(one, 12, b.Changes...), 0, 2, 0)
	r.want(`c@6 {"u":3}`, "g@11")
	r.wantOutcome(r.writeUpTo(one, 13, put("h", 13, `{}`)), 1, 0, 0)
}
