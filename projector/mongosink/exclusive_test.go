package mongosink_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	mongoevent "go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/projector"
	"github.com/seed-63e9a637/jetbus/projector/mongosink"
)

// stage is a broker with a topic "orders", beside a server and a database.
type stage struct {
	*counting
	broker *embedded.Broker
	bus    *adapter.Bus
}

func newStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{counting: newCounting(t), broker: bustest.Start(t, embedded.Config{})}
	s.bus = bustest.Open(t, s.broker, adapter.Config{Timeout: time.Minute})
	if _, err := s.bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "orders"}); err != nil {
		t.Fatal(err)
	}
	return s
}

// publish stores the events of the counters.
func (s *stage) publish(first, last uint64) {
	s.Helper()
	var events []jetbus.Event
	for seq := first; seq <= last; seq++ {
		events = append(events, jetbus.Event{Topic: "orders", Key: fmt.Sprint("k", seq%counterKeys), Payload: []byte(fmt.Sprint(amount(seq)))})
	}
	if _, err := s.bus.PublishBatch(s.Context(), events, jetbus.BatchOptions{}); err != nil {
		s.Fatal(err)
	}
}

func (s *stage) start(sink projector.Sink, o projector.Options) *projector.Projection {
	s.Helper()
	p, err := projector.Start(s.Context(), bustest.Open(s.T, s.broker, adapter.Config{Timeout: time.Minute}), sink, o)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { s.stop(p) })
	return p
}

func (s *stage) stop(p *projector.Projection) {
	s.Helper()
	if err := p.Stop(context.WithoutCancel(s.Context())); err != nil {
		s.Error(err)
	}
}

// until waits for a condition, for three minutes.
func (s *stage) until(what string, ok func() bool) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), 3*time.Minute)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			s.Fatalf("not within three minutes: %s", what)
		}
	}
}

func counterOptions() projector.Options {
	return projector.Options{
		Name: "counters", Topic: "orders", Exclusive: true, Every: true, AckTimeout: 3 * time.Second, MaxBatch: 200,
		Map: func(e jetbus.Event) (any, error) {
			var n int64
			err := json.Unmarshal(e.Payload, &n)
			return n, err
		},
	}
}

// Counters are exact over replicas that come and go and a server that fails.
func TestTransactionProjection(t *testing.T) {
	s := newStage(t)
	replicas := []*projector.Projection{s.start(s.sink(), counterOptions()), s.start(s.sink(), counterOptions())}
	const last, step = 700, 100
	for at := uint64(0); at < last; at += step {
		s.publish(at+1, at+step)
		if srv := s.srv.StandIn(); srv != nil && at%(3*step) == 0 {
			srv.CutConnections()
			srv.StepDown()
			srv.StepUp()
		}
		if at%(2*step) == step {
			i := rand.N(2)
			s.stop(replicas[i])
			replicas[i] = s.start(s.sink(), counterOptions())
		}
	}
	s.until("all events", func() bool {
		lag, err := replicas[0].Lag(t.Context())
		return err == nil && lag.Seq >= last
	})
	s.want(last)
	for _, p := range replicas {
		if err := p.Err(); err != nil {
			t.Error(err)
		}
	}
}

// Changes of one batch that are refused, one by the server and one before it is asked, are
// two dead letters, and hold up nothing.
func TestHardDeleteDeadLetters(t *testing.T) {
	s := newStage(t)
	var events []jetbus.Event
	for i, payload := range []string{`{"u":1}`, `{"u":1}`, `{"$x":1}`, `{"u":2}`} {
		events = append(events, jetbus.Event{Topic: "orders", Key: fmt.Sprint("k", i), Payload: []byte(payload)})
	}
	if _, err := s.bus.PublishBatch(t.Context(), events, jetbus.BatchOptions{}); err != nil {
		t.Fatal(err)
	}
	sink, err := mongosink.New(s.db, mongosink.Options{
		Collection: "orders", Timeout: patience, HardDelete: true, Indexes: []mongosink.Index{{Keys: bson.D{{Key: "u", Value: 1}}, Unique: true}},
	})
	if err != nil {
		t.Fatal(err)
	}
	p := s.start(sink, projector.Options{Name: "orders", Topic: "orders", Exclusive: true, MaxBatch: 100})
	s.until("all events", func() bool { return p.Err() != nil || p.Stats().Seq == 4 && p.Stats().Rejected == 2 })
	if err := p.Err(); err != nil {
		t.Error(err)
	}
	var dead []uint64
	for d, err := range jetbus.DeadLetters(t.Context(), s.bus, jetbus.DeadLetterQuery{Topic: "orders"}) {
		if err != nil {
			t.Fatal(err)
		}
		dead = append(dead, d.Event.Seq)
	}
	slices.Sort(dead)
	if !slices.Equal(dead, []uint64{2, 3}) {
		t.Errorf("dead letters of %v, want of 2 and 3", dead)
	}
	n, err := s.db.Collection("orders").CountDocuments(t.Context(), bson.D{})
	if err != nil || n != 2 {
		t.Errorf("%d documents, want 2: %v", n, err)
	}
}

// Row 12: replicas write all the time while the collection is rebuilt again and
// again, and it ends with the newest event of each key.
func TestA8Row12LiveReplicas(t *testing.T) {
	for name, exclusive := range map[string]bool{"shared": false, "exclusive": true} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			o := projector.Options{
				Name: "orders", Topic: "orders", Exclusive: exclusive, AckTimeout: 3 * time.Second, MaxBatch: 100,
				Map: func(e jetbus.Event) (any, error) {
					return bson.D{{Key: "n", Value: amount(e.Seq)}}, nil
				},
			}
			sink := func() *mongosink.Sink {
				sink, err := mongosink.New(s.db, mongosink.Options{Collection: "orders", Timeout: patience})
				if err != nil {
					t.Fatal(err)
				}
				return sink
			}
			a, b := s.start(sink(), o), s.start(sink(), o)
			const last, step = 600, 20
			var publishing sync.WaitGroup
			publishing.Go(func() {
				for at := uint64(0); at < last; at += step {
					s.publish(at+1, at+step)
				}
			})
			rebuild := func() {
				t.Helper()
				st, err := projector.Rebuild(t.Context(), s.bus, sink(), o, projector.RebuildOptions{})
				for tries := 0; errors.Is(err, jetbus.ErrLockLost) && tries < 10; tries++ { // it stood still for longer than its lock lives
					st, err = projector.Rebuild(t.Context(), s.bus, sink(), o, projector.RebuildOptions{})
				}
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("rebuilt: %+v", st)
			}
			for range 2 {
				rebuild()
			}
			publishing.Wait()
			rebuild()
			s.until("no lag", func() bool { // where it is exclusive, one of the two does not know
				one, err := a.Lag(t.Context())
				other, err2 := b.Lag(t.Context())
				return errors.Join(err, err2) == nil && (one.Events == 0 || other.Events == 0)
			})
			s.wantOrders(last)
			for _, p := range []*projector.Projection{a, b} {
				if err := p.Err(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// atLock is a bus that calls a function, once, before it looks whether a lock is free.
type atLock struct {
	*adapter.Bus
	key  string
	call func()
	once sync.Once
}

func (b *atLock) KeyGet(ctx context.Context, bucket, key string) (jetbus.KeyEntry, error) {
	if key == b.key {
		b.once.Do(b.call)
	}
	return b.Bus.KeyGet(ctx, bucket, key)
}

// Row 12: each event is of one field of a document, and the replica is further than the
// rebuild that swaps. What it writes then must not make what it wrote to the old content
// count as old: the new one has all fields.
func TestA8Row12PartialStates(t *testing.T) {
	s := newStage(t)
	o := projector.Options{Name: "orders", Topic: "orders", Exclusive: true, Every: true}
	sink := func(db *mongo.Database) *mongosink.Sink {
		sink, err := mongosink.New(db, mongosink.Options{Collection: "orders", Timeout: patience, Merge: true})
		if err != nil {
			t.Fatal(err)
		}
		return sink
	}
	p, runs := s.start(sink(s.db), o), true
	const last = 4
	published := uint64(0)
	write := func() { // the replica that runs writes one more field
		published++
		e := jetbus.Event{Topic: "orders", Key: "k", Payload: fmt.Appendf(nil, `{"f%d":%[1]d}`, published)}
		if _, err := s.bus.Publish(t.Context(), e); err != nil {
			t.Fatal(err)
		}
		s.until("the event is written", func() bool { return p.Stats().Seq >= published })
	}
	write()
	// What follows the goroutine of this test calls, in the rebuild.
	var ahead sync.Once
	progress := func(st projector.RebuildStats) {
		if st.Phase == projector.RebuildSwapping {
			ahead.Do(write)
		}
	}
	bus := &atLock{Bus: s.bus, key: "projection/orders/orders", call: func() {
		write()
		s.stop(p)
		runs = false
	}}
	renamed := &mongoevent.CommandMonitor{Succeeded: func(_ context.Context, e *mongoevent.CommandSucceededEvent) {
		if e.CommandName == "renameCollection" && runs { // to the new content, at the old position
			write()
		}
	}}
	db := connect(t, s.srv.URI(), options.Client().SetMonitor(renamed)).Database(s.db.Name())
	if _, err := projector.Rebuild(t.Context(), bus, sink(db), o, projector.RebuildOptions{Progress: progress}); err != nil {
		t.Fatal(err)
	}
	s.stop(p)
	p = s.start(sink(s.db), o)
	for published < last {
		write()
	}
	s.until("the last event", func() bool { return p.Stats().Seq == last })
	var doc bson.M
	if err := s.db.Collection("orders").FindOne(t.Context(), bson.D{{Key: "_id", Value: "k"}}).Decode(&doc); err != nil {
		t.Fatal(err)
	}
	if got, want := show(doc), fmt.Sprint("k@", last, ` {"f1":1,"f2":2,"f3":3,"f4":4}`); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// wantOrders checks that each key has its newest event.
func (s *stage) wantOrders(last uint64) {
	s.Helper()
	cur, err := s.db.Collection("orders").Find(s.Context(), bson.D{})
	if err != nil {
		s.Fatal(err)
	}
	var docs []struct {
		Key string `bson:"_key"`
		Seq uint64 `bson:"_seq"`
		N   int64  `bson:"n"`
	}
	if err := cur.All(s.Context(), &docs); err != nil {
		s.Fatal(err)
	}
	if len(docs) != counterKeys {
		s.Errorf("%d documents", len(docs))
	}
	for _, d := range docs {
		if d.Seq <= last-counterKeys || d.N != amount(d.Seq) || d.Key != fmt.Sprint("k", d.Seq%counterKeys) {
			s.Errorf("document %+v", d)
		}
	}
}
