package partition

import (
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// FuzzApply: whatever somebody writes to the bucket, a member goes on, and takes no
// partition for real that there cannot be.
func FuzzApply(f *testing.F) {
	f.Add("g/.m/a", `{"state":"live","session":"n","weight":1,"joined":"2026-01-01T00:00:00Z"}`, false)
	f.Add("g/.l/3", `{"owner":"a","session":"n"}`, false)
	f.Add("g/.l/-1", `{"owner":"a"}`, false)
	f.Add("g/.l/99999999999999999999", `{}`, true)
	f.Add("g/.c", `{"partitions":8}`, false)
	f.Fuzz(func(t *testing.T, key, value string, deleted bool) {
		v, now := newView(), time.Now()
		for i := range uint64(2) {
			v.apply(jetbus.KeyEntry{Key: key, Value: []byte(value), Revision: i + 1, Deleted: deleted}, "g", now, true, time.Second)
		}
		for p := range v.leases {
			if p < 0 || p >= jetbus.MaxPartitions {
				t.Errorf("a lease of partition %d", p)
			}
		}
		members, _ := v.sharers(now.Add(time.Minute), time.Second)
		for p, id := range Assign(8, members, v.holders(8)) {
			if len(members) > 0 != (id != "") {
				t.Errorf("of %d members %q has partition %d", len(members), id, p)
			}
		}
		v.over("a", "n", now, time.Second)
		v.forget(now, time.Second)
		v.assignment("g", 8)
	})
}
