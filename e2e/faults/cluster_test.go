//go:build unix

package faults

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/e2e/internal/broker"
	"github.com/seed-63e9a637/jetbus/e2e/internal/rig"
)

// awaitWhole waits until the stream and the group's durable have a leader, and
// two replicas that follow.
func awaitWhole(t *testing.T, js jetstream.JetStream, stream, durable string) broker.Leaders {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), rig.Limit)
	defer cancel()
	l, err := broker.AwaitWhole(ctx, js, stream, durable)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// openReplicated opens a bus on the cluster, whose nodes may not have found each
// other yet, and declares the topic.
func openReplicated(t *testing.T, c *broker.Cluster, topic string) *adapter.Bus {
	t.Helper()
	var bus *adapter.Bus
	nc := rig.Connect(t, c.URL())
	rig.Eventually(t, func() string {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		b, err := adapter.Open(ctx, nc, adapter.Config{Replicas: 3, Timeout: rig.Limit})
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
		ctx, cancel := context.WithTimeout(context.Background(), rig.Limit)
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
	t.Parallel()
	const total = 3000
	c := broker.StartCluster(t)
	l := &load{bus: openReplicated(t, c, "load"), topic: "load"}
	js, err := jetstream.New(rig.Connect(t, c.URL()))
	if err != nil {
		t.Fatal(err)
	}
	config := consumerConfig{URL: c.URL(), Topic: "load", Group: "g", AckTimeout: 2 * time.Second}
	members := []*rig.Process{rig.Spawn(t, "consumer", config), rig.Spawn(t, "consumer", config)}
	for _, m := range members {
		m.First(t, "ready")
	}
	leader := awaitWhole(t, js, "EV_LOAD", "load__g").Stream

	ctx, cancel := context.WithTimeout(t.Context(), 2*rig.Limit)
	defer cancel()
	for i := range 3 {
		l.single(ctx, fmt.Sprintf("single%d", i), 600)
	}
	l.batches(ctx, "batch", 1200, 60)

	l.at(t, total/4)
	rig.Must(t, c.Kill(leader))
	l.at(t, total/2) // with a node less
	rig.Must(t, c.Restart(leader))
	leader = awaitWhole(t, js, "EV_LOAD", "load__g").Consumer
	rig.Must(t, c.Kill(leader))
	l.wg.Wait()
	rig.Must(t, c.Restart(leader))
	awaitWhole(t, js, "EV_LOAD", "load__g") // whichever node is read from has it all

	ids := l.check(t, total)
	rig.AwaitHandled(t, ids, members...)
	rig.AwaitSettled(t, l.bus, "load", "g")
}
