package registry_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/registry"
	"github.com/seed-63e9a637/jetbus/registry/schema"
)

const (
	personA  = `{"type":"object","properties":{"a":{"type":"string"}}}`
	personAB = `{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"integer"}}}`
)

// What was registered while a topic was strict was written with any further property,
// whatever the model is since.
func TestModelChanges(t *testing.T) {
	r := newRig(t)
	r.register("t", personA)
	r.ok(r.reg.SetSettings(t.Context(), "t", registry.Settings{Model: schema.Declared, Level: registry.LevelBackward}))

	report := must(r.reg.Check(t.Context(), "t", personAB, registry.CheckOptions{}))(t)
	if report.Compatible || len(report.Comparisons) != 1 || report.Comparisons[0].Verdict.Result != schema.Refuted {
		t.Errorf("a new property beside the strict version: %+v, want it refuted", report)
	}
	r.nothingStored(func() {
		_, err := r.reg.Register(t.Context(), "t", personAB, registry.RegisterOptions{})
		r.is(err, registry.ErrIncompatible)
		if said := "(declared model; the events of version 1 are from before that, and may have any property)"; !strings.Contains(fmt.Sprint(err), said) {
			t.Errorf("%v\nwant it to say %s", err, said)
		}
	})
	if written := report.Comparisons[0].Written; written != schema.Strict {
		t.Errorf("its events are %s", written)
	}

	// The readers are those of the model that holds: they pass over what they do not know.
	second := r.register("t", object("a"))
	if second.Admission != registry.Proved {
		t.Errorf("the second version is %s, want it proved", second.Admission)
	}
	if third := r.register("t", object("a", "b")); third.Admission != registry.Proved {
		t.Errorf("what follows a declared version is %s, want it proved", third.Admission)
	}
	for level, want := range map[registry.Level]schema.Result{registry.LevelBackward: schema.Proved, registry.LevelForward: schema.Refuted} {
		report := must(r.reg.Compare(t.Context(), "t", 3, 1, registry.CheckOptions{Level: level}))(t)
		if got := report.Comparisons[0].Verdict.Result; got != want {
			t.Errorf("version 3, and then the strict version 1, %s: %s, want %s", level, got, want)
		}
		if said := "the events of the newer version are from before that"; level == registry.LevelForward && !strings.Contains(report.Err().Error(), said) {
			t.Errorf("%v\nwant it to say %s", report.Err(), said)
		}
	}
}

// An event of a strict version that no proof speaks of is judged for itself.
func TestNormalizeModelChanges(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newDesk(t)
		d.declare(jetbus.TopicConfig{Name: "people"})
		d.register("people", personA)
		b := registry.Validated(d.bus, d.reg, registry.ValidatedOptions{})
		for _, payload := range []string{`{"a":"x","b":"y"}`, `{"a":"x"}`, `{"a":"x","z":1}`} {
			_, err := b.Publish(t.Context(), jetbus.Event{Topic: "people", Payload: []byte(payload)})
			d.ok(err)
		}
		d.ok(d.reg.SetSettings(t.Context(), "people", registry.Settings{Model: schema.Declared}))
		d.force("people", personAB)
		n := registry.NewNormalizer(d.reg, registry.NormalizedOptions{})
		var refused []string
		for e, err := range d.bus.Scan(t.Context(), "people", jetbus.ScanQuery{}) {
			d.ok(err)
			if _, err := n.Normalize(t.Context(), e); errors.Is(err, jetbus.ErrSchema) {
				refused = append(refused, string(e.Payload)+" "+err.Error())
			} else {
				d.ok(err)
			}
		}
		if len(refused) != 1 || !strings.HasPrefix(refused[0], `{"a":"x","b":"y"}`) || !strings.Contains(refused[0], "from version 1 to 2: there is no upcaster") {
			t.Errorf("refused %q, want the one whose b is no integer, for want of an upcaster", refused)
		}
	})
}

// That an event is of a strict time is not forgotten behind a version that has only the
// declared model.
func TestNormalizeModelChangesBetween(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newDesk(t)
		d.declare(jetbus.TopicConfig{Name: "people"})
		d.register("people", personA)
		b := registry.Validated(d.bus, d.reg, registry.ValidatedOptions{})
		_, err := b.Publish(t.Context(), jetbus.Event{Topic: "people", Payload: []byte(`{"a":"x","b":"y"}`)})
		d.ok(err)
		d.ok(d.reg.SetSettings(t.Context(), "people", registry.Settings{Model: schema.Declared, Level: registry.LevelBackward}))
		d.register("people", `{"type":"object","properties":{"a":{"type":"string"},"title":{}}}`)
		d.register("people", `{"type":"object","properties":{"a":{"type":"string"},"title":{},"b":{"type":"integer"}}}`)
		_, err = registry.NewNormalizer(d.reg, registry.NormalizedOptions{}).Normalize(t.Context(), d.scan("people")[0])
		up, ok := errors.AsType[*registry.UpcastError](err)
		if !ok || up.From != 2 || up.To != 3 {
			t.Errorf("%v, want that an upcaster is missing from version 2 to 3", err)
		}
	})
}
