//go:build unix

package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/e2e/internal/broker"
	"github.com/seed-63e9a637/jetbus/e2e/internal/rig"
)

var each = flag.Int("each", 30, "how many events of each of 1,000 keys TestOrderPerKey handles")

// orderedConfig is that of a member of an ordered group.
type orderedConfig struct {
	URL, Topic string
	Workers    int
	Failing    int // of 100 runs
}

// runOrdered handles events whose key is a key and whose payload is their number
// among those of the key, and fails at random. It tells its successes, and when it
// becomes the active member.
func runOrdered(ctx context.Context, config []byte, p *rig.Parent) error {
	var c orderedConfig
	if err := json.Unmarshal(config, &c); err != nil {
		return err
	}
	observer := func(o jetbus.Observation) {
		if o.Kind == jetbus.TookOver {
			p.Tell(rig.Report{What: "active"})
		}
	}
	return rig.OnBus(ctx, c.URL, adapter.Config{Observer: observer}, func(_ *nats.Conn, bus *adapter.Bus) error {
		return c.run(ctx, bus, p)
	})
}

func (c orderedConfig) run(ctx context.Context, bus *adapter.Bus, p *rig.Parent) error {
	s, err := bus.Subscribe(ctx, c.Topic, "g", func(_ context.Context, d *jetbus.Delivery) error {
		if rand.IntN(100) < c.Failing {
			return errors.New("bad luck")
		}
		number, err := strconv.Atoi(string(d.Payload))
		if err != nil {
			return err
		}
		p.Tell(rig.Report{What: "success", ID: d.Key, Seq: d.Seq, Count: number})
		return nil
	}, jetbus.SubscribeOptions{
		From: jetbus.Earliest(), Order: jetbus.PerKey, Concurrency: c.Workers, MaxAttempts: -1,
		Backoff: jetbus.Backoff{Min: time.Millisecond, Max: 5 * time.Millisecond},
	})
	if err != nil {
		return err
	}
	p.Tell(rig.Report{What: "ready"})
	<-s.Done()
	return s.Err()
}

// successes are how many reports of success a child has sent, roughly: it says little else.
func successes(p *rig.Process) int {
	all, _ := p.Reports()
	return len(all)
}

// TestOrderPerKey puts 30,000 events (or more, see -each) of 1,000 keys before a group whose handlers
// fail in a fifth of all runs, while its active member is stopped and killed again
// and again: the first successes of each key are in the order of its events.
func TestOrderPerKey(t *testing.T) {
	t.Parallel()
	const keys, rounds = 1000, 6
	b := broker.Start(t)
	bus := rig.OpenBus(t, b.URL())
	rig.Declare(t, bus, jetbus.TopicConfig{Name: "order"})
	for i := range *each {
		events := make([]jetbus.Event, keys)
		for k := range events {
			events[k] = jetbus.Event{Topic: "order", Key: "k" + strconv.Itoa(k), Payload: []byte(strconv.Itoa(i))}
		}
		if _, err := bus.PublishBatch(t.Context(), events, jetbus.BatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	join := func() *rig.Process {
		c := rig.Spawn(t, "ordered", orderedConfig{URL: b.URL(), Topic: "order", Workers: 8, Failing: 20})
		c.First(t, "ready")
		return c
	}
	members := []*rig.Process{join()}
	members[0].First(t, "active")
	for round := range rounds {
		active, next := members[round], join()
		members = append(members, next)
		rig.Eventually(t, func() string {
			if n := successes(active); n < keys**each/20 {
				return fmt.Sprintf("the active member has handled %d events", n)
			}
			return ""
		})
		if round%3 == 1 {
			active.Kill()
		} else {
			active.Terminate(t)
			active.Gone(t)
		}
		next.First(t, "active")
	}
	rig.AwaitSettled(t, bus, "order", "g")
	members[rounds].Terminate(t)
	members[rounds].Gone(t)
	checkOrder(t, keys, *each, members)
}

// checkOrder checks that the first successes of all events of each key are in
// their order.
func checkOrder(t *testing.T, keys, each int, members []*rig.Process) {
	t.Helper()
	var all []rig.Report
	for _, m := range members {
		reports := m.Said("success")
		all = append(all, reports...)
	}
	slices.SortStableFunc(all, func(a, b rig.Report) int { return a.At.Compare(b.At) })
	next := map[string]int{}
	wrong := 0
	for _, r := range all {
		switch due := next[r.ID]; {
		case r.Count < due: // again, after a kill
		case r.Count == due:
			next[r.ID]++
		default:
			if wrong++; wrong <= 5 {
				t.Errorf("event %d of key %s succeeded when %d was due", r.Count, r.ID, due)
			}
			next[r.ID] = r.Count + 1
		}
	}
	done := 0
	for _, n := range next {
		done += n
	}
	if wrong > 0 || done != keys*each || len(next) != keys {
		t.Errorf("%d out of order; %d of %d events of %d keys succeeded", wrong, done, keys*each, len(next))
	}
	t.Logf("%d events, %d of them twice", done, len(all)-done)
}
