package registry_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/registry"
)

// newGrave has two topics with a schema: state keeps state, and plain does not. The topic of
// the version of state keeps state if twin says so. In one stream, which is compacted as a
// whole or not at all, state is kept by snapshots.
func newGrave(t *testing.T, shared, twin bool) *desk {
	t.Helper()
	d := newDesk(t)
	state, version := jetbus.TopicConfig{Name: "state", Compact: true}, jetbus.TopicConfig{Name: "state.v1", Compact: twin, KeyInSubject: true}
	plain := []jetbus.TopicConfig{{Name: "plain", KeyInSubject: true}, {Name: "plain.v1", KeyInSubject: true}}
	if shared {
		state, version = jetbus.TopicConfig{Name: "state", Stream: "SHARED", KeyInSubject: true}, jetbus.TopicConfig{Name: "state.v1", Stream: "SHARED", KeyInSubject: true}
		plain[0].Stream, plain[1].Stream = "SHARED", "SHARED"
	}
	d.declare(append(plain, state, version)...)
	if shared {
		d.declare(jetbus.TopicConfig{Name: "latest", SnapshotOf: "state"})
		if twin {
			d.declare(jetbus.TopicConfig{Name: "latest.v1", SnapshotOf: "state.v1"})
		}
	}
	d.register("state", nameV1)
	d.register("plain", nameV1)
	return d
}

// A tombstone is published to a compacted topic also where that of the version keeps no state.
func TestDualWriteTombstone(t *testing.T) {
	for _, atomic := range []bool{false, true} {
		for _, twin := range []bool{false, true} {
			bustest.Run(t, func(t *testing.T) {
				d := newGrave(t, atomic, twin)
				b := registry.DualWrite(d.bus, d.reg, registry.DualWriteOptions{Atomic: atomic})
				for _, key := range []string{"a", "b", "c"} {
					_, err := b.Publish(t.Context(), jetbus.Event{Topic: "state", Key: key, Payload: []byte(`{"name":"x"}`)})
					d.ok(err)
				}
				tombstone := jetbus.Tombstone("state", "a")
				r, err := b.Publish(t.Context(), tombstone)
				if err != nil || r.Event.Topic != "state" || r.Event.Seq == 0 {
					t.Fatalf("atomic %v, twin %v: %+v and the error %v", atomic, twin, r, err)
				}
				if diff := cmp.Diff(jetbus.Tombstone("state", "a"), tombstone); diff != "" {
					t.Errorf("the caller's event was changed: %s", diff)
				}
				_, err = b.PublishBatch(t.Context(), []jetbus.Event{jetbus.Tombstone("state", "b")}, jetbus.BatchOptions{})
				d.ok(err)
				left := map[string]int{"state": 1, "state.v1": 3}
				if twin {
					left["state.v1"] = 1
				}
				for topic, want := range left {
					if got := must(d.bus.LatestByKey(t.Context(), topic, "a", "b", "c"))(t); len(got) != want {
						t.Errorf("atomic %v, twin %v: %s has %d keys, want %d", atomic, twin, topic, len(got), want)
					}
				}
				for _, topic := range []string{"state", "state.v1"} {
					all := d.scan(topic)
					last := all[len(all)-1]
					if last.Key != "b" || !last.IsTombstone() || (last.Headers[jetbus.HeaderTombstone] != "") != (topic == "state") {
						t.Errorf("atomic %v, twin %v: the last of %s is %+v", atomic, twin, topic, last)
					}
				}
			})
		}
	}
}

// What the event's own topic does not take is not stored in that of the version either.
func TestDualWriteTombstoneRefused(t *testing.T) {
	for _, atomic := range []bool{false, true} {
		bustest.Run(t, func(t *testing.T) {
			d := newGrave(t, atomic, false)
			b := registry.DualWrite(d.bus, d.reg, registry.DualWriteOptions{Atomic: atomic})
			zero := uint64(0)
			other := jetbus.Tombstone("state", "a")
			other.Payload = []byte(`{"name":"x"}`)
			for _, c := range []struct {
				what string
				e    jetbus.Event
				o    jetbus.PublishOptions
				want error
			}{
				{"where nothing keeps state", jetbus.Tombstone("plain", "a"), jetbus.PublishOptions{}, jetbus.ErrNoState},
				{"without a key", jetbus.Tombstone("state", ""), jetbus.PublishOptions{}, jetbus.ErrInvalidEvent},
				{"with a payload", other, jetbus.PublishOptions{}, jetbus.ErrInvalidEvent},
				{"with a TTL", jetbus.Tombstone("state", "a"), jetbus.PublishOptions{TTL: time.Hour}, jetbus.ErrInvalidOption},
				{"for later", jetbus.Tombstone("state", "a"), jetbus.PublishOptions{DeliverAt: time.Now().Add(time.Hour)}, jetbus.ErrInvalidOption},
			} {
				if _, err := b.Publish(t.Context(), c.e, c.o); !errors.Is(err, c.want) {
					t.Errorf("atomic %v, a tombstone %s: error %v, want %v", atomic, c.what, err, c.want)
				}
				if c.o != (jetbus.PublishOptions{}) {
					continue
				}
				if _, err := b.PublishBatch(t.Context(), []jetbus.Event{c.e}, jetbus.BatchOptions{}); !errors.Is(err, c.want) {
					t.Errorf("atomic %v, in a batch, a tombstone %s: error %v, want %v", atomic, c.what, err, c.want)
				}
			}
			_, err := b.Publish(t.Context(), jetbus.Tombstone("state", "a"), jetbus.PublishOptions{ExpectLastSeq: &zero})
			if atomic != (err == nil) || !atomic && !errors.Is(err, jetbus.ErrInvalidOption) {
				t.Errorf("atomic %v, with a condition: error %v", atomic, err)
			}
			want := map[bool]int{true: 1}[atomic]
			for topic, n := range map[string]int{"plain": 0, "plain.v1": 0, "state": want, "state.v1": want} {
				if all := d.scan(topic); len(all) != n {
					t.Errorf("atomic %v: %s has %+v, want %d", atomic, topic, all, n)
				}
			}
		})
	}
}

// A tombstone of which one write failed is told and completed as other events are.
func TestDualWriteTombstoneFails(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newGrave(t, false, false)
		for fails, want := range map[string]string{"state": "state.v1", "state.v1": ""} {
			var asked []string
			e := jetbus.Tombstone("state", fails)
			b := registry.DualWrite(failing{d.bus, map[string]jetbus.Stored{fails: jetbus.StoredNo}, &asked}, d.reg, registry.DualWriteOptions{})
			_, err := b.Publish(t.Context(), e)
			p, ok := errors.AsType[*jetbus.PublishError](err)
			half, ok2 := errors.AsType[*registry.DualWriteError](err)
			if !ok || !ok2 || half.Stored != want || half.Failed != fails {
				t.Fatalf("%s fails: error %v", fails, err)
			}
			_, err = registry.DualWrite(d.bus, d.reg, registry.DualWriteOptions{}).Publish(t.Context(), p.Event)
			d.ok(err)
		}
		if got := len(d.scan("state")) + len(d.scan("state.v1")); got != 4 {
			t.Errorf("%d events are stored, want each of two once in both topics", got)
		}
	})
}
