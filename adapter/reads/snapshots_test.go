package reads_test

import (
	"fmt"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// What an event with a TTL leaves is known in a compacted topic only.
func TestTTLBesideASnapshot(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "raw", KeyInSubject: true, Delays: true, Storage: jetbus.MemoryStorage})
		r.put("raw", "a", "1", jetbus.PublishOptions{TTL: time.Hour})
		r.Ensure(jetbus.TopicConfig{Name: "snap", SnapshotOf: "raw", Storage: jetbus.MemoryStorage})
		for _, o := range []jetbus.PublishOptions{{TTL: time.Minute}, {TTL: time.Minute, DeliverAt: time.Now().Add(time.Minute)}} {
			_, err := r.Bus.Publish(r.Context(), adaptertest.Event("raw", "a"), o)
			r.WantErr(err, jetbus.ErrUnsupported)
		}
		r.Equal("stored", r.Stored("raw"), "a")
		r.OK(r.Bus.DeleteTopic(r.Context(), "snap"))
		r.put("raw", "a", "2", jetbus.PublishOptions{TTL: time.Minute})
	})
}

// A tombstone goes with the events of its time, also where Retention is raised
// once it is published, and nothing older comes back.
func TestTombstoneOfALog(t *testing.T) {
	inBubble(t, func(r *rig) {
		raw := jetbus.TopicConfig{Name: "raw", KeyInSubject: true, Retention: 10 * time.Minute, Storage: jetbus.MemoryStorage}
		snap := jetbus.TopicConfig{Name: "snap", SnapshotOf: "raw", Storage: jetbus.MemoryStorage}
		r.Ensure(raw)
		r.Ensure(snap)
		r.put("raw", "a", "1")
		r.bury("raw", "a")
		r.caughtUp("snap", 1)
		raw.Retention = 40 * time.Minute
		r.Ensure(raw)
		time.Sleep(20 * time.Minute)
		r.Equal("topic", r.latest("raw", "a"), "")
		state, _ := r.scanned("raw")
		r.Equal("scan", state, "a=null")
		r.Equal("state at", words(must(r.Bus.StateAt(r.Context(), "raw", time.Now()))(t).Events), "")
		r.OK(r.Bus.DeleteTopic(r.Context(), "snap"))
		r.Ensure(snap)
		time.Sleep(20 * time.Second)
		r.caughtUp("snap", 1)
		r.Equal("snapshot that begins anew", r.latest("snap", "a"), "")
		time.Sleep(40 * time.Minute)
		r.Equal("stored in the end", r.Stored("raw"), "")
		r.Equal("snapshot in the end", r.latest("snap", "a"), "")
	})
}

// The largest headers that an event may have get into the snapshot.
func TestSnapshotOfLargeHeaders(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "raw", KeyInSubject: true, Storage: jetbus.MemoryStorage})
		name := strings.Repeat("s", 180)
		r.Ensure(jetbus.TopicConfig{Name: name, SnapshotOf: "raw", Storage: jetbus.MemoryStorage})
		publish := func(filler int) error {
			e := adaptertest.Event("raw", strings.Repeat("\u00e4", 128))
			e.Headers = map[string]string{}
			for i := range 16 {
				e.Headers[fmt.Sprint("x-", i)] = strings.Repeat("v", 3700)
			}
			e.Headers["x-filler"] = strings.Repeat("v", filler)
			_, err := r.Bus.Publish(r.Context(), e)
			_, batchErr := r.Bus.PublishBatch(r.Context(), []jetbus.Event{e}, jetbus.BatchOptions{})
			if (err == nil) != (batchErr == nil) {
				t.Errorf("publish: %v, batch: %v", err, batchErr)
			}
			return err
		}
		const most = 4000
		largest := sort.Search(most, func(filler int) bool { return publish(filler) != nil }) - 1
		if largest < 0 || largest+1 == most {
			t.Fatalf("the largest that fits has %d", largest)
		}
		r.OK(publish(largest))
		r.WantErr(publish(largest+1), jetbus.ErrPayloadTooLarge)
		r.put("raw", "a", "2")
		r.caughtUp(name, 2)
		r.Equal("snapshot", r.latest(name, "a"), "a=2")
	})
}

// A snapshot that is full takes up what it missed once it has room.
func TestFullSnapshot(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "raw", KeyInSubject: true, Storage: jetbus.MemoryStorage})
		snap := jetbus.TopicConfig{Name: "snap", SnapshotOf: "raw", Storage: jetbus.MemoryStorage, MaxEvents: 2}
		r.Ensure(snap)
		r.put("raw", "a", "1")
		r.put("raw", "b", "1")
		r.caughtUp("snap", 2)
		r.put("raw", "c", "1")
		time.Sleep(10 * time.Minute)
		r.Equal("lag of a full one", must(r.Bus.TopicInfo(r.Context(), "snap"))(t).Lag, 1)
		snap.MaxEvents = -1
		r.Ensure(snap)
		time.Sleep(10 * time.Minute)
		r.caughtUp("snap", 3)
		r.Equal("with more room", r.latest("snap", "a", "b", "c"), "a=1 b=1 c=1")
	})
}

// What a log lost by its age before its snapshot took it in is not in that, nor in a table
// that is loaded from there; what the log still has is, and the position is where to go on.
func TestSnapshotBehindRetention(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "raw", KeyInSubject: true, Retention: 30 * time.Minute, Storage: jetbus.MemoryStorage})
		snap := jetbus.TopicConfig{Name: "snap", SnapshotOf: "raw", Storage: jetbus.MemoryStorage, MaxEvents: 2}
		r.Ensure(snap)
		r.put("raw", "a", "1")
		r.put("raw", "b", "1")
		r.caughtUp("snap", 2)
		r.put("raw", "c", "1") // for which it has no room
		time.Sleep(20 * time.Minute)
		r.put("raw", "a", "2")
		r.put("raw", "d", "1")
		time.Sleep(12 * time.Minute)
		r.Equal("what is left of the log", r.Stored("raw"), "a d")
		r.Equal("the snapshot that is full", r.latest("snap", "b", "c", "d"), "b=1")
		if lag := must(r.Bus.TopicInfo(r.Context(), "snap"))(t).Lag; lag == 0 {
			r.Errorf("a snapshot that stands still has a lag of %d", lag)
		}
		snap.MaxEvents = -1
		r.Ensure(snap)
		time.Sleep(12 * time.Minute)
		r.caughtUp("snap", 3)
		state, asOf := r.scanned("snap")
		r.Equal("with more room", fmt.Sprint(state, " as of ", asOf), "b=1 a=2 d=1 as of 5")
		table := must(jetbus.OpenTable(r.Context(), r.Bus, "raw", jetbus.TableOptions{Snapshot: "snap"}))(t)
		defer table.Close()
		last := r.put("raw", "e", "1")
		r.OK(table.WaitFor(r.Context(), last.Seq))
		r.Equal("keys of a table", table.Len(), 4)
		if e, ok := table.Get("a"); !ok || string(e.Payload) != "2" {
			r.Errorf("the table has a at %d: %s", e.Seq, e.Payload)
		}
	})
}

// A snapshot has the positions of its topic: it must not outlive it.
func TestSnapshotOfATopicMadeAnew(t *testing.T) {
	inBubble(t, func(r *rig) {
		raw := jetbus.TopicConfig{Name: "raw", KeyInSubject: true, Storage: jetbus.MemoryStorage}
		snap := jetbus.TopicConfig{Name: "snap", SnapshotOf: "raw", Storage: jetbus.MemoryStorage}
		r.Ensure(raw)
		_, err := r.Bus.EnsureTopic(r.Context(), jetbus.TopicConfig{Name: "snap", SnapshotOf: "raw"})
		r.WantErr(err, jetbus.ErrInvalidOption)
		r.Ensure(snap)
		r.Ensure(snap)
		for range 5 {
			r.put("raw", "a", "old")
		}
		r.caughtUp("snap", 1)
		r.OK(r.JS.DeleteStream(r.Context(), "EV_RAW"))
		time.Sleep(time.Second)
		r.Ensure(raw)
		_, err = r.Bus.EnsureTopic(r.Context(), snap)
		r.WantErr(err, jetbus.ErrConflict)
		if err == nil || !strings.Contains(err.Error(), "topic snap") || !strings.Contains(err.Error(), "delete the topic first") {
			t.Errorf("the error does not say what to do: %v", err)
		}
		r.OK(r.Bus.DeleteTopic(r.Context(), "snap"))
		r.Ensure(snap)
		r.put("raw", "a", "new")
		r.caughtUp("snap", 1)
		r.Equal("snapshot", r.latest("snap", "a"), "a=new")
	})
}
