package partition_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/partition"
)

// TestLookup: what the bucket says is what the members run.
func TestLookup(t *testing.T) {
	bubble(t, 10, func(r *rig) {
		if _, err := partition.Lookup(r.Context(), r.keys, "", "t/g"); !errors.Is(err, jetbus.ErrNoGroup) {
			r.Errorf("before anybody joined: %v", err)
		}
		if _, err := partition.Lookup(r.Context(), r.keys, "", ""); !errors.Is(err, jetbus.ErrInvalidOption) {
			r.Errorf("without a name: %v", err)
		}
		r.start("a", "b")
		o := r.options("c")
		o.Static, o.Weight = true, 3
		r.join(o)
		time.Sleep(2 * time.Second)
		a := r.lookup()
		r.wants("members", len(a.Members), 3)
		for _, m := range a.Members {
			if own := r.last(m.ID).Owned(); len(own) == 0 || !slices.Equal(own, m.Partitions) {
				r.Errorf("%s has %v, the bucket says %v", m.ID, own, m.Partitions)
			}
			for _, p := range m.Partitions {
				r.wants("epoch", a.Partitions[p].Epoch, r.turn(p).Epoch)
			}
		}
		r.wants("the weight of c", []any{a.Members[2].Weight, a.Members[2].Static, a.Members[2].State, len(a.Members[2].Partitions)}, []any{3, true, "live", 6})

		r.stop(r.last("c"))
		a = r.lookup()
		r.wants("c is", a.Members[2].State, "away")
		r.wants("it has", len(a.Members[2].Partitions), 6)
		r.last("a").line.die()
		time.Sleep(r.ttl + time.Second)
		a = r.lookup()
		r.wants("members", len(a.Members), 1)
	})
}

func (r *rig) lookup() partition.Assignment {
	r.Helper()
	a, err := partition.Lookup(r.Context(), r.keys, "", "t/g")
	if err != nil {
		r.Fatal(err)
	}
	return a
}
