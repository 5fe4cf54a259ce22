package registry_test

import (
	"errors"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/registry"
)

// Options of single events hold for both writes of them; a condition is about the event's
// own topic, and needs both to be made together.
func TestDualWriteEach(t *testing.T) {
	for name, atomic := range map[string]registry.DualWriteOptions{"single": {}, "atomic": {Atomic: true}} {
		t.Run(name, func(t *testing.T) {
			bustest.Run(t, func(t *testing.T) {
				d := newDualDesk(t, "SHARED")
				b := registry.DualWrite(d.bus, d.reg, atomic)
				free := jetbus.Event{Topic: "free", ID: "f", Key: "f"}
				_, err := b.PublishBatch(t.Context(), []jetbus.Event{person("short"), free, person("long")},
					jetbus.BatchOptions{Each: []jetbus.PublishOptions{{TTL: time.Minute}, {TTL: time.Minute}, {}}})
				d.ok(err)
				_, err = b.Publish(t.Context(), person("alone"), jetbus.PublishOptions{TTL: time.Minute})
				d.ok(err)
				if got := d.ids("people.v2"); got != "short/2 long/2 alone/2" {
					t.Errorf("people.v2 has %q", got)
				}
				time.Sleep(2 * time.Minute)
				for topic, want := range map[string]string{"people": "long/2", "people.v2": "long/2", "free": ""} {
					if got := d.ids(topic); got != want {
						t.Errorf("%s has %q after the TTL, want %q", topic, got, want)
					}
				}
			})
		})
	}
}

func TestDualWriteExpectsEach(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newDualDesk(t, "SHARED")
		atomic := registry.DualWrite(d.bus, d.reg, registry.DualWriteOptions{Atomic: true})
		zero, one := uint64(0), uint64(1)
		both := []jetbus.Event{person("a"), person("b")}
		for _, test := range []struct {
			name string
			b    jetbus.Backend
			o    jetbus.BatchOptions
			want error
		}{
			{"not atomic", registry.DualWrite(d.bus, d.reg, registry.DualWriteOptions{}), jetbus.BatchOptions{Each: []jetbus.PublishOptions{{}, {ExpectLastSeq: &zero}}}, jetbus.ErrInvalidOption},
			{"too few", atomic, jetbus.BatchOptions{Each: []jetbus.PublishOptions{{}}}, jetbus.ErrInvalidOption},
			{"a later one", atomic, jetbus.BatchOptions{Each: []jetbus.PublishOptions{{}, {DeliverAt: time.Now().Add(time.Hour)}}}, jetbus.ErrUnsupported},
			{"a wrong one", atomic, jetbus.BatchOptions{Each: []jetbus.PublishOptions{{}, {ExpectLastSeq: &one}}}, jetbus.ErrWrongSequence},
		} {
			if _, err := test.b.PublishBatch(t.Context(), both, test.o); !errors.Is(err, test.want) {
				t.Errorf("%s: error %v", test.name, err)
			}
			if got := d.ids("people") + d.ids("people.v2"); got != "" {
				t.Errorf("%s: stored %q", test.name, got)
			}
		}
		free := []jetbus.Event{{Topic: "free", ID: "f"}, person("a"), person("b")}
		free[2].Key = free[1].Key
		if _, err := atomic.PublishBatch(t.Context(), free, jetbus.BatchOptions{Each: []jetbus.PublishOptions{{}, {}, {ExpectLastSeq: &zero}}}); !errors.Is(err, jetbus.ErrInvalidOption) {
			t.Errorf("a condition behind another event of its key: error %v", err)
		}
		if got := d.ids("free") + d.ids("people"); got != "" {
			t.Errorf("refused, stored %q", got)
		}
		receipts, err := atomic.PublishBatch(t.Context(), both, jetbus.BatchOptions{Each: []jetbus.PublishOptions{{ExpectLastSeq: &zero}, {ExpectLastSeq: &zero}}})
		d.ok(err)
		seq := receipts[1].Event.Seq
		if d.ids("people") != "a/2 b/2" || d.ids("people.v2") != "a/2 b/2" {
			t.Errorf("stored %q and %q", d.ids("people"), d.ids("people.v2"))
		}
		next := person("next")
		next.Key = "b"
		_, err = atomic.PublishBatch(t.Context(), []jetbus.Event{person("c"), next}, jetbus.BatchOptions{Each: []jetbus.PublishOptions{{}, {ExpectLastSeq: &seq}}})
		d.ok(err)
	})
}

// One with a condition is completed where its twin alone is stored, and only if that holds; where
// it is stored itself it is a duplicate.
func TestDualWriteExpectsAgain(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newDualDesk(t, "SHARED")
		b := registry.DualWrite(d.bus, d.reg, registry.DualWriteOptions{Atomic: true})
		twin := person("a")
		twin.Topic += ".v2"
		_, err := d.bus.Publish(t.Context(), twin)
		d.ok(err)
		if _, err := b.Publish(t.Context(), person("a"), jetbus.PublishOptions{ExpectLastSeq: new(uint64(7))}); !errors.Is(err, jetbus.ErrWrongSequence) {
			t.Errorf("a condition that does not hold: error %v", err)
		}
		if got := d.ids("people"); got != "" {
			t.Errorf("refused, people has %q", got)
		}
		for _, duplicate := range []bool{false, true} {
			receipt, err := b.Publish(t.Context(), person("a"), jetbus.PublishOptions{ExpectLastSeq: new(uint64)})
			d.ok(err)
			if receipt.Duplicate != duplicate || receipt.Event.Topic != "people" {
				t.Errorf("receipt %+v", receipt)
			}
		}
		if d.ids("people") != "a/2" || len(d.scan("people.v2")) != 1 {
			t.Errorf("stored %q and %q", d.ids("people"), d.ids("people.v2"))
		}
	})
}
