package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/partition"
)

// partitions is how many a topic of these rows has.
const partitions = 8

// consumePartitions runs a no-op handler over n events of a topic with partitions, all of
// which this process has.
func consumePartitions(count, size int) job {
	return job{name: "bus", count: count, run: func(ctx context.Context, e *env, n int, c *clock) error {
		e.topics++
		topic := fmt.Sprintf("partitioned%d", e.topics)
		if _, err := e.bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: topic, Partitions: partitions}); err != nil {
			return err
		}
		defer func() { _ = e.bus.DeleteTopic(context.Background(), topic) }() // else it goes with the server
		if _, err := e.bus.PublishBatch(ctx, events(topic, n, size), jetbus.BatchOptions{}); err != nil {
			return err
		}
		g := newCounted(n, partitions)
		s, err := partition.Subscribe(ctx, e.bus2, topic, group, g.handle, partition.SubscribeOptions{
			PerPartition: jetbus.SubscribeOptions{From: jetbus.Earliest()}, JoinDelay: -1,
		})
		if err != nil {
			return err
		}
		defer func() { _ = s.Stop(context.Background()) }()
		return g.measure(ctx, c, func(ctx context.Context) (bool, error) {
			list, err := e.bus.GroupPartitions(ctx, topic, group)
			return err == nil && !slices.ContainsFunc(list, func(p jetbus.PartitionInfo) bool { return !p.Drained() }), err
		})
	}}
}

// consumeSeparately runs a no-op handler over n events that lie in as many topics as
// there are partitions, each with a subscription of its own.
func consumeSeparately(count, size int) job {
	return job{name: "as many subscriptions", count: count, run: func(ctx context.Context, e *env, n int, c *clock) error {
		g := newCounted(n/partitions*partitions, partitions)
		var lanes []*lane
		for range partitions {
			l, err := e.lane(ctx)
			if err != nil {
				return err
			}
			defer l.drop()
			if err := l.fill(ctx, n/partitions, size); err != nil {
				return err
			}
			lanes = append(lanes, l)
		}
		for _, l := range lanes {
			s, err := e.bus2.Subscribe(ctx, l.topic, group, g.handle, jetbus.SubscribeOptions{From: jetbus.Earliest()})
			if err != nil {
				return err
			}
			defer func() { _ = s.Stop(context.Background()) }()
		}
		return g.measure(ctx, c, func(ctx context.Context) (bool, error) {
			for _, l := range lanes {
				groups, err := e.bus.Groups(ctx, l.topic)
				if err != nil {
					return false, err
				}
				if slices.ContainsFunc(groups, func(i jetbus.GroupInfo) bool { return i.Pending > 0 || i.Held > 0 }) {
					return false, nil
				}
			}
			return true, nil
		})
	}}
}

// counted counts events that several handlers get, each of which waits with its first one
// until all have one: joining is setup.
type counted struct {
	want    int64
	got     atomic.Int64
	waiting atomic.Int64
	all     int64
	there   chan struct{} // closed when all have an event
	gate    chan struct{} // closed when the clock runs
	done    chan struct{} // closed when all events came
}

func newCounted(n, handlers int) *counted {
	return &counted{want: int64(n), all: int64(handlers), there: make(chan struct{}), gate: make(chan struct{}), done: make(chan struct{})}
}

func (g *counted) handle(context.Context, *jetbus.Delivery) error {
	select {
	case <-g.gate:
	default:
		if g.waiting.Add(1) == g.all {
			close(g.there)
		}
		<-g.gate
	}
	if g.got.Add(1) == g.want {
		close(g.done)
	}
	return nil
}

// measure runs the clock until all events came and settled says so.
func (g *counted) measure(ctx context.Context, c *clock, settled func(context.Context) (bool, error)) error {
	if err := wait(ctx, g.there); err != nil {
		close(g.gate) // nobody waits for ever
		return fmt.Errorf("%d of %d have an event: %w", g.waiting.Load(), g.all, err)
	}
	c.start()
	close(g.gate)
	if err := wait(ctx, g.done); err != nil {
		return fmt.Errorf("%d of %d events came: %w", g.got.Load(), g.want, err)
	}
	for {
		ok, err := settled(ctx)
		if err != nil {
			return err
		}
		if ok {
			c.stop(int(g.want))
			return nil
		}
	}
}

const (
	// takeOverTTL is that of members of the rows about take-overs.
	takeOverTTL = 3 * time.Second
	// takeOvers is how often each is measured.
	takeOvers = 3
)

// takeOver measures how long a partition stands still when its member stops, or dies:
// from then until the last of its partitions has another owner.
func takeOver(ctx context.Context) ([]line, error) {
	broker, err := embedded.Start(ctx, embedded.Config{Listen: "127.0.0.1:0"})
	if err != nil {
		return nil, err
	}
	defer func() { _ = broker.Stop(context.Background()) }()
	var clean, crash []float64
	for range takeOvers {
		took, err := passOn(ctx, broker.URL(), false)
		if err != nil {
			return nil, err
		}
		clean = append(clean, took.Seconds())
		if took, err = passOn(ctx, broker.URL(), true); err != nil {
			return nil, err
		}
		crash = append(crash, took.Seconds())
	}
	bound := (takeOverTTL + time.Second).Seconds()
	worst, dead := slices.Max(clean), slices.Max(crash)
	return []line{
		{Name: "take-over-clean", Value: worst, Unit: "s", Goal: "< 1", Met: worst < 1},
		{Name: "take-over-crash", Value: dead, Unit: fmt.Sprintf("s, TTL %v", takeOverTTL), Goal: fmt.Sprintf("< %g", bound), Met: dead < bound},
	}, nil
}

// turns are those that began at one of the members.
type turns struct {
	mu    sync.Mutex
	since map[int]time.Time // by partition
	more  chan struct{}     // signaled; capacity 1
}

func (t *turns) assigned(_ context.Context, a partition.Assigned) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.since[a.Number] = time.Now()
	select {
	case t.more <- struct{}{}:
	default:
	}
}

// await waits until there are so many, and returns when the last one began.
func (t *turns) await(ctx context.Context, n int) (last time.Time, err error) {
	for {
		t.mu.Lock()
		have := len(t.since)
		for _, at := range t.since {
			if at.After(last) {
				last = at
			}
		}
		t.mu.Unlock()
		if have == n {
			return last, nil
		}
		select {
		case <-t.more:
		case <-ctx.Done():
			return last, fmt.Errorf("%d of %d partitions have their owner: %w", have, n, ctx.Err())
		}
	}
}

// passOn has a member take all partitions, a second one wait, and the first one end.
func passOn(ctx context.Context, url string, crash bool) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	name := "passing"
	join := func(id string, weight int) (*partition.Subscription, *turns, *nats.Conn, error) {
		nc, err := nats.Connect(url, nats.NoReconnect(), quiet)
		if err != nil {
			return nil, nil, nil, err
		}
		bus, err := adapter.Open(ctx, nc, adapter.Config{})
		if err != nil {
			return nil, nil, nc, err
		}
		if _, err := bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: name, Partitions: partitions}); err != nil {
			return nil, nil, nc, err
		}
		t := &turns{since: map[int]time.Time{}, more: make(chan struct{}, 1)}
		s, err := partition.Subscribe(context.WithoutCancel(ctx), bus, name, group, func(context.Context, *jetbus.Delivery) error { return nil }, partition.SubscribeOptions{
			Member: id, Weight: weight, TTL: takeOverTTL, JoinDelay: -1, OnAssigned: t.assigned,
		})
		return s, t, nc, err
	}
	id := jetbus.NewID()
	first, _, nc, err := join("first-"+id, 1)
	if nc != nil {
		defer nc.Close()
	}
	if err != nil {
		return 0, err
	}
	second, got, nc2, err := join("second-"+id, 1)
	if nc2 != nil {
		defer nc2.Close()
	}
	if err != nil {
		return 0, err
	}
	defer func() { _ = second.Stop(context.Background()) }()
	if _, err := got.await(ctx, partitions/2); err != nil {
		return 0, err
	}
	began := time.Now()
	if crash {
		nc.Close() // for the others it is dead
	} else if err := first.Stop(ctx); err != nil {
		return 0, err
	}
	last, err := got.await(ctx, partitions)
	if err == nil && crash {
		if err = first.Stop(ctx); errors.Is(err, jetbus.ErrClosed) {
			err = nil
		}
	}
	return last.Sub(began), err
}
