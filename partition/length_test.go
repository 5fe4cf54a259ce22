package partition_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/partition"
)

// lengthKeys notes the lengths of the values of sessions.
type lengthKeys struct {
	jetbus.Keys
	mu      sync.Mutex
	lengths map[int]int
}

func (k *lengthKeys) KeySet(ctx context.Context, bucket, key string, value []byte, revision uint64, ttl time.Duration) (uint64, error) {
	if strings.Contains(key, "/.m/") {
		k.mu.Lock()
		k.lengths[len(value)]++
		k.mu.Unlock()
	}
	return k.Keys.KeySet(ctx, bucket, key, value, revision, ttl)
}

// A session takes no more room when it is renewed, or when its member leaves: a full bucket has none.
func TestSessionsHaveOneLength(t *testing.T) {
	bubble(t, 4, func(r *rig) {
		k := &lengthKeys{Keys: r.keys, lengths: map[int]int{}}
		o := r.options("a")
		o.Meta = map[string]string{"zone": "eu", "host": "h1", "version": "1.2"}
		m, err := partition.Join(r.Context(), k, "t/g", func(ctx context.Context, t *partition.Turn) (bool, error) {
			<-t.Revoked()
			time.Sleep(r.ttl) // so that it is seen to leave
			return true, ctx.Err()
		}, o)
		if err != nil {
			r.Fatal(err)
		}
		time.Sleep(r.ttl)
		if err := m.Stop(r.Context()); err != nil {
			r.Error(err)
		}
		for length, n := range k.lengths {
			if len(k.lengths) != 1 || n < 6 {
				r.Errorf("%d values of %d bytes: %v", n, length, k.lengths)
			}
		}
	})
}
