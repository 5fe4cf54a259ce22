package changefeed_test

import (
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/changefeed"
)

// A topic that was deleted and made anew has nothing of what was published: a feed that
// begins with a copy begins again, and the others do what is said of lost history.
func TestTopicMadeAnew(t *testing.T) {
	for _, tt := range []struct {
		name   string
		start  changefeed.StartPoint
		policy changefeed.Policy
		want   string
		gaps   uint64
	}{
		{"fail", changefeed.FromLatest(), changefeed.Fail, "", 0},
		{"latest", changefeed.FromLatest(), changefeed.Latest, "gap, insert c", 1},
		{"resync", changefeed.FromLatest(), changefeed.Resync, "gap, copy a, copy b, copied, insert c", 1},
		{"copy", changefeed.FromCopy(), changefeed.Fail, "copy a, copy b, copied, insert c", 0},
	} {
		for _, mode := range []changefeed.Mode{changefeed.Chain, changefeed.Atomic, changefeed.Serial} {
			t.Run(tt.name+"/"+string(mode), func(t *testing.T) {
				r := newRig(t)
				r.mode = mode
				o := r.options()
				f := r.start(o)
				r.insert("a")
				r.wants("insert a")
				r.stop(f)
				r.insert("b")
				r.must(r.bus.DeleteTopic(t.Context(), r.topic))
				o.Start, o.OnHistoryLost = tt.start, tt.policy
				f = r.startOn(r.bus, o)
				if tt.want == "" {
					r.ended(f, changefeed.ErrHistoryLost)
					r.wants("")
					return
				}
				r.until("it streams", func() bool { return f.Status().State == changefeed.Streaming && f.Stats().InFlight == 0 })
				r.insert("c")
				r.wants(tt.want)
				if n := f.Stats().Gaps; n != tt.gaps {
					t.Errorf("%d gaps, want %d", n, tt.gaps)
				}
				r.stop(f)
				f = r.start(o) // the topic has its position now
				r.insert("d")
				r.wants(tt.want + ", insert d")
				if n := f.Stats().Gaps; n != 0 {
					t.Errorf("%d gaps at the next start", n)
				}
			})
		}
	}
}

// The same while the feed runs: the broker refuses what would not be behind the last event.
func TestTopicMadeAnewUnderAFeed(t *testing.T) {
	r := newRig(t)
	o := r.options()
	o.OnHistoryLost = changefeed.Resync
	f := r.start(o)
	r.insert("a")
	r.wants("insert a")
	r.published(f)
	r.must(r.bus.DeleteTopic(t.Context(), r.topic))
	_, err := r.bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: r.topic})
	r.must(err)
	r.insert("b")
	r.wants("gap, copy a, copy b, copied")
}

// A position that does not identify its topic and its event, as older versions saved it, counts.
func TestPositionWithoutCreated(t *testing.T) {
	r := newRig(t)
	o := r.options()
	o.TokenStore = changefeed.StoreInKeys(r.bus)
	f := r.start(o)
	r.insert("a")
	r.wants("insert a")
	r.published(f)
	r.stop(f)
	info, err := r.bus.TopicInfo(t.Context(), r.topic)
	r.must(err)
	p, err := o.TokenStore.Load(t.Context(), o.Name)
	r.must(err)
	if p.Created.UnixMilli() != info.Created.UnixMilli() {
		t.Errorf("the position is in a topic of %v, which was made at %v", p.Created, info.Created)
	}
	p.Created, p.Last = time.Time{}, jetbus.Checkpoint{}
	_, err = o.TokenStore.Save(t.Context(), o.Name, p)
	r.must(err)
	r.insert("b")
	r.must(r.bus.DeleteTopic(t.Context(), r.topic))
	r.start(o)
	r.wants("insert b")
}
