package cluster

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/e2e/internal/chaos"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/embedded/cluster"
)

// electionTime is short in the suite; `make chaos-elections` gives it ten minutes.
var electionTime = flag.Duration("elections", 15*time.Second, "how long TestElections has a cluster elect")

const (
	stepDowns = 300 * time.Millisecond // between two leaders that step down
	kills     = 3 * time.Second        // between two nodes that are killed and started again, and longer where that takes long
	shaken    = 3 * patience           // how long a call may take: one election comes after the other
)

// Ten members that join at once work while leaders step down all the time and nodes die: nothing
// is lost, stored twice or in two handlers at once, no member ends, and the group gets to the end.
func TestElections(t *testing.T) {
	c, _ := onCluster(t, jetbus.TopicConfig{})
	bus := bustest.Open(t, c, adapter.Config{Replicas: 3, Timeout: shaken})
	seed := uint64(time.Now().UnixNano()) //nolint:gosec // a number is a number
	t.Logf("seed %d", seed)
	ctx, stop := context.WithCancel(t.Context())
	e := &elections{T: t, cluster: c, random: chaos.Random(seed, 0)}
	var shaking sync.WaitGroup
	defer func() { stop(); shaking.Wait() }()
	e.run(ctx, &shaking, chaos.Random(seed, 1))
	w := &worked{T: t, bus: bus, inHand: map[string]<-chan struct{}{}, handled: map[string]int{}}
	w.join(c)
	working, rest := context.WithTimeout(ctx, *electionTime)
	defer rest()
	w.publish(working)
	stop()
	shaking.Wait()
	w.account()
	if err := e.tally.Print(t.Output()); err != nil {
		t.Error(err)
	}
	if e.tally.Of(steppedDown) == 0 || e.tally.Of(nodeKilled) == 0 {
		t.Error("there were no elections")
	}
}

// elections are leaders that step down, and nodes that die.
type elections struct {
	*testing.T
	cluster *cluster.Cluster
	random  *rand.Rand // of those that step down
	tally   chaos.Tally
}

// What elections come from.
const (
	steppedDown = "leader stepped down"
	nodeKilled  = "node killed"
)

// run shakes the cluster until ctx ends.
func (e *elections) run(ctx context.Context, wg *sync.WaitGroup, random *rand.Rand) {
	nc := bustest.Connect(e.T, e.cluster)
	answers := nc.NewInbox()
	if _, err := nc.Subscribe(answers, func(m *nats.Msg) {
		if bytes.Contains(m.Data, []byte(`"success":true`)) {
			e.tally.Add(steppedDown)
		}
	}); err != nil {
		e.Fatal(err)
	}
	wg.Go(func() {
		for ; ctx.Err() == nil; chaos.Linger(ctx, stepDowns) {
			e.stepDown(nc, answers)
		}
	})
	wg.Go(func() {
		// A node that comes back slowly catches up slowly, too, and two that are away at once
		// would be an outage.
		var took time.Duration
		for chaos.Linger(ctx, kills); ctx.Err() == nil; chaos.Linger(ctx, kills+2*took) {
			e.tally.Add(nodeKilled)
			began := time.Now()
			i, ctx := random.IntN(3), context.WithoutCancel(ctx)
			if err := e.cluster.KillNode(ctx, i); err != nil {
				e.Error(err)
			}
			if err := e.cluster.RestartNode(ctx, i); err != nil {
				e.Error(err)
			}
			took = time.Since(began)
		}
	})
}

// stepDown asks the leader of any stream or durable for its office. It does not wait for the
// answer, or for another one: in an election there may be none.
func (e *elections) stepDown(nc *nats.Conn, answers string) {
	var of []string
	s := e.cluster.Node(e.random.IntN(3)).Server()
	if s == nil { // it is being killed
		return
	}
	all, err := s.Jsz(&server.JSzOptions{Accounts: true, Streams: true, Consumer: true})
	if err != nil { // the same
		return
	}
	for _, a := range all.AccountDetails {
		for _, s := range a.Streams {
			of = append(of, "STREAM.LEADER.STEPDOWN."+s.Name)
			for _, d := range s.Consumer {
				of = append(of, "CONSUMER.LEADER.STEPDOWN."+s.Name+"."+d.Name)
			}
		}
	}
	if len(of) == 0 {
		return
	}
	_ = nc.PublishRequest("$JS.API."+of[e.random.IntN(len(of))], answers, nil) // what fails is not counted
}

// worked is a topic that ten members of a group work on while the cluster elects, and what
// each event met.
type worked struct {
	*testing.T
	bus  *adapter.Bus
	subs []jetbus.Subscription

	mu      sync.Mutex
	inHand  map[string]<-chan struct{} // when the handler has to end
	handled map[string]int
	acked   []string
}

const members = 10

// join lets all members join at once, while the cluster elects.
func (w *worked) join(c *cluster.Cluster) {
	w.Helper()
	buses := make([]*adapter.Bus, members)
	for i := range buses {
		buses[i] = bustest.Open(w.T, c, adapter.Config{Replicas: 3, Timeout: shaken})
	}
	w.subs = make([]jetbus.Subscription, members)
	var joins sync.WaitGroup
	for i, bus := range buses {
		joins.Go(func() {
			var err error
			if w.subs[i], err = bus.Subscribe(w.Context(), "a", "g", w.handle, jetbus.SubscribeOptions{From: jetbus.Earliest(), AckTimeout: 3 * time.Second, MaxAttempts: -1}); err != nil {
				w.Error(err)
			}
		})
	}
	joins.Wait()
	if w.Failed() {
		w.FailNow()
	}
}

// handle takes its time, and looks whether somebody else has the event in hand meanwhile.
func (w *worked) handle(ctx context.Context, d *jetbus.Delivery) error {
	w.mu.Lock()
	if other, has := w.inHand[d.ID]; has {
		select {
		case <-other:
		default:
			w.Errorf("%s is in two handlers at once", d.ID)
		}
	}
	w.inHand[d.ID] = ctx.Done()
	w.mu.Unlock()
	took := rand.N(30 * time.Millisecond)
	if rand.IntN(50) == 0 {
		took = rand.N(6 * time.Second) // longer than a lease, unless it is extended
	}
	chaos.Linger(ctx, took)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.inHand[d.ID] == ctx.Done() {
		delete(w.inHand, d.ID)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	w.handled[d.ID]++
	return nil
}

// publish stores events one after the other, each until it is acknowledged.
func (w *worked) publish(ctx context.Context) {
	for i := 0; ctx.Err() == nil; i++ {
		id := fmt.Sprintf("event-%06d", i)
		for {
			_, err := w.bus.Publish(context.WithoutCancel(ctx), jetbus.Event{Topic: "a", ID: id})
			if err == nil {
				break
			}
			w.Errorf("publish %s: %v", id, err) // elections are sat out
			if ctx.Err() != nil {
				return
			}
		}
		w.acked = append(w.acked, id)
		chaos.Linger(ctx, 20*time.Millisecond)
	}
}

// account compares what was acknowledged with what is stored and what was handled.
func (w *worked) account() {
	ctx, cancel := context.WithTimeout(w.Context(), shaken)
	defer cancel()
	stored := map[string]int{}
	var last uint64
	for e, err := range w.bus.Read(ctx, []string{"a"}, jetbus.ReadOptions{}) {
		if err != nil {
			w.Fatal(err)
		}
		stored[e.ID]++
		last = e.Seq
	}
	for tick := time.NewTicker(20 * time.Millisecond); ; <-tick.C {
		c, err := w.bus.Cursor(ctx, "a", "g")
		if err == nil && c.LastSeq >= last {
			tick.Stop()
			break
		}
		if ctx.Err() != nil {
			w.Fatalf("the cursor is at %d of %d: %v", c.LastSeq, last, err)
		}
	}
	again := 0
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range w.acked {
		if stored[id] != 1 || w.handled[id] == 0 {
			w.Errorf("%s is stored %d times and was handled %d times", id, stored[id], w.handled[id])
		}
		again += w.handled[id] - 1
	}
	if len(w.acked) == 0 || len(stored) != len(w.acked) {
		w.Errorf("%d events are stored, and %d were published", len(stored), len(w.acked))
	}
	for i, s := range w.subs {
		select {
		case <-s.Done():
			w.Errorf("member %d ended: %v", i, s.Err())
		default:
		}
	}
	fmt.Fprintf(w.Output(), "events\t%d\nhandled again\t%d\n", len(w.acked), again)
}
