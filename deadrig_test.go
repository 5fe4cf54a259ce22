package jetbus_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// What follows are groups whose handlers fail when they are told to, and their
// dead letters.

func (r *rig) topic(name string) {
	r.Helper()
	_, err := r.bus.EnsureTopic(r.Context(), jetbus.TopicConfig{Name: name})
	r.ok(err)
}

// group is a member of a group.
type group struct {
	sub jetbus.Subscription

	mu     sync.Mutex
	broken error    // what its handler returns
	got    []string // "id" of events that it handled, "id of d3" of replays
	last   jetbus.Event
}

// join subscribes a member whose handler fails with broken until repair.
func (r *rig) join(topic, name string, broken error) *group {
	r.Helper()
	g := &group{broken: broken}
	var err error
	g.sub, err = r.bus.Subscribe(r.Context(), topic, name, func(_ context.Context, d *jetbus.Delivery) error {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.broken != nil {
			return jetbus.Reject(g.broken)
		}
		what := d.ID
		if d.ReplayOf > 0 {
			what = fmt.Sprintf("%s of d%d", d.ID, d.ReplayOf)
		}
		g.got, g.last = append(g.got, what), d.Event
		return nil
	}, jetbus.SubscribeOptions{})
	r.ok(err)
	r.Cleanup(func() { _ = g.sub.Stop(context.Background()) })
	return g
}

func (g *group) set(broken error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.broken = broken
}

// handled returns what the member handled once all had time to arrive.
func (g *group) handled() []string {
	time.Sleep(5 * time.Second)
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.got)
}

// publishNumbered stores events e<from> to e<to>, keyed by their number modulo 2.
func (r *rig) publishNumbered(topic string, from, to int) {
	r.Helper()
	for i := from; i <= to; i++ {
		_, err := r.bus.Publish(r.Context(), jetbus.Event{
			Topic: topic, ID: fmt.Sprintf("e%d", i), Key: fmt.Sprintf("k%d", i%2), Payload: fmt.Appendf(nil, `{"n":%d}`, i),
		})
		r.ok(err)
	}
}

// waitDead waits for so many dead letters and returns them.
func (r *rig) waitDead(topic string, n int) []jetbus.DeadLetter {
	r.Helper()
	var list []jetbus.DeadLetter
	for range 100 {
		time.Sleep(100 * time.Millisecond)
		if list = r.dead(jetbus.DeadLetterQuery{Topic: topic}); len(list) >= n {
			break
		}
	}
	if len(list) != n {
		r.Fatalf("%d dead letters of %s, want %d", len(list), topic, n)
	}
	return list
}

// dead returns the dead letters that a query selects.
func (r *rig) dead(q jetbus.DeadLetterQuery) []jetbus.DeadLetter {
	r.Helper()
	var list []jetbus.DeadLetter
	for d, err := range jetbus.DeadLetters(r.Context(), r.bus, q) {
		if errors.Is(err, jetbus.ErrNoDeadLetters) {
			return nil
		}
		r.ok(err)
		list = append(list, d)
	}
	return list
}

// replay replays and checks what came of it, where the last one was only if a test says so.
func (r *rig) replay(b jetbus.Replayer, o jetbus.ReplayOptions, want jetbus.ReplayStats, wantErr error) {
	r.Helper()
	got, err := jetbus.Replay(r.Context(), b, o)
	check(r.T, "replay", err, wantErr)
	if want.LastSeq == 0 {
		got.LastSeq = 0
	}
	if got != want {
		r.Errorf("replay: %+v, want %+v; error %v", got, want, err)
	}
}

// ids are the ids of the originals.
func ids(list []jetbus.DeadLetter) []string {
	out := make([]string, len(list))
	for i, d := range list {
		out[i] = d.Event.ID
	}
	return out
}
