package registry_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/registry"
	"github.com/seed-63e9a637/jetbus/registry/schema"
)

// Validate returns the error that Publish of a Validated bus returns for the same payload and version.
func TestValidateAgreesWithValidated(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newDesk(t)
		d.declare(jetbus.TopicConfig{Name: "people"}, jetbus.TopicConfig{Name: "strangers"})
		for _, topic := range []string{"people", "strangers"} {
			d.force(topic, nameV1)
			d.force(topic, nameV2)
			d.force(topic, `{"type":"object","required":["x"]}`)
			must(d.reg.Delete(t.Context(), topic, 3, registry.DeleteOptions{}))(t)
		}
		d.ok(d.reg.SetSettings(t.Context(), "strangers", registry.Settings{Model: schema.Declared}))
		for _, c := range []struct {
			topic, payload string
			version        int
			want           error
			text           string
		}{
			{"people", `{"name":"a"}`, 0, nil, ""},
			{"people", `{"name":"a","age":1}`, 2, nil, ""},
			{"people", `{"name":"a","other":1}`, 0, jetbus.ErrSchema, "people breaks version 2 of its schema: payload: "},
			{"people", `{"name":"a","other":1}`, 1, nil, ""},
			{"strangers", `{"name":"a","other":1}`, 1, jetbus.ErrSchema, "strangers breaks version 1"}, // not declared
			{"people", `{"name":""}`, 1, jetbus.ErrSchema, "/name"},
			{"people", `{"name"`, 0, jetbus.ErrSchema, "not JSON"},
			{"people", ``, 0, jetbus.ErrSchema, "payload: missing"},
			{"people", `null`, 0, jetbus.ErrSchema, "null"},
			{"people", `{"x":1}`, 3, registry.ErrNoVersion, "deleted"},
			{"people", `{"x":1}`, 4, registry.ErrNoVersion, "4"},
		} {
			err := d.reg.Validate(t.Context(), c.topic, []byte(c.payload), c.version)
			if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), c.text) {
				t.Errorf("%s in version %d of %s: error %v, want %v with %q", c.payload, c.version, c.topic, err, c.want, c.text)
			}
			var versions map[string]int
			if c.version > 0 {
				versions = map[string]int{c.topic: c.version}
			}
			bus := registry.Validated(d.bus, d.reg, registry.ValidatedOptions{Versions: versions})
			for _, o := range []jetbus.PublishOptions{{DryRun: true}, {}} {
				if _, err := bus.Publish(t.Context(), jetbus.Event{Topic: c.topic, Payload: []byte(c.payload)}, o); !errors.Is(err, c.want) {
					t.Errorf("publish %s in version %d of %s, dry run %v: error %v, want %v", c.payload, c.version, c.topic, o.DryRun, err, c.want)
				}
			}
		}
		d.is(d.reg.Validate(t.Context(), "none", []byte(`1`), 0), registry.ErrNoSchema)
		d.is(d.reg.Validate(t.Context(), "none", []byte(`1`), 1), registry.ErrNoSchema)
		d.is(d.reg.Validate(t.Context(), "No Topic", []byte(`1`), 0), jetbus.ErrInvalidTopic)
		d.is(d.reg.Validate(t.Context(), "people", []byte(`1`), -1), jetbus.ErrInvalidOption)
		if found, ok := errors.AsType[*registry.SchemaError](d.reg.Validate(t.Context(), "people", []byte(`{"name":1,"age":"x"}`), 0)); !ok || found.Version != 2 || len(found.Violations) != 2 {
			t.Errorf("%+v", found)
		}
		if err := d.reg.Close(t.Context()); err != nil {
			t.Error(err)
		}
		d.is(d.reg.Validate(t.Context(), "people", []byte(`{"name":"a"}`), 0), jetbus.ErrClosed)
	})
}

// A refused dry run calls no observer, and an accepted one stores nothing.
func TestValidatedDryRun(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newDesk(t)
		d.declare(jetbus.TopicConfig{Name: "people"})
		d.register("people", nameV1)
		bus := registry.Validated(d.bus, d.reg, registry.ValidatedOptions{Observer: func(o jetbus.Observation) { t.Errorf("told %+v", o) }})
		dry := jetbus.PublishOptions{DryRun: true}
		_, err := bus.Publish(t.Context(), jetbus.Event{Topic: "people", Payload: []byte(`{}`)}, dry)
		d.is(err, jetbus.ErrSchema)
		r := must(bus.Publish(t.Context(), jetbus.Event{Topic: "people", Payload: []byte(`{"name":"a"}`)}, dry))(t)
		if r.Event.Headers[registry.HeaderSchemaVersion] != "1" || r.Event.Seq != 0 {
			t.Errorf("%+v", r)
		}
		if got := d.scan("people"); len(got) != 0 {
			t.Errorf("%+v is stored", got)
		}
	})
}

// A dry run of a dual write checks both events as Publish does, and stores neither.
func TestDualWriteDryRun(t *testing.T) {
	for _, atomic := range []bool{false, true} {
		bustest.Run(t, func(t *testing.T) {
			stream := ""
			if atomic {
				stream = "PEOPLE"
			}
			d := newDualDesk(t, stream)
			d.register("lonely", nameV1)
			d.declare(jetbus.TopicConfig{Name: "lonely", Stream: stream, KeyInSubject: true})
			bus := registry.DualWrite(d.bus, d.reg, registry.DualWriteOptions{Atomic: atomic})
			one := must(d.bus.Publish(t.Context(), jetbus.Event{Topic: "people", Key: "old", Payload: []byte(`{"name":"a"}`)}))(t)
			later := jetbus.PublishOptions{DeliverAt: one.Event.Time.AddDate(0, 1, 0)}
			for i, c := range []struct {
				e jetbus.Event
				o jetbus.PublishOptions
			}{
				{e: jetbus.Event{Topic: "people", Key: "k", ID: "a"}},
				{e: jetbus.Event{Topic: "people", Key: "k", ID: "a"}},
				{e: jetbus.Event{Topic: "free"}},
				{e: jetbus.Event{Topic: "lonely"}}, // lonely.v1 is not declared
				{e: jetbus.Event{Topic: "people", Key: "old"}, o: jetbus.PublishOptions{ExpectLastSeq: new(uint64)}},
				{e: jetbus.Event{Topic: "people", Key: "old"}, o: jetbus.PublishOptions{ExpectLastSeq: &one.Event.Seq}},
				{e: jetbus.Event{Topic: "people", Key: "a\x00"}},
				{e: jetbus.Event{Topic: "people", Key: "k"}, o: later},
				{e: jetbus.Tombstone("people", "k"), o: later},
				{e: jetbus.Tombstone("people", "k")}, // no state
				{e: jetbus.Event{Topic: "people", Key: "k", Payload: make([]byte, 1<<20)}},
			} {
				if c.e.Payload == nil {
					c.e.Payload = []byte(`{"name":"a"}`)
				}
				before := d.ids("people") + d.ids("people.v2")
				trial := c.o
				trial.DryRun = true
				r, wrong := bus.Publish(t.Context(), c.e, trial)
				if after := d.ids("people") + d.ids("people.v2"); after != before {
					t.Errorf("atomic %v, case %d: a dry run stored %s, there was %s", atomic, i, after, before)
				}
				stored, err := bus.Publish(t.Context(), c.e, c.o)
				if (wrong == nil) != (err == nil) || r.Duplicate != stored.Duplicate {
					t.Errorf("atomic %v, case %d: the dry run returned %+v, %v, Publish %+v, %v", atomic, i, r, wrong, stored, err)
				}
				for _, kind := range []error{jetbus.ErrNoTopic, jetbus.ErrInvalidEvent, jetbus.ErrInvalidOption, jetbus.ErrWrongSequence, jetbus.ErrNoState, jetbus.ErrPayloadTooLarge, jetbus.ErrUnsupported} {
					if errors.Is(wrong, kind) != errors.Is(err, kind) {
						t.Errorf("atomic %v, case %d: the dry run returned %v, Publish %v", atomic, i, wrong, err)
					}
				}
				if p, ok := errors.AsType[*jetbus.PublishError](wrong); ok && p.Stored != jetbus.StoredNo {
					t.Errorf("atomic %v, case %d: %v has Stored %v, want no", atomic, i, wrong, p.Stored)
				}
			}
		})
	}
}
