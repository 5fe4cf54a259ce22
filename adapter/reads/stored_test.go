package reads_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// What is read says when the server stored it, whatever the publisher's clock says; what a
// snapshot took over, when it did that.
func TestReadEventsSayWhenTheyWereStored(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.Ensure(jetbus.TopicConfig{Name: "a", KeyInSubject: true, Storage: jetbus.MemoryStorage})
		for i := range 3 {
			time.Sleep(time.Minute)
			e := adaptertest.Event("a", fmt.Sprint(i))
			e.Time, e.Stored = time.Now().Add(-time.Hour), time.Unix(1, 0)
			receipt := must(r.Bus.Publish(ctx, e))(t)
			r.Equal("a receipt, which does not know", receipt.Event.Stored, time.Time{})
		}
		r.Ensure(jetbus.TopicConfig{Name: "snap", SnapshotOf: "a", Storage: jetbus.MemoryStorage})
		r.caughtUp("snap", 3)
		for topic, stream := range map[string]string{"a": "EV_A", "snap": "EV_SNAP"} {
			got := map[string][]jetbus.Event{}
			note := func(how string, e jetbus.Event) { got[how] = append(got[how], e) }
			for e, err := range r.Bus.Scan(ctx, topic, jetbus.ScanQuery{}) {
				r.OK(err)
				note("scan", e)
			}
			for e, err := range r.Bus.Read(ctx, []string{topic}, jetbus.ReadOptions{From: jetbus.Earliest()}) {
				r.OK(err)
				note("read", e)
			}
			must(r.Bus.ScanLatest(ctx, topic, jetbus.LatestQuery{}, func(e jetbus.Event) error {
				note("scan latest", e)
				return nil
			}))(t)
			latest := must(r.Bus.LatestByKey(ctx, topic, "0", "1", "2"))(t)
			for _, key := range []string{"0", "1", "2"} {
				note("latest", latest[key])
			}
			for _, how := range []string{"scan", "read", "scan latest", "latest"} {
				if len(got[how]) != 3 {
					r.Fatalf("%s of %s: %d events", how, topic, len(got[how]))
				}
				for i, e := range got[how] {
					r.Equal(fmt.Sprintf("%s of %s, event %d", how, topic, i), e.Stored, r.StoredAt(stream, uint64(i+1))) //nolint:gosec // below 3
				}
			}
		}
	})
}
