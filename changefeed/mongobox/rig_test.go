package mongobox_test

import (
	"context"
	"errors"
	"flag"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/changefeed/mongobox"
	"github.com/seed-63e9a637/jetbus/embedded/mongod"
	"github.com/seed-63e9a637/jetbus/embedded/mongod/mongotest"
	"github.com/seed-63e9a637/jetbus/internal/leaktest"
)

// running are the tests that run beside others: most of the time they wait.
var running sync.Map

// inParallel is t.Parallel for tests with more than one rig.
func inParallel(t *testing.T) {
	t.Helper()
	if _, already := running.LoadOrStore(t, true); !already {
		t.Parallel()
	}
}

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	leaktest.Main(m)
}

// patience bounds what a test waits for: it matters only where that does not happen.
const patience = 2 * time.Minute

type ids = []string

// rig is a MongoDB with an outbox.
type rig struct {
	*testing.T
	client *mongo.Client
	db     *mongo.Database
	coll   *mongo.Collection
	box    *mongobox.Box
}

// newRig is for any server there is.
func newRig(t *testing.T) *rig {
	t.Helper()
	server := mongotest.Start(t)
	return newRigOn(t, server.URI(), server.Database())
}

// newFaultyRig is for the faults of the stand-in.
func newFaultyRig(t *testing.T) (*rig, *mongod.Server) {
	t.Helper()
	server, err := mongod.Start(t.Context(), mongod.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	return newRigOn(t, server.URI(), "shop"), server
}

func newRigOn(t *testing.T, uri, db string) *rig {
	t.Helper()
	inParallel(t)
	r := &rig{T: t, client: connect(t, uri)}
	r.db = r.client.Database(db)
	r.coll = r.db.Collection("outbox")
	r.box = r.open(mongobox.Options{})
	return r
}

func connect(t *testing.T, uri string) *mongo.Client {
	t.Helper()
	client, err := mongo.Connect(options.Client().ApplyURI(uri).SetHeartbeatInterval(500 * time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Disconnect(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return client
}

func (r *rig) open(o mongobox.Options) *mongobox.Box {
	r.Helper()
	b, err := mongobox.Open(r.Context(), r.coll, o)
	r.ok(err)
	return b
}

func (r *rig) ok(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) want(what string, got, want any) {
	r.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		r.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func (r *rig) wantErr(what string, err, want error) {
	r.Helper()
	if !errors.Is(err, want) {
		r.Errorf("%s: got error %v, want one that is %q", what, err, want)
	}
}

// until waits for a condition.
func (r *rig) until(what string, is func() bool) {
	r.Helper()
	late := time.NewTimer(patience)
	defer late.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-late.C:
			r.Fatalf("after %v it is not so that %s", patience, what)
		}
	}
}

// order is an event of the topic orders.
func order(id, key string) jetbus.Event {
	return jetbus.Event{ID: id, Topic: "orders", Key: key, Payload: []byte(`{"id":"` + id + `"}`)}
}

// begin starts a transaction, and returns a context in it.
func (r *rig) begin() (context.Context, *mongo.Session) {
	r.Helper()
	s, err := r.client.StartSession()
	r.ok(err)
	r.Cleanup(func() { s.EndSession(context.Background()) })
	r.ok(s.StartTransaction())
	return mongo.NewSessionContext(r.Context(), s), s
}

// claim takes rows and returns their ids.
func (r *rig) claim(b *mongobox.Box, n int, lease time.Duration) (got ids, rows []jetbus.OutboxRow) {
	r.Helper()
	rows, err := b.Claim(r.Context(), jetbus.ClaimOptions{Max: n, Lease: lease})
	r.ok(err)
	return idsOf(rows), rows
}

func idsOf(rows []jetbus.OutboxRow) ids {
	got := ids{}
	for i := range rows {
		got = append(got, rows[i].Event.ID)
	}
	return got
}

// list returns the ids of the rows, in their order.
func (r *rig) list(q mongobox.Query) ids {
	r.Helper()
	rows, err := r.box.List(r.Context(), q)
	r.ok(err)
	got := ids{}
	for i := range rows {
		got = append(got, rows[i].Event.ID)
	}
	return got
}

func (r *rig) pending() int {
	r.Helper()
	s, err := r.box.OutboxStats(r.Context())
	r.ok(err)
	return s.Pending
}

// run calls f, which ends with its context, until the end of the test or the call of stop.
func (r *rig) run(f func(ctx context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			r.Error(err)
		}
	})
	r.Cleanup(stop)
	return stop
}

func doc(text string) bson.D {
	var d bson.D
	if err := bson.UnmarshalExtJSON([]byte(text), false, &d); err != nil {
		panic(err)
	}
	return d
}
