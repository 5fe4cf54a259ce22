//go:build unix

package outbox

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/outbox"
)

// TestClaimBytes claims rows up to a number of bytes, of a key as of others, and one that
// is larger alone.
func TestClaimBytes(t *testing.T) {
	onDatabases(t, func(r *rig) {
		b := r.openBox(outbox.Options{MaxBytes: -1})
		sized := func(id, key string, n int) jetbus.Event {
			return jetbus.Event{ID: id, Topic: "orders", Key: key, Payload: make([]byte, n)}
		}
		r.ok(r.tryAddTo(r.Context(), b,
			sized("a1", "a", 40_000), sized("a2", "a", 40_000), sized("n1", "", 40_000), sized("huge", "b", 300_000), sized("b2", "b", 10), sized("a3", "a", 10)))
		for i, want := range []ids{{"a1", "n1"}, {"a2"}, {"huge"}, {"b2", "a3"}, {}} {
			rows, err := r.box.Claim(r.Context(), jetbus.ClaimOptions{Max: 10, MaxBytes: 100_000, Lease: time.Minute})
			r.ok(err)
			got := ids{}
			for _, row := range rows {
				got = append(got, row.Event.ID)
			}
			r.want(fmt.Sprint("claim ", i), got, want)
			r.ok(r.box.Sent(r.Context(), rows))
		}
		_, err := r.box.Claim(r.Context(), jetbus.ClaimOptions{Max: 10, MaxBytes: -1, Lease: time.Minute})
		r.wantErr("a negative number", err, jetbus.ErrInvalidOption)
	})
}

// TestCleanInParts removes what was sent some thousands at a time.
func TestCleanInParts(t *testing.T) {
	onDatabases(t, func(r *rig) {
		const n = 6000
		b := r.openBox(outbox.Options{Keep: time.Millisecond})
		events := make([]jetbus.Event, n)
		for i := range events {
			events[i] = order(fmt.Sprintf("%04d", i), "")
		}
		r.add(events...)
		for range 2 {
			rows, err := b.Claim(r.Context(), jetbus.ClaimOptions{Max: n / 2, Lease: time.Minute})
			r.ok(err)
			r.ok(b.Sent(r.Context(), rows))
		}
		r.add(order("new", ""))
		r.until("what was sent is old enough", func() bool {
			removed, err := b.Clean(r.Context())
			r.ok(err)
			return removed == 5000
		})
		removed, err := b.Clean(r.Context())
		r.ok(err)
		r.want("removed by the second call", removed, n-5000)
		r.want("left", r.list(outbox.Query{}), ids{"new pending 0"})
	})
}
