package topics_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

// watched opens a watch and returns its entry that is Synced.
func (r *rig) watched(b *adapter.Bus, bucket string) (synced jetbus.KeyEntry) {
	r.Helper()
	for e, err := range b.KeyWatch(r.Context(), bucket, "") {
		r.OK(err)
		if e.Synced {
			return e
		}
	}
	return synced
}

// For an hour after a bucket lost its keys each bus is told. Revisions ascend across the loss.
func TestKeysTellOfLosses(t *testing.T) {
	for how, lose := range map[string]func(r *rig){
		"purged":  func(r *rig) { must(r.NC.Request("$JS.API.STREAM.PURGE.KV_b", nil, 5*time.Second))(r.T) },
		"deleted": func(r *rig) { r.OK(r.JS.DeleteStream(r.Context(), "KV_b")) },
	} {
		t.Run(how, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				rev := must(r.Bus.KeySet(r.Context(), "b", "k", nil, 0, time.Minute))(r.T)
				r.Equal("lost at first", must(r.Bus.KeyGet(r.Context(), "b", "other"))(r.T).Lost, false)
				before := r.watched(r.Bus, "b")
				r.Equal("lost, says a watch", before.Lost, false)
				time.Sleep(2 * time.Minute)
				r.Equal("expired, and not lost", must(r.Bus.KeyGet(r.Context(), "b", "k"))(r.T).Lost, false)

				must(r.Bus.KeySet(r.Context(), "b", "stays", nil, 0, 0))(r.T)
				lose(r)
				_, fresh := r.Open(adapter.Config{})
				after := r.watched(fresh, "b")
				r.Equal("a fresh bus is told", after.Lost && after.Revision > before.Revision, true)
				again := must(fresh.KeySet(r.Context(), "b", "k", nil, 0, time.Minute))(r.T)
				r.Equal("revision after the loss is higher", again > rev, true)
				r.Equal("the first bus is told", must(r.Bus.KeyGet(r.Context(), "b", "stays"))(r.T).Lost, true)

				time.Sleep(2 * time.Hour)
				_, late := r.Open(adapter.Config{})
				r.Equal("long after", r.watched(late, "b").Lost || must(r.Bus.KeyGet(r.Context(), "b", "stays"))(r.T).Lost, false)
			})
		})
	}
}

// TestDeletedBucketIsNotRecreatedImmediately: a server that is deleting a stream accepts a new one of that name, and
// deletes its files, too. So a bus that knows that a bucket existed waits before it creates it again.
func TestDeletedBucketIsNotRecreatedImmediately(t *testing.T) {
	const ttl = time.Minute
	write := func(r *rig, b *adapter.Bus, ttl time.Duration) {
		must(b.KeySet(r.Context(), "b", "k", nil, 0, ttl))(r.T)
	}
	for how, c := range map[string]struct {
		before      func(r *rig)
		after       func(r *rig, fresh *adapter.Bus)
		least, most time.Duration // until the bucket is created again
	}{
		"a write": {
			func(r *rig) { write(r, r.Bus, ttl) },
			func(r *rig, _ *adapter.Bus) { write(r, r.Bus, 0) }, recreateDelay, 2 * recreateDelay,
		},
		"a write without expiry": {
			func(r *rig) { write(r, r.Bus, 0) },
			func(r *rig, _ *adapter.Bus) { write(r, r.Bus, 0) }, recreateDelay, 2 * recreateDelay,
		},
		"a watch": {
			func(r *rig) { write(r, r.Bus, ttl) },
			func(r *rig, _ *adapter.Bus) { r.watched(r.Bus, "b") }, recreateDelay, 2 * recreateDelay,
		},
		"a watch of a bucket without keys": {
			func(r *rig) { r.watched(r.Bus, "b") },
			func(r *rig, _ *adapter.Bus) { r.watched(r.Bus, "b") }, recreateDelay, 2 * recreateDelay,
		},
		"a write by a bus that only read": {
			func(r *rig) {
				_, other := r.Open(adapter.Config{})
				write(r, other, 0)
				r.watched(r.Bus, "b")
			},
			func(r *rig, _ *adapter.Bus) { write(r, r.Bus, 0) }, recreateDelay, 2 * recreateDelay,
		},
		"a write by a new bus": {
			func(r *rig) { write(r, r.Bus, ttl) },
			func(r *rig, fresh *adapter.Bus) { write(r, fresh, ttl) }, recreateDelay, 2 * recreateDelay,
		},
		"a watch by a new bus": {
			func(r *rig) { write(r, r.Bus, ttl) },
			func(r *rig, fresh *adapter.Bus) { r.watched(fresh, "b") }, recreateDelay, 2 * recreateDelay,
		},
		"a late write, after one": {
			func(r *rig) { write(r, r.Bus, 0) },
			func(r *rig, _ *adapter.Bus) { r.shortWrite("b"); r.shortWrite("b") }, recreateDelay, 2 * recreateDelay,
		},
		"a second loss soon after": {
			func(r *rig) { write(r, r.Bus, 0) },
			func(r *rig, fresh *adapter.Bus) {
				r.shortWrite("b")
				time.Sleep(time.Second)
				write(r, fresh, 0)
				r.watched(r.Bus, "b")
				r.OK(r.JS.DeleteStream(r.Context(), "KV_b"))
				write(r, r.Bus, 0)
			}, 1300*time.Millisecond + recreateDelay, 1300*time.Millisecond + 2*recreateDelay,
		},
		"a bus that cannot know": {
			func(r *rig) { write(r, r.Bus, 0) },
			func(r *rig, fresh *adapter.Bus) { write(r, fresh, 0) }, 0, 0,
		},
	} {
		t.Run(how, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				c.before(r)
				_, fresh := r.Open(adapter.Config{})
				time.Sleep(time.Minute)
				r.OK(r.JS.DeleteStream(r.Context(), "KV_b"))
				deleted := time.Now()
				c.after(r, fresh)
				stream := must(r.JS.Stream(r.Context(), "KV_b"))(r.T)
				if took := stream.CachedInfo().Created.Sub(deleted); took < c.least || took > c.most {
					r.Errorf("the bucket was created %v after its deletion, want %v to %v", took, c.least, c.most)
				}
			})
		})
	}
}

// recreateDelay is how long a bus waits before it creates a bucket that was deleted.
const recreateDelay = 500 * time.Millisecond

// shortWrite sets a key, and gives up after 300 ms.
func (r *rig) shortWrite(bucket string) {
	ctx, cancel := context.WithTimeout(r.Context(), 300*time.Millisecond)
	defer cancel()
	_, _ = r.Bus.KeySet(ctx, bucket, "k", nil, 0, 0)
}

// A watch ends when its bucket is purged, so that its caller watches again and finds what is left.
func TestKeyWatchEndsWithAPurge(t *testing.T) {
	inBubble(t, func(r *rig) {
		must(r.Bus.KeySet(r.Context(), "b", "k", nil, 0, time.Minute))(r.T)
		began := time.Now()
		for e, err := range r.Bus.KeyWatch(r.Context(), "b", "") {
			if err != nil {
				r.WantErr(err, jetbus.ErrUnavailable)
				break
			}
			if e.Synced {
				must(r.NC.Request("$JS.API.STREAM.PURGE.KV_b", nil, 5*time.Second))(r.T)
			}
		}
		if took := time.Since(began); took > 11*time.Second {
			r.Errorf("the watch ended after %v", took)
		}
	})
}

// A bucket that the bus has filled keeps a reserve for small values that replace others: with
// replicas a server refuses all writes to a full stream.
func TestKeysKeepAReserve(t *testing.T) {
	inBubble(t, func(r *rig) {
		const most = 4 << 20
		must(r.JS.CreateKeyValue(r.Context(), jetstream.KeyValueConfig{Bucket: "b", History: 1, LimitMarkerTTL: time.Hour, MaxBytes: most}))(r.T)
		lock := r.set("lock", "held", 0, time.Minute)
		large := r.set("large", "small at first", 0, 0)
		big := string(make([]byte, 100<<10))
		for n, size := 0, len(big); size > 0; n++ {
			if _, err := r.Bus.KeySet(r.Context(), "b", fmt.Sprint(n), []byte(big[:size]), 0, 0); err != nil {
				r.WantErr(err, jetbus.ErrBucketFull)
				size /= 4
			}
		}
		_, err := r.Bus.KeySet(r.Context(), "b", "large", []byte(big), large, 0)
		r.WantErr(err, jetbus.ErrBucketFull)
		if free := most - int(r.Stream("KV_b").State.Bytes); free < most/8 || free > most/4 {
			r.Errorf("%d bytes are free", free)
		}
		lock = r.set("lock", "held for longer", lock, time.Minute)
		r.OK(r.Bus.KeyDelete(r.Context(), "b", "lock", lock))
		r.set("lock", "taken again", 0, time.Minute)
	})
}
