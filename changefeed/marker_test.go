package changefeed_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/changefeed"
)

// dying is a token store of a process that is about to die: from then on it stores nothing.
type dying struct {
	changefeed.TokenStore
	is *atomic.Bool
}

func (d dying) Save(ctx context.Context, feed string, p changefeed.Progress) (uint64, error) {
	if d.is.Load() {
		return p.Revision, nil
	}
	return d.TokenStore.Save(ctx, feed, p)
}

// endWithMarker has the broker write a marker behind the last event of the topic, which is
// compacted, and forget what it is for.
func (r *rig) endWithMarker(key string) {
	r.Helper()
	_, err := r.bus.Publish(r.Context(), jetbus.Event{Topic: r.topic, Key: key, Payload: []byte("1")}, jetbus.PublishOptions{TTL: time.Second})
	r.must(err)
	r.untilEvery(rarely, "the topic ends with a marker", func() bool {
		events := r.events()
		last := events[len(events)-1]
		return last.Key == key && last.IsTombstone()
	})
}

// The position is the feed's last event also where a marker is behind it, and the process
// died before it was saved elsewhere.
func TestMarkerBehindTheLastEvent(t *testing.T) {
	eachModeWith(t, false, jetbus.TopicConfig{Compact: true, Storage: jetbus.MemoryStorage}, func(r *rig) {
		o := r.options()
		store := dying{changefeed.StoreInKeys(r.bus), &atomic.Bool{}}
		o.TokenStore = store
		f := r.start(o)
		store.is.Store(true)
		r.insert("a", "b")
		r.wants("insert a, insert b")
		r.stop(f)
		r.endWithMarker("z")
		r.insert("c")
		store.is.Store(false)
		f = r.startOn(r.bus, o)
		r.until("it publishes, or is refused", func() bool {
			return strings.HasSuffix(r.ops(), "insert c") || f.Stats().Fenced > 0
		})
		if s := f.Stats(); s.Fenced > 0 || s.Duplicates > 0 {
			r.Errorf("stats %+v", s)
		}
		r.wants("insert a, insert b, z, insert c")
	})
}
