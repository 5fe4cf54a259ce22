package cluster

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

// What the groups of a replicated topic need has as many replicas, also where it was made
// for one that is not replicated.
func TestReplicasOfWhatGroupsNeed(t *testing.T) {
	c, _ := onCluster(t, jetbus.TopicConfig{})
	ctx := t.Context()
	bus := bustest.Open(t, c, adapter.Config{Timeout: patience}) // whose own default is one
	js, err := jetstream.New(bustest.Connect(t, c))
	if err != nil {
		t.Fatal(err)
	}
	handle := func(context.Context, *jetbus.Delivery) error { return nil }
	join := func(topic string) {
		t.Helper()
		sub, err := bus.Subscribe(ctx, topic, "g", handle, jetbus.SubscribeOptions{Order: jetbus.PerKey})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, func() string {
			if !sub.Stats().Active {
				return "the member is not active" // then its bucket is there
			}
			return ""
		})
		if err := sub.Stop(ctx); err != nil {
			t.Fatal(err)
		}
	}
	streams := []string{"EV_DLQ", "EV_RETRY", "KV_JETBUS_ATTEMPTS", "KV_JETBUS_LOCKS", "KV_JETBUS_GROUPS"}
	wants := func(replicas int) {
		t.Helper()
		if _, err := bus.KeySet(ctx, "JETBUS_LOCKS", jetbus.NewID(), nil, 0, time.Second); err != nil { // it is made when it is needed
			t.Fatal(err)
		}
		for _, name := range streams {
			var got int
			eventually(t, func() string { // its new replicas may be electing a leader
				s, err := js.Stream(ctx, name)
				if err != nil {
					return fmt.Sprintf("%s: %v", name, err)
				}
				got = s.CachedInfo().Config.Replicas
				return ""
			})
			if got != replicas {
				t.Errorf("%s has %d replicas, want %d", name, got, replicas)
			}
		}
	}
	if _, err := bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: "single"}); err != nil {
		t.Fatal(err)
	}
	join("single")
	wants(1)
	join("a") // its members give all of that more
	wants(3)
	for _, name := range streams {
		eventually(t, func() string { // a stream that was deleted without a word of it is gone the next time
			if err := js.DeleteStream(ctx, name); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
				return fmt.Sprintf("delete %s: %v", name, err)
			}
			return ""
		})
	}
	bus = bustest.Open(t, c, adapter.Config{Timeout: patience})
	join("a")
	wants(3)
}
