//go:build unix

package partitions

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/e2e/internal/broker"
	"github.com/seed-63e9a637/jetbus/partition"
)

// TestLeadersLost ends by SIGKILL the node that leads the topic, and then the one that
// leads the bucket in which members meet, of a cluster with three replicas of each, while
// members run. At that moment another one joins, and another group is made, by one call.
func TestLeadersLost(t *testing.T) {
	t.Parallel()
	c := broker.StartCluster(t)
	s := newService(t, c.URL(), 3)
	m := s.startAll(s.config("a", 15*time.Second), s.config("b", 15*time.Second))
	stop := s.load(keys)
	for i, stream := range []string{"EV_ORDERS", "KV_JETBUS_GROUPS"} {
		stop() // what is published keeps replicas busy
		leader := s.leader(stream)
		stop = s.load(keys)
		before := handled(m...)
		must(t, c.Kill(leader))
		m = append(m, s.start(s.config(fmt.Sprint("late-", i), 15*time.Second)))
		s.another(fmt.Sprint("audit-", i))
		s.eventually(func() string { // with a node less
			if now := handled(m...); now < before+5*keys {
				return fmt.Sprintf("without the leader of %s %d events were handled after the first %d", stream, now-before, before)
			}
			return ""
		})
		must(t, c.Restart(leader))
	}
	stop()
	s.account()
	s.balanced(m...)
}

// another makes a group, of which the test is the member, and waits for it to handle
// an event.
func (s *service) another(name string) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), limit)
	defer cancel()
	handled := make(chan struct{}, 1)
	sub, err := partition.Subscribe(ctx, s.bus, topic, name, func(context.Context, *jetbus.Delivery) error {
		select {
		case handled <- struct{}{}:
		default:
		}
		return nil
	}, partition.SubscribeOptions{TTL: longTTL, PerPartition: jetbus.SubscribeOptions{From: jetbus.Earliest()}})
	must(s.T, err)
	select {
	case <-handled:
	case <-sub.Done():
		s.Errorf("group %s ended: %v", name, sub.Err())
	case <-ctx.Done():
		s.Errorf("group %s handles nothing", name)
	}
	must(s.T, sub.Stop(ctx))
}

func handled(members ...*member) (n int) {
	for _, m := range members {
		n += len(m.said(isHandled))
	}
	return n
}

// leader waits until all replicas of all streams and durables follow a leader, so that
// a node may be lost, and returns that of a stream.
func (s *service) leader(stream string) (leader string) {
	s.Helper()
	nc, err := broker.Dial(s.url)
	must(s.T, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	must(s.T, err)
	s.eventually(func() string {
		ctx, cancel := context.WithTimeout(s.Context(), 30*time.Second) // many requests
		defer cancel()
		there, err := js.Stream(ctx, stream)
		if err != nil {
			return fmt.Sprintf("stream %s: %v", stream, err)
		}
		leader = there.CachedInfo().Cluster.Leader
		streams := js.ListStreams(ctx)
		for info := range streams.Info() {
			if missing := notWhole("stream "+info.Config.Name, info.Cluster); missing != "" {
				return missing
			}
			if missing := notWholeDurables(ctx, js, info); missing != "" {
				return missing
			}
		}
		if err := streams.Err(); err != nil {
			return fmt.Sprintf("streams: %v", err)
		}
		return ""
	})
	return leader
}

func notWholeDurables(ctx context.Context, js jetstream.JetStream, info *jetstream.StreamInfo) (missing string) {
	stream, err := js.Stream(ctx, info.Config.Name)
	if err != nil {
		return fmt.Sprintf("stream %s: %v", info.Config.Name, err)
	}
	durables := stream.ListConsumers(ctx)
	n := 0
	for c := range durables.Info() {
		n++
		if c.Config.Durable == "" { // a watcher's
			continue
		}
		if missing := notWhole("durable "+c.Name, c.Cluster); missing != "" {
			return missing
		}
	}
	if err := durables.Err(); err != nil || n < info.State.Consumers {
		return fmt.Sprintf("%d of %d durables of %s are listed: %v", n, info.State.Consumers, info.Config.Name, err)
	}
	return ""
}

func notWhole(what string, c *jetstream.ClusterInfo) (missing string) {
	if c == nil || c.Leader == "" || len(c.Replicas) != 2 {
		return fmt.Sprintf("%s has no leader of three: %+v", what, c)
	}
	for _, r := range c.Replicas {
		if !r.Current || r.Offline {
			return fmt.Sprintf("%s is not whole: %+v", what, c)
		}
	}
	return ""
}
