package registry_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/registry"
)

// failing is a bus whose writes to some topics fail, and tell what was asked.
type failing struct {
	jetbus.Backend

	topics map[string]jetbus.Stored // that fail, and how
	asked  *[]string
}

var errDown = errors.New("down")

func (f failing) failure(e jetbus.Event) *jetbus.PublishError {
	*f.asked = append(*f.asked, e.Topic)
	stored, ok := f.topics[e.Topic]
	if !ok {
		return nil
	}
	return &jetbus.PublishError{Event: e, Stored: stored, Err: errDown}
}

func (f failing) Publish(ctx context.Context, e jetbus.Event, o ...jetbus.PublishOptions) (jetbus.Receipt, error) {
	if err := f.failure(e); err != nil {
		return jetbus.Receipt{}, fmt.Errorf("publish %s: %w", e.Topic, err)
	}
	return f.Backend.Publish(ctx, e, o...)
}

// PublishBatch stores what is in front of the first failure; nothing of an atomic one.
func (f failing) PublishBatch(ctx context.Context, events []jetbus.Event, o jetbus.BatchOptions) ([]jetbus.Receipt, error) {
	failed := &jetbus.BatchError{Total: len(events)}
	n := 0
	for _, e := range events {
		err := f.failure(e)
		if err == nil && len(failed.Failed) == 0 {
			n++
			continue
		}
		if err == nil {
			err = &jetbus.PublishError{Event: e, Err: errors.New("not sent")}
		}
		failed.Failed = append(failed.Failed, err)
	}
	if len(failed.Failed) == 0 {
		return f.Backend.PublishBatch(ctx, events, o)
	}
	if o.Atomic {
		return nil, failed
	}
	out, err := f.Backend.PublishBatch(ctx, events[:n], o)
	if err != nil {
		return nil, err
	}
	for _, e := range events[n:] {
		out = append(out, jetbus.Receipt{Event: e})
	}
	return out, failed
}

func newDualDesk(t *testing.T, stream string) *desk {
	t.Helper()
	d := newDesk(t)
	for _, topic := range []string{"people", "people.v1", "people.v2", "free", "free.v1"} {
		d.declare(jetbus.TopicConfig{Name: topic, Stream: stream, KeyInSubject: true})
	}
	d.register("people", nameV1)
	d.force("people", nameV2)
	return d
}

// ids lists those of a topic, with the version that they state.
func (d *desk) ids(topic string) string {
	d.Helper()
	var out []string
	for _, e := range d.scan(topic) {
		out = append(out, e.ID+"/"+e.Headers["x-schema-version"])
	}
	return strings.Join(out, " ")
}

func person(id string) jetbus.Event {
	return jetbus.Event{Topic: "people", ID: id, Key: id, Payload: []byte(`{"name":"a"}`)}
}

func TestDualWrite(t *testing.T) {
	for _, atomic := range []bool{false, true} {
		bustest.Run(t, func(t *testing.T) {
			d := newDualDesk(t, "SHARED")
			b := registry.DualWrite(d.bus, d.reg, registry.DualWriteOptions{Atomic: atomic})
			old := person("old")
			old.Headers = map[string]string{"x-schema-version": "1"}
			for _, e := range []jetbus.Event{person("new"), old, {Topic: "free", ID: "free"}, {Topic: "people.v2", ID: "one"}} {
				r, err := b.Publish(t.Context(), e)
				if err != nil || r.Event.Topic != e.Topic || r.Event.ID != e.ID || r.Event.Seq == 0 || r.Duplicate {
					t.Errorf("got %+v and the error %v", r, err)
				}
			}
			r, err := b.Publish(t.Context(), person("new")) // inside the duplicate window
			if err != nil || !r.Duplicate {
				t.Errorf("once more: %+v and the error %v", r, err)
			}
			nameless := person("")
			nameless.Key = "k"
			r, err = b.Publish(t.Context(), nameless)
			d.ok(err)
			id := r.Event.ID
			receipts, err := b.PublishBatch(t.Context(), []jetbus.Event{person("b1"), {Topic: "free", ID: "b2"}, old, person("b3")}, jetbus.BatchOptions{})
			if err != nil || len(receipts) != 4 || receipts[3].Event.ID != "b3" || receipts[3].Event.Topic != "people" || receipts[0].Event.Seq == 0 || !receipts[2].Duplicate {
				t.Errorf("the batch: %+v and the error %v", receipts, err)
			}
			for topic, want := range map[string]string{
				"people": "new/2 old/1 " + id + "/2 b1/2 b3/2", "people.v1": "old/1", "people.v2": "new/2 one/ " + id + "/2 b1/2 b3/2",
				"free": "free/ b2/", "free.v1": "",
			} {
				if got := d.ids(topic); got != want {
					t.Errorf("atomic %v: %s has %q, want %q", atomic, topic, got, want)
				}
			}
			first, twin := d.scan("people")[0], d.scan("people.v2")[0]
			if !first.Time.Equal(twin.Time) || first.Key != twin.Key || string(first.Payload) != string(twin.Payload) || twin.Headers["x-ce-dataschema"] != "schema://people/2" {
				t.Errorf("%+v is no twin of %+v", twin, first)
			}
			receipts, err = b.PublishBatch(t.Context(), []jetbus.Event{person("c1"), person("c2")}, jetbus.BatchOptions{Atomic: true})
			if err != nil || receipts[1].Event.ID != "c2" || receipts[1].Event.Topic != "people" {
				t.Errorf("the atomic batch: %+v and the error %v", receipts, err)
			}
			if got := d.ids("people.v2"); !strings.HasSuffix(got, "c1/2 c2/2") {
				t.Errorf("people.v2 has %q", got)
			}
		})
	}
}

func TestDualWriteFails(t *testing.T) {
	for _, test := range []struct {
		fails          string
		how            jetbus.Stored
		main, twin     string // what is stored after the failure
		stored, failed string // what the error says
		unknown        jetbus.Stored
	}{
		{"people", jetbus.StoredNo, "", "a/2", "people.v2", "people", jetbus.StoredUnknown},
		{"people.v2", jetbus.StoredNo, "", "", "", "people.v2", jetbus.StoredNo},
		{"people.v2", jetbus.StoredUnknown, "", "", "", "people.v2", jetbus.StoredUnknown},
	} {
		bustest.Run(t, func(t *testing.T) {
			d := newDualDesk(t, "")
			var asked []string
			b := registry.DualWrite(failing{d.bus, map[string]jetbus.Stored{test.fails: test.how}, &asked}, d.reg, registry.DualWriteOptions{})
			_, err := b.Publish(t.Context(), person("a"))
			p, ok := errors.AsType[*jetbus.PublishError](err)
			half, ok2 := errors.AsType[*registry.DualWriteError](err)
			if !ok || !ok2 || !errors.Is(err, errDown) || p.Event.Topic != "people" || p.Event.ID != "a" || p.Stored != test.unknown ||
				half.Stored != test.stored || half.Failed != test.failed {
				t.Errorf("%s fails: error %v (%+v)", test.fails, err, p)
			}
			if d.ids("people") != test.main || d.ids("people.v2") != test.twin {
				t.Errorf("%s fails: stored %q and %q", test.fails, d.ids("people"), d.ids("people.v2"))
			}
			// The same event again completes it.
			_, err = registry.DualWrite(d.bus, d.reg, registry.DualWriteOptions{}).Publish(t.Context(), p.Event)
			if err != nil || d.ids("people") != "a/2" || d.ids("people.v2") != "a/2" {
				t.Errorf("%s failed, and once more: error %v, stored %q and %q", test.fails, err, d.ids("people"), d.ids("people.v2"))
			}
		})
	}
}

func TestDualWriteFailsAtomically(t *testing.T) {
	for _, fails := range []string{"people", "people.v2"} {
		bustest.Run(t, func(t *testing.T) {
			d := newDualDesk(t, "SHARED")
			var asked []string
			b := registry.DualWrite(failing{d.bus, map[string]jetbus.Stored{fails: jetbus.StoredUnknown}, &asked}, d.reg, registry.DualWriteOptions{Atomic: true})
			_, err := b.Publish(t.Context(), person("a"))
			if p, ok := errors.AsType[*jetbus.PublishError](err); !ok || p.Event.Topic != "people" || p.Event.ID != "a" {
				t.Errorf("%s fails: error %v", fails, err)
			}
			_, err = b.PublishBatch(t.Context(), []jetbus.Event{person("b"), person("c")}, jetbus.BatchOptions{})
			if failed, ok := errors.AsType[*jetbus.BatchError](err); !ok || len(failed.Failed) != 2 || failed.Total != 2 || failed.Failed[1].Event.ID != "c" || failed.Failed[1].Event.Topic != "people" {
				t.Errorf("%s fails in a batch: error %v", fails, err)
			}
			if d.ids("people")+d.ids("people.v2") != "" {
				t.Errorf("%s fails: stored %q and %q", fails, d.ids("people"), d.ids("people.v2"))
			}
		})
	}
}

func TestDualWriteBatchFails(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newDualDesk(t, "")
		var asked []string
		b := registry.DualWrite(failing{d.bus, map[string]jetbus.Stored{"people.v1": jetbus.StoredNo}, &asked}, d.reg, registry.DualWriteOptions{})
		old := person("old")
		old.Headers = map[string]string{"x-schema-version": "1"}
		receipts, err := b.PublishBatch(t.Context(), []jetbus.Event{person("a"), {Topic: "free", ID: "f"}, old, person("z")}, jetbus.BatchOptions{})
		failed, ok := errors.AsType[*jetbus.BatchError](err)
		if !ok || failed.Total != 4 || len(failed.Failed) != 2 || failed.Failed[0].Event.ID != "old" || failed.Failed[1].Event.ID != "z" || failed.Failed[0].Event.Topic != "people" {
			t.Fatalf("error %v", err)
		}
		if len(receipts) != 4 || receipts[0].Event.Seq == 0 || receipts[1].Event.Seq == 0 || receipts[2].Event.Seq != 0 || receipts[3].Event.Seq != 0 {
			t.Errorf("receipts %+v", receipts)
		}
		if d.ids("people") != "a/2" || d.ids("people.v2") != "a/2" || d.ids("people.v1") != "" {
			t.Errorf("stored %q, %q and %q", d.ids("people"), d.ids("people.v2"), d.ids("people.v1"))
		}
	})
}

func TestDualWriteOptions(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newDualDesk(t, "")
		zero := uint64(0)
		plain := registry.DualWrite(d.bus, d.reg, registry.DualWriteOptions{})
		atomic := registry.DualWrite(d.bus, d.reg, registry.DualWriteOptions{Atomic: true})
		for _, test := range []struct {
			name string
			b    jetbus.Backend
			e    jetbus.Event
			o    jetbus.PublishOptions
			want error
		}{
			{"a condition", plain, person("a"), jetbus.PublishOptions{ExpectLastSeq: &zero}, jetbus.ErrInvalidOption},
			{"an atomic one for later", atomic, person("a"), jetbus.PublishOptions{DeliverAt: time.Now().Add(time.Hour)}, jetbus.ErrInvalidOption},
			{"two streams", atomic, person("a"), jetbus.PublishOptions{}, jetbus.ErrConflict},
			{"a version whose topic is not declared", plain, jetbus.Event{Topic: "other", Payload: []byte(`1`)}, jetbus.PublishOptions{}, jetbus.ErrNoTopic},
			{"an invalid event", plain, jetbus.Event{Topic: "people", ID: " x", Payload: []byte(`{"name":"a"}`)}, jetbus.PublishOptions{}, jetbus.ErrInvalidEvent},
			{"a chosen topic without schema", registry.DualWrite(d.bus, d.reg, registry.DualWriteOptions{Topics: []string{"free"}}), jetbus.Event{Topic: "free"}, jetbus.PublishOptions{}, registry.ErrNoSchema},
		} {
			if test.e.Topic == "other" {
				d.declare(jetbus.TopicConfig{Name: "other"})
				d.register("other", "true")
			}
			if _, err := test.b.Publish(t.Context(), test.e, test.o); !errors.Is(err, test.want) {
				t.Errorf("%s: error %v", test.name, err)
			}
		}
		for _, topic := range []string{"people", "people.v2", "free", "other"} {
			if got := d.ids(topic); got != "" {
				t.Errorf("%s has %q", topic, got)
			}
		}
		_, err := plain.Publish(t.Context(), person("ttl"), jetbus.PublishOptions{TTL: time.Minute})
		d.ok(err)
		chosen := registry.DualWrite(d.bus, d.reg, registry.DualWriteOptions{Topics: []string{"free"}, Versions: map[string]int{"people": 1}})
		_, err = chosen.Publish(t.Context(), person("once"))
		d.ok(err)
		pinned := registry.DualWrite(d.bus, d.reg, registry.DualWriteOptions{Versions: map[string]int{"people": 1}})
		_, err = pinned.Publish(t.Context(), person("pinned"))
		d.ok(err)
		if got := d.ids("people.v2"); got != "ttl/2" {
			t.Errorf("people.v2 has %q", got)
		}
		if got := d.ids("people.v1"); got != "pinned/1" {
			t.Errorf("people.v1 has %q", got)
		}
		time.Sleep(2 * time.Minute)
		if got := d.ids("people.v2") + d.ids("people"); strings.Contains(got, "ttl") {
			t.Errorf("left after the TTL: %q", got)
		}
	})
}

// An atomic dual write holds its condition in the event's own topic, and batches of
// any size and of several streams are stored pair by pair.
func TestDualWriteAtomic(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newDualDesk(t, "SHARED")
		d.declare(jetbus.TopicConfig{Name: "alone"})
		b := registry.DualWrite(d.bus, d.reg, registry.DualWriteOptions{Atomic: true})
		zero := uint64(0)
		if _, err := b.Publish(t.Context(), person("a"), jetbus.PublishOptions{ExpectLastSeq: &zero}); err != nil {
			t.Error(err)
		}
		again := person("b")
		again.Key = "a"
		if _, err := b.Publish(t.Context(), again, jetbus.PublishOptions{ExpectLastSeq: &zero}); !errors.Is(err, jetbus.ErrWrongSequence) {
			t.Errorf("a condition that does not hold: error %v", err)
		}
		var batch []jetbus.Event
		for i := range 900 {
			batch = append(batch, person(fmt.Sprint("p", i)))
		}
		batch = append(batch, person("a"), jetbus.Event{Topic: "alone", ID: "x"}, person("last"))
		receipts, err := b.PublishBatch(t.Context(), batch, jetbus.BatchOptions{})
		d.ok(err)
		if i := slices.IndexFunc(receipts, func(r jetbus.Receipt) bool { return r.Event.Seq == 0 }); i >= 0 || len(receipts) != len(batch) {
			t.Fatalf("receipt %d of %d: %+v", i, len(receipts), receipts[max(i, 0)])
		}
		if !receipts[900].Duplicate || receipts[902].Event.ID != "last" {
			t.Errorf("receipts %+v", receipts[899:])
		}
		mains, twins := d.scan("people"), d.scan("people.v2")
		if len(mains) != 902 || len(twins) != 902 || mains[901].ID != "last" || twins[901].ID != "last" {
			t.Errorf("%d and %d events are stored", len(mains), len(twins))
		}
	})
}

// Where the server refuses one of the two events of an atomic write, it stores neither.
func TestDualWriteAtomicRefused(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newDualDesk(t, "SHARED")
		b := registry.DualWrite(d.bus, d.reg, registry.DualWriteOptions{Atomic: true})
		_, err := b.Publish(t.Context(), person("first"))
		d.ok(err)
		others := bustest.Open(t, d.broker, adapter.Config{})
		d.ok(others.DeleteTopic(t.Context(), "people.v2")) // which the writer has not heard of
		if _, err := b.Publish(t.Context(), person("second")); err == nil {
			t.Error("stored without its twin")
		}
		if got := d.ids("people"); got != "first/2" {
			t.Errorf("stored %s", got)
		}
		d.declare(jetbus.TopicConfig{Name: "people.v2", Stream: "SHARED", KeyInSubject: true})
		time.Sleep(time.Minute) // the server takes no more batches until it has given up those that lack an event
		_, err = b.Publish(t.Context(), person("second"))
		d.ok(err)
		if mains, twins := d.ids("people"), d.ids("people.v2"); mains != "first/2 second/2" || twins != "second/2" {
			t.Errorf("stored %s and %s", mains, twins)
		}
	})
}
