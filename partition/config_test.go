package partition_test

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/partition"
)

// halfKeys store what a group agrees on half: its second write fails, once.
type halfKeys struct {
	jetbus.Keys
	writes int
}

// KeySet implements jetbus.Keys.
func (k *halfKeys) KeySet(ctx context.Context, bucket, key string, value []byte, revision uint64, ttl time.Duration) (uint64, error) {
	if strings.HasSuffix(key, ".c") {
		if k.writes++; k.writes == 2 {
			return 0, jetbus.ErrUnavailable
		}
	}
	return k.Keys.KeySet(ctx, bucket, key, value, revision, ttl)
}

// TestConfigOutlivesItsTrial: a first member whose join fails half way, and is repeated, leaves
// nothing behind that vanishes under the group.
func TestConfigOutlivesItsTrial(t *testing.T) {
	bubble(t, 4, func(r *rig) {
		own := func(ctx context.Context, t *partition.Turn) (bool, error) {
			select {
			case <-ctx.Done():
			case <-t.Revoked():
			}
			return true, nil
		}
		keys := &halfKeys{Keys: r.keys}
		if _, err := partition.Join(r.Context(), keys, "t/g", own, r.options("a")); !errors.Is(err, jetbus.ErrUnavailable) {
			r.Fatalf("the first join: %v", err)
		}
		m, err := partition.Join(r.Context(), keys, "t/g", own, r.options("a"))
		if err != nil {
			r.Fatal(err)
		}
		defer func() {
			if err := m.Stop(context.Background()); err != nil {
				r.Error(err)
			}
		}()
		time.Sleep(11 * time.Minute)
		if _, err := partition.Lookup(r.Context(), r.keys, "", "t/g"); err != nil {
			r.Error(err)
		}
		if _, err := partition.Join(r.Context(), r.keys, "t/g", own, partition.Options{Partitions: 8}); !errors.Is(err, jetbus.ErrConflict) {
			r.Errorf("a join with another number: %v", err)
		}
		if m.Err() != nil || len(m.Owned()) != 4 {
			r.Errorf("the member owns %v: %v", m.Owned(), m.Err())
		}
	})
}

// behindKeys are watched at a replica that is behind: it has an older word of what a group
// agrees on, which is followed by all that there is.
type behindKeys struct {
	jetbus.Keys
	told int
}

// KeyWatch implements jetbus.Keys.
func (k *behindKeys) KeyWatch(ctx context.Context, bucket, prefix string) iter.Seq2[jetbus.KeyEntry, error] {
	return func(yield func(jetbus.KeyEntry, error) bool) {
		old, err := json.Marshal(map[string]any{"partitions": 8})
		k.told++
		if !yield(jetbus.KeyEntry{Key: strings.TrimSuffix(prefix, ".") + ".c", Value: old, Revision: 1}, err) {
			return
		}
		for e, err := range k.Keys.KeyWatch(ctx, bucket, prefix) {
			if !yield(e, err) {
				return
			}
		}
	}
}

// TestConfigOfAReplicaBehind: what a group agreed on before ends no membership.
func TestConfigOfAReplicaBehind(t *testing.T) {
	bubble(t, 4, func(r *rig) {
		r.start("a")
		keys := &behindKeys{Keys: r.keys}
		m := &member{r: r, line: newLine(r.keys, 7), id: "b"}
		joined, err := partition.Join(r.Context(), keys, "t/g", m.own, r.options("b"))
		if err != nil {
			r.Fatal(err)
		}
		m.Membership = joined
		r.members = append(r.members, m)
		time.Sleep(time.Minute)
		synctest.Wait()
		if keys.told == 0 || m.Err() != nil || len(m.Owned()) != 2 {
			r.Errorf("told %d times, the member owns %v: %v", keys.told, m.Owned(), m.Err())
		}
	})
}
