package changefeed_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/changefeed"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
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

// rig is a broker with a bus, a MongoDB with a client, and the topic of a feed.
type rig struct {
	*testing.T
	broker *embedded.Broker
	bus    *adapter.Bus
	server server
	client *mongo.Client
	coll   *mongo.Collection // of a client of the test's own
	topic  string
	mode   changefeed.Mode // of the feed; Auto unless the test says so
	shared bool            // the topic's stream is that of others, too
	alone  bool            // no other topic is in it yet, so that its settings can be changed
}

// server is a MongoDB.
type server interface {
	URI() string
	Database() string // of the test
}

// newRig takes a real MongoDB where there is one; see package mongotest.
func newRig(t *testing.T) *rig {
	t.Helper()
	return newRigOn(t, mongotest.Start(t))
}

func newRigOn(t *testing.T, s server) *rig {
	t.Helper()
	return newRigWith(t, s, bustest.Start(t, embedded.Config{}))
}

func newRigWith(t *testing.T, s server, broker *embedded.Broker) *rig {
	t.Helper()
	inParallel(t)
	r := &rig{T: t, broker: broker, server: s, topic: "things.changed"}
	r.bus = bustest.Open(t, r.broker, adapter.Config{})
	r.client = r.connect(2 * time.Second)
	if _, refuses := s.(elsewhere); !refuses { // else the first call of a feed has these two seconds to find the server
		r.until("the server is found", func() bool { return r.client.Ping(r.Context(), nil) == nil })
	}
	r.coll = r.connect(patience).Database(r.server.Database()).Collection("things")
	return r
}

// connect makes a client that looks for a server for that long: a feed is to find out soon
// that it is away, and what the test writes is to get through a fault.
func (r *rig) connect(selection time.Duration) *mongo.Client {
	r.Helper()
	client, err := mongo.Connect(options.Client().ApplyURI(r.server.URI()).
		SetServerSelectionTimeout(selection).SetHeartbeatInterval(500 * time.Millisecond))
	r.must(err)
	r.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := client.Disconnect(ctx); err != nil {
			r.Error(err)
		}
	})
	return client
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// options are those of the rig's feed, with short times.
func (r *rig) options() changefeed.Options {
	return changefeed.Options{
		Name: "f", Database: r.server.Database(), Collection: r.coll.Name(), Topic: r.topic, Mode: r.mode,
		MaxAwaitTime: 20 * time.Millisecond, ProgressInterval: 50 * time.Millisecond, LeaseTTL: 30 * time.Second,
		Backoff: jetbus.Backoff{Min: 10 * time.Millisecond, Max: 100 * time.Millisecond},
	}
}

// start starts a feed, waits until it follows, and stops it with the test.
func (r *rig) start(o changefeed.Options) *changefeed.Feed {
	r.Helper()
	f, err := changefeed.Start(r.Context(), r.bus, r.client, o)
	r.must(err)
	r.Cleanup(func() { // by a context that was canceled, as a program's is that is to stop
		if err := f.Stop(r.Context()); err != nil {
			r.Error(err)
		}
	})
	r.until("it streams", func() bool {
		s := f.Status().State
		return s == changefeed.Streaming || s == changefeed.Failed
	})
	return f
}

func (r *rig) stop(f *changefeed.Feed) {
	r.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := f.Stop(ctx); err != nil {
		r.Error(err)
	}
}

// published waits until a feed knows that all it has read is published, and up to where:
// what is in the topic is counted a moment later.
func (r *rig) published(f *changefeed.Feed) {
	r.Helper()
	r.until("it knows that all is published", func() bool {
		if f.Stats().InFlight > 0 {
			return false
		}
		events := r.events()
		return len(events) > 0 && f.Status().Token.Compare(changefeed.Token(events[len(events)-1].Headers[changefeed.HeaderToken])) >= 0
	})
}

// until waits for a condition.
func (r *rig) until(what string, is func() bool) {
	r.Helper()
	r.untilEvery(5*time.Millisecond, what, is)
}

// rarely is how often a test looks at what is dear to look at, and comes late or stays.
const rarely = 50 * time.Millisecond

// untilEvery waits for a condition that is looked at that often.
func (r *rig) untilEvery(interval time.Duration, what string, is func() bool) {
	r.Helper()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	late := time.NewTimer(patience)
	defer late.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-late.C:
			r.Fatalf("after %v it is not so that %s", patience, what)
		}
	}
}

// ended waits for a feed to end, and returns why.
func (r *rig) ended(f *changefeed.Feed, want error) {
	r.Helper()
	select {
	case <-f.Done():
	case <-time.After(patience):
		r.Fatalf("the feed has not ended: %+v", f.Status())
	}
	if !errors.Is(f.Err(), want) || f.Status().State != changefeed.Failed || f.Ready() == nil {
		r.Errorf("ended with %v (%+v), want %v", f.Err(), f.Status(), want)
	}
}

// events are what the topic holds.
func (r *rig) events() (out []jetbus.Event) {
	r.Helper()
	for e, err := range r.bus.Scan(r.Context(), r.topic, jetbus.ScanQuery{}) {
		r.must(err)
		out = append(out, e)
	}
	return out
}

// ops lists the topic as "insert a, update a, drop".
func (r *rig) ops() string {
	r.Helper()
	var out []string
	for _, e := range r.events() {
		out = append(out, strings.TrimSpace(e.Headers[changefeed.HeaderOp]+" "+e.Key))
	}
	return strings.Join(out, ", ")
}

// wants waits until the topic holds what ops lists.
func (r *rig) wants(want string) {
	r.Helper()
	var got string
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		if got = r.ops(); got == want {
			return
		}
		select {
		case <-tick.C:
		case <-late.C:
			r.Fatalf("the topic holds\n%s\nwant\n%s", got, want)
		}
	}
}

func (r *rig) insert(ids ...string) {
	r.Helper()
	for _, id := range ids {
		_, err := r.coll.InsertOne(r.Context(), bson.M{"_id": id, "n": 0})
		r.must(err)
		r.neighbor(id)
	}
}

// insertMany inserts all at once, without a neighbor.
func (r *rig) insertMany(ids []string) {
	r.Helper()
	docs := make([]any, len(ids))
	for i, id := range ids {
		docs[i] = bson.M{"_id": id, "n": 0}
	}
	_, err := r.coll.InsertMany(r.Context(), docs)
	r.must(err)
}

// neighbor publishes to another topic of the stream, if there is one.
func (r *rig) neighbor(ids ...string) {
	r.Helper()
	for _, id := range ids {
		if r.shared && !r.alone {
			_, err := r.bus.Publish(r.Context(), jetbus.Event{Topic: neighborTopic, Payload: fmt.Appendf(nil, "%q", id)})
			r.must(err)
		}
	}
}

// neighborTopic is in the stream of the rig's topic, where that is shared.
const neighborTopic = "neighbors.talk"

// eachMode runs f with the topic in a stream of its own, and in one with another
// topic for the modes that are for that.
func eachMode(t *testing.T, f func(r *rig)) {
	t.Helper()
	eachModeWith(t, false, jetbus.TopicConfig{}, f)
}

func eachModeWith(t *testing.T, alone bool, c jetbus.TopicConfig, f func(r *rig)) {
	t.Helper()
	for _, mode := range []changefeed.Mode{changefeed.Chain, changefeed.Atomic, changefeed.Serial} {
		t.Run(string(mode), func(t *testing.T) {
			r := newRig(t)
			r.mode, r.shared, r.alone = mode, mode != changefeed.Chain, alone
			if r.shared || c != (jetbus.TopicConfig{}) {
				r.declare(c)
			}
			f(r)
		})
	}
}

// declare declares the rig's topic, and its neighbor where there is one.
func (r *rig) declare(c jetbus.TopicConfig) {
	r.Helper()
	c.Name = r.topic
	if r.shared {
		c.Stream = "SHARED"
	}
	_, err := r.bus.EnsureTopic(r.Context(), c)
	r.must(err)
	if r.shared && !r.alone {
		c.Name = neighborTopic
		_, err := r.bus.EnsureTopic(r.Context(), c)
		r.must(err)
	}
}

func (r *rig) update(id string, n int) {
	r.Helper()
	_, err := r.coll.UpdateByID(r.Context(), id, bson.M{"$set": bson.M{"n": n}})
	r.must(err)
}

func (r *rig) remove(id string) {
	r.Helper()
	_, err := r.coll.DeleteOne(r.Context(), bson.M{"_id": id})
	r.must(err)
}

// inserts is what ops lists for a number of inserts.
func inserts(ids []string) string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = "insert " + id
	}
	return strings.Join(out, ", ")
}

// ids are n names that sort in their order.
func ids(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s%05d", prefix, i)
	}
	return out
}

// inOrder fails if the events are not in the order of their tokens, or one is there twice.
func (r *rig) inOrder() {
	r.Helper()
	seen := map[string]bool{}
	var last changefeed.Token
	for _, e := range r.events() {
		token := changefeed.Token(e.Headers[changefeed.HeaderToken])
		if seen[e.ID] || token.Compare(last) < 0 {
			r.Errorf("event %d (%s) is there twice or out of order", e.Seq, e.ID)
		}
		seen[e.ID], last = true, token
	}
}

// firstError keeps the first error of other goroutines.
type firstError struct {
	mu  sync.Mutex
	err error
}

func (f *firstError) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
}
