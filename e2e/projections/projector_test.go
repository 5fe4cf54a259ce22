//go:build unix

package projections

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/e2e/internal/broker"
	"github.com/seed-63e9a637/jetbus/e2e/internal/rig"
	"github.com/seed-63e9a637/jetbus/embedded/mongod/mongotest"
	"github.com/seed-63e9a637/jetbus/projector"
	"github.com/seed-63e9a637/jetbus/projector/mongosink"
)

var kills = flag.Int("kills", 6, "how often TestProjectorKilled ends the projector by SIGKILL")

// projectorConfig is that of a replica of a projection, or of a rebuild.
type projectorConfig struct {
	URL, Topic                  string
	Mongo, Database, Collection string
	AckTimeout                  time.Duration
}

func (c *projectorConfig) options() projector.Options {
	return projector.Options{Name: "p", Topic: c.Topic, AckTimeout: c.AckTimeout}
}

// run opens what a role needs and calls f.
func (c *projectorConfig) run(ctx context.Context, config []byte, f func(*adapter.Bus, *mongosink.Sink) error) error {
	if err := json.Unmarshal(config, c); err != nil {
		return err
	}
	return rig.OnBus(ctx, c.URL, adapter.Config{}, func(_ *nats.Conn, bus *adapter.Bus) error { return c.onSink(bus, f) })
}

func (c *projectorConfig) onSink(bus *adapter.Bus, f func(*adapter.Bus, *mongosink.Sink) error) error {
	client, err := mongo.Connect(options.Client().ApplyURI(c.Mongo))
	if err != nil {
		return err
	}
	sink, err := mongosink.New(client.Database(c.Database), mongosink.Options{Collection: c.Collection})
	if err != nil {
		return err
	}
	return errors.Join(f(bus, sink), client.Disconnect(context.Background()))
}

// runProjector is a replica. It says how many events it has read now and then.
func runProjector(ctx context.Context, config []byte, p *rig.Parent) error {
	c := &projectorConfig{}
	return c.run(ctx, config, func(bus *adapter.Bus, sink *mongosink.Sink) error {
		replica, err := projector.Start(context.WithoutCancel(ctx), bus, sink, c.options())
		if err != nil {
			return err
		}
		p.Tell(rig.Report{What: "ready"})
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				s := replica.Stats()
				p.Tell(rig.Report{What: "projected", Count: int(s.Events), ID: string(s.Phase), Err: s.LastError}) //nolint:gosec // a few
			case <-replica.Done():
				return fmt.Errorf("the projection ended by itself: %w", replica.Err())
			case <-ctx.Done():
				return replica.Stop(context.Background())
			}
		}
	})
}

// runRebuild rebuilds once.
func runRebuild(ctx context.Context, config []byte, p *rig.Parent) error {
	c := &projectorConfig{}
	return c.run(ctx, config, func(bus *adapter.Bus, sink *mongosink.Sink) error {
		_, err := projector.Rebuild(ctx, bus, sink, c.options(), projector.RebuildOptions{Progress: func(s projector.RebuildStats) {
			p.Tell(rig.Report{What: string(s.Phase), Count: int(s.Read)}) //nolint:gosec // a few
		}})
		return err
	})
}

// projecting is a topic under load, what its keys should be, and a database.
type projecting struct {
	*testing.T
	bus    *adapter.Bus
	config projectorConfig
	db     *mongo.Database
	stop   context.CancelFunc // of the load
	load   sync.WaitGroup

	mu   sync.Mutex
	want map[string]jetbus.Event // the last event of each key
	last uint64
}

const (
	projectedKeys = 1000   // of the load
	fastLoad      = 50_000 // events after which it slows down, so that a rebuild does not take ever longer
)

// startProjecting starts a broker in a process of its own, a MongoDB, and a load:
// events that write, delete and write again random keys.
func startProjecting(t *testing.T) *projecting {
	t.Helper()
	b, srv := broker.Start(t), mongotest.Start(t)
	client, err := mongo.Connect(options.Client().ApplyURI(srv.URI()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Disconnect(context.Background()) }) // nothing is under way
	p := &projecting{
		T: t, bus: rig.OpenBus(t, b.URL()), db: client.Database(srv.Database()), want: map[string]jetbus.Event{},
		config: projectorConfig{
			URL: b.URL(), Topic: "state", Mongo: srv.URI(), Database: srv.Database(), Collection: "states", AckTimeout: time.Second,
		},
	}
	rig.Declare(t, p.bus, jetbus.TopicConfig{Name: "state"})
	ctx, cancel := context.WithCancel(t.Context())
	p.stop = cancel
	p.load.Go(func() { p.publish(ctx) })
	t.Cleanup(p.rest)
	return p
}

// publish is the load.
func (p *projecting) publish(ctx context.Context) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	size := 100
	for n := 0; ; n++ {
		if p.last > fastLoad { // nobody else changes it
			size = 2
		}
		events := make([]jetbus.Event, size)
		for i := range events {
			e := jetbus.Event{Topic: "state", Key: fmt.Sprintf("key-%03d", rand.IntN(projectedKeys)), Payload: []byte("null")}
			if rand.IntN(8) > 0 {
				e.Payload = fmt.Appendf(nil, `{"n":%d,"i":%d}`, n, i)
			}
			events[i] = e
		}
		receipts, err := p.bus.PublishBatch(context.WithoutCancel(ctx), events, jetbus.BatchOptions{})
		if err != nil {
			p.Errorf("publish: %v", err)
			return
		}
		p.mu.Lock()
		for _, r := range receipts {
			p.want[r.Event.Key] = r.Event
			p.last = max(p.last, r.Event.Seq)
		}
		p.mu.Unlock()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// rest ends the load.
func (p *projecting) rest() {
	p.stop()
	p.load.Wait()
}

// awaitProjected waits until the group has nothing left, for as long as it gets on.
func (p *projecting) awaitProjected() {
	p.Helper()
	for acked := uint64(0); ; {
		done := false
		rig.Eventually(p.T, func() string {
			g, err := rig.Group(p.T, p.bus, "state", "p")
			done = err == nil && g.Pending == 0 && g.Held == 0 && g.AckedSeq >= p.last
			if done || g.AckedSeq > acked {
				acked = g.AckedSeq
				return ""
			}
			return fmt.Sprintf("the projection does not catch up with %d: %+v, %v", p.last, g, err)
		})
		if done {
			return
		}
	}
}

// check compares the collection with the last events of the keys: each is there,
// with the payload and the sequence of its event, and nothing else is.
func (p *projecting) check() {
	p.Helper()
	cursor, err := p.db.Collection("states").Find(p.Context(), bson.D{})
	if err != nil {
		p.Fatal(err)
	}
	var docs []struct {
		Key     string `bson:"_id"`
		Seq     uint64 `bson:"_seq"`
		Deleted bool   `bson:"_deleted"`
		N       *int64
		I       *int64
	}
	if err := cursor.All(p.Context(), &docs); err != nil {
		p.Fatal(err)
	}
	want := maps.Clone(p.want)
	wrong := 0
	for _, d := range docs {
		e, ok := want[d.Key]
		delete(want, d.Key)
		payload := "null"
		if !d.Deleted && d.N != nil && d.I != nil {
			payload = fmt.Sprintf(`{"n":%d,"i":%d}`, *d.N, *d.I)
		}
		if !ok || d.Seq != e.Seq || payload != string(e.Payload) {
			if wrong++; wrong <= 5 {
				p.Errorf("%s is %s of event %d, want %s of event %d", d.Key, payload, d.Seq, e.Payload, e.Seq)
			}
		}
	}
	if wrong > 0 || len(want) > 0 {
		p.Errorf("of %d keys %d are wrong and %d are missing", len(p.want), wrong, len(want))
	}
}

// TestProjectorKilled ends the only replica of a projection by SIGKILL at random
// moments under load, again and again. In the end the collection is exact.
func TestProjectorKilled(t *testing.T) {
	t.Parallel()
	p := startProjecting(t)
	held, read := 0, 0 // kills that took events away, and events read in all
	rounds := 0
	for ; rounds < *kills || held == 0 && rounds < 10**kills; rounds++ { // a slow machine may need more
		victim := rig.Spawn(t, "projector", p.config)
		victim.First(t, "ready")
		if rounds%2 == 1 { // and not while it fills the collection
			victim.Await(t, "projected", func(r rig.Report) bool { return r.ID == string(projector.Following) && r.Count > 0 })
		}
		time.Sleep(rand.N(500 * time.Millisecond)) // the moment is what is tried
		victim.Kill()
		reports := victim.Said("projected")
		if len(reports) > 0 {
			read += reports[len(reports)-1].Count
		}
		g, err := rig.Group(t, p.bus, "state", "p")
		if err != nil && !errors.Is(err, jetbus.ErrNoGroup) {
			t.Fatal(err)
		}
		if g.Held > 0 {
			held++
		}
	}
	if held == 0 {
		t.Error("no kill took events away: the test shows something else")
	}
	last := rig.Spawn(t, "projector", p.config)
	last.First(t, "ready")
	p.rest()
	p.awaitProjected()
	p.check()
	t.Logf("%d kills, %d of them with events in hand; %d events of %d keys, %d read by replicas that were killed",
		rounds, held, p.last, len(p.want), read)
}

// TestRebuildKilled ends rebuilds by SIGKILL at random moments, while a replica
// projects. The one that gets to its end leaves an exact collection and nothing
// else, and the replica goes on.
func TestRebuildKilled(t *testing.T) {
	t.Parallel()
	p := startProjecting(t)
	replica := rig.Spawn(t, "projector", p.config)
	replica.First(t, "ready")
	phases := map[string]int{}
	for range max(*kills/3, 1) {
		victim := rig.Spawn(t, "rebuild", p.config)
		victim.First(t, string(projector.RebuildFilling))
		time.Sleep(rand.N(400 * time.Millisecond)) // the moment is what is tried
		victim.Kill()
		phases[victim.Last().What]++
	}
	last := rig.Spawn(t, "rebuild", p.config)
	last.First(t, string(projector.RebuildDone))
	last.Gone(t)
	p.rest()
	p.awaitProjected()
	p.check()
	names, err := p.db.ListCollectionNames(t.Context(), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	if slices.Sort(names); strings.Join(names, " ") != "_projections states" {
		t.Errorf("a rebuild left something behind: %v", names)
	}
	replica.Terminate(t)
	replica.Gone(t)
	t.Logf("killed in %v; %d events", phases, p.last)
}
