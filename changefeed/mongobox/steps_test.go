package mongobox_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/changefeed/mongobox"
)

// blocked adds n rows behind the dead one of the key "stuck", which a claim looks at in
// vain.
func (r *rig) blocked(part string, n int) {
	r.Helper()
	rows := make([]jetbus.Event, n)
	for i := range rows {
		rows[i] = order(fmt.Sprint(part, "-", i), "stuck")
	}
	r.ok(r.box.Add(r.Context(), rows...))
}

// kill sets a row aside.
func (r *rig) kill(id string) {
	r.Helper()
	n, err := r.box.Kill(r.Context(), mongobox.Query{IDs: ids{id}})
	r.ok(err)
	r.want("killed", n, 1)
}

// TestClaimBehindStep stops at the row of a key that is not to be had, though no row of
// the key is due in the step in which that one is.
func TestClaimBehindStep(t *testing.T) {
	r := newRig(t)
	r.ok(r.box.Add(r.Context(), order("dead", "stuck")))
	r.kill("dead")
	r.ok(r.box.Add(r.Context(), order("1", "a")))
	r.blocked("x", 1500)
	r.ok(r.box.Add(r.Context(), order("2", "a")))
	r.kill("2")
	r.blocked("y", 1500)
	r.ok(r.box.Add(r.Context(), order("3", "a")))
	got, rows := r.claim(r.box, 10, time.Minute)
	r.want("claimed", got, ids{"1"})
	r.ok(r.box.Release(r.Context(), rows))
	_, err := r.box.Retry(r.Context(), mongobox.Query{IDs: ids{"2"}})
	r.ok(err)
	got, _ = r.claim(r.box, 10, time.Minute)
	r.want("claimed after the retry", got, ids{"1", "2", "3"})
}
