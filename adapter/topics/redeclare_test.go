package topics_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// conflicting lists the fields that a ConflictError names.
func conflicting(r *rig, err error) string {
	r.Helper()
	r.WantErr(err, jetbus.ErrConflict)
	conflict, ok := errors.AsType[*jetbus.ConflictError](err)
	if !ok {
		return ""
	}
	var fields []string
	for _, d := range conflict.Differences {
		fields = append(fields, d.Field)
		if d.Have == d.Want || !strings.Contains(err.Error(), d.Have) {
			r.Errorf("difference %+v of %v", d, err)
		}
	}
	return strings.Join(fields, " ")
}

// Whoever declares a topic by its name alone takes nothing from it: not its events,
// however old, and not what others said of it. (A server that is to look for old events
// takes those of a bubble to be of years ago: see inRealTime.)
func TestEnsureKeeps(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "audit", Retention: -1, MaxBytes: -1, Description: "keep for ever"})
		must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("audit", 100), jetbus.BatchOptions{}))(t)
		time.Sleep(time.Second)
		before := must(r.Bus.TopicInfo(r.Context(), "audit"))(t)
		_, other := r.Open(adapter.Config{})
		must(other.EnsureTopic(r.Context(), jetbus.TopicConfig{Name: "audit"}))(t)
		time.Sleep(5 * time.Second)
		after := must(r.Bus.TopicInfo(r.Context(), "audit"))(t)
		if diff := cmp.Diff(before, after); diff != "" || after.Events != 100 {
			r.Errorf("%d events; %s", after.Events, diff)
		}
	})
}

// Every field that a declaration leaves out stays, of every kind of topic, and one that
// it gives changes alone.
func TestEnsureKeepsEachField(t *testing.T) {
	inBubble(t, func(r *rig) {
		for _, c := range []jetbus.TopicConfig{
			{
				Name: "log", Description: "d", Retention: -1, MaxBytes: 1 << 20, MaxEvents: 70, Discard: jetbus.DiscardNew,
				Storage: jetbus.MemoryStorage, DuplicateWindow: time.Hour, KeyInSubject: true,
			},
			{Name: "late", Delays: true, Retention: -1, Storage: jetbus.MemoryStorage},
			{Name: "state", Compact: true, History: 5, TombstoneTTL: time.Hour, Storage: jetbus.MemoryStorage},
			{Name: "snap", SnapshotOf: "log", Storage: jetbus.MemoryStorage},
			{Name: "wide", Partitions: 4, Retention: -1, Storage: jetbus.MemoryStorage},
			{Name: "shared", Stream: "S", Retention: -1, Storage: jetbus.MemoryStorage},
			{Name: "with", Stream: "S", Storage: jetbus.MemoryStorage},
		} {
			before := r.Ensure(c)
			_, other := r.Open(adapter.Config{})
			same := must(other.EnsureTopic(r.Context(), jetbus.TopicConfig{Name: c.Name}))(t)
			if diff := cmp.Diff(before.Config, same.Config); diff != "" || same.Stream != before.Stream {
				r.Errorf("%s, declared by its name: %s", c.Name, diff)
			}
			described := must(other.EnsureTopic(r.Context(), jetbus.TopicConfig{Name: c.Name, Description: "anew"}))(t)
			want := before.Config
			want.Description = "anew"
			if diff := cmp.Diff(want, described.Config); diff != "" {
				r.Errorf("%s, declared with a description: %s", c.Name, diff)
			}
		}
	})
}

// A new topic of a shared stream takes the stream's settings.
func TestEnsureTakesTheStreamsSettings(t *testing.T) {
	inBubble(t, func(r *rig) {
		for _, c := range []jetbus.TopicConfig{
			{Name: "a", Stream: "LOGS", Retention: time.Hour, MaxBytes: 1 << 20, MaxEvents: 9, Discard: jetbus.DiscardNew, DuplicateWindow: time.Minute, Storage: jetbus.MemoryStorage},
			{Name: "a.state", Stream: "STATES", Compact: true, History: 3, TombstoneTTL: time.Hour, Storage: jetbus.MemoryStorage},
		} {
			want := r.Ensure(c).Config
			want.Name = "b." + c.Name
			got := r.Ensure(jetbus.TopicConfig{Name: want.Name, Stream: c.Stream, Compact: c.Compact})
			if diff := cmp.Diff(want, got.Config); diff != "" {
				r.Errorf("%s: %s", c.Stream, diff)
			}
		}
	})
}

// What keeps less is refused by name, changes nothing, and is done with Shrink, which
// holds for that call.
func TestEnsureShrinks(t *testing.T) {
	inBubble(t, func(r *rig) {
		log := jetbus.TopicConfig{
			Name: "log", Retention: -1, MaxBytes: 1 << 20, MaxEvents: 100, Discard: jetbus.DiscardNew, DuplicateWindow: time.Hour, Storage: jetbus.MemoryStorage,
		}
		state := jetbus.TopicConfig{Name: "state", Compact: true, History: 5, TombstoneTTL: time.Hour, Storage: jetbus.MemoryStorage}
		r.Ensure(log)
		r.Ensure(state)
		for _, c := range []struct {
			config jetbus.TopicConfig
			fields string
		}{
			{jetbus.TopicConfig{Name: "log", Retention: 100 * 24 * time.Hour}, "Retention"},
			{jetbus.TopicConfig{Name: "log", MaxBytes: 1 << 19, MaxEvents: 200}, "MaxBytes"},
			{jetbus.TopicConfig{Name: "log", MaxEvents: 99, Description: "d"}, "MaxEvents"},
			{jetbus.TopicConfig{Name: "log", Discard: jetbus.DiscardOld}, "Discard"},
			{jetbus.TopicConfig{Name: "log", DuplicateWindow: time.Minute}, "DuplicateWindow"},
			{jetbus.TopicConfig{Name: "log", Retention: 2 * time.Hour, MaxEvents: 1, Storage: jetbus.FileStorage}, "Retention MaxEvents Storage"},
			{jetbus.TopicConfig{Name: "log", MaxEvents: 1, KeyInSubject: true}, "MaxEvents KeyInSubject"},
			{jetbus.TopicConfig{Name: "state", History: 4}, "History"},
			{jetbus.TopicConfig{Name: "state", TombstoneTTL: time.Minute}, "TombstoneTTL"},
		} {
			before := must(r.Bus.TopicInfo(r.Context(), c.config.Name))(t)
			_, err := r.Bus.EnsureTopic(r.Context(), c.config)
			r.Equal("what keeps less", conflicting(r, err), c.fields)
			cannot := strings.HasSuffix(c.fields, "Storage") || strings.HasSuffix(c.fields, "KeyInSubject")
			if err == nil || strings.Contains(err.Error(), "Shrink") == cannot {
				r.Errorf("the wrong remedy in %v", err)
			}
			if diff := cmp.Diff(before, must(r.Bus.TopicInfo(r.Context(), c.config.Name))(t)); diff != "" {
				r.Errorf("a refused declaration changed the topic: %s", diff)
			}
		}
		info := r.Ensure(jetbus.TopicConfig{Name: "log", MaxEvents: 10, Discard: jetbus.DiscardOld, Shrink: true})
		want := must(log.Normalize())(t)
		want.MaxEvents, want.Discard = 10, jetbus.DiscardOld
		if diff := cmp.Diff(want, info.Config); diff != "" {
			r.Errorf("shrunk: %s", diff)
		}
		_, err := r.Bus.EnsureTopic(r.Context(), jetbus.TopicConfig{Name: "log", MaxEvents: 9})
		r.Equal("the permission is not kept", conflicting(r, err), "MaxEvents")
		info = r.Ensure(jetbus.TopicConfig{Name: "log", Retention: -1, MaxBytes: -1, MaxEvents: 11, Discard: jetbus.DiscardNew, DuplicateWindow: 2 * time.Hour})
		r.Equal("what keeps more needs no permission", info.Config.MaxEvents, 11)
	})
}

// A declaration that is wrong whatever there is, is refused before anything is done, and
// one that does not fit the topic as it is changes nothing.
func TestEnsureRefusesWhatDoesNotFit(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "short", Retention: time.Hour, Storage: jetbus.MemoryStorage})
		for _, c := range []jetbus.TopicConfig{
			{Name: "new", Retention: -2},
			{Name: "new", History: 3},
			{Name: "new", Stream: "a b"},
			{Name: "snap", SnapshotOf: "snap"},
			{Name: "short", Retention: -2},
			{Name: "short", DuplicateWindow: 2 * time.Hour},
			{Name: "short", History: 3},
		} {
			_, err := r.Bus.EnsureTopic(r.Context(), c)
			r.WantErr(err, jetbus.ErrInvalidOption)
		}
		r.Equal("topics", len(must(r.Bus.ListTopics(r.Context()))(t)), 1)
	})
}

// Events that wait for their time are not dropped by limits: none are set, none are
// taken, and a topic that has some already keeps working and may lose them.
func TestDelaysHaveNoLimits(t *testing.T) {
	inBubble(t, func(r *rig) {
		for _, storage := range []jetbus.Storage{jetbus.FileStorage, jetbus.MemoryStorage} {
			c := r.Ensure(jetbus.TopicConfig{Name: "late." + string(storage), Delays: true, Storage: storage, Retention: -1}).Config
			r.Equal("limits", []int64{c.MaxBytes, c.MaxEvents}, []int64{-1, -1})
		}
		r.Ensure(jetbus.TopicConfig{Name: "plain", Retention: -1})
		for _, c := range []jetbus.TopicConfig{
			{Name: "new", Delays: true, MaxEvents: 100},
			{Name: "new", Delays: true, MaxBytes: 1 << 30},
			{Name: "late.file", MaxEvents: 100, Shrink: true},
			{Name: "plain", Delays: true}, // it has 10 GiB
		} {
			_, err := r.Bus.EnsureTopic(r.Context(), c)
			r.WantErr(err, jetbus.ErrInvalidOption)
			if err == nil || !strings.Contains(err.Error(), "Delays") || !strings.Contains(err.Error(), "use -1") {
				r.Errorf("no remedy in %v", err)
			}
		}
		r.Equal("with its limits taken away", r.Ensure(jetbus.TopicConfig{Name: "plain", Delays: true, MaxBytes: -1}).Config.Delays, true)

		// One that was declared when limits were taken.
		old := r.Stream("EV_LATE_FILE").Config
		old.MaxBytes, old.MaxMsgs = 10<<30, 1000
		must(r.JS.UpdateStream(r.Context(), old))(t)
		had := must(r.Bus.TopicInfo(r.Context(), "late.file"))(t).Config
		r.Equal("as it is", r.Ensure(jetbus.TopicConfig{Name: "late.file"}).Config, had)
		r.Equal("as it says of itself", r.Ensure(had).Config, had)
		had.Description = "d"
		r.Equal("with a description", r.Ensure(jetbus.TopicConfig{Name: "late.file", Description: "d"}).Config, had)
		_, err := r.Bus.EnsureTopic(r.Context(), jetbus.TopicConfig{Name: "late.file", MaxEvents: 2000})
		r.WantErr(err, jetbus.ErrInvalidOption)
		had.MaxBytes, had.MaxEvents = -1, -1
		r.Equal("without limits", r.Ensure(jetbus.TopicConfig{Name: "late.file", MaxBytes: -1, MaxEvents: -1}).Config, had)
	})
}

// A stream that somebody else has changed past the bus stays as they have it.
func TestEnsureKeepsWhatOthersSet(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a", Compact: true})
		c := r.Stream("EV_A").Config
		c.MaxMsgsPerSubject = 100 // more than the bus would take
		must(r.JS.UpdateStream(r.Context(), c))(t)
		r.Equal("History", r.Ensure(jetbus.TopicConfig{Name: "a"}).Config.History, 100)
		r.Equal("events of a key", r.Stream("EV_A").Config.MaxMsgsPerSubject, 100)
	})
}

// A topic with partitions has its stream alone: what would be placed beside it is refused
// from either side, and changes nothing. Its filters take in whatever else is there.
func TestPartitionsShareNoStream(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "orders", Partitions: 2, Retention: -1})
		r.Publish("orders", "1", "2")
		r.Ensure(jetbus.TopicConfig{Name: "bills.a.b", Stream: "EV_BILLS", Retention: -1})
		before := []jetstream.StreamConfig{r.Stream("EV_ORDERS").Config, r.Stream("EV_BILLS").Config}
		for _, c := range []jetbus.TopicConfig{
			{Name: "orders.a.b", Stream: "EV_ORDERS"},
			{Name: "other", Stream: "EV_ORDERS"},
		} {
			_, err := r.Bus.EnsureTopic(r.Context(), c)
			if fields := conflicting(r, err); fields != "Partitions" || !strings.Contains(err.Error(), "2 of topic orders") {
				r.Errorf("%s beside a topic with partitions: %v", c.Name, err)
			}
		}
		_, err := r.Bus.EnsureTopic(r.Context(), jetbus.TopicConfig{Name: "bills", Partitions: 2})
		r.WantErr(err, jetbus.ErrInvalidOption)
		after := []jetstream.StreamConfig{r.Stream("EV_ORDERS").Config, r.Stream("EV_BILLS").Config}
		if diff := cmp.Diff(before, after); diff != "" {
			r.Errorf("a refused declaration changed a stream: %s", diff)
		}
		must(r.Bus.Repartition(r.Context(), "orders", 3))(t)
		r.Equal("events", r.Stored("orders"), "1 2")
	})
}
