package cluster

import (
	"context"
	"sync"
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

// A leader that is cut off from the others and not from its clients extends leases that the next
// leader knows nothing of: a handler is canceled before that one gives its event to another member.
func TestLeaseOfLeaderCutOff(t *testing.T) {
	const lease = 12 * time.Second // longer than most elections
	c, bus := onCluster(t, jetbus.TopicConfig{})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	publish := func(id string) {
		t.Helper()
		_, err := bus.Publish(ctx, jetbus.Event{Topic: "a", ID: id})
		must(err)
	}
	_, err := bus.Receive(ctx, "a", "g", jetbus.ReceiveOptions{Wait: -1, AckTimeout: lease}) // the group
	must(err)
	must(c.WaitReady(ctx))
	leader, err := election.Leader(ctx, c, func() (int, error) { return c.ConsumerLeader("EV_A", "a__g") })
	must(err)

	begun, canceled, again := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var first, second, third sync.Once
	join := func(node int, handle jetbus.Handler) {
		t.Helper()
		member := bustest.Open(t, c.Node(node), adapter.Config{Replicas: 3, Timeout: patience})
		_, err := member.Subscribe(ctx, "a", "g", handle, jetbus.SubscribeOptions{AckTimeout: lease})
		must(err)
	}
	join(leader, func(ctx context.Context, d *jetbus.Delivery) error {
		if d.ID == "settled" {
			return nil
		}
		first.Do(func() { close(begun) })
		<-ctx.Done()
		second.Do(func() { close(canceled) })
		return context.Cause(ctx)
	})
	publish("settled")
	eventually(t, func() string {
		if g, err := bus.Groups(ctx, "a"); err != nil || len(g) != 1 || g[0].AckedSeq != 1 {
			return "nothing is settled"
		}
		return ""
	})
	publish("held")
	<-begun
	join((leader+1)%3, func(context.Context, *jetbus.Delivery) error {
		third.Do(func() { close(again) })
		return nil
	})
	time.Sleep(lease / 2) // it has been extended
	select {
	case <-canceled:
		t.Fatal("the lease was lost while all was well")
	default:
	}
	must(c.CutNode(leader))
	select {
	case <-again:
	case <-ctx.Done():
		t.Fatal("the event was not delivered again")
	}
	select {
	case <-canceled:
	default:
		t.Error("two members hold the event")
	}
	must(c.HealNode(leader))
	must(c.WaitReady(ctx))
}
