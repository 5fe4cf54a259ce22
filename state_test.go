package jetbus_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-63e9a637/jetbus"
)

func TestTombstone(t *testing.T) {
	e := jetbus.Tombstone("process.state", "web")
	if err := e.Validate(); err != nil || !e.IsTombstone() || e.Headers[jetbus.HeaderTombstone] != "1" {
		t.Errorf("%+v: %v", e, err)
	}
	for payload, want := range map[string]bool{
		"null": true, "\tnull \r\n": true, "": false, "nul": false, "Null": false, "nullnull": false, "\x00null": false, `"null"`: false, "{}": false, "null,": false,
	} {
		if e := (jetbus.Event{Key: "k", Payload: []byte(payload)}); e.IsTombstone() != want {
			t.Errorf("payload %q: %v, want %v", payload, !want, want)
		}
	}
	if e := (jetbus.Event{Payload: []byte("null")}); e.IsTombstone() {
		t.Error("an event without a key is a tombstone")
	}
	if e := (jetbus.Event{Payload: []byte("null"), Headers: map[string]string{jetbus.HeaderTombstone: "1"}}); !e.IsTombstone() {
		t.Error("the end of an event without a key is no tombstone")
	}
}

func TestStateTopicDefaults(t *testing.T) {
	compacted := jetbus.TopicConfig{
		Name: "a", Retention: -1, MaxBytes: 10 << 30, MaxEvents: -1, Discard: jetbus.DiscardNew, Storage: jetbus.FileStorage, Replicas: 1,
		DuplicateWindow: 2 * time.Minute, KeyInSubject: true, Compact: true, History: 1, TombstoneTTL: 24 * time.Hour,
	}
	delayed := compacted
	delayed.Delays, delayed.Discard, delayed.MaxBytes = true, jetbus.DiscardOld, -1
	snapshot := compacted
	snapshot.Compact, snapshot.TombstoneTTL, snapshot.SnapshotOf, snapshot.DuplicateWindow = false, 0, "b", -1
	snapshot.MaxBytes = -1
	aging := compacted
	aging.Retention, aging.TombstoneTTL = 90*time.Minute+time.Millisecond, 90*time.Minute
	inMemory := snapshot
	inMemory.Storage, inMemory.MaxBytes = jetbus.MemoryStorage, 10<<30
	for _, c := range []struct{ in, want jetbus.TopicConfig }{
		{jetbus.TopicConfig{Name: "a", Compact: true}, compacted},
		{jetbus.TopicConfig{Name: "a", Compact: true, Delays: true}, delayed},
		{jetbus.TopicConfig{Name: "a", Compact: true, Retention: 90*time.Minute + time.Millisecond}, aging},
		{jetbus.TopicConfig{Name: "a", SnapshotOf: "b"}, snapshot},
		{jetbus.TopicConfig{Name: "a", SnapshotOf: "b", Storage: jetbus.MemoryStorage}, inMemory},
	} {
		got, err := c.in.Normalize()
		if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
			t.Errorf("%+v: %s %v", c.in, diff, err)
		}
		if again, err := got.Normalize(); again != got || err != nil {
			t.Errorf("normalized twice: %+v, %v", again, err)
		}
		text, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		var back jetbus.TopicConfig
		if err := json.Unmarshal(text, &back); err != nil || back != got {
			t.Errorf("by way of %s: %+v, %v", text, back, err)
		}
	}
}

func TestStateTopicRefused(t *testing.T) {
	type config = jetbus.TopicConfig
	checkRefused(t, []refused[config]{
		{"History", config{History: 1}},
		{"TombstoneTTL", config{TombstoneTTL: time.Hour}},
		{"History", config{Compact: true, History: -1}},
		{"History", config{Compact: true, History: 65}},
		{"TombstoneTTL", config{Compact: true, TombstoneTTL: -1}},
		{"TombstoneTTL", config{Compact: true, TombstoneTTL: time.Millisecond}},
		{"TombstoneTTL", config{Compact: true, TombstoneTTL: 1500 * time.Millisecond}},
		{"TombstoneTTL", config{Compact: true, TombstoneTTL: 11 * 365 * 24 * time.Hour}},
		{"Retention", config{Compact: true, TombstoneTTL: time.Hour, Retention: time.Hour - 1}},
		{"Retention", config{Compact: true, Retention: 500 * time.Millisecond}},
		{"Delays", config{Compact: true, Delays: true, Discard: jetbus.DiscardNew}},
		{"SnapshotOf", config{SnapshotOf: "A"}},
		{"SnapshotOf", config{SnapshotOf: "a.b"}},
		{"Compact", config{SnapshotOf: "b", Compact: true}},
		{"History", config{SnapshotOf: "b", History: 2}},
		{"TombstoneTTL", config{SnapshotOf: "b", TombstoneTTL: time.Hour}},
		{"Delays", config{SnapshotOf: "b", Delays: true}},
		{"DuplicateWindow", config{SnapshotOf: "b", DuplicateWindow: time.Minute}},
		{"Stream", config{SnapshotOf: "b", Stream: "S"}},
		{"Subject", config{SnapshotOf: "b", Stream: "S", Subject: "orders"}},
	}, func(c config) error {
		c.Name = "a.b"
		_, err := c.Normalize()
		return err
	})
}

func TestTopicInfoOfASnapshotAsJSON(t *testing.T) {
	for _, lag := range []int64{-1, 0, 7} {
		info := jetbus.TopicInfo{Config: jetbus.TopicConfig{Name: "a", SnapshotOf: "b"}, Lag: lag}
		text, err := json.Marshal(info)
		if err != nil {
			t.Fatal(err)
		}
		var back jetbus.TopicInfo
		if err := json.Unmarshal(text, &back); err != nil || !cmp.Equal(back, info) {
			t.Errorf("by way of %s: %+v, %v", text, back, err)
		}
	}
}
