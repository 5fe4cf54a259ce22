package jetbus_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// If the source alone is restored, the compactor ends. If the target is restored with it,
// the compactor resumes. It may run all the time, or start when the new history has outgrown the old one.
func TestCompactorNoticesRestore(t *testing.T) {
	for _, whole := range []bool{false, true} { // the broker, or the source alone
		for _, runs := range []bool{false, true} {
			for _, stored := range []int{0, 2, 20} { // events after the restore
				t.Run(fmt.Sprintf("whole=%t/runs=%t/%d", whole, runs, stored), func(t *testing.T) {
					restorable(t, func(r *restoreRig) { r.restoreUnderCompactor(whole, runs, stored) })
				})
			}
		}
	}
}

func (r *restoreRig) restoreUnderCompactor(whole, runs bool, stored int) {
	r.ensure(jetbus.TopicConfig{Name: "source"})
	r.ensure(jetbus.TopicConfig{Name: "target", Compact: true})
	source, err := r.bus.TopicInfo(r.Context(), "source")
	r.ok(err)
	c := jetbus.Compactor{
		Source: "source", Target: "target", Group: "c", Interval: time.Millisecond,
		KeyOf: func(e jetbus.Event) (string, bool) { return e.Key, true },
	}
	stop := r.compactor(c, r.bus)
	r.fill("source", "old", 1, 3)
	time.Sleep(time.Minute)
	backup := r.Backup(r.T)
	r.fill("source", "old", 4, 9)
	time.Sleep(time.Minute)
	if !runs {
		r.ok(stop())
	}
	if whole {
		r.Restore(r.T, backup, nil)
	} else {
		r.RestoreStream(r.T, backup, source.Stream)
	}
	r.fill("source", "new", 1, stored)
	if !runs {
		stop = r.compactor(c, r.bus)
	}
	time.Sleep(5 * time.Minute)
	if err := stop(); !whole {
		r.wantRestored("the compactor", err)
		return
	} else if err != nil {
		r.Errorf("the compactor ended: %v", err)
	}
	events, err := r.read("source", jetbus.Checkpoint{})
	r.ok(err)
	want, got := map[string]string{}, map[string]string{}
	for _, e := range events {
		want[e.Key] = string(e.Payload)
	}
	_, err = r.bus.ScanLatest(r.Context(), "target", jetbus.LatestQuery{}, func(e jetbus.Event) error {
		got[e.Key] = string(e.Payload)
		return nil
	})
	r.ok(err)
	if fmt.Sprint(got) != fmt.Sprint(want) {
		r.Errorf("the target holds %v, want %v", got, want)
	}
}
