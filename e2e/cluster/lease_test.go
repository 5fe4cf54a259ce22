package cluster

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/e2e/internal/election"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

// An event that is older than its lease stays with its holder when the server dies that
// leads the group's consumer: the next one begins with when the event was stored.
func TestOldEventKeepsItsHolder(t *testing.T) {
	const lease, replicated = 12 * time.Second, 3 * time.Second // longer than most elections; what a delivery has to be stored
	c, bus := onCluster(t, jetbus.TopicConfig{})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := bus.Receive(ctx, "a", "g", jetbus.ReceiveOptions{Wait: -1, AckTimeout: lease}) // the group
	must(err)
	must(c.WaitReady(ctx))
	_, err = bus.Publish(ctx, jetbus.Event{Topic: "a"})
	must(err)
	time.Sleep(lease + time.Second)

	var holders atomic.Int64
	begun, over := make(chan struct{}, 10), make(chan struct{}, 10)
	handle := func(ctx context.Context, _ *jetbus.Delivery) error {
		if n := holders.Add(1); n > 1 {
			t.Errorf("%d hold the event", n)
		}
		defer holders.Add(-1)
		begun <- struct{}{}
		select {
		case <-time.After(lease + replicated):
		case <-ctx.Done(): // the election took longer: then it is another's in order
		}
		over <- struct{}{}
		return context.Cause(ctx)
	}
	for range 2 {
		member := bustest.Open(t, c, adapter.Config{Replicas: 3, Timeout: patience})
		_, err := member.Subscribe(ctx, "a", "g", handle, jetbus.SubscribeOptions{AckTimeout: lease})
		must(err)
	}
	<-begun
	time.Sleep(replicated)
	must(c.WaitReady(ctx))
	leader, err := election.Leader(ctx, c, func() (int, error) { return c.ConsumerLeader("EV_A", "a__g") })
	must(err)
	must(c.KillNode(ctx, leader))
	<-over
	eventually(t, func() string {
		groups, err := bus.Groups(ctx, "a")
		if err != nil {
			return err.Error()
		}
		if len(groups) != 1 || groups[0].AckedSeq != 1 {
			return "the event is not settled"
		}
		return ""
	})
}
