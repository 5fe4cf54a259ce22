package cluster

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/e2e/internal/election"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

// A group that was moved, so that its durable is not the one that it began with, is still
// the group for members that join while the server is gone that led that durable: none of
// them makes another, at the end of the topic.
func TestGroupIsFoundInAnElection(t *testing.T) {
	const events, joining = 10, 4
	c, bus := onCluster(t, jetbus.TopicConfig{})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := bus.Receive(ctx, "a", "g", jetbus.ReceiveOptions{Wait: -1})
	must(err)
	must(bus.SetCursor(ctx, "a", "g", jetbus.Cursor{}, jetbus.SeekOptions{}))
	for i := range events {
		_, err := bus.Publish(ctx, jetbus.Event{Topic: "a", ID: fmt.Sprint(i)})
		must(err)
	}
	members := make([]*adapter.Bus, joining)
	for i := range members {
		members[i] = bustest.Open(t, c, adapter.Config{Replicas: 3, Timeout: patience})
	}
	must(c.WaitReady(ctx))
	leader, err := election.Leader(ctx, c, func() (int, error) { return c.ConsumerLeader("EV_A", "a__g__e1") })
	must(err)
	must(c.KillNode(ctx, leader))

	var mu sync.Mutex
	handled := map[string]bool{}
	handle := func(_ context.Context, d *jetbus.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		handled[d.ID] = true
		return nil
	}
	var joins sync.WaitGroup
	for _, member := range members {
		joins.Go(func() {
			if _, err := member.Subscribe(ctx, "a", "g", handle, jetbus.SubscribeOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	joins.Wait()
	eventually(t, func() string {
		mu.Lock()
		defer mu.Unlock()
		if len(handled) < events {
			return fmt.Sprintf("%d of %d events are handled", len(handled), events)
		}
		return ""
	})
	js, err := jetstream.New(bustest.Connect(t, c))
	must(err)
	var durables []string
	eventually(t, func() string { // another election may swallow a request
		try, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		stream, err := js.Stream(try, "EV_A")
		if err != nil {
			return fmt.Sprintf("look for the stream: %v", err)
		}
		names := stream.ConsumerNames(try)
		durables = nil
		for name := range names.Name() {
			durables = append(durables, name)
		}
		if err := names.Err(); err != nil {
			return fmt.Sprintf("list the durables: %v", err)
		}
		return ""
	})
	if !slices.Equal(durables, []string{"a__g__e1"}) {
		t.Errorf("the topic has %q", durables)
	}
}

// Many groups that begin at the same moment, on topics that were made the moment before,
// all begin.
func TestManyGroupsAtOnce(t *testing.T) {
	const topics, groups = 3, 10
	c, _ := onCluster(t, jetbus.TopicConfig{})
	bus := bustest.Open(t, c, adapter.Config{Replicas: 3, Timeout: patience})
	for i := range topics {
		topic := fmt.Sprint("many.t", i)
		if _, err := bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: topic}); err != nil {
			t.Fatal(err)
		}
		handled := make(chan string, groups)
		var joins sync.WaitGroup
		for g := range groups {
			group := fmt.Sprint("g", g)
			handle := func(context.Context, *jetbus.Delivery) error {
				handled <- group
				return nil
			}
			joins.Go(func() {
				if _, err := bus.Subscribe(t.Context(), topic, group, handle, jetbus.SubscribeOptions{}); err != nil {
					t.Error(err)
				}
			})
		}
		joins.Wait()
		if t.Failed() {
			return
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if _, err := bus.Publish(ctx, jetbus.Event{Topic: topic}); err != nil {
			t.Fatal(err)
		}
		for range groups {
			select {
			case <-handled:
			case <-ctx.Done():
				t.Fatal("not all groups have the event")
			}
		}
		cancel()
	}
}
