package groups_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// A lease that runs out counts as an attempt, unless somebody else has the event in hand by
// then: what that one has recorded stays as it is.
func TestOverranLeavesNewerRecords(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.Publish("a", "alone", "taken", "known")
		ds := r.receive("g", jetbus.ReceiveOptions{Max: 3, AckTimeout: time.Second})
		r.Equal("received", len(ds), 3)
		r.OK(r.Bus.PauseGroup(ctx, "a", "g", time.Now().Add(time.Hour))) // nobody gets them again
		records := must(r.JS.KeyValue(ctx, "JETBUS_ATTEMPTS"))(r.T)
		key := func(seq uint64) string {
			names := must(r.JS.Stream(ctx, "EV_A"))(r.T).ConsumerNames(ctx)
			return fmt.Sprintf("EV_A.%s.%d", <-names.Name(), seq)
		}
		newer := map[uint64]string{}
		for i, what := range []string{`"known":1,"started":2`, `"failed":4,"known":2`} {
			seq := uint64(i + 2)
			newer[seq] = fmt.Sprintf(`{%s,"stored":%d}`, what, r.StoredAt("EV_A", seq).UnixNano())
			must(records.PutString(ctx, key(seq), newer[seq]))(r.T)
		}
		time.Sleep(10 * time.Second)
		r.Settle()
		for seq, want := range newer {
			r.Equal("the newer record", string(must(records.Get(ctx, key(seq)))(r.T).Value()), want)
		}
		var own struct{ Failed, Known int }
		entry := must(records.Get(ctx, key(1)))(r.T)
		r.OK(json.Unmarshal(entry.Value(), &own))
		r.Equal("failed and known", own, struct{ Failed, Known int }{1, 1})
	})
}
