package topics_test

import (
	"fmt"
	"testing"

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
