package adapter_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

// compacted declares a compacted topic in memory, whose events age by the test's
// clock in a bubble, too.
func (r *rig) compacted(name string) jetbus.TopicInfo {
	r.Helper()
	return r.ensure(jetbus.TopicConfig{Name: name, Compact: true, Storage: jetbus.MemoryStorage, TombstoneTTL: time.Hour})
}

// put stores an event of a key with a payload.
func (r *rig) put(topic, key, payload string, o ...jetbus.PublishOptions) jetbus.Event {
	r.Helper()
	receipt := must(r.bus.Publish(r.Context(), jetbus.Event{Topic: topic, Key: key, Payload: []byte(payload)}, o...))(r.T)
	return receipt.Event
}

// bury publishes a tombstone.
func (r *rig) bury(topic, key string) jetbus.Event {
	r.Helper()
	return must(r.bus.Publish(r.Context(), jetbus.Tombstone(topic, key)))(r.T).Event
}

// latest is the state of some keys, by LatestByKey.
func (r *rig) latest(topic string, keys ...string) string {
	r.Helper()
	return words(must(r.bus.LatestByKey(r.Context(), topic, keys...))(r.T))
}

// words is a state as text: a=1 b=2.
func words(state map[string]jetbus.Event) string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(state)) {
		out = append(out, key+"="+string(state[key].Payload))
	}
	return strings.Join(out, " ")
}

// scanned is what ScanLatest hands out, and its position.
func (r *rig) scanned(topic string) (string, uint64) {
	r.Helper()
	var out []string
	asOf := must(r.bus.ScanLatest(r.Context(), topic, jetbus.LatestQuery{}, func(e jetbus.Event) error {
		out = append(out, e.Key+"="+string(e.Payload))
		return nil
	}))(r.T)
	return strings.Join(out, " "), asOf
}

// caughtUp waits until a snapshot has taken in everything.
func (r *rig) caughtUp(snapshot string, keys int) jetbus.TopicInfo {
	r.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		info := must(r.bus.TopicInfo(r.Context(), snapshot))(r.T)
		if info.Lag == 0 && info.Events == uint64(keys) {
			return info
		}
		if time.Now().After(deadline) {
			r.Fatalf("the snapshot does not catch up: %+v", info)
		}
	}
}

func TestCompactedTopic(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.compacted("state")
		config := r.stream("EV_STATE").Config
		r.equal("settings", []any{config.MaxMsgsPerSubject, config.AllowRollup, config.AllowMsgTTL, config.SubjectDeleteMarkerTTL, int(config.MaxAge), config.Discard},
			[]any{1, true, true, time.Hour, 0, jetstream.DiscardNew})
		r.put("state", "a", "1")
		r.put("state", "b", "2")
		r.put("state", "a", "3")
		r.equal("latest", r.latest("state", "a", "b", "c"), "a=3 b=2")
		r.equal("stored", r.stored("state"), "b a")
		state, asOf := r.scanned("state")
		r.equal("scan", fmt.Sprint(state, " as of ", asOf), "b=2 a=3 as of 3")

		grave := r.bury("state", "a")
		r.equal("latest", r.latest("state", "a", "b"), "b=2")
		state, asOf = r.scanned("state")
		r.equal("scan with the tombstone", fmt.Sprint(state, " as of ", asOf), "b=2 a=null as of 4")
		m := must(must(r.js.Stream(r.Context(), "EV_STATE"))(r.T).GetMsg(r.Context(), grave.Seq))(r.T)
		r.equal("headers", []string{m.Header.Get("Nats-Rollup"), m.Header.Get("Nats-TTL")}, []string{"", "1h0m0s"})

		r.put("state", "a", "5")
		r.equal("created again", r.latest("state", "a", "b"), "a=5 b=2")
		r.bury("state", "a")
		time.Sleep(time.Hour + 2*time.Second)
		r.equal("after the tombstone's end", r.stored("state"), "b")
	})
}

func TestHistory(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "state", Compact: true, History: 3, Storage: jetbus.MemoryStorage, TombstoneTTL: time.Minute})
		for i := range 5 {
			r.put("state", "a", fmt.Sprint(i))
		}
		r.put("state", "b", "0")
		r.equal("stored", r.stored("state"), "a a a b")
		_, err := r.bus.Publish(r.Context(), event("state", "a"), jetbus.PublishOptions{TTL: time.Second})
		r.wantErr(err, jetbus.ErrUnsupported)
		r.bury("state", "a")
		r.equal("stored with a tombstone", r.stored("state"), "b a")
		time.Sleep(2 * time.Minute)
		r.equal("stored after the tombstone", r.stored("state"), "b")
		r.equal("latest", r.latest("state", "a", "b"), "b=0")
	})
}

func TestExpiryIsATombstone(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.compacted("state")
		r.ensure(jetbus.TopicConfig{Name: "snap", SnapshotOf: "state", Storage: jetbus.MemoryStorage})
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		var seen []string
		var followers sync.WaitGroup
		followers.Go(func() {
			for e, err := range r.bus.Read(ctx, []string{"state"}, jetbus.ReadOptions{From: jetbus.Earliest(), Follow: true}) {
				if err != nil {
					return
				}
				seen = append(seen, fmt.Sprint(e.Key, "=", string(e.Payload), " ", e.IsTombstone()))
			}
		})
		r.put("state", "a", "1", jetbus.PublishOptions{TTL: 10 * time.Second})
		r.put("state", "k y", "2")
		time.Sleep(5 * time.Second)
		r.equal("before", r.latest("state", "a", "k y"), "a=1 k y=2")
		r.caughtUp("snap", 2)
		time.Sleep(10 * time.Second)
		r.equal("after", r.latest("state", "a", "k y"), "k y=2")
		r.caughtUp("snap", 2)
		state, _ := r.scanned("snap")
		r.equal("snapshot", state, "k y=2 a=null")
		r.equal("latest in the snapshot", r.latest("snap", "a", "k y"), "k y=2")
		time.Sleep(2 * time.Hour)
		state, _ = r.scanned("snap")
		r.equal("snapshot after the marker", state, "k y=2")
		cancel()
		followers.Wait()
		r.equal("follower", strings.Join(seen, ", "), "a=1 false, k y=2 false, a=null true")
	})
}

// The end of an event without a key is the end of its state, too.
func TestExpiryWithoutKey(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.compacted("state")
		table := must(jetbus.OpenTable(r.Context(), r.bus, "state", jetbus.TableOptions{}))(t)
		defer table.Close()
		r.put("state", "", "1", jetbus.PublishOptions{TTL: time.Minute})
		r.equal("before", r.latest("state", ""), "=1")
		time.Sleep(2 * time.Minute)
		r.equal("after", r.latest("state", ""), "")
		r.equal("state", words(must(r.bus.StateAt(r.Context(), "state", time.Now()))(t).Events), "")
		r.equal("keys in a table", table.Len(), 0)
	})
}

func TestSnapshot(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "raw", KeyInSubject: true, Retention: 10 * time.Minute, Storage: jetbus.MemoryStorage})
		r.put("raw", "a", "1")
		r.put("raw", "x.y *", "2")
		info := r.ensure(jetbus.TopicConfig{Name: "raw.snapshot", SnapshotOf: "raw", Storage: jetbus.MemoryStorage})
		r.equal("window", int(info.Config.DuplicateWindow), -1)
		r.put("raw", "a", "3")
		r.caughtUp("raw.snapshot", 2)
		var got []string
		for e, err := range r.bus.Scan(r.Context(), "raw.snapshot", jetbus.ScanQuery{}) {
			r.ok(err)
			got = append(got, fmt.Sprintf("%s %d %s=%s", e.Topic, e.Seq, e.Key, e.Payload))
		}
		r.equal("snapshot", strings.Join(got, ", "), "raw 2 x.y *=2, raw 3 a=3")
		latest := must(r.bus.LatestByKey(r.Context(), "raw.snapshot", "a", "x.y *"))(r.T)
		r.equal("latest", fmt.Sprint(words(latest), latest["a"].Seq, latest["a"].Topic), "a=3 x.y *=23raw")
		state, asOf := r.scanned("raw.snapshot")
		r.equal("scan", fmt.Sprint(state, " as of ", asOf), "x.y *=2 a=3 as of 3")

		var names []string
		for _, info := range must(r.bus.ListTopics(r.Context()))(r.T) {
			names = append(names, info.Config.Name)
		}
		r.equal("topics", names, "[raw raw.snapshot]")
		time.Sleep(20 * time.Minute)
		r.equal("raw after its retention", r.stored("raw"), "")
		r.equal("snapshot then", r.latest("raw.snapshot", "a", "x.y *"), "a=3 x.y *=2")
		grave := r.bury("raw", "a")
		m := must(must(r.js.Stream(r.Context(), "EV_RAW"))(r.T).GetMsg(r.Context(), grave.Seq))(r.T)
		r.equal("headers", []string{m.Header.Get("Nats-Rollup"), m.Header.Get("Nats-TTL")}, []string{"", ""})
		r.caughtUp("raw.snapshot", 2)
		r.equal("snapshot of a deleted key", r.latest("raw.snapshot", "a", "x.y *"), "x.y *=2")
		time.Sleep(20 * time.Minute)
		r.caughtUp("raw.snapshot", 2)
		state, _ = r.scanned("raw.snapshot")
		r.equal("the tombstone stays there", state, "x.y *=2 a=null")
		r.equal("the log after its retention", r.stored("raw"), "")
	})
}

func TestSnapshotRefuses(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "plain"})
		r.ensure(jetbus.TopicConfig{Name: "raw", KeyInSubject: true})
		r.ensure(jetbus.TopicConfig{Name: "other", KeyInSubject: true})
		ensure := func(c jetbus.TopicConfig) error {
			_, err := r.bus.EnsureTopic(r.Context(), c)
			return err
		}
		r.wantErr(ensure(jetbus.TopicConfig{Name: "snap", SnapshotOf: "none"}), jetbus.ErrNoTopic)
		r.wantErr(ensure(jetbus.TopicConfig{Name: "snap", SnapshotOf: "plain"}), jetbus.ErrNeedsKeySubject)
		r.ok(ensure(jetbus.TopicConfig{Name: "snap", SnapshotOf: "raw"}))
		r.wantErr(ensure(jetbus.TopicConfig{Name: "snap2", SnapshotOf: "snap"}), jetbus.ErrUnsupported)
		for _, refused := range []struct {
			field  string
			config jetbus.TopicConfig
		}{
			{"SnapshotOf", jetbus.TopicConfig{Name: "snap", SnapshotOf: "other"}},
			{"SnapshotOf", jetbus.TopicConfig{Name: "plain", SnapshotOf: "raw"}},
		} {
			err := ensure(refused.config)
			r.wantErr(err, jetbus.ErrConflict)
			if ce, ok := errors.AsType[*jetbus.ConflictError](err); !ok || !slices.ContainsFunc(ce.Differences, func(d jetbus.Difference) bool { return d.Field == refused.field }) {
				r.Errorf("%s: %v", refused.field, err)
			}
		}
		_, err := r.bus.Publish(r.Context(), event("snap", "a"))
		r.wantErr(err, jetbus.ErrUnsupported)
		for _, from := range []jetbus.Start{jetbus.AfterSeq(1), jetbus.AfterID("i")} {
			r.wantErr(firstErr(r.bus.Scan(r.Context(), "snap", jetbus.ScanQuery{From: from})), jetbus.ErrUnsupported)
		}
		_, err = r.bus.Subscribe(r.Context(), "snap", "g", ignore, jetbus.SubscribeOptions{From: jetbus.Earliest()})
		r.wantErr(err, jetbus.ErrUnsupported)
		_, err = r.bus.Subscribe(r.Context(), "raw", "g", ignore, jetbus.SubscribeOptions{Topics: []string{"snap"}})
		r.wantErr(err, jetbus.ErrUnsupported)
		_, err = r.bus.Receive(r.Context(), "snap", "g", jetbus.ReceiveOptions{From: jetbus.Earliest(), Max: 1})
		r.wantErr(err, jetbus.ErrUnsupported)
		r.equal("groups of a snapshot", len(must(r.bus.Groups(r.Context(), "snap"))(t)), 0)
		_, err = r.bus.StateAt(r.Context(), "snap", time.Now())
		r.wantErr(err, jetbus.ErrUnsupported)
		err = r.bus.DeleteTopic(r.Context(), "raw")
		r.wantErr(err, jetbus.ErrConflict)
		if err == nil || !strings.Contains(err.Error(), "snap") {
			r.Errorf("the error does not name the snapshot: %v", err)
		}
		r.ensure(jetbus.TopicConfig{Name: "raw", KeyInSubject: true, MaxEvents: 10, Shrink: true}) // does not forget the snapshot
		r.wantErr(r.bus.DeleteTopic(r.Context(), "raw"), jetbus.ErrConflict)
		r.ok(r.bus.DeleteTopic(r.Context(), "snap"))
		_, err = r.bus.TopicInfo(r.Context(), "snap")
		r.wantErr(err, jetbus.ErrNoTopic)
		if _, err := r.bus.Publish(r.Context(), jetbus.Tombstone("raw", "a")); !errors.Is(err, jetbus.ErrNoState) {
			r.Errorf("a tombstone without a snapshot: %v", err)
		}
		r.ok(r.bus.DeleteTopic(r.Context(), "raw"))
	})
}

// EnsureTopic with the same declaration changes nothing.
func TestStateDeclarationsAreStable(t *testing.T) {
	inBubble(t, func(r *rig) {
		for _, c := range []jetbus.TopicConfig{
			{Name: "a", Compact: true},
			{Name: "b", Compact: true, History: 5, TombstoneTTL: time.Minute, Delays: true},
			{Name: "c", Compact: true, Stream: "SHARED"},
			{Name: "d", Compact: true, Stream: "SHARED"},
			{Name: "e", SnapshotOf: "a"},
			{Name: "f", SnapshotOf: "b", Retention: time.Hour, Discard: jetbus.DiscardOld},
		} {
			first := r.ensure(c)
			again := r.ensure(c)
			if diff := cmp.Diff(first.Config, again.Config); diff != "" {
				t.Errorf("%s: %s", c.Name, diff)
			}
			want := must(c.Normalize())(t)
			if diff := cmp.Diff(want, again.Config); diff != "" {
				t.Errorf("%s: declared and read back: %s", c.Name, diff)
			}
			_, other := r.open(adapter.Config{})
			before := r.stream(first.Stream)
			must(other.EnsureTopic(r.Context(), c))(t)
			if diff := cmp.Diff(before.Config, r.stream(first.Stream).Config); diff != "" {
				t.Errorf("%s: the stream changed: %s", c.Name, diff)
			}
		}
		refused := func(field string, c jetbus.TopicConfig) {
			t.Helper()
			_, err := r.bus.EnsureTopic(r.Context(), c)
			r.wantErr(err, jetbus.ErrConflict)
			if ce, ok := errors.AsType[*jetbus.ConflictError](err); !ok || ce.Differences[0].Field != field {
				t.Errorf("want a conflict of %s, got %v", field, err)
			}
		}
		refused("Compact", jetbus.TopicConfig{Name: "g", KeyInSubject: true, Stream: "SHARED", Retention: -1, Discard: jetbus.DiscardNew})
		refused("History", jetbus.TopicConfig{Name: "g", Compact: true, History: 2, Stream: "SHARED"})
		refused("TombstoneTTL", jetbus.TopicConfig{Name: "g", Compact: true, TombstoneTTL: time.Hour, Stream: "SHARED"})
		r.put("a", "k", "1")
		r.equal("left as it is", r.ensure(jetbus.TopicConfig{Name: "a", KeyInSubject: true}).Config.Compact, true)
		changed := r.ensure(jetbus.TopicConfig{Name: "a", Compact: true, History: 2, TombstoneTTL: time.Hour, Shrink: true})
		r.equal("changed", []any{changed.Config.History, changed.Config.TombstoneTTL}, []any{2, time.Hour})
	})
}

func TestTombstonesAreRefused(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "plain", KeyInSubject: true, Delays: true})
		r.compacted("state")
		publish := func(e jetbus.Event, o ...jetbus.PublishOptions) error {
			_, err := r.bus.Publish(r.Context(), e, o...)
			_, batchErr := r.bus.PublishBatch(r.Context(), []jetbus.Event{e}, jetbus.BatchOptions{})
			_, atomicErr := r.bus.PublishBatch(r.Context(), []jetbus.Event{e}, jetbus.BatchOptions{Atomic: true})
			if len(o) == 0 && (!errors.Is(batchErr, err) && fmt.Sprint(errors.Unwrap(batchErr)) == "" || (err == nil) != (batchErr == nil) || (err == nil) != (atomicErr == nil)) {
				t.Errorf("publish: %v, batch: %v, atomic: %v", err, batchErr, atomicErr)
			}
			return err
		}
		r.wantErr(publish(jetbus.Tombstone("plain", "a")), jetbus.ErrNoState)
		r.wantErr(publish(jetbus.Tombstone("state", "")), jetbus.ErrInvalidEvent)
		e := jetbus.Tombstone("state", "a")
		e.Payload = []byte("{}")
		r.wantErr(publish(e), jetbus.ErrInvalidEvent)
		_, err := r.bus.Publish(r.Context(), jetbus.Tombstone("state", "a"), jetbus.PublishOptions{TTL: time.Hour})
		r.wantErr(err, jetbus.ErrInvalidOption)
		_, err = r.bus.Publish(r.Context(), jetbus.Tombstone("state", "a"), jetbus.PublishOptions{DeliverAt: time.Now().Add(time.Hour)})
		r.wantErr(err, jetbus.ErrInvalidOption)
		r.equal("nothing was stored", r.stored("plain")+r.stored("state"), "")

		r.put("plain", "n", "null") // a payload like any other
		r.equal("null", r.latest("plain", "n"), "n=null")
		state, _ := r.scanned("plain")
		r.equal("null", state, "n=null")

		// The bus remembers the topic without its snapshot.
		_, other := r.open(adapter.Config{})
		must(other.EnsureTopic(r.Context(), jetbus.TopicConfig{Name: "snap", SnapshotOf: "plain"}))(t)
		r.bury("plain", "n")
		r.equal("deleted", r.latest("plain", "n"), "")
	})
}

func TestTombstonesInBatches(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.compacted("state")
		r.ensure(jetbus.TopicConfig{Name: "deep", Compact: true, History: 3, Storage: jetbus.MemoryStorage})
		e := event
		for _, atomic := range []bool{false, true} {
			must(r.bus.PublishBatch(r.Context(), []jetbus.Event{
				e("state", "a"), e("state", "b"), jetbus.Tombstone("state", "a"), jetbus.Tombstone("state", "c"), e("state", "d"),
			}, jetbus.BatchOptions{Atomic: atomic}))(t)
			r.equal("latest", r.latest("state", "a", "b", "c", "d"), `b="b" d="d"`)
		}
		stream := must(r.js.Stream(r.Context(), "EV_STATE"))(t)
		for key, ttl := range map[string]string{"a": "1h0m0s", "b": "", "c": "1h0m0s", "d": ""} {
			m := must(stream.GetLastMsgForSubject(r.Context(), "ev.state."+key))(t)
			r.equal("TTL of "+key, m.Header.Get("Nats-TTL"), ttl)
		}
		_, err := r.bus.PublishBatch(r.Context(), []jetbus.Event{e("deep", "a"), jetbus.Tombstone("deep", "a")}, jetbus.BatchOptions{Atomic: true})
		r.wantErr(err, jetbus.ErrInvalidOption)
		must(r.bus.PublishBatch(r.Context(), []jetbus.Event{jetbus.Tombstone("deep", "a"), e("deep", "a")}, jetbus.BatchOptions{Atomic: true}))(t)
		r.equal("deep", r.latest("deep", "a"), `a="a"`)
	})
}

// What was deleted does not come back, in the topic or in the snapshot: not while
// the tombstone is there, when the broker is killed, and not when it has gone and the broker restarts.
func TestDeletedStaysDeleted(t *testing.T) {
	for ttl, restart := range map[time.Duration]func(*rig){
		time.Hour: func(r *rig) {
			r.ok(r.broker.Kill(r.Context()))
			r.ok(r.broker.Restart(r.Context()))
		},
		time.Second: func(r *rig) { r.ok(r.broker.Restart(r.Context())) },
	} {
		inRealTime(t, func(r *rig) {
			r.ensure(jetbus.TopicConfig{Name: "state", Compact: true, TombstoneTTL: ttl})
			r.ensure(jetbus.TopicConfig{Name: "snap", SnapshotOf: "state"})
			r.put("state", "a", "1")
			r.put("state", "b", "2")
			r.caughtUp("snap", 2)
			r.bury("state", "a")
			keys := 2
			if ttl == time.Second { // the tombstone goes, too
				keys = 1
			}
			r.caughtUp("snap", keys)
			for range 2 {
				restart(r)
				r.caughtUp("snap", keys)
				r.equal("snapshot", r.latest("snap", "a", "b"), "b=2")
				r.equal("topic", r.latest("state", "a", "b"), "b=2")
			}
			r.put("state", "c", "3")
			r.caughtUp("snap", keys+1)
			r.equal("snapshot", r.latest("snap", "a", "b", "c"), "b=2 c=3")
		})
	}
}

// An id that is published again after the duplicate window is another event.
func TestSnapshotHasNoDuplicates(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "raw", KeyInSubject: true, DuplicateWindow: time.Minute, Storage: jetbus.MemoryStorage})
		for i := range 3 {
			must(r.bus.Publish(r.Context(), jetbus.Event{Topic: "raw", Key: "a", ID: "same", Payload: fmt.Append(nil, i)}))(t)
			time.Sleep(2 * time.Minute)
		}
		r.ensure(jetbus.TopicConfig{Name: "snap", SnapshotOf: "raw", Storage: jetbus.MemoryStorage})
		r.caughtUp("snap", 1)
		r.equal("snapshot", r.latest("snap", "a"), "a=2")
	})
}

// Delayed events wait in the topic, and enter the snapshot when they are due.
func TestSnapshotOfDelays(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "raw", KeyInSubject: true, Delays: true, Storage: jetbus.MemoryStorage})
		r.ensure(jetbus.TopicConfig{Name: "snap", SnapshotOf: "raw", Storage: jetbus.MemoryStorage})
		r.put("raw", "a", "1")
		r.put("raw", "a", "2", jetbus.PublishOptions{DeliverAt: time.Now().Add(time.Minute)})
		time.Sleep(30 * time.Second)
		r.caughtUp("snap", 1)
		r.equal("before", r.latest("snap", "a"), "a=1")
		time.Sleep(time.Minute)
		r.caughtUp("snap", 1)
		r.equal("after", r.latest("snap", "a"), "a=2")
		state, asOf := r.scanned("raw")
		latest := must(r.bus.LatestByKey(r.Context(), "raw", "a"))(t)
		if state != "a=2" || asOf < latest["a"].Seq {
			t.Errorf("scan: %s as of %d", state, asOf)
		}
	})
}

// A compacted topic that is full refuses new keys; those it has still change.
func TestFullCompactedTopic(t *testing.T) {
	for _, storage := range []jetbus.Storage{jetbus.MemoryStorage, jetbus.FileStorage} {
		inBubble(t, func(r *rig) {
			r.ensure(jetbus.TopicConfig{Name: "state", Compact: true, MaxEvents: 2, Storage: storage})
			r.put("state", "a", "1")
			r.put("state", "b", "2")
			_, err := r.bus.Publish(r.Context(), event("state", "c"))
			r.wantErr(err, jetbus.ErrTopicFull)
			r.put("state", "a", "3")
			r.bury("state", "b")
			r.equal("latest", r.latest("state", "a", "b", "c"), "a=3")

			r.ensure(jetbus.TopicConfig{Name: "deep", Compact: true, History: 2, MaxEvents: 3, Storage: storage})
			r.put("deep", "a", "1")
			r.put("deep", "a", "2")
			r.put("deep", "b", "1")
			_, err = r.bus.Publish(r.Context(), jetbus.Tombstone("deep", "b"))
			r.wantErr(err, jetbus.ErrTopicFull)
			r.put("deep", "a", "3")
			r.bury("deep", "a")
			r.equal("latest", r.latest("deep", "a", "b"), "b=1")
		})
	}
}

// ExpectLastSeq counts a tombstone as the last event of its key.
func TestExpectLastSeqOfATombstone(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.compacted("state")
		first := r.put("state", "a", "1")
		receipt := must(r.bus.Publish(r.Context(), jetbus.Tombstone("state", "a"), jetbus.PublishOptions{ExpectLastSeq: &first.Seq}))(t)
		_, err := r.bus.Publish(r.Context(), event("state", "a"), jetbus.PublishOptions{ExpectLastSeq: new(uint64)})
		r.wantErr(err, jetbus.ErrWrongSequence)
		must(r.bus.Publish(r.Context(), event("state", "a"), jetbus.PublishOptions{ExpectLastSeq: &receipt.Event.Seq}))(t)
		r.bury("state", "a")
		time.Sleep(2 * time.Hour)
		must(r.bus.Publish(r.Context(), event("state", "a"), jetbus.PublishOptions{ExpectLastSeq: new(uint64)}))(t)
	})
}
