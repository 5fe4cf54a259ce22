//go:build unix

package circle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/e2e/internal/broker"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/mongod/mongotest"
	"github.com/seed-63e9a637/jetbus/projector/processes"
	"github.com/seed-63e9a637/jetbus/registry"
)

// patience bounds every wait. It only matters where a test fails.
const patience = 3 * time.Minute

// rig is a broker and a MongoDB, with what the test itself does there.
type rig struct {
	*testing.T
	broker *embedded.Broker
	bus    *adapter.Bus
	safe   jetbus.Backend // bus, by the schemas
	server *mongotest.Server
	db     *mongo.Database
	began  bson.Timestamp // before anything was in the collection
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{T: t, server: mongotest.Start(t)}
	ctx := t.Context()
	var err error
	r.broker, err = embedded.Start(ctx, embedded.Config{Listen: "127.0.0.1:0", Dir: t.TempDir()})
	r.ok(err)
	nc, err := broker.Dial(r.broker.URL())
	r.ok(err)
	r.bus, err = adapter.Open(ctx, nc, adapter.Config{Timeout: patience})
	r.ok(err)
	schemas, err := registry.Open(ctx, nc, registry.Config{})
	r.ok(err)
	client, err := mongo.Connect(options.Client().ApplyURI(r.server.URI()))
	r.ok(err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		err := errors.Join(schemas.Close(ctx), r.bus.Close(ctx), client.Disconnect(ctx))
		nc.Close()
		if err := errors.Join(err, r.broker.Stop(ctx)); err != nil {
			t.Error(err)
		}
	})
	r.ok(declare(ctx, r.bus, schemas))
	r.safe = checked(r.bus, schemas)
	r.db = client.Database(r.server.Database())
	r.began = r.clusterTime()
	return r
}

func (r *rig) ok(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// until waits until nothing is missing any more.
func (r *rig) until(missing func() string) {
	r.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		what := missing()
		if what == "" {
			return
		}
		select {
		case <-tick.C:
		case <-late.C:
			r.Fatal(what)
		}
	}
}

// grow waits until n more events are in a topic.
func (r *rig) grow(topic string, n uint64) {
	r.Helper()
	from := r.last(topic)
	r.until(func() string {
		if now := r.last(topic); now < from+n {
			return fmt.Sprintf("%s has %d events since %d, not %d", topic, now-from, from, n)
		}
		return ""
	})
}

func (r *rig) last(topic string) uint64 {
	r.Helper()
	info, err := r.bus.TopicInfo(r.Context(), topic)
	if errors.Is(err, jetbus.ErrNoTopic) {
		return 0
	}
	r.ok(err)
	return info.LastSeq
}

// log is what a topic holds.
func (r *rig) log(topic string) (events []jetbus.Event) {
	r.Helper()
	for e, err := range r.bus.Scan(r.Context(), topic, jetbus.ScanQuery{}) {
		r.ok(err)
		events = append(events, e)
	}
	return events
}

// clusterTime is the time of the newest change in the deployment.
func (r *rig) clusterTime() bson.Timestamp {
	r.Helper()
	var reply struct {
		Time bson.Timestamp `bson:"operationTime"`
	}
	r.ok(r.db.RunCommand(r.Context(), bson.D{{Key: "ping", Value: 1}}).Decode(&reply))
	return reply.Time
}

// stepDown takes the MongoDB its primary, for as long as the heart beats some times.
func (r *rig) stepDown() {
	r.Helper()
	if s := r.server.StandIn(); s != nil {
		s.StepDown()
		r.grow(processes.DefaultHeartbeats, crowd)
		s.StepUp()
		return
	}
	command := bson.D{{Key: "replSetStepDown", Value: 1}, {Key: "force", Value: true}}
	if err := r.db.Client().Database("admin").RunCommand(r.Context(), command).Err(); err != nil {
		r.Logf("replSetStepDown: %v", err) // it may cut the connection
	}
}

// crowd is how many processes beat.
const crowd = 10

// heart beats for a crowd of processes.
type heart struct {
	mu    sync.Mutex
	still int // of the crowd, the first so many do not beat

	stop   context.CancelFunc
	beaten chan struct{} // closed when it has stopped
}

func (r *rig) beat() *heart {
	ctx, cancel := context.WithCancel(r.Context())
	h := &heart{stop: cancel, beaten: make(chan struct{})}
	go func() {
		defer close(h.beaten)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			h.mu.Lock()
			still := h.still
			h.mu.Unlock()
			var events []jetbus.Event
			for i := still; i < crowd; i++ {
				e, err := processes.HeartbeatTopic.Event(processes.Heartbeat{PID: i, Name: "p", Host: "h", CPUPct: float64(n) / 4, MemMB: 1})
				if err != nil {
					r.Error(err)
					return
				}
				events = append(events, e)
			}
			publish, done := context.WithTimeout(context.WithoutCancel(ctx), patience)
			_, err := r.safe.PublishBatch(publish, events, jetbus.BatchOptions{})
			done()
			if err != nil {
				r.Errorf("beat: %v", err)
				return
			}
			r.keepUp(ctx)
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	r.Cleanup(h.end)
	return h
}

// keepUp waits until the circle has come close to the heart: on a machine that is too slow
// for it, what waits would become ever more.
func (r *rig) keepUp(ctx context.Context) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		groups, err := r.bus.Groups(ctx, processes.DefaultHeartbeats)
		if err != nil || len(groups) != 1 || groups[0].Pending < 5*crowd {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// silence stops the hearts of the first n.
func (h *heart) silence(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.still = n
}

func (h *heart) end() {
	h.stop()
	<-h.beaten
}

// mirror is what a group makes of the changes.
type mirror struct {
	mu    sync.Mutex
	last  map[string]string // payload by key
	seen  map[string]bool   // ids
	wrong []string
	sub   jetbus.Subscription
}

// follow folds the changes, from the first one, in the order of each key.
func (r *rig) follow() *mirror {
	r.Helper()
	_, err := r.bus.EnsureTopic(r.Context(), jetbus.TopicConfig{Name: changed, Discard: jetbus.DiscardNew, Retention: -1})
	r.ok(err)
	m := &mirror{last: map[string]string{}, seen: map[string]bool{}}
	m.sub, err = r.safe.Subscribe(r.Context(), changed, "mirror", func(_ context.Context, d *jetbus.Delivery) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.seen[d.ID] = true
		if d.Key == "" {
			return nil
		}
		m.last[d.Key] = string(d.Payload)
		if d.IsTombstone() {
			delete(m.last, d.Key)
		} else if !json.Valid(d.Payload) {
			m.wrong = append(m.wrong, d.ID)
		}
		return nil
	}, jetbus.SubscribeOptions{From: jetbus.Earliest(), Order: jetbus.PerKey})
	r.ok(err)
	r.Cleanup(func() { // the bus is there for longer
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := m.sub.Stop(ctx); err != nil {
			r.Error(err)
		}
	})
	return m
}
