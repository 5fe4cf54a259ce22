package topics_test

import (
	"testing"
	"time"

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
