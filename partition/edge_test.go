package partition_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/partition"
)

// lateKeys is a bucket to which writes come late, for a while.
type lateKeys struct {
	jetbus.Keys
	mu sync.Mutex
	by time.Duration
}

// delay has writes come later by that, and their answers not at all. 0: no more.
func (k *lateKeys) delay(by time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.by = by
}

func (k *lateKeys) KeySet(ctx context.Context, bucket, key string, value []byte, revision uint64, ttl time.Duration) (uint64, error) {
	k.mu.Lock()
	by := k.by
	k.mu.Unlock()
	if by == 0 {
		return k.Keys.KeySet(ctx, bucket, key, value, revision, ttl)
	}
	time.AfterFunc(by, func() {
		_, _ = k.Keys.KeySet(context.Background(), bucket, key, value, revision, ttl) // nobody waits for it any more
	})
	<-ctx.Done()
	return 0, errAway
}

// TestLateRenewal: a renewal that comes to the broker when its member has given the session
// up is not another member of the same name.
func TestLateRenewal(t *testing.T) {
	bubble(t, 4, func(r *rig) {
		keys := &lateKeys{Keys: r.keys}
		m := &member{r: r, line: newLine(keys, 1), id: "a"}
		joined, err := partition.Join(r.Context(), m.line, "t/g", m.own, r.options("a"))
		if err != nil {
			r.Fatal(err)
		}
		m.Membership = joined
		r.members = append(r.members, m)
		r.settled(2*time.Second, "a")
		keys.delay(r.ttl * 5 / 8) // the first one is there a second after the session is given up, and before it is over
		time.Sleep(r.ttl * 4 / 5)
		keys.delay(0)
		time.Sleep(r.ttl)
		r.wants("error", m.Err(), nil)
		r.wants("sessions lost", m.Stats().Expelled, 1)
		r.settled(r.ttl, "a")
	})
}
