package topics_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// TestPublishToTopicDeclaredAgain: a topic is deleted and declared again with another layout of its subjects.
// Another bus, which remembers the topic as it was, publishes in each way there is. Its events are stored
// where the topic's readers look for them.
func TestPublishToTopicDeclaredAgain(t *testing.T) {
	layouts := []jetbus.TopicConfig{
		{Name: "t"},
		{Name: "t", KeyInSubject: true},
		{Name: "t", KeyInSubject: true, Compact: true},
		{Name: "t", Partitions: 2},
		{Name: "t", Partitions: 2, KeyInSubject: true},
		{Name: "t", KeyInSubject: true, Stream: "SHARED"},
	}
	publishes := map[string]func(r *rig, b *adapter.Bus) error{
		"single": func(r *rig, b *adapter.Bus) error {
			return adaptertest.Last(b.Publish(r.Context(), adaptertest.Event("t", "k")))
		},
		"batch": func(r *rig, b *adapter.Bus) error {
			return adaptertest.Last(b.PublishBatch(r.Context(), []jetbus.Event{adaptertest.Event("t", "j"), adaptertest.Event("t", "k")}, jetbus.BatchOptions{}))
		},
		"atomic": func(r *rig, b *adapter.Bus) error {
			return adaptertest.Last(b.PublishBatch(r.Context(), []jetbus.Event{adaptertest.Event("t", "j"), adaptertest.Event("t", "k")}, jetbus.BatchOptions{Atomic: true}))
		},
		"chained": func(r *rig, b *adapter.Bus) error {
			return adaptertest.Last(b.PublishBatch(r.Context(), []jetbus.Event{adaptertest.Event("t", "j"), adaptertest.Event("t", "k")}, jetbus.BatchOptions{Chain: &jetbus.Chain{}}))
		},
	}
	for i, before := range layouts {
		for j, after := range layouts {
			for how, publish := range publishes {
				switch {
				case i == j:
					continue
				case how == "chained" && (before.Stream != "" || after.Stream != ""): // a chain needs a stream of the topic's own
					continue
				case before.Partitions > 0 && after.Partitions > 0: // README, Limits
					continue
				}
				t.Run(fmt.Sprintf("%d-%d-%s", i, j, how), func(t *testing.T) {
					inBubble(t, func(r *rig) {
						ctx := r.Context()
						_, stale := r.Open(adapter.Config{})
						r.Ensure(before)
						r.OK(publish(r, stale))
						r.OK(r.Bus.DeleteTopic(ctx, "t"))
						r.Ensure(after)
						r.OK(publish(r, stale))
						found := 0
						for e, err := range r.Bus.Scan(ctx, "t", jetbus.ScanQuery{}) {
							r.OK(err)
							if e.Key == "k" {
								found++
							}
						}
						r.Equal("events of the key", found, 1)
						if after.KeyInSubject {
							latest := must(r.Bus.LatestByKey(ctx, "t", "k"))(r.T)
							r.Equal("latest", len(latest), 1)
						}
					})
				})
			}
		}
	}
}

// TestDelayedPublishToTopicDeclaredAgain: the subject on which a delayed event waits is the same in all layouts, but
// the subject to which it goes is not.
func TestDelayedPublishToTopicDeclaredAgain(t *testing.T) {
	layouts := []jetbus.TopicConfig{
		{Name: "t", Delays: true},
		{Name: "t", Delays: true, KeyInSubject: true},
		{Name: "t", Delays: true, Stream: "SHARED"},
	}
	for i, before := range layouts {
		for j, after := range layouts {
			if i == j {
				continue
			}
			t.Run(fmt.Sprintf("%d-%d", i, j), func(t *testing.T) {
				inBubble(t, func(r *rig) {
					ctx := r.Context()
					_, stale := r.Open(adapter.Config{})
					r.Ensure(before)
					r.OK(adaptertest.Last(stale.Publish(ctx, adaptertest.Event("t", "j"))))
					r.OK(r.Bus.DeleteTopic(ctx, "t"))
					r.Ensure(after)
					receipt := must(stale.Publish(ctx, adaptertest.Event("t", "k"), jetbus.PublishOptions{DeliverAt: time.Now().Add(time.Minute)}))(r.T)
					r.Equal("scheduled", receipt.Scheduled, true)
					time.Sleep(2 * time.Minute)
					r.Equal("stored", r.Stored("t"), "k")
					if after.KeyInSubject {
						r.Equal("latest", len(must(r.Bus.LatestByKey(ctx, "t", "k"))(r.T)), 1)
					}
				})
			})
		}
	}
}

// TestStaleBusAsksBeforeItRefuses: what a topic did not allow when the bus looked it up, it allows since it was declared
// again.
func TestStaleBusAsksBeforeItRefuses(t *testing.T) {
	plain, keyed := jetbus.TopicConfig{Name: "t"}, jetbus.TopicConfig{Name: "t", KeyInSubject: true}
	shared, own := jetbus.TopicConfig{Name: "t", Stream: "SHARED"}, jetbus.TopicConfig{Name: "t"}
	first := jetbus.PublishOptions{ExpectLastSeq: new(uint64)}
	batch := func(o jetbus.BatchOptions, topics ...string) func(r *rig, b *adapter.Bus) error {
		return func(r *rig, b *adapter.Bus) error {
			var events []jetbus.Event
			for i, topic := range topics {
				events = append(events, adaptertest.Event(topic, fmt.Sprint("k", i)))
			}
			return adaptertest.Last(b.PublishBatch(r.Context(), events, o))
		}
	}
	single := func(o jetbus.PublishOptions) func(r *rig, b *adapter.Bus) error {
		return func(r *rig, b *adapter.Bus) error {
			if o.ExpectLastSeq == nil {
				o.DeliverAt = time.Now().Add(time.Second)
			}
			return adaptertest.Last(b.Publish(r.Context(), adaptertest.Event("t", "k0"), o))
		}
	}
	for name, c := range map[string]struct {
		before, after jetbus.TopicConfig
		keep          bool // the topic is changed, not deleted
		publish       func(r *rig, b *adapter.Bus) error
		refusal       error
		stored        string
	}{
		"expected":         {plain, keyed, false, single(first), jetbus.ErrNeedsKeySubject, "k0"},
		"expected in each": {plain, keyed, false, batch(jetbus.BatchOptions{Each: []jetbus.PublishOptions{{}, first}}, "t", "t"), jetbus.ErrNeedsKeySubject, "k0 k1"},
		"expected, atomic": {plain, keyed, false, batch(jetbus.BatchOptions{Atomic: true, ExpectLastSeq: new(uint64)}, "t", "t"), jetbus.ErrNeedsKeySubject, "k0 k1"},
		"delayed":          {plain, jetbus.TopicConfig{Name: "t", Delays: true}, false, single(jetbus.PublishOptions{}), jetbus.ErrUnsupported, "k0"},
		"delayed, changed": {jetbus.TopicConfig{Name: "t", MaxBytes: -1}, jetbus.TopicConfig{Name: "t", MaxBytes: -1, Delays: true}, true, single(jetbus.PublishOptions{}), jetbus.ErrUnsupported, "k0"},
		"chained":          {shared, own, false, batch(jetbus.BatchOptions{Chain: &jetbus.Chain{}}, "t", "t"), jetbus.ErrConflict, "k0 k1"},
		"atomic":           {own, shared, false, batch(jetbus.BatchOptions{Atomic: true}, "u", "t"), jetbus.ErrConflict, "k1"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				ctx := r.Context()
				_, stale := r.Open(adapter.Config{})
				r.Ensure(jetbus.TopicConfig{Name: "u", Stream: "SHARED"})
				r.Ensure(c.before)
				r.OK(adaptertest.Last(stale.Publish(ctx, adaptertest.Event("t", "j"))))
				r.WantErr(c.publish(r, stale), c.refusal)
				if !c.keep {
					r.OK(r.Bus.DeleteTopic(ctx, "t"))
				}
				r.Ensure(c.after)
				r.OK(c.publish(r, stale))
				time.Sleep(2 * time.Second)
				r.Equal("stored", r.Stored("t"), c.stored) // a change in fake time removes what there was
			})
		})
	}
}
