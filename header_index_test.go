package jetbus_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

// correlate publishes events for orders, five of them with the correlation ID "wanted",
// and waits until the index has them all.
func (r *rig) correlate(count int) {
	r.Helper()
	r.ensure(jetbus.TopicConfig{Name: indexedTopic, Retention: -1}) // files in a bubble would age
	events := make([]jetbus.Event, count)
	for i := range events {
		id := fmt.Sprint("other-", i%(count/4))
		if i%(count/5) == 7 {
			id = "wanted"
		}
		events[i] = jetbus.Event{Topic: indexedTopic, Headers: map[string]string{indexedHeader: id}}
	}
	_, err := r.bus.PublishBatch(r.Context(), events, jetbus.BatchOptions{})
	r.ok(err)
	r.awaitIndex()
}

// awaitIndex keeps the index until its group has handled everything.
func (r *rig) awaitIndex() {
	r.Helper()
	index, err := keepIndex(r.Context(), r.bus, -1)
	r.ok(err)
	for {
		groups, err := r.bus.Groups(r.Context(), indexedTopic)
		r.ok(err)
		if len(groups) == 1 && groups[0].Pending == 0 && groups[0].Held == 0 {
			break
		}
		time.Sleep(time.Second)
	}
	r.ok(index.Stop(r.Context()))
}

// received runs f with a bus on a connection of its own, and returns the number of
// messages that the connection receives in the meantime.
func (r *rig) received(f func(bus *adapter.Bus)) (messages uint64) {
	r.Helper()
	nc, err := r.broker.Connect()
	r.ok(err)
	defer nc.Close()
	bus, err := adapter.Open(r.Context(), nc, adapter.Config{})
	r.ok(err)
	f(bus) // caches, for example, the settings of the topics
	before := nc.Stats()
	f(bus)
	after := nc.Stats()
	r.ok(bus.Close(r.Context()))
	return after.InMsgs - before.InMsgs
}

// TestHeaderIndexReadsOnlyMatches compares lookups in a small and in a large topic.
func TestHeaderIndexReadsOnlyMatches(t *testing.T) {
	costs := make(map[int]uint64)
	for _, count := range []int{100, 2000} {
		inBubble(t, func(r *rig) {
			r.correlate(count)
			var wanted, filtered []uint64
			lookup := r.received(func(bus *adapter.Bus) {
				events, err := correlated(r.Context(), bus, "wanted")
				r.ok(err)
				wanted = nil
				for _, e := range events {
					wanted = append(wanted, e.Seq)
				}
			})
			costs[count] = lookup
			whole := r.received(func(bus *adapter.Bus) {
				filtered = nil
				q := jetbus.ScanQuery{Filter: jetbus.Filter{Headers: map[string]string{indexedHeader: "wanted"}}}
				for e, err := range bus.Scan(r.Context(), indexedTopic, q) {
					r.ok(err)
					filtered = append(filtered, e.Seq)
				}
			})
			if diff := cmp.Diff(filtered, wanted); diff != "" || len(wanted) != 5 {
				r.Errorf("of %d events the index has %v (-filter +index):\n%s", count, wanted, diff)
			}
			if whole < uint64(count) { //nolint:gosec // a small number
				r.Errorf("a filter of %d events receives %d messages: its documented cost is the whole topic", count, whole)
			}
		})
	}
	// The index entry, the end of its response, and five events.
	if costs[100] != costs[2000] || costs[2000] > 7 {
		t.Errorf("messages received by a lookup of 5 events: %v, want the same 7 at most in each topic", costs)
	}
}

// TestHeaderIndexIsRepeatable moves the group back, as a restart after a crash does.
func TestHeaderIndexIsRepeatable(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.correlate(100)
		before, err := correlated(r.Context(), r.bus, "wanted")
		r.ok(err)
		r.ok(r.bus.SetCursor(r.Context(), indexedTopic, "correlation-index", jetbus.Cursor{}, jetbus.SeekOptions{}))
		r.awaitIndex()
		after, err := correlated(r.Context(), r.bus, "wanted")
		r.ok(err)
		if diff := cmp.Diff(before, after); diff != "" {
			r.Errorf("repeated (-before +after):\n%s", diff)
		}
		entry, _, err := readIndex(r.Context(), r.bus, "wanted")
		r.ok(err)
		if len(entry.Seqs) != 5 || !slices.IsSorted(entry.Seqs) {
			r.Errorf("index %v, want 5 ascending sequences", entry.Seqs)
		}
	})
}

// TestHeaderIndexKeepsTheNewestInOrder adds old events, as a replay of a dead letter does: to a short entry, and to one
// that is full.
func TestHeaderIndexKeepsTheNewestInOrder(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: indexedTopic, Retention: -1})
		r.awaitIndex()
		r.indexAs("short", 2, 3)
		full := make([]uint64, maxIndexed)
		for i := range full {
			full[i] = uint64(i) + 10 //nolint:gosec // a small number
		}
		r.indexAs("full", full...)
		for _, id := range []string{"short", "full"} {
			r.publish(jetbus.Event{Topic: indexedTopic, Headers: map[string]string{indexedHeader: id}})
		}
		r.awaitIndex()
		for id, want := range map[string][]uint64{"short": {1, 2, 3}, "full": full} {
			entry, _, err := readIndex(r.Context(), r.bus, id)
			r.ok(err)
			if diff := cmp.Diff(want, entry.Seqs); diff != "" {
				r.Errorf("%s (-want +got):\n%s", id, diff)
			}
		}
	})
}

// indexAs stores an index entry.
func (r *rig) indexAs(id string, seqs ...uint64) {
	r.Helper()
	payload, err := json.Marshal(indexEntry{Seqs: seqs})
	r.ok(err)
	r.publish(jetbus.Event{Topic: indexTopic, Key: id, Payload: payload})
}

// TestHeaderIndexKeepsOneVersion: frequent IDs take no room from others.
func TestHeaderIndexKeepsOneVersion(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.correlate(100)
		info, err := r.bus.TopicInfo(r.Context(), indexTopic)
		r.ok(err)
		if ids := uint64(25 + 1); info.Events != ids || info.Config.Discard != jetbus.DiscardNew {
			r.Errorf("the index of %d IDs has %d events, with Discard %v", ids, info.Events, info.Config.Discard)
		}
	})
}

// TestHeaderIndexOfExpiredEntry: an ID whose entry expired is indexed again when it has a new event.
func TestHeaderIndexOfExpiredEntry(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: indexedTopic, Retention: -1})
		r.awaitIndex()
		_, err := r.bus.Publish(r.Context(), jetbus.Event{Topic: indexTopic, Key: "a", Payload: []byte(`{"seqs":[7]}`)}, jetbus.PublishOptions{TTL: time.Second})
		r.ok(err)
		time.Sleep(10 * time.Second)
		r.publish(jetbus.Event{Topic: indexedTopic, Headers: map[string]string{indexedHeader: "a"}})
		r.awaitIndex()
		if events, err := correlated(r.Context(), r.bus, "a"); err != nil || len(events) != 1 {
			r.Errorf("%d events, %v, want the new one", len(events), err)
		}
	})
}

// TestHeaderIndexWithoutEvents looks up an unknown correlation ID, an expired event, and
// one whose header cannot be a key.
func TestHeaderIndexWithoutEvents(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: indexedTopic, Retention: -1, MaxEvents: 3})
		add := func(id string) {
			r.publish(jetbus.Event{Topic: indexedTopic, Headers: map[string]string{indexedHeader: id}})
		}
		add("a")
		add(strings.Repeat("x", 300)) // longer than a key
		add("")
		r.awaitIndex()
		found := func(id string, want int) {
			events, err := correlated(r.Context(), r.bus, id)
			if err != nil || len(events) != want {
				r.Errorf("%q: %d events, %v, want %d", id, len(events), err, want)
			}
		}
		found("a", 1)
		found("b", 0)
		add("c")
		found("a", 0)
		_, err := r.bus.Publish(r.Context(), jetbus.Event{Topic: indexedTopic, Headers: map[string]string{indexedHeader: "last"}}, jetbus.PublishOptions{TTL: time.Minute})
		r.ok(err)
		r.awaitIndex()
		found("last", 1)
		time.Sleep(2 * time.Minute)
		found("last", 0)
	})
}
