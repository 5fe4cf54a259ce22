package partition_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/partition"
)

// status returns the partitions of the group, and fails unless they are ordered.
func (s *service) status() []jetbus.PartitionStatus {
	s.Helper()
	list, err := partition.Status(s.Context(), s.world.(*brokerTopic).admin, "", "orders", "billing")
	if err != nil {
		s.Fatal(err)
	}
	for i, p := range list {
		if p.Name != p.String() || i > 0 && list[i-1].Generation == p.Generation && list[i-1].Number != p.Number-1 {
			s.Errorf("%d: %q is %s", i, p.Name, p.Partition)
		}
	}
	return list
}

// owners checks that the owners in Status own their partitions, with their epochs and metadata, and returns the
// number of partitions that have an owner.
func (s *service) owners() (n int) {
	s.Helper()
	byID := map[string]*replica{}
	for _, m := range s.members { // the newest of each name
		byID[m.id] = m
	}
	for _, p := range s.status() {
		s.mu.Lock()
		epoch := s.epochs[p.Partition]
		s.mu.Unlock()
		switch m := byID[p.Member]; {
		case p.Owned:
			n++
			if m == nil || !slices.Contains(m.Owned(), p.Partition) || p.Orphaned || p.State != "live" || p.Meta["host"] != "host of "+p.Member || p.Epoch != epoch {
				s.Errorf("%s is with %q, which is %q and says %q, in epoch %d, not %d", p.Name, p.Member, p.State, p.Meta, p.Epoch, epoch)
			}
		case p.Member == "":
			if p.Epoch != 0 || p.State != "" || p.Meta != nil || p.Orphaned {
				s.Errorf("%s has no member and %d, %q, %q, %v", p.Name, p.Epoch, p.State, p.Meta, p.Orphaned)
			}
		}
	}
	return n
}

// TestStatusFollowsMembers: Status returns the owners while members join, leave, restart and die, and after the topic grows.
func TestStatusFollowsMembers(t *testing.T) {
	onBroker(t, 4, func(s *service, _ *embedded.Broker) {
		start := func(id string, static bool) *replica {
			o := s.options(id)
			o.Static, o.Meta = static, map[string]string{"host": "host of " + id}
			m := s.subscribe(o)
			o.Meta["host"] = "changed after Subscribe"
			time.Sleep(3 * time.Second)
			return m
		}
		stop := func(m *replica) {
			if err := m.Stop(s.Context()); err != nil {
				s.Error(err)
			}
		}
		start("a", false)
		s.wants("partitions of a", s.owners(), 4)
		b := start("b", true)
		c := start("c", false)
		s.wants("partitions of a, b and c", s.owners(), 4)
		stop(c)
		time.Sleep(2 * time.Second)
		s.wants("partitions after c left", s.owners(), 4)
		stop(b)
		s.wants("partitions while b is away", s.owners(), 2)
		away := 0
		for _, p := range s.status() {
			if p.Member == "b" {
				away++
				s.wants("state and metadata of b", []any{p.Owned, p.State, p.Meta["host"], p.Orphaned}, []any{false, "away", "host of b", false})
			}
		}
		s.wants("partitions reserved for b", away, 2)
		b = start("b", true)
		s.wants("partitions after b came back", s.owners(), 4)
		b.line.cut(true)
		time.Sleep(s.ttl * 13 / 10)
		s.wants("partitions after b died", s.owners(), 4)
		b.line.cut(false)
		time.Sleep(3 * time.Second)
		s.grow(6)
		time.Sleep(20 * time.Second)
		s.wants("partitions in two generations", len(s.status()), 4+6)
		s.wants("partitions of the new generation", s.owners(), 6)
	})
}

// TestStatusOfAnOrphan: an orphaned partition has its last member, without metadata, until another member takes it.
func TestStatusOfAnOrphan(t *testing.T) {
	onBroker(t, 2, func(s *service, _ *embedded.Broker) {
		o := s.options("a")
		o.Meta = map[string]string{"host": "host of a"}
		a := s.subscribe(o)
		time.Sleep(2 * time.Second)
		a.line.cut(true)
		time.Sleep(s.ttl + time.Second)
		for _, p := range s.status() {
			s.wants(p.Name, []any{p.Owned, p.Member, p.State, len(p.Meta), p.Orphaned}, []any{false, "a", "", 0, true})
		}
		a.line.cut(false)
	})
}

// TestStatusHasLag: the lag counts the events that the group has not settled, held or not.
func TestStatusHasLag(t *testing.T) {
	onBroker(t, 1, func(s *service, _ *embedded.Broker) {
		admin := s.world.(*brokerTopic).admin
		release := make(chan struct{})
		s.handles = func(ctx context.Context, _ *jetbus.Delivery) error {
			select {
			case <-release:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err := admin.JoinPartitions(s.Context(), "orders", "billing", jetbus.SubscribeOptions{Order: jetbus.PerKey}); err != nil {
			s.Fatal(err)
		}
		s.publish("k", "1", "2", "3")
		time.Sleep(90 * time.Second)
		one := s.status()[0]
		s.wants("before a member joined", []any{one.LagEvents, int(one.LagSeconds), one.Owned, one.Member}, []any{3, 90, false, ""})
		o := s.options("a")
		o.PerPartition.Concurrency, o.PerPartition.MaxInFlight = 1, 2
		s.subscribe(o)
		time.Sleep(10 * time.Second)
		one = s.status()[0]
		s.wants("while a handler runs", []any{one.Held > 0, one.LagEvents, int(one.LagSeconds), one.Owned, one.Member}, []any{true, 3, 100, true, "a"})
		close(release)
		s.drained(time.Minute, nil)
		one = s.status()[0]
		s.wants("in the end", []any{one.LagEvents, one.LagSeconds}, []any{0, 0})
	})
}

func TestStatusRefuses(t *testing.T) {
	onBroker(t, 2, func(s *service, broker *embedded.Broker) {
		bus := bustest.Open(s.T, broker, adapter.Config{SID: "other"})
		if _, err := bus.EnsureTopic(s.Context(), jetbus.TopicConfig{Name: "plain"}); err != nil {
			s.Fatal(err)
		}
		if _, err := bus.EnsureGroup(s.Context(), "orders", jetbus.GroupConfig{Group: "whole"}); err != nil {
			s.Fatal(err)
		}
		for _, c := range []struct {
			topic, group string
			want         error
		}{
			{"none", "g", jetbus.ErrNoTopic},
			{"plain", "g", jetbus.ErrNoPartitions},
			{"orders", "none", jetbus.ErrNoGroup},
			{"orders", "whole", jetbus.ErrConflict},
			{"orders", "a/b", jetbus.ErrInvalidGroup},
		} {
			if _, err := partition.Status(s.Context(), bus, "", c.topic, c.group); !errors.Is(err, c.want) {
				s.Errorf("%s/%s: %v, want %v", c.topic, c.group, err, c.want)
			}
		}
	})
}
