package partition_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/partition"
)

// TestPrefixesDoNotMeet: the members of a group on a topic of one prefix have nothing to
// do with those of another prefix, whose topic and group have the same names.
func TestPrefixesDoNotMeet(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		const events = 40
		broker := bustest.Start(t, embedded.Config{})
		prefixes := []string{"ev", "other"}
		buses, handled := map[string]*adapter.Bus{}, map[string]*atomic.Int64{}
		for _, prefix := range prefixes {
			bus, n := bustest.Open(t, broker, adapter.Config{Prefix: prefix}), new(atomic.Int64)
			buses[prefix], handled[prefix] = bus, n
			if _, err := bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "orders", Partitions: 4}); err != nil {
				t.Fatal(err)
			}
			for i := range events {
				if _, err := bus.Publish(t.Context(), jetbus.Event{Topic: "orders", Key: fmt.Sprint("k", i), Payload: []byte("{}")}); err != nil {
					t.Fatal(err)
				}
			}
			s, err := partition.Subscribe(t.Context(), bus, "orders", "billing", func(context.Context, *jetbus.Delivery) error {
				n.Add(1)
				return nil
			}, partition.SubscribeOptions{Member: "of-" + prefix, PerPartition: jetbus.SubscribeOptions{From: jetbus.Earliest()}})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := s.Stop(context.Background()); err != nil {
					t.Error(err)
				}
			}()
		}
		time.Sleep(time.Minute)
		for _, prefix := range prefixes {
			if n := handled[prefix].Load(); n != events {
				t.Errorf("of prefix %s, %d events of %d were handled", prefix, n, events)
			}
			a, err := partition.LookupTopic(t.Context(), buses[prefix], "", "orders", "billing")
			if err != nil {
				t.Fatal(err)
			}
			if members := a.Generations[0].Members; len(members) != 1 || members[0].ID != "of-"+prefix || len(members[0].Partitions) != 4 {
				t.Errorf("of prefix %s, the members are %+v", prefix, members)
			}
		}
	})
}
