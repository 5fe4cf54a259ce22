package changefeed_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/changefeed"
)

var errRefused = errors.New("refused")

func newSessionContext(ctx context.Context, s *mongo.Session) context.Context {
	return mongo.NewSessionContext(ctx, s)
}

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
}

// state folds the topic to the last payload of each key.
func (r *rig) state() map[string]string {
	out := map[string]string{}
	for _, e := range r.events() {
		if e.Key == "" {
			continue
		}
		if string(e.Payload) == "null" {
			delete(out, e.Key)
			continue
		}
		out[e.Key] = string(e.Payload)
	}
	return out
}

// same waits until the topic's state is the collection's.
func (r *rig) same() {
	r.Helper()
	r.untilEvery(rarely, "the topic's state is the collection's", func() bool {
		cursor, err := r.coll.Find(r.Context(), bson.M{})
		r.must(err)
		var docs []bson.Raw
		r.must(cursor.All(r.Context(), &docs))
		state := r.state()
		for _, doc := range docs {
			text, err := bson.MarshalExtJSON(doc, false, false)
			r.must(err)
			if state[changefeed.Key(doc.Lookup("_id"))] != string(text) {
				return false
			}
		}
		return len(state) == len(docs)
	})
}

// The feed is stopped again and again in the middle of its copy.
func TestA7Row25CrashInCopy(t *testing.T) {
	r := newRig(t)
	all := ids("k", 200)
	r.insert(all...)
	o := r.options()
	o.Start, o.CopyBatch, o.TokenStore = changefeed.FromCopy(), 10, forgetful{}
	for n := 20; n < 120; n += 25 {
		f := r.startOn(r.bus, o)
		r.until("it has copied some", func() bool { return len(r.events()) >= n })
		r.stop(f)
		r.update(all[n/2], n)
	}
	r.published(r.start(o))
	r.same()
	r.inOrder()
	copies := map[string]int{}
	for _, e := range r.events() {
		if e.Headers[changefeed.HeaderOp] == changefeed.OpCopy {
			copies[e.Key]++
		}
	}
	for _, id := range all {
		if copies[id] != 1 {
			t.Errorf("%s was copied %d times", id, copies[id])
		}
	}
	if n := strings.Count(r.ops(), changefeed.OpCopied); n != 1 {
		t.Errorf("%d copies are complete", n)
	}
}

// Writes go on during the copy, and the history is no longer than it: what the
// copy was begun with is gone before it ends.
func TestA7Row26WritesDuringCopy(t *testing.T) {
	r := newStandInRig(t)
	all := ids("k", 300)
	r.insert(all...)
	o := r.options()
	o.Start, o.CopyBatch = changefeed.FromCopy(), 10
	f := r.startOn(r.bus, o)
	r.until("the copy has begun", func() bool { return len(r.events()) > 0 }) // what was written before is in it alone
	for i := range 60 {
		r.update(all[(i*37)%300], i+1)
		if i%10 == 5 {
			r.remove(all[(i*11)%300])
			r.insert(fmt.Sprint("new", i))
		}
		if i == 40 {
			want := fmt.Sprintf(`{"_id":%q,"n":%d}`, all[(i*37)%300], i+1)
			r.until("the change stream has come that far", func() bool {
				for _, e := range r.events() {
					if string(e.Payload) == want && e.Headers[changefeed.HeaderOp] == "update" {
						return true
					}
				}
				return f.Err() != nil
			})
			r.standIn().TruncateOplog()
		}
	}
	r.same()
	r.until("it streams", func() bool { return f.Status().State == changefeed.Streaming })
	r.inOrder()
	if f.Err() != nil || f.Stats().Gaps > 0 {
		t.Errorf("%v, stats %+v", f.Err(), f.Stats())
	}
}

// A copy has its turns however many changes there are.
func TestCopyOfABusyCollection(t *testing.T) {
	r := newRig(t)
	r.insertMany(ids("k", 40))
	ctx, stop := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	defer writing.Wait()
	defer stop()
	for range 2 {
		writing.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				_, _ = r.coll.UpdateByID(ctx, "k00000", bson.M{"$set": bson.M{"n": n}}) // the last one is cut short
			}
		})
	}
	o := r.options()
	o.Start, o.CopyBatch = changefeed.FromCopy(), 10
	f := r.startOn(r.bus, o)
	r.until("it has copied all", func() bool { return f.Status().State == changefeed.Streaming })
	stop()
	writing.Wait()
	r.same()
	if n := f.Stats().Copied; n != 40 || f.Err() != nil {
		t.Errorf("%d copied, %v", n, f.Err())
	}
}

// A document of the copy has every change up to its cluster time, and is never older
// than what the topic holds of it.
func TestA7Row27CopyIsNeverOlder(t *testing.T) {
	r := newRig(t)
	all := ids("k", 100)
	r.insert(all...)
	o := r.options()
	o.Start, o.CopyBatch = changefeed.FromCopy(), 5
	r.startOn(r.bus, o)
	for i := range 100 {
		r.update(all[99-i], i+1)
	}
	r.same()
	seen := map[string]int{}
	for _, e := range r.events() {
		if e.Headers[changefeed.HeaderOp] != changefeed.OpCopy {
			if e.Headers[changefeed.HeaderOp] == "update" && string(e.Payload) != "" {
				seen[e.Key]++
			}
			continue
		}
		if e.Headers[changefeed.HeaderClusterTime] == "" || e.Headers[changefeed.HeaderCopy] == "" {
			t.Errorf("headers %v", e.Headers)
		}
		if seen[e.Key] > 0 && strings.Contains(string(e.Payload), `"n":0`) {
			t.Errorf("%s was copied as it was before an update that is in the topic: %s", e.Key, e.Payload)
		}
	}
}

// Ids of all types are copied, each under a key of its own.
func TestA7Row28KeysOfAllTypes(t *testing.T) {
	r := newRig(t)
	oid, err := bson.ObjectIDFromHex("507f1f77bcf86cd799439011")
	r.must(err)
	list := []any{
		1, "1", int64(1) << 40, 1.5, true, "true", nil, "null", oid, oid.Hex(),
		bson.D{{Key: "a", Value: 1}},
		`{"a":{"$numberInt":"1"}}`,
		"", `""`, "a b", "new\nline", `"new\nline"`, strings.Repeat("long", 100), "sha256:x", "日本", bson.NewDateTimeFromTime(time.Unix(1, 0)),
		bson.Timestamp{T: 1, I: 2},
		bson.Binary{Subtype: 4, Data: make([]byte, 16)},
		bson.MinKey{},
		math.NaN(),
		bson.JavaScript("f()"),
		bson.CodeWithScope{Code: "f()", Scope: bson.D{}},
		bson.MaxKey{},
		bson.D{{Key: "link", Value: bson.D{{Key: "$ref", Value: "c"}, {Key: "$id", Value: 1}}}},
		bson.D{{Key: "a\ufffd", Value: "\ufffd"}},
	}
	for _, id := range list {
		_, err := r.coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: id}})
		r.must(err)
	}
	o := r.options()
	o.Start, o.CopyBatch = changefeed.FromCopy(), 1
	f := r.start(o)
	r.published(f)
	if f.Err() != nil || len(r.events()) != len(list)+1 {
		t.Errorf("%v: %d events: %s", f.Err(), len(r.events()), r.ops())
	}
	r.same()
	for _, e := range r.events() {
		if e.Key != "" && jetbus.ValidKey(e.Key) != nil {
			t.Errorf("key %q", e.Key)
		}
	}
	if keys := r.state(); len(keys) != len(list) || keys["1"] != `{"_id":"1"}` || keys[`{"$numberInt":"1"}`] == "" || keys[oid.Hex()] == "" || keys[`"`+oid.Hex()+`"`] == "" {
		t.Errorf("%d keys: %v", len(keys), keys)
	}
}

func TestCopyOfADatabase(t *testing.T) {
	r := newRig(t)
	db := r.client.Database(r.server.Database())
	for _, name := range []string{"b", "a", "c"} {
		for i := range 3 {
			_, err := db.Collection(name).InsertOne(t.Context(), bson.M{"_id": i})
			r.must(err)
		}
	}
	o := r.options()
	o.Collection, o.Start, o.CopyBatch = "", changefeed.FromCopy(), 2
	r.start(o)
	r.until("all are copied", func() bool { return len(r.events()) == 10 })
	if s := r.state(); len(s) != 9 || s[`b/{"$numberInt":"2"}`] == "" {
		t.Errorf("state %v", s)
	}
}

// A projection writes what the feed would publish to the projection's own topic.
func TestA7Row29Loop(t *testing.T) {
	r := newRig(t)
	o := r.options()
	f := r.start(o)
	info, err := r.bus.TopicInfo(t.Context(), r.topic)
	r.must(err)
	_, err = r.coll.InsertOne(t.Context(), bson.M{"_id": "a", "_src": "EV_OTHER"})
	r.must(err)
	r.wants("insert a")
	_, err = r.coll.InsertOne(t.Context(), bson.M{"_id": "b", "_src": info.Stream})
	r.must(err)
	r.ended(f, changefeed.ErrLoop)
	r.wants("insert a")
	o.AllowLoop = true
	r.start(o)
	r.wants("insert a, insert b")
}

func TestA7Row30Shutdown(t *testing.T) {
	r := newRig(t)
	all := ids("k", 400)
	var failed firstError
	done := make(chan struct{})
	r.stop(r.start(r.options()))
	go func() {
		defer close(done)
		for _, id := range all {
			if _, err := r.coll.InsertOne(context.Background(), bson.M{"_id": id}); err != nil {
				failed.set(err)
			}
		}
	}()
	for range 6 {
		f := r.startOn(r.bus, r.options())
		r.until("it publishes", func() bool { return f.Stats().Published > 5 || len(r.events()) == len(all) })
		r.stop(f)
		r.stop(f) // twice is fine
		if f.Err() != nil {
			t.Error(f.Err())
		}
	}
	<-done
	r.must(failed.err)
	r.start(r.options())
	r.wants(inserts(all))
	r.inOrder()
}

// The topic is empty, and the server has forgotten what was in it.
func TestA7Row31EmptiedStream(t *testing.T) {
	r := newRig(t)
	_, err := r.bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: r.topic, Retention: 200 * time.Millisecond, DuplicateWindow: 100 * time.Millisecond})
	r.must(err)
	o := r.options()
	f := r.start(o)
	for i, id := range []string{"a", "b", "c"} {
		r.insert(id)
		r.until("it is published", func() bool {
			return f.Stats().Published == uint64(i+1) && f.Stats().InFlight == 0 && f.Status().Lag == 0
		})
	}
	r.until("the topic is empty", func() bool { return len(r.events()) == 0 })
	r.must(r.broker.Restart(t.Context()))
	_, err = r.bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: r.topic, Retention: time.Hour, DuplicateWindow: 100 * time.Millisecond})
	r.must(err)
	r.insert("d")
	r.wants("insert d")
	r.stop(f)
	f = r.start(o)
	r.insert("e")
	r.wants("insert d, insert e")
	if f.Stats().Duplicates > 0 || f.Err() != nil {
		t.Errorf("stats %+v", f.Stats())
	}
}

// A document that could not be looked at is where the copy goes on, also behind ones that
// were filtered out.
func TestCopyGoesOnAtWhatItDidNotTake(t *testing.T) {
	r := newRig(t)
	r.insertMany([]string{"a", "b", "c", "d"})
	o := r.options()
	o.Start = changefeed.FromCopy()
	o.Filter = func(c *changefeed.Change) bool {
		if c.Key == "c" {
			panic("a filter that is wrong")
		}
		return false
	}
	f := r.start(o)
	r.until("it ends", func() bool { return f.Status().State == changefeed.Failed })
	o.Filter = nil
	r.start(o)
	r.wants("copy c, copy d, copied")
}
