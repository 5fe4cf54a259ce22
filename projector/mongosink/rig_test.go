package mongosink_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/embedded/mongod"
	"github.com/seed-63e9a637/jetbus/embedded/mongod/mongotest"
	"github.com/seed-63e9a637/jetbus/projector"
	"github.com/seed-63e9a637/jetbus/projector/mongosink"
)

// A rig is a server, a database, and a sink for its collection "things".
type rig struct {
	testing.TB
	srv *mongotest.Server
	db  *mongo.Database
}

// running are the tests that run beside others: most of the time they wait.
var running sync.Map

// alone has a test run while no other does.
func alone(t *testing.T) { running.Store(t, true) }

// beside has a test run beside others, if it does not run alone.
func beside(t testing.TB) {
	if t, ok := t.(*testing.T); ok {
		if _, already := running.LoadOrStore(t, true); !already {
			t.Parallel()
		}
	}
}

func newRig(t testing.TB) *rig {
	t.Helper()
	beside(t)
	return rigOn(t, mongotest.Start(t))
}

// newFaultRig is a rig whose server does what it is told.
func newFaultRig(t testing.TB) (*rig, *mongod.Server) {
	t.Helper()
	beside(t)
	srv := mongotest.StartStandIn(t)
	return rigOn(t, srv), srv.StandIn()
}

func rigOn(t testing.TB, srv *mongotest.Server) *rig {
	t.Helper()
	r := &rig{TB: t, srv: srv}
	r.db = r.client().Database(srv.Database())
	return r
}

// client connects a client that ends with the test.
func (r *rig) client(o ...*options.ClientOptions) *mongo.Client {
	r.Helper()
	return connect(r.TB, r.srv.URI(), o...)
}

func connect(t testing.TB, uri string, o ...*options.ClientOptions) *mongo.Client {
	t.Helper()
	// As often as the driver lets: a server that is back is to be noticed.
	all := append([]*options.ClientOptions{options.Client().ApplyURI(uri).SetHeartbeatInterval(500 * time.Millisecond)}, o...)
	c, err := mongo.Connect(all...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		_ = c.Disconnect(ctx) // the server may be gone on purpose
	})
	return c
}

// created is when the stream of the tests was made.
var created = time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)

func source() projector.Source {
	return projector.Source{Projection: "p", Topic: "thing.changed", Stream: "EV_thing.changed", Created: created}
}

func exclusive() projector.Source {
	s := source()
	s.Exclusive = true
	return s
}

// patience is the Timeout of sinks whose calls are to succeed, however busy the machine.
const patience = 5 * time.Minute

// sink makes a sink; the collection is "things" where the options name none.
func (r *rig) sink(o mongosink.Options) *mongosink.Sink {
	r.Helper()
	if o.Collection == "" {
		o.Collection = "things"
	}
	o.Timeout = cmp.Or(o.Timeout, patience)
	s, err := mongosink.New(r.db, o)
	if err != nil {
		r.Fatal(err)
	}
	return s
}

// open makes a sink and opens it.
func (r *rig) open(o mongosink.Options, src projector.Source) *mongosink.Sink {
	r.Helper()
	s := r.sink(o)
	if _, err := s.Open(r.Context(), src); err != nil {
		r.Fatal(err)
	}
	return s
}

// put is a change with a JSON state.
func put(key string, seq uint64, state string) projector.Change {
	return projector.Change{Key: key, Doc: json.RawMessage(state), Event: event(key, seq)}
}

// del is a change that deletes its key.
func del(key string, seq uint64) projector.Change {
	return projector.Change{Key: key, Deleted: true, Event: event(key, seq)}
}

// versioned is a change with a version.
func versioned(c projector.Change, v int64) projector.Change {
	c.Version, c.Versioned = v, true
	return c
}

func event(key string, seq uint64) jetbus.Event {
	return jetbus.Event{Key: key, Seq: seq, Topic: "thing.changed", Time: created.Add(time.Duration(seq) * time.Second)}
}

// write writes changes, which must work.
func (r *rig) write(s projector.Sink, changes ...projector.Change) projector.Outcome {
	r.Helper()
	return r.writeUpTo(s, 0, changes...)
}

func (r *rig) writeUpTo(s projector.Sink, upTo uint64, changes ...projector.Change) projector.Outcome {
	r.Helper()
	out, err := s.Write(r.Context(), projector.Batch{Changes: changes, UpTo: upTo})
	if err != nil {
		r.Fatal(err)
	}
	if !slices.IsSortedFunc(out.Rejected, func(a, b projector.Rejection) int { return cmp.Compare(a.Index, b.Index) }) {
		r.Errorf("rejections are not in the order of their changes, as a sink's are to be: %+v", out.Rejected)
	}
	return out
}

// wantOutcome compares the counts of an outcome; raced is left out.
func (r *rig) wantOutcome(got projector.Outcome, applied, stale, rejected int) {
	r.Helper()
	if got.Applied != applied || got.Stale != stale || len(got.Rejected) != rejected {
		r.Errorf("outcome %+v, want %d applied, %d stale, %d rejected", got, applied, stale, rejected)
	}
}

// docs are the documents of a collection by _id.
func (r *rig) docs(collection string, filter bson.D) []bson.M {
	r.Helper()
	cur, err := r.db.Collection(collection).Find(r.Context(), filter, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
	if err != nil {
		r.Fatal(err)
	}
	var out []bson.M
	if err := cur.All(r.Context(), &out); err != nil {
		r.Fatal(err)
	}
	return out
}

// show is what tests say of a document: its key, the sequence, the version if there
// is one, and the fields of the state or that it is deleted.
func show(d bson.M) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v@%v", d["_id"], d["_seq"])
	if v, ok := d["_v"]; ok {
		fmt.Fprintf(&b, "v%v", v)
	}
	if d["_deleted"] == true {
		b.WriteString(" deleted")
	}
	state := bson.M{}
	for k, v := range d {
		if !strings.HasPrefix(k, "_") {
			state[k] = v
		}
	}
	if len(state) > 0 {
		j, err := json.Marshal(state)
		if err != nil {
			return err.Error()
		}
		fmt.Fprintf(&b, " %s", j)
	}
	return b.String()
}

// want compares all documents of the collection "things" with what show says.
func (r *rig) want(want ...string) {
	r.Helper()
	r.wantIn("things", want...)
}

func (r *rig) wantIn(collection string, want ...string) {
	r.Helper()
	docs := r.docs(collection, bson.D{})
	if len(docs) != len(want) {
		r.Fatalf("%d documents %v, want %v", len(docs), docs, want)
	}
	for i, d := range docs {
		if show(d) != want[i] {
			r.Errorf("document %d is %s, want %s", i, show(d), want[i])
		}
	}
}

// insert puts documents there that no sink has written.
func (r *rig) insert(collection string, docs ...any) {
	r.Helper()
	if _, err := r.db.Collection(collection).InsertMany(r.Context(), docs); err != nil {
		r.Fatal(err)
	}
}

// startStandIn starts a stand-in with credentials, which no other server can be
// asked for.
func startStandIn(t testing.TB, user, password string) *mongod.Server {
	t.Helper()
	srv, err := mongod.Start(t.Context(), mongod.Config{Username: user, Password: password})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Stop)
	return srv
}
