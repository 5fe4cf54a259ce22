package groups_test

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// withoutMarkers puts a bucket whose keys cannot expire in the place of one of the bus's.
func (r *rig) withoutMarkers(bucket string) {
	r.Helper()
	_ = r.JS.DeleteKeyValue(r.Context(), bucket) // it may not be there yet
	must(r.JS.CreateKeyValue(r.Context(), jetstream.KeyValueConfig{Bucket: bucket, History: 1}))(r.T)
}

// A member of an ordered group that cannot have its topic, since a bucket's keys cannot
// expire, says so and ends: that of the owners, and that of the locks under which a
// durable is replaced.
func TestOrderOfAnOldBucket(t *testing.T) {
	for _, bucket := range []string{"JETBUS_GROUPS", "JETBUS_LOCKS"} {
		t.Run(bucket, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.Ensure(jetbus.TopicConfig{Name: "a"})
				r.OK(r.orderly(r.Bus, jetbus.PerKey, adaptertest.Ignore, jetbus.SubscribeOptions{}).Stop(r.Context()))
				r.withoutMarkers(bucket)
				r.publishKeys("a", 1, 0, 2)
				durable := must(r.JS.Consumer(r.Context(), "EV_A", r.durable()))(r.T)
				must(durable.Next())(r.T) // what another client holds has the durable replaced
				s := r.orderly(r.Bus, jetbus.PerKey, adaptertest.Ignore, jetbus.SubscribeOptions{})
				if _, ended := awaited(s.Done()); !ended {
					r.Fatalf("it stands by: %+v", s.Stats())
				}
				r.WantErr(s.Err(), jetbus.ErrUnsupported)
			})
		})
	}
}
