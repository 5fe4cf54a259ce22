package restore

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/embedded/mongod/mongotest"
	"github.com/seed-63e9a637/jetbus/projector"
)

var (
	restores = flag.Int("restores", 10, "number of restores in each test")
	seed     = flag.Uint64("seed", 0, "seed of random choices; 0: a new one")
)

const (
	topic = "facts"
	keys  = 30
	// settleTime is how long after a restore everything may take to report it or to have
	// the state of the topic: locks and leases expire, those of a compactor after 2 minutes,
	// and idle projections verify their history.
	settleTime = 4 * time.Minute
)

// arena is a broker, the states that are derived from its topic, and backups.
type arena struct {
	*testing.T
	broker  *bustest.Restorable
	bus     *adapter.Bus // of the publisher
	keepers []*keeper
	backups []bustest.Backup
	r       *rand.Rand
	n       int // events published

	reported, kept, lost int // states that reported a restore, that did not, and restores that lost events
}

func TestRestore(t *testing.T) {
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	t.Logf("-seed %d", *seed)
	a := &arena{T: t, broker: bustest.StartRestorable(t), r: rand.New(rand.NewPCG(*seed, 1))}
	a.bus = a.open()
	a.ensure(jetbus.TopicConfig{Name: topic, KeyInSubject: true})
	a.ensure(jetbus.TopicConfig{Name: "groups", Compact: true})
	a.derive()
	defer func() {
		for _, k := range a.keepers {
			k.stop()
		}
	}()
	for round := range *restores {
		if a.round(); t.Failed() {
			t.Fatalf("in round %d", round+1)
		}
	}
	t.Logf("%d restores, %d of them lost events; %d states reported that, %d did not need to", *restores, a.lost, a.reported, a.kept)
	if a.reported == 0 || a.lost == 0 {
		t.Error("no restore lost events that somebody had")
	}
}

// derive declares what is derived from the topic. Everything else of the test holds for
// whatever is added here.
func (a *arena) derive() {
	mongod := mongotest.Start(a.T)
	client, err := mongo.Connect(options.Client().ApplyURI(mongod.URI()))
	a.ok(err)
	a.Cleanup(func() { _ = client.Disconnect(context.Background()) }) // nothing is under way
	db := client.Database(mongod.Database())
	project := func(name string, exclusive bool, replicas int, coll *mongo.Collection) {
		p := &projection{coll: coll, o: projector.Options{Name: name, Topic: topic, Exclusive: exclusive, AckTimeout: 3 * time.Second, MaxBatch: 20}}
		if coll == nil {
			p.m = &memory{docs: map[string]memoryDoc{}}
		} else {
			p.o.OnNewStream = projector.RebuildOnNewStream
		}
		for range replicas {
			p.buses = append(p.buses, a.open())
		}
		a.add(name, p)
	}
	project("one", false, 1, nil)
	project("two", false, 2, nil)
	project("exclusive", true, 2, nil)
	project("mongo", false, 2, db.Collection("shared"))
	project("mongo-exclusive", true, 1, db.Collection("exclusive"))
	c := &compactor{bus: a.open()}
	c.c = jetbus.Compactor{
		Source: topic, Target: "groups", Group: "groups", Interval: 10 * time.Millisecond, Lock: jetbus.Lock{TTL: 3 * time.Second},
		KeyOf: func(e jetbus.Event) (string, bool) { return c.keyOf(&e), true },
	}
	a.add("compactor", c)
	a.add("reader", &reader{bus: a.open(), docs: map[string]string{}})
	a.add("table", &table{bus: a.open()})
}

func (a *arena) add(name string, d derived) {
	a.keepers = append(a.keepers, &keeper{derived: d, name: name})
}

// round restores the broker once, while events are published and some states do not run.
func (a *arena) round() {
	for _, k := range a.keepers {
		k.start(a.T)
	}
	stop := a.publishing()
	for range 1 + a.r.IntN(2) {
		a.pause()
		a.backups = append(a.backups, a.broker.Backup(a.T))
	}
	a.backups = a.backups[max(0, len(a.backups)-4):]
	a.pause()
	var stopped []*keeper
	for _, k := range a.keepers {
		if a.r.IntN(4) == 0 {
			k.stop()
			stopped = append(stopped, k)
		}
	}
	a.pause()
	if a.r.IntN(2) == 0 {
		stop()
		stop = func() {}
		a.pause()
	}
	before := a.log()
	at := a.r.IntN(len(a.backups))
	a.broker.Restore(a.T, a.backups[at], nil)
	a.backups = a.backups[:at+1] // the others are of another history
	if after := a.log(); len(after) < len(before) || len(before) > 0 && after[len(before)-1].ID != before[len(before)-1].ID {
		a.lost++
	}
	if a.r.IntN(3) > 0 {
		stop()
		stop = a.publishing()
		a.pause()
	}
	for _, k := range stopped {
		if k.err == nil { // else it has reported before it was stopped
			k.start(a.T)
		}
	}
	a.pause()
	stop()
	a.settle()
}

// settle waits until each state reported an error or is what the topic holds.
func (a *arena) settle() {
	for _, k := range a.keepers {
		var got, want map[string]string
		same, began := false, time.Now()
		for !same && k.running() && time.Since(began) < settleTime {
			time.Sleep(50 * time.Millisecond)
			var err error
			want = a.fold(k) // each time: what a canceled Publish has sent may be stored late
			got, err = k.state(a.Context())
			same = err == nil && maps.Equal(got, want)
		}
		switch {
		case !k.running() && isReport(k.err):
			a.reported++
		case !k.running():
			a.Errorf("%s ended: %v", k.name, k.err)
		case same:
			a.kept++
			if d := time.Since(began); d > 15*time.Second {
				a.Logf("%s took %v", k.name, d)
			}
		default:
			a.Errorf("%s differs from its topic and does not report it: %s", k.name, difference(got, want))
		}
	}
}

// fold returns the state that k should have.
func (a *arena) fold(k *keeper) map[string]string {
	a.Helper()
	want := map[string]string{}
	for _, e := range a.log() {
		apply(want, k.keyOf(&e), &e)
	}
	return want
}

// isReport reports whether an error says that the topic has another history, or that the
// backup is older than the group.
func isReport(err error) bool {
	return errors.Is(err, jetbus.ErrPositionUnknown) || errors.Is(err, projector.ErrNewStream) || errors.Is(err, jetbus.ErrNoGroup)
}

func difference(got, want map[string]string) string {
	var text strings.Builder
	for key := range want {
		if got[key] != want[key] {
			fmt.Fprintf(&text, " %s is %q, want %q;", key, got[key], want[key])
		}
	}
	for key := range got {
		if _, ok := want[key]; !ok {
			fmt.Fprintf(&text, " %s is %q, want none;", key, got[key])
		}
	}
	return text.String()
}

// publishing publishes events until stop is called. While the broker is down they fail, or it
// is not known whether they were stored: the topic tells.
func (a *arena) publishing() (stop func()) {
	ctx, cancel := context.WithCancel(a.Context())
	first, r := a.n, rand.New(rand.NewPCG(a.r.Uint64(), 2))
	var published sync.WaitGroup
	published.Go(func() {
		for ; ctx.Err() == nil; a.n++ {
			e := jetbus.Event{Topic: topic, Key: fmt.Sprintf("k%d", r.IntN(keys)+10), Payload: fmt.Appendf(nil, `{"n":%d}`, a.n)}
			if r.IntN(6) == 0 {
				e.Payload = []byte("null")
			}
			short, cancel := context.WithTimeout(ctx, time.Second)
			_, _ = a.bus.Publish(short, e) // see above
			cancel()
			if r.IntN(3) == 0 {
				time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond)
			}
		}
	})
	return sync.OnceFunc(func() {
		cancel()
		published.Wait()
		a.Logf("%d events published", a.n-first)
	})
}

// pause waits for a random time.
func (a *arena) pause() { time.Sleep(time.Duration(a.r.IntN(400)) * time.Millisecond) }

// log reads the topic.
func (a *arena) log() (events []jetbus.Event) {
	a.Helper()
	for e, err := range a.bus.Scan(a.Context(), topic, jetbus.ScanQuery{}) {
		a.ok(err)
		events = append(events, e)
	}
	return events
}

func (a *arena) open() *adapter.Bus {
	a.Helper()
	nc := bustest.Connect(a.T, a.broker, nats.ReconnectWait(20*time.Millisecond), nats.MaxReconnects(-1))
	bus, err := adapter.Open(a.Context(), nc, adapter.Config{})
	a.ok(err)
	a.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		a.ok(bus.Close(ctx))
	})
	return bus
}

func (a *arena) ensure(c jetbus.TopicConfig) {
	a.Helper()
	_, err := a.bus.EnsureTopic(a.Context(), c)
	a.ok(err)
}

func (a *arena) ok(err error) {
	a.Helper()
	if err != nil {
		a.Fatal(err)
	}
}
