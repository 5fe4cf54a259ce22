package partition_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/partition"
)

// TestOnABroker has members meet at a real server: its expiries and its watches
// are what the bucket in memory takes after.
func TestOnABroker(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		broker := bustest.Start(t, embedded.Config{})
		own := func(ctx context.Context, turn *partition.Turn) (bool, error) {
			select {
			case <-turn.Revoked():
			case <-ctx.Done():
			}
			return true, nil
		}
		var members []*partition.Membership
		ids := []string{"a", "b", "c"}
		for _, id := range ids {
			bus := bustest.Open(t, broker, adapter.Config{SID: id})
			m, err := partition.Join(t.Context(), bus, "orders/invoices", own, partition.Options{Partitions: 9, Member: id})
			if err != nil {
				t.Fatal(err)
			}
			members = append(members, m)
		}
		have := func(when string, want ...int) {
			t.Helper()
			var all []int
			for i, m := range members {
				owned := m.Owned()
				if len(owned) != want[i] {
					t.Errorf("%s %s has %v, want %d of them", when, ids[i], owned, want[i])
				}
				all = append(all, owned...)
			}
			slices.Sort(all)
			if !slices.Equal(all, []int{0, 1, 2, 3, 4, 5, 6, 7, 8}) {
				t.Errorf("%s the partitions %v are owned", when, all)
			}
		}
		time.Sleep(2 * time.Second)
		have("at first", 3, 3, 3)
		if err := members[0].Stop(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		have("without a,", 0, 4, 5)
		if err := broker.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		for _, m := range members {
			if owned := m.Owned(); len(owned) > 0 {
				t.Errorf("without a broker %v are owned", owned)
			}
		}
		if err := broker.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		have("with the broker back,", 0, 4, 5)
		for _, m := range members[1:] {
			if got := m.Stats().Expelled; got == 0 {
				t.Error("nobody noticed that the broker was away")
			}
			if err := m.Stop(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}
