package cluster

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/e2e/internal/chaos"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/embedded/cluster"
)

// electionTime is short in the suite; `make chaos-elections` gives it ten minutes.
var electionTime = flag.Duration("elections", 15*time.Second, "how long TestElections has a cluster elect")

// shaken is how long a call may take: one election comes after the other.
const shaken = 3 * patience

// Ten members that join at once work while leaders step down all the time and nodes die: nothing
// is lost, stored twice or in two handlers at once, no member ends, and the group gets to the end.
func TestElections(t *testing.T) {
	c, _ := onCluster(t, jetbus.TopicConfig{})
	bus := bustest.Open(t, c, adapter.Config{Replicas: 3, Timeout: shaken})
	seed := uint64(time.Now().UnixNano()) //nolint:gosec // a number is a number
	t.Logf("seed %d", seed)
	e := chaos.Elect(t, c, seed)
	w := &worked{T: t, bus: bus, inHand: map[string]<-chan struct{}{}, handled: map[string]int{}}
	w.join(c)
	working, rest := context.WithTimeout(t.Context(), *electionTime)
	defer rest()
	w.publish(working)
	e.Stop()
	w.account()
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
