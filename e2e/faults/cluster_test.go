//go:build unix

package faults

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

// cluster is three broker processes.
type cluster struct {
	configs []nodeConfig
	nodes   []*child
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{}
	dir := t.TempDir()
	var routes []int
	for range 3 {
		routes = append(routes, freePort(t))
	}
	for i, route := range routes {
		config := nodeConfig{Name: fmt.Sprintf("n%d", i), Dir: dir, Port: freePort(t), Route: route, Routes: routes}
		c.configs = append(c.configs, config)
		c.nodes = append(c.nodes, spawn(t, "node", config))
	}
	for _, n := range c.nodes {
		n.first(t, "ready")
	}
	return c
}

// url names all nodes.
func (c *cluster) url() string {
	var urls []string
	for _, n := range c.configs {
		urls = append(urls, fmt.Sprintf("nats://127.0.0.1:%d", n.Port))
	}
	return strings.Join(urls, ",")
}

// kill ends the named node by SIGKILL and returns its number.
func (c *cluster) kill(t *testing.T, name string) int {
	t.Helper()
	for i, n := range c.configs {
		if n.Name == name {
			c.nodes[i].kill()
			return i
		}
	}
	t.Fatalf("no node is called %q", name)
	return 0
}

// restart starts node i again.
func (c *cluster) restart(t *testing.T, i int) {
	t.Helper()
	c.nodes[i] = spawn(t, "node", c.configs[i])
	c.nodes[i].first(t, "ready")
}

// peers says who leads a stream or consumer, and whether all others follow.
func peers(info *jetstream.ClusterInfo) (leader string, whole bool) {
	if info == nil {
		return "", false
	}
	whole = len(info.Replicas) == 2
	for _, r := range info.Replicas {
		whole = whole && r.Current && !r.Offline
	}
	return info.Leader, whole
}

// awaitWhole waits until the stream and the group's durable have a leader, and
// two replicas that follow. It returns the leaders.
func awaitWhole(t *testing.T, js jetstream.JetStream, stream, durable string) (ofStream, ofConsumer string) {
	t.Helper()
	eventually(t, func() string {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		s, err := js.Stream(ctx, stream)
		if err != nil {
			return fmt.Sprintf("stream %s: %v", stream, err)
		}
		c, err := s.Consumer(ctx, durable)
		if err != nil {
			return fmt.Sprintf("consumer %s: %v", durable, err)
		}
		var streamWhole, consumerWhole bool
		ofStream, streamWhole = peers(s.CachedInfo().Cluster)
		ofConsumer, consumerWhole = peers(c.CachedInfo().Cluster)
		if ofStream == "" || ofConsumer == "" || !streamWhole || !consumerWhole {
			return fmt.Sprintf("the cluster is not whole: stream %+v, consumer %+v", s.CachedInfo().Cluster, c.CachedInfo().Cluster)
		}
		return ""
	})
	return ofStream, ofConsumer
}

// openReplicated opens a bus on the cluster, whose nodes may not have found each
// other yet, and declares the topic.
func openReplicated(t *testing.T, c *cluster, topic string) *adapter.Bus {
	t.Helper()
	var bus *adapter.Bus
	nc := connect(t, c.url())
	eventually(t, func() string {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		b, err := adapter.Open(ctx, nc, adapter.Config{Replicas: 3})
		if err != nil {
			return fmt.Sprintf("open: %v", err)
		}
		if _, err = b.EnsureTopic(ctx, jetbus.TopicConfig{Name: topic}); err == nil {
			bus = b
			return ""
		}
		_ = b.Close(ctx) // another one is opened
		return fmt.Sprintf("declare: %v", err)
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if err := bus.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return bus
}

// TestLeadersKilled ends the leader of the stream, and then that of the group's
// durable, by SIGKILL, under publishes and a group that processes them.
func TestLeadersKilled(t *testing.T) {
	const total = 3000
	c := startCluster(t)
	l := &load{bus: openReplicated(t, c, "load"), topic: "load"}
	js, err := jetstream.New(connect(t, c.url()))
	if err != nil {
		t.Fatal(err)
	}
	config := consumerConfig{URL: c.url(), Topic: "load", Group: "g", AckTimeout: 2 * time.Second}
	members := []*child{spawn(t, "consumer", config), spawn(t, "consumer", config)}
	for _, m := range members {
		m.first(t, "ready")
	}
	leader, _ := awaitWhole(t, js, "EV_LOAD", "load__g")

	ctx, cancel := context.WithTimeout(t.Context(), 2*limit)
	defer cancel()
	for i := range 3 {
		l.single(ctx, fmt.Sprintf("single%d", i), 600)
	}
	l.batches(ctx, "batch", 1200, 60)

	l.at(t, total/4)
	dead := c.kill(t, leader)
	l.at(t, total/2) // with a node less
	c.restart(t, dead)
	_, leader = awaitWhole(t, js, "EV_LOAD", "load__g")
	dead = c.kill(t, leader)
	l.wg.Wait()
	c.restart(t, dead)
	awaitWhole(t, js, "EV_LOAD", "load__g") // whichever node is read from has it all

	ids := l.check(t, total)
	awaitHandled(t, ids, members...)
	awaitSettled(t, l.bus, "load", "g")
}
