package changefeed_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/changefeed"
)

// swap renames a collection with these documents to the one that is watched, as a
// projection does that was rebuilt.
func (r *rig) swap(ids ...string) {
	r.Helper()
	shadow := r.client.Database(r.server.Database()).Collection("shadow")
	for _, id := range ids {
		_, err := shadow.InsertOne(r.Context(), bson.M{"_id": id, "n": 1})
		r.must(err)
	}
	from, to := r.server.Database()+".shadow", r.server.Database()+"."+r.coll.Name()
	r.must(r.client.Database("admin").RunCommand(r.Context(), bson.D{
		{Key: "renameCollection", Value: from}, {Key: "to", Value: to}, {Key: "dropTarget", Value: true},
	}).Err())
}

// hasCopy waits until the topic ends with the copy of these documents, behind a gap event.
func (r *rig) hasCopy(ids ...string) {
	r.Helper()
	ops := []string{"invalidate", changefeed.OpGap}
	for _, id := range ids {
		ops = append(ops, changefeed.OpCopy+" "+id)
	}
	want := strings.Join(append(ops, changefeed.OpCopied), ", ")
	r.until("the topic ends with "+want, func() bool { return strings.HasSuffix(r.ops(), want) })
}

func TestResyncAfterRename(t *testing.T) {
	eachMode(t, func(r *rig) {
		o := r.options()
		o.OnInvalidate = changefeed.Resync
		f := r.start(o)
		r.insert("a")
		r.wants("insert a")
		r.swap("x", "y")
		r.hasCopy("x", "y")
		r.insert("z")
		r.until("it goes on", func() bool { return strings.HasSuffix(r.ops(), ", copied, insert z") })
		if n := f.Stats().Gaps; n != 1 {
			t.Errorf("%d gaps", n)
		}
		r.swap("p")
		r.hasCopy("p")
		r.inOrder()
	})
}

// untilGap is a bus on which nothing is stored from the first gap event on.
type untilGap struct {
	changefeed.Backend
	came atomic.Bool
}

func (b *untilGap) PublishBatch(ctx context.Context, events []jetbus.Event, o jetbus.BatchOptions) ([]jetbus.Receipt, error) {
	at := slices.IndexFunc(events, func(e jetbus.Event) bool { return e.Headers[changefeed.HeaderOp] == changefeed.OpGap })
	if at < 0 {
		return b.Backend.PublishBatch(ctx, events, o)
	}
	receipts, err := b.Backend.PublishBatch(ctx, events[:at], o)
	b.came.Store(true)
	return receipts, errors.Join(err, jetbus.ErrUnavailable)
}

// The feed is stopped between the event for which it copies again and the gap event.
func TestResyncAfterCrash(t *testing.T) {
	r := newRig(t)
	o := r.options()
	o.OnInvalidate, o.TokenStore = changefeed.Resync, forgetful{}
	b := &untilGap{Backend: r.bus}
	f := r.startOn(b, o)
	r.until("it streams", func() bool { return f.Status().State == changefeed.Streaming })
	r.insert("a")
	r.wants("insert a")
	r.swap("x")
	r.until("the gap event has come", func() bool { return b.came.Load() && strings.HasSuffix(r.ops(), ", invalidate") })
	r.stop(f)
	r.start(o)
	r.hasCopy("x")
}

func TestResyncOfADatabase(t *testing.T) {
	r := newRig(t)
	o := r.options()
	o.OnInvalidate, o.Collection = changefeed.Resync, ""
	r.start(o)
	r.insert("a")
	r.wants("insert things/a")
	db := r.client.Database(r.server.Database())
	r.must(r.client.Database("admin").RunCommand(t.Context(), bson.D{
		{Key: "renameCollection", Value: db.Name() + ".things"}, {Key: "to", Value: db.Name() + ".others"},
	}).Err())
	r.wants("insert things/a, rename, gap, copy others/a, copied")
}

// Other collections are busy, and the position of this one is not saved.
func TestLagOfAQuietFeed(t *testing.T) {
	r := newRig(t)
	o := r.options()
	o.ProgressInterval = time.Hour
	f := r.start(o)
	r.insert("a")
	r.wants("insert a")
	r.published(f)
	other := r.client.Database(r.server.Database()).Collection("others")
	began := time.Now()
	r.until("cluster time goes on", func() bool {
		_, err := other.InsertOne(t.Context(), bson.M{"n": 1})
		r.must(err)
		return time.Since(began) > 3*time.Second
	})
	was := f.Status().Token
	r.until("it is where MongoDB is", func() bool { return f.Status().Lag == 0 })
	if f.Status().Token != was {
		t.Errorf("the position was saved")
	}
}

// MongoDB has the _id in the resume token, which may be too long for a header; the
// stand-in has not. The feed goes on.
func TestLongToken(t *testing.T) {
	for _, size := range []int{3000, 9000, 200_000} {
		r := newRig(t)
		o := r.options()
		f := r.start(o)
		r.insert("a", strings.Repeat("k", size), "b")
		r.until("all are published, or a dead letter", func() bool { return f.Stats().Published+f.Stats().Poisoned == 3 })
		r.dead(int(f.Stats().Poisoned)) //nolint:gosec // 0 or 1
		r.stop(f)
		f = r.start(o)
		r.insert("c")
		r.until("it goes on", func() bool { return strings.HasSuffix(r.ops(), "insert b, insert c") })
		if f.Err() != nil {
			t.Error(f.Err())
		}
	}
}

// What Map has made of a document is not what the document's key is.
func TestKeyOnlyBehindMap(t *testing.T) {
	r := newRig(t)
	o := r.options()
	o.OnOversize = changefeed.KeyOnly
	o.Map = func(_ *changefeed.Change, e *jetbus.Event) error {
		e.Payload, e.Headers[jetbus.HeaderContentType] = []byte(strings.Repeat("x", 2<<20)), "text/plain"
		return nil
	}
	r.start(o)
	r.insert("a")
	r.wants("insert a")
	e := r.events()[0]
	if string(e.Payload) != `{"_id":"a"}` || e.ContentType() != "application/json" || e.Headers[changefeed.HeaderOmitted] != "oversize" {
		t.Errorf("%s, %v", e.Payload, e.Headers)
	}
}
