package mongosink_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	mongoevent "go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus/embedded/mongod"
	"github.com/seed-63e9a637/jetbus/projector"
	"github.com/seed-63e9a637/jetbus/projector/mongosink"
)

// beforeMoving opens a sink of "things" that calls a function, once, when it has
// written the documents of a batch, before it moves its position.
func (r *rig) beforeMoving(src projector.Source, call func()) *mongosink.Sink {
	r.Helper()
	var once sync.Once
	armed := false
	monitor := &mongoevent.CommandMonitor{Started: func(_ context.Context, e *mongoevent.CommandStartedEvent) {
		if armed && e.CommandName == "update" && e.Command.Lookup("update").StringValue() == "_projections" {
			once.Do(call)
		}
	}}
	s, err := mongosink.New(r.client(options.Client().SetMonitor(monitor)).Database(r.db.Name()), mongosink.Options{Collection: "things", Timeout: patience})
	if err == nil {
		_, err = s.Open(r.Context(), src)
	}
	if err != nil {
		r.Fatal(err)
	}
	armed = true
	return s
}

// Row 12: the replica of an exclusive projection has written a batch to the old
// collection when a rebuild that had got as far as it swaps. The new collection
// lacks the batch: the replica must not move the position past it.
func TestA8Row12SwapUnderAnExclusiveBatch(t *testing.T) {
	r := newRig(t)
	var sh projector.Shadow
	live := r.beforeMoving(exclusive(), func() { r.swap(sh) })
	if _, err := r.open(mongosink.Options{}, exclusive()).Write(t.Context(), projector.Batch{Changes: []projector.Change{put("a", 1, `{}`)}, UpTo: 1}); err != nil {
		t.Fatal(err)
	}
	if p, err := live.Open(t.Context(), exclusive()); err != nil || p.Seq != 1 {
		t.Fatal(p, err)
	}
	sh = r.shadow(r.sink(mongosink.Options{}), exclusive())
	r.writeUpTo(sh, 1, put("a", 1, `{}`))
	_, err := live.Write(t.Context(), projector.Batch{Changes: []projector.Change{put("b", 2, `{}`)}, UpTo: 2})
	wantError(t, "a batch of the old collection", err, projector.ErrFenced)
	p, err := live.Open(t.Context(), exclusive())
	if err != nil || p.Seq != 1 {
		t.Fatalf("position %+v, %v", p, err)
	}
	r.writeUpTo(live, 2, put("b", 2, `{}`))
	r.want("a@1", "b@2")
}

// Row 12: a rebuild dies when it has swapped and not yet added what the replicas
// wrote to the old collection last. No replica that runs may say that the new one
// is complete: it is filled again.
func TestA8Row12CrashBeforeClosing(t *testing.T) {
	r := newRig(t)
	live := r.open(mongosink.Options{}, source())
	r.writeUpTo(live, 1, put("a", 1, `{}`))
	sh := r.shadow(live, source())
	r.writeUpTo(sh, 1, put("a", 1, `{}`))
	r.write(live, put("b", 2, `{}`)) // acknowledged
	r.swap(sh)
	r.writeUpTo(live, 3, put("c", 3, `{}`)) // as far as the group has got
	if p := r.position(source()); p.Known {
		t.Errorf("position %+v, and b is missing", p)
	}
	r.writeUpTo(sh, 3, put("b", 2, `{}`), put("c", 3, `{}`))
	r.writeUpTo(live, 4, put("d", 4, `{}`))
	if p := r.position(source()); p.Seq != 4 {
		t.Errorf("position %+v", p)
	}
	r.want("a@1", "b@2", "c@3", "d@4")
}

// The same with a replica that was filling the old collection when it was swapped.
func TestA8Row12SwapUnderAFill(t *testing.T) {
	r := newRig(t)
	var sh projector.Shadow
	live := r.beforeMoving(source(), func() { r.swap(sh) })
	sh = r.shadow(r.sink(mongosink.Options{}), source())
	r.writeUpTo(sh, 1, put("a", 1, `{}`))
	r.writeUpTo(live, 2, put("a", 1, `{}`), put("b", 2, `{}`))
	if p := r.position(source()); p.Known {
		t.Errorf("position %+v, and b is missing", p)
	}
}

// isSwap reports whether a command renames the collection of a rebuild. The check that the server
// can rename at all has no dropTarget.
func isSwap(c mongod.Command) bool {
	return c.Name == "renameCollection" && slices.ContainsFunc(c.Body, func(e bson.E) bool { return e.Key == "dropTarget" })
}

// Row 12: a rebuild is canceled while its rename waits at the server, which carries it out
// all the same, just before what removes the shadow or behind it. Whoever removes that,
// the rebuild itself or the next one, leaves a position that is the content's.
func TestA8Row12LateRename(t *testing.T) {
	for _, next := range []bool{false, true} {
		for _, behind := range []bool{false, true} {
			t.Run(fmt.Sprintf("next %v, behind %v", next, behind), func(t *testing.T) {
				r, standIn := newFaultRig(t)
				src := exclusive()
				live := r.open(mongosink.Options{}, src)
				r.writeUpTo(live, 50, put("old", 50, `{}`))
				sh := r.shadow(live, src)
				r.writeUpTo(sh, 7, put("new", 7, `{}`))

				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				may, done := make(chan struct{}), make(chan struct{})
				carryOut := sync.OnceFunc(func() { close(may) })
				defer carryOut() // the server could not stop
				standIn.OnCommand(func(c mongod.Command) error {
					switch {
					case isSwap(c):
						cancel()
						<-may
					case c.Name == "drop" && !behind:
						carryOut()
						<-done
					}
					return nil
				})
				standIn.OnReply(func(c mongod.Command) error {
					if isSwap(c) {
						close(done)
					}
					return nil
				})
				if err := sh.Swap(ctx); err == nil || ctx.Err() == nil {
					t.Fatalf("the swap was not canceled: %v", err)
				}
				if next {
					sh = r.shadow(r.sink(mongosink.Options{}), src)
				}
				if err := sh.Drop(t.Context()); err != nil {
					t.Fatal(err)
				}
				carryOut()
				<-done

				at, doc := uint64(7), "new@7"
				if behind {
					at, doc = 50, "old@50"
				}
				if p := r.position(src); p != (projector.Position{Known: true, Seq: at}) {
					t.Errorf("position %+v, want %d", p, at)
				}
				r.want(doc)
				r.wantClean()
			})
		}
	}
}
