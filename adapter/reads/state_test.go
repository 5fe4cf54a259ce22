package reads_test

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
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// compacted declares a compacted topic in memory, whose events age by the test's
// clock in a bubble, too.
func (r *rig) compacted(name string) jetbus.TopicInfo {
	r.Helper()
	return r.Ensure(jetbus.TopicConfig{Name: name, Compact: true, Storage: jetbus.MemoryStorage, TombstoneTTL: time.Hour})
}

// put stores an event of a key with a payload.
func (r *rig) put(topic, key, payload string, o ...jetbus.PublishOptions) jetbus.Event {
	r.Helper()
	receipt := must(r.Bus.Publish(r.Context(), jetbus.Event{Topic: topic, Key: key, Payload: []byte(payload)}, o...))(r.T)
	return receipt.Event
}

// bury publishes a tombstone.
func (r *rig) bury(topic, key string) jetbus.Event {
	r.Helper()
	return must(r.Bus.Publish(r.Context(), jetbus.Tombstone(topic, key)))(r.T).Event
}

// latest is the state of some keys, by LatestByKey.
func (r *rig) latest(topic string, keys ...string) string {
	r.Helper()
	return words(must(r.Bus.LatestByKey(r.Context(), topic, keys...))(r.T))
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
	asOf := must(r.Bus.ScanLatest(r.Context(), topic, jetbus.LatestQuery{}, func(e jetbus.Event) error {
		out = append(out, e.Key+"="+string(e.Payload))
		return nil
	}))(r.T)
	return strings.Join(out, " "), asOf
}

// caughtUp waits until a snapshot has taken in everything.
func (r *rig) caughtUp(snapshot string, keys int) jetbus.TopicInfo {
	r.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		info := must(r.Bus.TopicInfo(r.Context(), snapshot))(r.T)
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
		config := r.Stream("EV_STATE").Config
		r.Equal("settings", []any{config.MaxMsgsPerSubject, config.AllowRollup, config.AllowMsgTTL, config.SubjectDeleteMarkerTTL, int(config.MaxAge), config.Discard},
			[]any{1, true, true, time.Hour, 0, jetstream.DiscardNew})
		r.put("state", "a", "1")
		r.put("state", "b", "2")
		r.put("state", "a", "3")
		r.Equal("latest", r.latest("state", "a", "b", "c"), "a=3 b=2")
		r.Equal("stored", r.Stored("state"), "b a")
		state, asOf := r.scanned("state")
		r.Equal("scan", fmt.Sprint(state, " as of ", asOf), "b=2 a=3 as of 3")

		grave := r.bury("state", "a")
		r.Equal("latest", r.latest("state", "a", "b"), "b=2")
		state, asOf = r.scanned("state")
		r.Equal("scan with the tombstone", fmt.Sprint(state, " as of ", asOf), "b=2 a=null as of 4")
		m := must(must(r.JS.Stream(r.Context(), "EV_STATE"))(r.T).GetMsg(r.Context(), grave.Seq))(r.T)
		r.Equal("headers", []string{m.Header.Get("Nats-Rollup"), m.Header.Get("Nats-TTL")}, []string{"", "1h0m0s"})

		r.put("state", "a", "5")
		r.Equal("created again", r.latest("state", "a", "b"), "a=5 b=2")
		r.bury("state", "a")
		time.Sleep(time.Hour + 2*time.Second)
		r.Equal("after the tombstone's end", r.Stored("state"), "b")
	})
}

func TestHistory(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "state", Compact: true, History: 3, Storage: jetbus.MemoryStorage, TombstoneTTL: time.Minute})
		for i := range 5 {
			r.put("state", "a", fmt.Sprint(i))
		}
		r.put("state", "b", "0")
		r.Equal("stored", r.Stored("state"), "a a a b")
		_, err := r.Bus.Publish(r.Context(), adaptertest.Event("state", "a"), jetbus.PublishOptions{TTL: time.Second})
		r.WantErr(err, jetbus.ErrUnsupported)
		r.bury("state", "a")
		r.Equal("stored with a tombstone", r.Stored("state"), "b a")
		time.Sleep(2 * time.Minute)
		r.Equal("stored after the tombstone", r.Stored("state"), "b")
		r.Equal("latest", r.latest("state", "a", "b"), "b=0")
	})
}

func TestExpiryIsATombstone(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.compacted("state")
		r.Ensure(jetbus.TopicConfig{Name: "snap", SnapshotOf: "state", Storage: jetbus.MemoryStorage})
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		var seen []string
		var followers sync.WaitGroup
		followers.Go(func() {
			for e, err := range r.Bus.Read(ctx, []string{"state"}, jetbus.ReadOptions{From: jetbus.Earliest(), Follow: true}) {
				if err != nil {
					return
				}
				seen = append(seen, fmt.Sprint(e.Key, "=", string(e.Payload), " ", e.IsTombstone()))
			}
		})
		r.put("state", "a", "1", jetbus.PublishOptions{TTL: 10 * time.Second})
		r.put("state", "k y", "2")
		time.Sleep(5 * time.Second)
		r.Equal("before", r.latest("state", "a", "k y"), "a=1 k y=2")
		r.caughtUp("snap", 2)
		time.Sleep(10 * time.Second)
		r.Equal("after", r.latest("state", "a", "k y"), "k y=2")
		r.caughtUp("snap", 2)
		state, _ := r.scanned("snap")
		r.Equal("snapshot", state, "k y=2 a=null")
		r.Equal("latest in the snapshot", r.latest("snap", "a", "k y"), "k y=2")
		time.Sleep(2 * time.Hour)
		state, _ = r.scanned("snap")
		r.Equal("snapshot after the marker", state, "k y=2")
		cancel()
		followers.Wait()
		r.Equal("follower", strings.Join(seen, ", "), "a=1 false, k y=2 false, a=null true")
	})
}

// The end of an event without a key is the end of its state, too.
func TestExpiryWithoutKey(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.compacted("state")
		table := must(jetbus.OpenTable(r.Context(), r.Bus, "state", jetbus.TableOptions{}))(t)
		defer table.Close()
		r.put("state", "", "1", jetbus.PublishOptions{TTL: time.Minute})
		r.Equal("before", r.latest("state", ""), "=1")
		time.Sleep(2 * time.Minute)
		r.Equal("after", r.latest("state", ""), "")
		r.Equal("state", words(must(r.Bus.StateAt(r.Context(), "state", time.Now()))(t).Events), "")
		r.Equal("keys in a table", table.Len(), 0)
	})
}

func TestSnapshot(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "raw", KeyInSubject: true, Retention: 10 * time.Minute, Storage: jetbus.MemoryStorage})
		r.put("raw", "a", "1")
		r.put("raw", "x.y *", "2")
		info := r.Ensure(jetbus.TopicConfig{Name: "raw.snapshot", SnapshotOf: "raw", Storage: jetbus.MemoryStorage})
		r.Equal("window", int(info.Config.DuplicateWindow), -1)
		r.put("raw", "a", "3")
		r.caughtUp("raw.snapshot", 2)
		var got []string
		for e, err := range r.Bus.Scan(r.Context(), "raw.snapshot", jetbus.ScanQuery{}) {
			r.OK(err)
			got = append(got, fmt.Sprintf("%s %d %s=%s", e.Topic, e.Seq, e.Key, e.Payload))
		}
		r.Equal("snapshot", strings.Join(got, ", "), "raw 2 x.y *=2, raw 3 a=3")
		latest := must(r.Bus.LatestByKey(r.Context(), "raw.snapshot", "a", "x.y *"))(r.T)
		r.Equal("latest", fmt.Sprint(words(latest), latest["a"].Seq, latest["a"].Topic), "a=3 x.y *=23raw")
		state, asOf := r.scanned("raw.snapshot")
		r.Equal("scan", fmt.Sprint(state, " as of ", asOf), "x.y *=2 a=3 as of 3")

		var names []string
		for _, info := range must(r.Bus.ListTopics(r.Context()))(r.T) {
			names = append(names, info.Config.Name)
		}
		r.Equal("topics", names, "[raw raw.snapshot]")
		time.Sleep(20 * time.Minute)
		r.Equal("raw after its retention", r.Stored("raw"), "")
		r.Equal("snapshot then", r.latest("raw.snapshot", "a", "x.y *"), "a=3 x.y *=2")
		grave := r.bury("raw", "a")
		m := must(must(r.JS.Stream(r.Context(), "EV_RAW"))(r.T).GetMsg(r.Context(), grave.Seq))(r.T)
		r.Equal("headers", []string{m.Header.Get("Nats-Rollup"), m.Header.Get("Nats-TTL")}, []string{"", ""})
		r.caughtUp("raw.snapshot", 2)
		r.Equal("snapshot of a deleted key", r.latest("raw.snapshot", "a", "x.y *"), "x.y *=2")
		time.Sleep(20 * time.Minute)
		r.caughtUp("raw.snapshot", 2)
		state, _ = r.scanned("raw.snapshot")
		r.Equal("the tombstone stays there", state, "x.y *=2 a=null")
		r.Equal("the log after its retention", r.Stored("raw"), "")
	})
}

// The name of a snapshot by custom is for that alone, and the longest topic has room for it.
func TestNamesOfSnapshots(t *testing.T) {
	inBubble(t, func(r *rig) {
		for _, c := range []jetbus.TopicConfig{
			{}, {SnapshotOf: "other"}, {KeyInSubject: true}, {Stream: "EV_RAW"}, {Stream: "EV_NONE", Subject: "raw.>"},
		} {
			c.Name = "raw.snapshot"
			_, err := r.Bus.EnsureTopic(r.Context(), c)
			r.WantErr(err, jetbus.ErrInvalidTopic)
		}
		topic := strings.Repeat("t", jetbus.MaxTopicBytes)
		snapshot := jetbus.SnapshotTopic(topic)
		r.Ensure(jetbus.TopicConfig{Name: topic, KeyInSubject: true, Storage: jetbus.MemoryStorage})
		r.Ensure(jetbus.TopicConfig{Name: snapshot, SnapshotOf: topic, Storage: jetbus.MemoryStorage})
		r.Ensure(jetbus.TopicConfig{Name: snapshot, Description: "as it is"})
		r.put(topic, strings.Repeat("k", jetbus.MaxKeyBytes), "1")
		r.caughtUp(snapshot, 1)
	})
}

func TestSnapshotRefuses(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "plain"})
		r.Ensure(jetbus.TopicConfig{Name: "raw", KeyInSubject: true})
		r.Ensure(jetbus.TopicConfig{Name: "other", KeyInSubject: true})
		ensure := func(c jetbus.TopicConfig) error {
			_, err := r.Bus.EnsureTopic(r.Context(), c)
			return err
		}
		r.WantErr(ensure(jetbus.TopicConfig{Name: "snap", SnapshotOf: "none"}), jetbus.ErrNoTopic)
		r.WantErr(ensure(jetbus.TopicConfig{Name: "snap", SnapshotOf: "plain"}), jetbus.ErrNeedsKeySubject)
		r.OK(ensure(jetbus.TopicConfig{Name: "snap", SnapshotOf: "raw"}))
		r.WantErr(ensure(jetbus.TopicConfig{Name: "snap2", SnapshotOf: "snap"}), jetbus.ErrUnsupported)
		for _, refused := range []struct {
			field  string
			config jetbus.TopicConfig
		}{
			{"SnapshotOf", jetbus.TopicConfig{Name: "snap", SnapshotOf: "other"}},
			{"SnapshotOf", jetbus.TopicConfig{Name: "plain", SnapshotOf: "raw"}},
		} {
			err := ensure(refused.config)
			r.WantErr(err, jetbus.ErrConflict)
			if ce, ok := errors.AsType[*jetbus.ConflictError](err); !ok || !slices.ContainsFunc(ce.Differences, func(d jetbus.Difference) bool { return d.Field == refused.field }) {
				r.Errorf("%s: %v", refused.field, err)
			}
		}
		_, err := r.Bus.Publish(r.Context(), adaptertest.Event("snap", "a"))
		r.WantErr(err, jetbus.ErrUnsupported)
		for _, from := range []jetbus.Start{jetbus.AfterSeq(1), jetbus.AfterID("i")} {
			r.WantErr(adaptertest.FirstErr(r.Bus.Scan(r.Context(), "snap", jetbus.ScanQuery{From: from})), jetbus.ErrUnsupported)
		}
		_, err = r.Bus.Subscribe(r.Context(), "snap", "g", adaptertest.Ignore, jetbus.SubscribeOptions{From: jetbus.Earliest()})
		r.WantErr(err, jetbus.ErrUnsupported)
		_, err = r.Bus.Subscribe(r.Context(), "raw", "g", adaptertest.Ignore, jetbus.SubscribeOptions{Topics: []string{"snap"}})
		r.WantErr(err, jetbus.ErrUnsupported)
		_, err = r.Bus.Receive(r.Context(), "snap", "g", jetbus.ReceiveOptions{From: jetbus.Earliest(), Max: 1})
		r.WantErr(err, jetbus.ErrUnsupported)
		r.Equal("groups of a snapshot", len(must(r.Bus.Groups(r.Context(), "snap"))(t)), 0)
		_, err = r.Bus.StateAt(r.Context(), "snap", time.Now())
		r.WantErr(err, jetbus.ErrUnsupported)
		err = r.Bus.DeleteTopic(r.Context(), "raw")
		r.WantErr(err, jetbus.ErrConflict)
		if err == nil || !strings.Contains(err.Error(), "snap") {
			r.Errorf("the error does not name the snapshot: %v", err)
		}
		r.Ensure(jetbus.TopicConfig{Name: "raw", KeyInSubject: true, MaxEvents: 10, Shrink: true}) // does not forget the snapshot
		r.WantErr(r.Bus.DeleteTopic(r.Context(), "raw"), jetbus.ErrConflict)
		r.OK(r.Bus.DeleteTopic(r.Context(), "snap"))
		_, err = r.Bus.TopicInfo(r.Context(), "snap")
		r.WantErr(err, jetbus.ErrNoTopic)
		if _, err := r.Bus.Publish(r.Context(), jetbus.Tombstone("raw", "a")); !errors.Is(err, jetbus.ErrNoState) {
			r.Errorf("a tombstone without a snapshot: %v", err)
		}
		r.OK(r.Bus.DeleteTopic(r.Context(), "raw"))
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
			first := r.Ensure(c)
			again := r.Ensure(c)
			if diff := cmp.Diff(first.Config, again.Config); diff != "" {
				t.Errorf("%s: %s", c.Name, diff)
			}
			want := must(c.Normalize())(t)
			if diff := cmp.Diff(want, again.Config); diff != "" {
				t.Errorf("%s: declared and read back: %s", c.Name, diff)
			}
			_, other := r.Open(adapter.Config{})
			before := r.Stream(first.Stream)
			must(other.EnsureTopic(r.Context(), c))(t)
			if diff := cmp.Diff(before.Config, r.Stream(first.Stream).Config); diff != "" {
				t.Errorf("%s: the stream changed: %s", c.Name, diff)
			}
		}
		refused := func(field string, c jetbus.TopicConfig) {
			t.Helper()
			_, err := r.Bus.EnsureTopic(r.Context(), c)
			r.WantErr(err, jetbus.ErrConflict)
			if ce, ok := errors.AsType[*jetbus.ConflictError](err); !ok || ce.Differences[0].Field != field {
				t.Errorf("want a conflict of %s, got %v", field, err)
			}
		}
		refused("Compact", jetbus.TopicConfig{Name: "g", KeyInSubject: true, Stream: "SHARED", Retention: -1, Discard: jetbus.DiscardNew})
		refused("History", jetbus.TopicConfig{Name: "g", Compact: true, History: 2, Stream: "SHARED"})
		refused("TombstoneTTL", jetbus.TopicConfig{Name: "g", Compact: true, TombstoneTTL: time.Hour, Stream: "SHARED"})
		r.put("a", "k", "1")
		r.Equal("left as it is", r.Ensure(jetbus.TopicConfig{Name: "a", KeyInSubject: true}).Config.Compact, true)
		changed := r.Ensure(jetbus.TopicConfig{Name: "a", Compact: true, History: 2, TombstoneTTL: time.Hour, Shrink: true})
		r.Equal("changed", []any{changed.Config.History, changed.Config.TombstoneTTL}, []any{2, time.Hour})
	})
}

func TestTombstonesAreRefused(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "plain", KeyInSubject: true, Delays: true})
		r.compacted("state")
		publish := func(e jetbus.Event, o ...jetbus.PublishOptions) error {
			_, err := r.Bus.Publish(r.Context(), e, o...)
			_, batchErr := r.Bus.PublishBatch(r.Context(), []jetbus.Event{e}, jetbus.BatchOptions{})
			_, atomicErr := r.Bus.PublishBatch(r.Context(), []jetbus.Event{e}, jetbus.BatchOptions{Atomic: true})
			if len(o) == 0 && (!errors.Is(batchErr, err) && fmt.Sprint(errors.Unwrap(batchErr)) == "" || (err == nil) != (batchErr == nil) || (err == nil) != (atomicErr == nil)) {
				t.Errorf("publish: %v, batch: %v, atomic: %v", err, batchErr, atomicErr)
			}
			return err
		}
		r.WantErr(publish(jetbus.Tombstone("plain", "a")), jetbus.ErrNoState)
		r.WantErr(publish(jetbus.Tombstone("state", "")), jetbus.ErrInvalidEvent)
		e := jetbus.Tombstone("state", "a")
		e.Payload = []byte("{}")
		r.WantErr(publish(e), jetbus.ErrInvalidEvent)
		_, err := r.Bus.Publish(r.Context(), jetbus.Tombstone("state", "a"), jetbus.PublishOptions{TTL: time.Hour})
		r.WantErr(err, jetbus.ErrInvalidOption)
		_, err = r.Bus.Publish(r.Context(), jetbus.Tombstone("state", "a"), jetbus.PublishOptions{DeliverAt: time.Now().Add(time.Hour)})
		r.WantErr(err, jetbus.ErrInvalidOption)
		r.Equal("nothing was stored", r.Stored("plain")+r.Stored("state"), "")

		r.put("plain", "n", "null") // a payload like any other
		r.Equal("null", r.latest("plain", "n"), "n=null")
		state, _ := r.scanned("plain")
		r.Equal("null", state, "n=null")

		// The bus remembers the topic without its snapshot.
		_, other := r.Open(adapter.Config{})
		must(other.EnsureTopic(r.Context(), jetbus.TopicConfig{Name: "snap", SnapshotOf: "plain"}))(t)
		r.bury("plain", "n")
		r.Equal("deleted", r.latest("plain", "n"), "")
	})
}

func TestTombstonesInBatches(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.compacted("state")
		r.Ensure(jetbus.TopicConfig{Name: "deep", Compact: true, History: 3, Storage: jetbus.MemoryStorage})
		e := adaptertest.Event
		for _, atomic := range []bool{false, true} {
			must(r.Bus.PublishBatch(r.Context(), []jetbus.Event{
				e("state", "a"), e("state", "b"), jetbus.Tombstone("state", "a"), jetbus.Tombstone("state", "c"), e("state", "d"),
			}, jetbus.BatchOptions{Atomic: atomic}))(t)
			r.Equal("latest", r.latest("state", "a", "b", "c", "d"), `b="b" d="d"`)
		}
		stream := must(r.JS.Stream(r.Context(), "EV_STATE"))(t)
		for key, ttl := range map[string]string{"a": "1h0m0s", "b": "", "c": "1h0m0s", "d": ""} {
			m := must(stream.GetLastMsgForSubject(r.Context(), "ev.state.K."+key))(t)
			r.Equal("TTL of "+key, m.Header.Get("Nats-TTL"), ttl)
		}
		_, err := r.Bus.PublishBatch(r.Context(), []jetbus.Event{e("deep", "a"), jetbus.Tombstone("deep", "a")}, jetbus.BatchOptions{Atomic: true})
		r.WantErr(err, jetbus.ErrInvalidOption)
		must(r.Bus.PublishBatch(r.Context(), []jetbus.Event{jetbus.Tombstone("deep", "a"), e("deep", "a")}, jetbus.BatchOptions{Atomic: true}))(t)
		r.Equal("deep", r.latest("deep", "a"), `a="a"`)
	})
}

// What was deleted does not come back, in the topic or in the snapshot: not while
// the tombstone is there, when the broker is killed, and not when it has gone and the broker restarts.
func TestDeletedStaysDeleted(t *testing.T) {
	for ttl, restart := range map[time.Duration]func(*rig){
		time.Hour: func(r *rig) {
			r.OK(r.Broker.Kill(r.Context()))
			r.OK(r.Broker.Restart(r.Context()))
		},
		time.Second: func(r *rig) { r.OK(r.Broker.Restart(r.Context())) },
	} {
		inRealTime(t, func(r *rig) {
			r.Ensure(jetbus.TopicConfig{Name: "state", Compact: true, TombstoneTTL: ttl})
			r.Ensure(jetbus.TopicConfig{Name: "snap", SnapshotOf: "state"})
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
				r.Equal("snapshot", r.latest("snap", "a", "b"), "b=2")
				r.Equal("topic", r.latest("state", "a", "b"), "b=2")
			}
			r.put("state", "c", "3")
			r.caughtUp("snap", keys+1)
			r.Equal("snapshot", r.latest("snap", "a", "b", "c"), "b=2 c=3")
		})
	}
}

// An id that is published again after the duplicate window is another event.
func TestSnapshotHasNoDuplicates(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "raw", KeyInSubject: true, DuplicateWindow: time.Minute, Storage: jetbus.MemoryStorage})
		for i := range 3 {
			must(r.Bus.Publish(r.Context(), jetbus.Event{Topic: "raw", Key: "a", ID: "same", Payload: fmt.Append(nil, i)}))(t)
			time.Sleep(2 * time.Minute)
		}
		r.Ensure(jetbus.TopicConfig{Name: "snap", SnapshotOf: "raw", Storage: jetbus.MemoryStorage})
		r.caughtUp("snap", 1)
		r.Equal("snapshot", r.latest("snap", "a"), "a=2")
	})
}

// Delayed events wait in the topic, and enter the snapshot when they are due.
func TestSnapshotOfDelays(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "raw", KeyInSubject: true, Delays: true, Storage: jetbus.MemoryStorage})
		r.Ensure(jetbus.TopicConfig{Name: "snap", SnapshotOf: "raw", Storage: jetbus.MemoryStorage})
		r.put("raw", "a", "1")
		r.put("raw", "a", "2", jetbus.PublishOptions{DeliverAt: time.Now().Add(time.Minute)})
		time.Sleep(30 * time.Second)
		r.caughtUp("snap", 1)
		r.Equal("before", r.latest("snap", "a"), "a=1")
		time.Sleep(time.Minute)
		r.caughtUp("snap", 1)
		r.Equal("after", r.latest("snap", "a"), "a=2")
		state, asOf := r.scanned("raw")
		latest := must(r.Bus.LatestByKey(r.Context(), "raw", "a"))(t)
		if state != "a=2" || asOf < latest["a"].Seq {
			t.Errorf("scan: %s as of %d", state, asOf)
		}
	})
}

// A compacted topic that is full refuses new keys; those it has still change.
func TestFullCompactedTopic(t *testing.T) {
	for _, storage := range []jetbus.Storage{jetbus.MemoryStorage, jetbus.FileStorage} {
		inBubble(t, func(r *rig) {
			r.Ensure(jetbus.TopicConfig{Name: "state", Compact: true, MaxEvents: 2, Storage: storage})
			r.put("state", "a", "1")
			r.put("state", "b", "2")
			_, err := r.Bus.Publish(r.Context(), adaptertest.Event("state", "c"))
			r.WantErr(err, jetbus.ErrTopicFull)
			r.put("state", "a", "3")
			r.bury("state", "b")
			r.Equal("latest", r.latest("state", "a", "b", "c"), "a=3")

			r.Ensure(jetbus.TopicConfig{Name: "deep", Compact: true, History: 2, MaxEvents: 3, Storage: storage})
			r.put("deep", "a", "1")
			r.put("deep", "a", "2")
			r.put("deep", "b", "1")
			_, err = r.Bus.Publish(r.Context(), jetbus.Tombstone("deep", "b"))
			r.WantErr(err, jetbus.ErrTopicFull)
			r.put("deep", "a", "3")
			r.bury("deep", "a")
			r.Equal("latest", r.latest("deep", "a", "b"), "b=1")
		})
	}
}

// ExpectLastSeq counts a tombstone as the last event of its key.
func TestExpectLastSeqOfATombstone(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.compacted("state")
		first := r.put("state", "a", "1")
		receipt := must(r.Bus.Publish(r.Context(), jetbus.Tombstone("state", "a"), jetbus.PublishOptions{ExpectLastSeq: &first.Seq}))(t)
		_, err := r.Bus.Publish(r.Context(), adaptertest.Event("state", "a"), jetbus.PublishOptions{ExpectLastSeq: new(uint64)})
		r.WantErr(err, jetbus.ErrWrongSequence)
		must(r.Bus.Publish(r.Context(), adaptertest.Event("state", "a"), jetbus.PublishOptions{ExpectLastSeq: &receipt.Event.Seq}))(t)
		r.bury("state", "a")
		time.Sleep(2 * time.Hour)
		must(r.Bus.Publish(r.Context(), adaptertest.Event("state", "a"), jetbus.PublishOptions{ExpectLastSeq: new(uint64)}))(t)
	})
}
