package partition_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/partition"
)

// brokerTopic is a topic with partitions on a real broker.
type brokerTopic struct {
	*testing.T
	broker *embedded.Broker
	admin  *adapter.Bus
}

func (b *brokerTopic) publish(key string, ids ...string) {
	b.Helper()
	events := make([]jetbus.Event, len(ids))
	for i, id := range ids {
		events[i] = jetbus.Event{Topic: "orders", ID: id, Key: key, Payload: []byte("{}")}
	}
	if _, err := b.admin.PublishBatch(b.Context(), events, jetbus.BatchOptions{}); err != nil {
		b.Fatal(err)
	}
}

func (b *brokerTopic) grow(n int) {
	b.Helper()
	other := bustest.Open(b, b.broker, adapter.Config{SID: "operator"}) // publishers find out by themselves
	if _, err := other.Repartition(b.Context(), "orders", n); err != nil {
		b.Fatal(err)
	}
}

func (b *brokerTopic) open() int {
	b.Helper()
	parts, err := b.admin.GroupPartitions(b.Context(), "orders", "billing")
	if err != nil {
		b.Fatal(err)
	}
	all, err := b.admin.Generations(b.Context(), "orders")
	if err != nil {
		b.Fatal(err)
	}
	want, n := 0, 0
	for _, g := range all {
		want += g.Partitions
	}
	for _, p := range parts {
		n += int(p.Pending) + p.Held //nolint:gosec // few
	}
	return n + want - len(parts) // one that the group has not joined is not drained
}

func (b *brokerTopic) bus(seed uint64) (*line, jetbus.Partitions) {
	bus := bustest.Open(b, b.broker, adapter.Config{})
	return newLine(bus, seed), bus
}

// onBroker plays a service at a real server in fake time.
func onBroker(t *testing.T, n int, f func(s *service, broker *embedded.Broker)) {
	t.Helper()
	bustest.Run(t, func(t *testing.T) {
		broker := bustest.Start(t, embedded.Config{})
		admin := bustest.Open(t, broker, adapter.Config{SID: "publisher"})
		if _, err := admin.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "orders", Partitions: n, Retention: -1}); err != nil {
			t.Fatal(err)
		}
		s := newService(t, &brokerTopic{t, broker, admin})
		defer s.end()
		f(s, broker)
	})
}

// TestGrowOnABroker: a topic of a real server grows from 8 to 12 under load, with
// publishers that do not know of it: the order of each key holds across generations, and
// nothing is lost. Lookup tells what members run.
func TestGrowOnABroker(t *testing.T) {
	onBroker(t, 8, func(s *service, _ *embedded.Broker) {
		s.handles = func(ctx context.Context, _ *jetbus.Delivery) error { return sleepy(ctx, 60*time.Millisecond) }
		m := s.start("a", "b", "c")
		want := map[string][]string{}
		s.rounds(want, 0, 30, 30, 200*time.Millisecond) // more than they manage: they are behind when the topic grows
		s.grow(12)
		s.rounds(want, 30, 60, 30, 200*time.Millisecond)
		s.drained(5*time.Minute, want)
		time.Sleep(30 * time.Second)
		a, err := partition.LookupTopic(s.Context(), s.bus(), "", "orders", "billing")
		if err != nil {
			s.Fatal(err)
		}
		total := 0
		for _, g := range a.Generations {
			for _, member := range g.Members {
				total += len(member.Partitions)
				for i := range m {
					if m[i].id == member.ID {
						for _, p := range member.Partitions {
							s.wants("P"+m[i].id, slices.Contains(m[i].Owned(), jetbus.Partition{Generation: g.Generation, Number: p}), true)
						}
					}
				}
			}
		}
		s.wants("partitions with somebody", total, 12)
		s.publish("key-1", "after")
		s.drained(time.Second, nil)
	})
}

// TestMovedBack: a group that somebody moves back handles all again, the older generation
// first.
func TestMovedBack(t *testing.T) {
	onBroker(t, 4, func(s *service, _ *embedded.Broker) {
		m := s.start("a", "b")
		want := map[string][]string{}
		s.rounds(want, 0, 10, 12, 50*time.Millisecond)
		s.grow(6)
		s.rounds(want, 10, 20, 12, 50*time.Millisecond)
		s.drained(time.Minute, want)
		time.Sleep(20 * time.Second)
		s.wants("partitions, all of the new generation", len(m[0].Owned())+len(m[1].Owned()), 6)
		s.mu.Lock()
		clear(s.handled)
		clear(s.done)
		s.mu.Unlock()
		if err := s.world.(*brokerTopic).admin.SetCursor(s.Context(), "orders", "billing", jetbus.Cursor{}, jetbus.SeekOptions{}); err != nil {
			s.Fatal(err)
		}
		s.drained(time.Minute, want)
	})
}

// TestMovedBackUnawares: a group is moved back while nobody listens to the newer
// generation, or before a turn at it has begun. It waits for the older one all the same.
// It happens to one group, time and again: each time it is past the older one before.
func TestMovedBackUnawares(t *testing.T) {
	cases := []struct {
		name     string
		unawares func(s *service, m []*replica, move func()) []*replica
	}{
		{"while its members are paused", func(_ *service, m []*replica, move func()) []*replica {
			for _, r := range m {
				r.Pause()
			}
			time.Sleep(time.Second)
			move()
			for _, r := range m {
				r.Resume()
			}
			return m
		}},
		{"and its members are paused again", func(_ *service, m []*replica, move func()) []*replica {
			for range 3 {
				for _, r := range m {
					r.Pause()
				}
				time.Sleep(300 * time.Millisecond)
				move()
				for _, r := range m {
					r.Resume()
				}
				time.Sleep(100 * time.Millisecond)
			}
			return m
		}},
		{"while OnAssigned runs", func(s *service, m []*replica, move func()) []*replica {
			for _, r := range m {
				if err := r.Stop(s.Context()); err != nil {
					s.Fatal(err)
				}
			}
			o := s.options("slow")
			noted := o.OnAssigned
			o.OnAssigned = func(ctx context.Context, a partition.Assigned) {
				noted(ctx, a)
				_ = sleepy(ctx, 5*time.Second)
			}
			slow := s.subscribe(o)
			time.Sleep(4 * time.Second) // the gate is passed, OnAssigned is not
			s.wants("partitions that begin", len(slow.Owned()), 6)
			move()
			return []*replica{slow}
		}},
	}
	onBroker(t, 4, func(s *service, _ *embedded.Broker) {
		m := s.start("a", "b")
		want := map[string][]string{}
		s.rounds(want, 0, 10, 12, 50*time.Millisecond)
		s.grow(6)
		s.rounds(want, 10, 20, 12, 50*time.Millisecond)
		s.drained(time.Minute, want)
		admin := s.world.(*brokerTopic).admin
		for _, c := range cases {
			time.Sleep(20 * time.Second)
			s.wants("partitions, all of the new generation, before it is moved "+c.name, owned(m), 6)
			m = c.unawares(s, m, func() {
				s.mu.Lock()
				clear(s.handled)
				clear(s.done)
				s.mu.Unlock()
				if err := admin.SetCursor(s.Context(), "orders", "billing", jetbus.Cursor{}, jetbus.SeekOptions{}); err != nil {
					s.Fatal(err)
				}
			})
			s.drained(2*time.Minute, want)
			s.wants("partitions of the new generation, and perhaps older ones, moved "+c.name, owned(m) >= 6, true)
		}
	})
}

// owned is how many partitions some replicas have.
func owned(m []*replica) (n int) {
	for _, r := range m {
		n += len(r.Owned())
	}
	return n
}

// TestRefusedByABroker: what cannot be subscribed to by partition is refused with what
// stands in the way.
func TestRefusedByABroker(t *testing.T) {
	onBroker(t, 4, func(s *service, _ *embedded.Broker) {
		admin := s.world.(*brokerTopic).admin
		if _, err := admin.EnsureTopic(s.Context(), jetbus.TopicConfig{Name: "plain"}); err != nil {
			s.Fatal(err)
		}
		sub, err := admin.Subscribe(s.Context(), "orders", "plain", s.handle, jetbus.SubscribeOptions{})
		if err != nil {
			s.Fatal(err)
		}
		s.start("a")
		for _, c := range []struct {
			topic, group string
			want         error
		}{
			{"none", "g", jetbus.ErrNoTopic},
			{"plain", "g", jetbus.ErrNoPartitions},
			{"orders", "plain", jetbus.ErrConflict},
		} {
			_, err := partition.Subscribe(s.Context(), admin, c.topic, c.group, s.handle, partition.SubscribeOptions{})
			if !errors.Is(err, c.want) {
				s.Errorf("%s/%s: %v, want %v", c.topic, c.group, err, c.want)
			}
		}
		if _, err := admin.Subscribe(s.Context(), "orders", "billing", s.handle, jetbus.SubscribeOptions{}); !errors.Is(err, jetbus.ErrConflict) {
			s.Errorf("a group with partitions, without: %v", err)
		}
		if err := sub.Stop(s.Context()); err != nil {
			s.Error(err)
		}
	})
}

// TestOtherOrder: members of one group keep one order. Another one is refused at the
// call, also while those that are there ask for nothing; a member that was away while
// the group got another one ends with that error.
func TestOtherOrder(t *testing.T) {
	onBroker(t, 4, func(s *service, _ *embedded.Broker) {
		a := s.start("a")[0]
		s.load(2, 8, 100*time.Millisecond)
		a.Pause()
		time.Sleep(time.Second)
		o := s.options("b")
		o.PerPartition.Order, o.PerPartition.Concurrency = jetbus.Total, 1
		var refused *jetbus.ConflictError
		if _, err := partition.Subscribe(s.Context(), s.bus(), "orders", "billing", s.handle, o); !errors.As(err, &refused) || refused.Differences[0].Field != "Order" {
			s.Errorf("while a is paused: %v", err)
		}
		a.Resume()
		s.drained(time.Minute, s.load(2, 8, 100*time.Millisecond))
		s.wants("what ended a", a.Err(), error(nil))
		a.line.cut(true)
		time.Sleep(2 * s.ttl)
		s.subscribe(o)
		time.Sleep(time.Second)
		a.line.cut(false)
		select {
		case <-a.Done():
		case <-time.After(time.Minute):
			s.Error("a goes on")
		}
		if !errors.Is(a.Err(), jetbus.ErrConflict) {
			s.Errorf("a ends with %v", a.Err())
		}
		s.drained(time.Minute, s.load(2, 8, 100*time.Millisecond))
	})
}

// TestCrashOnABroker: a replica that is cut off from its session gives up, and others go
// on with what it had.
func TestCrashOnABroker(t *testing.T) {
	onBroker(t, 4, func(s *service, _ *embedded.Broker) {
		m := s.start("a", "b")
		time.Sleep(2 * time.Second)
		m[0].line.cut(true)
		want := s.load(20, 8, 100*time.Millisecond)
		s.drained(s.ttl+2*time.Second, want)
		m[0].line.cut(false)
		time.Sleep(3 * time.Second)
		s.wants("what a has when it is back", len(m[0].Owned()), 2)
		s.drained(time.Minute, s.load(5, 8, 100*time.Millisecond))
	})
}

// TestChaosOnABroker is TestChaos at a real server, which is killed and restarted in
// between.
func TestChaosOnABroker(t *testing.T) {
	for seed := range (churns() + 59) / 60 {
		onBroker(t, 8, func(s *service, broker *embedded.Broker) {
			rng := rand.New(rand.NewPCG(seed, 5)) //nolint:gosec // reproducible on purpose
			s.crash = func() {
				if err := broker.Kill(s.Context()); err != nil {
					s.Fatal(err)
				}
				time.Sleep(time.Duration(rng.IntN(20)) * time.Second)
				if err := broker.Restart(s.Context()); err != nil {
					s.Fatal(err)
				}
			}
			s.chaos(rng, 28)
		})
	}
}
