package registry_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/registry"
	"github.com/seed-63e9a637/jetbus/registry/schema"
)

// The types of three releases of a program.
type (
	beatOne struct {
		Host  string `json:"host" jsonschema:"minLength=1"`
		MemMB int    `json:"mem_mb"`
	}
	beatTwo struct { // an optional field more
		Host  string `json:"host" jsonschema:"minLength=1"`
		MemMB int    `json:"mem_mb"`
		Zone  string `json:"zone,omitempty"`
	}
	beatThree struct { // a field by another name
		Host   string `json:"host" jsonschema:"minLength=1"`
		MemMiB int    `json:"mem_mib"`
		Zone   string `json:"zone,omitempty"`
	}
)

func beats[T any]() jetbus.Topic[T] { return jetbus.Topic[T]{Name: "beats"} }

// bind binds a type that must be let in.
func bind[T any](r *rig, o registry.BindOptions) *registry.Topic[T] {
	r.Helper()
	return must(registry.Bind(r.Context(), r.reg, beats[T](), o))(r.T)
}

// collect subscribes and hands on what comes.
func collect[T any](r *rig, b jetbus.Backend, topic *registry.Topic[T], group string) <-chan T {
	r.Helper()
	values := make(chan T, 100)
	must(topic.Subscribe(r.Context(), b, group, func(_ context.Context, v T, d *jetbus.Delivery) error {
		if !d.IsTombstone() && d.Headers[registry.HeaderSchemaVersion] == "" {
			r.Errorf("%v states no version", d.Event)
		}
		values <- v
		return nil
	}, jetbus.SubscribeOptions{From: jetbus.Earliest()}))(r.T)
	return values
}

func receive[T any](r *rig, values <-chan T) T {
	r.Helper()
	select {
	case v := <-values:
		return v
	case <-time.After(limit):
		r.Fatal("nothing came")
		panic("unreachable")
	}
}

func TestBind(t *testing.T) {
	r := newRig(t)
	bus := bustest.Open(t, r.broker, adapter.Config{})
	must(bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "beats"}))(t)
	declared := registry.Settings{Model: schema.Declared}
	one := bind[beatOne](r, registry.BindOptions{Settings: declared, By: "release 1"})
	if v := one.Version(); v.Number != 1 || v.By != "release 1" || one.Name() != "beats" {
		t.Errorf("%+v", v)
	}
	r.nothingStored(func() {
		if again := bind[beatOne](r, registry.BindOptions{Settings: declared}); again.Version().Number != 1 {
			t.Errorf("bound again to version %d", again.Version().Number)
		}
	})
	two := bind[beatTwo](r, registry.BindOptions{})
	three := bind[beatThree](r, registry.BindOptions{
		Force: true, By: "release 3", Upcasters: map[int]registry.Upcaster{2: registry.Edit{Rename: map[string]string{"mem_mb": "mem_mib"}}},
	})
	if two.Version().Number != 2 || three.Version().Number != 3 {
		t.Fatalf("versions %d and %d", two.Version().Number, three.Version().Number)
	}

	// Each release publishes its version, whatever is registered by now.
	receipt := must(one.Publish(t.Context(), bus, beatOne{"a", 1}))(t)
	if h := receipt.Event.Headers; h[registry.HeaderSchemaVersion] != "1" || h[registry.HeaderDataSchema] != "schema://beats/1" {
		t.Errorf("headers %v", h)
	}
	must(two.Publish(t.Context(), bus, beatTwo{"b", 2, "z"}))(t)
	must(three.Publish(t.Context(), bus, beatThree{"c", 3, ""}))(t)

	old, middle, latest := collect(r, bus, one, "one"), collect(r, bus, two, "two"), collect(r, bus, three, "three")
	for _, want := range []beatOne{{"a", 1}, {"b", 2}} { // the third waits for a newer member of the group
		if got := receive(r, old); got != want {
			t.Errorf("release 1 got %+v, want %+v", got, want)
		}
	}
	for _, want := range []beatTwo{{"a", 1, ""}, {"b", 2, "z"}} {
		if got := receive(r, middle); got != want {
			t.Errorf("release 2 got %+v, want %+v", got, want)
		}
	}
	for _, want := range []beatThree{{"a", 1, ""}, {"b", 2, "z"}, {"c", 3, ""}} {
		if got := receive(r, latest); got != want {
			t.Errorf("release 3 got %+v, want %+v", got, want)
		}
	}

	event := must(one.Event(t.Context(), beatOne{"d", 4}))(t)
	if v := must(three.Decode(t.Context(), event))(t); v != (beatThree{"d", 4, ""}) {
		t.Errorf("decoded %+v", v)
	}
	if v, err := one.Decode(t.Context(), jetbus.Event{Topic: "beats", Key: "a", Payload: []byte("null")}); err != nil || v != (beatOne{}) {
		t.Errorf("a tombstone: %+v, %v", v, err)
	}
}

// A tombstone reaches the handler with a zero value.
func TestBindTombstone(t *testing.T) {
	r := newRig(t)
	bus := bustest.Open(t, r.broker, adapter.Config{})
	must(bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "beats"}))(t)
	topic := bind[beatOne](r, registry.BindOptions{})
	must(bus.Publish(t.Context(), jetbus.Event{Topic: "beats", Key: "a", Payload: []byte("null")}))(t)
	if v := receive(r, collect(r, bus, topic, "g")); v != (beatOne{}) {
		t.Errorf("%+v", v)
	}
}

func TestBindRefusesValues(t *testing.T) {
	r := newRig(t)
	bus := bustest.Open(t, r.broker, adapter.Config{})
	must(bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "beats"}))(t)
	topic := bind[beatOne](r, registry.BindOptions{})
	_, err := topic.Publish(t.Context(), bus, beatOne{})
	r.is(err, jetbus.ErrSchema)
	if err == nil || !strings.Contains(err.Error(), "/host") {
		t.Errorf("the error %v does not say where", err)
	}
	if info := must(bus.TopicInfo(t.Context(), "beats"))(t); info.Events != 0 {
		t.Errorf("%d events are stored", info.Events)
	}
}

// A type that was changed in a way that breaks the level is refused with a value that
// shows it and the name of the type, and nothing is stored.
func TestBindRefusesChanges(t *testing.T) {
	r := newRig(t)
	bind[beatTwo](r, registry.BindOptions{})
	r.nothingStored(func() {
		_, err := registry.Bind(t.Context(), r.reg, beats[beatThree](), registry.BindOptions{})
		r.is(err, registry.ErrIncompatible)
		incompatible, ok := errors.AsType[*registry.IncompatibleError](err)
		if !ok || incompatible.Verdict.Result != schema.Refuted {
			t.Fatalf("%v", err)
		}
		for _, want := range []string{"bind registry_test.beatThree to beats", string(incompatible.Verdict.Witness), "mem_mib"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("no %q in the error %v", want, err)
			}
		}
	})
	for _, s := range []registry.Settings{{Level: registry.LevelFull}, {Model: schema.Declared}, {AssumeVersion: 1}} {
		r.nothingStored(func() {
			_, err := registry.Bind(t.Context(), r.reg, beats[beatThree](), registry.BindOptions{Settings: s})
			r.is(err, registry.ErrIncompatible)
		})
	}
}

func TestBindOptions(t *testing.T) {
	r := newRig(t)
	r.ok(r.reg.SetSettings(t.Context(), "beats", registry.Settings{AssumeVersion: 1}))
	_, err := registry.Bind(t.Context(), r.reg, beats[beatOne](), registry.BindOptions{Registered: true})
	r.is(err, registry.ErrNoSchema)
	text := must(registry.Reflect[beatOne](registry.ReflectOptions{Open: true}))(t)
	bind[beatOne](r, registry.BindOptions{Reflect: registry.ReflectOptions{Open: true}, Settings: registry.Settings{Level: registry.LevelFull}, Metadata: map[string]string{"a": "b"}})
	if v := bind[beatOne](r, registry.BindOptions{Registered: true, Schema: text}).Version(); v.Number != 1 || v.Metadata["a"] != "b" {
		t.Errorf("%+v", v)
	}
	if s := must(r.reg.TopicSettings(t.Context(), "beats"))(t); s.Level != registry.LevelFull || s.AssumeVersion != 1 {
		t.Errorf("settings %+v", s)
	}
	r.nothingStored(func() {
		for want, o := range map[string]registry.BindOptions{
			"would change something": {Registered: true, By: "me"},
			"choose one":             {Schema: "true", Reflect: registry.ReflectOptions{Open: true}},
			"Force without By":       {Force: true, Schema: "true"},
			"it is nil":              {Upcasters: map[int]registry.Upcaster{1: nil}},
			"NewerDelay is negative": {NewerDelay: -1},
			"no such model":          {Settings: registry.Settings{Model: "open"}},
			"invalid schema":         {Schema: "{", Settings: registry.Settings{AssumeVersion: 2}},
			"By \"\\n\"":             {By: "\n", Settings: registry.Settings{AssumeVersion: 2}},
			"invalid reference":      {Schema: `{"$ref":"schema://beats/9"}`, Settings: registry.Settings{AssumeVersion: 2}},
		} {
			_, err := registry.Bind(t.Context(), r.reg, beats[beatOne](), o)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: %v, want an error that says %q", o, err, want)
			}
		}
		for want, topic := range map[string]jetbus.Topic[beatOne]{
			"invalid topic": {Name: "A+"},
			"set Schema":    {Name: "beats", Codec: shouting{}},
		} {
			_, err := registry.Bind(t.Context(), r.reg, topic, registry.BindOptions{})
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: %v, want an error that says %q", topic, err, want)
			}
		}
	})
	_, err = registry.Bind(t.Context(), nil, beats[beatOne](), registry.BindOptions{})
	r.is(err, jetbus.ErrInvalidOption)
	topic := bind[beatOne](r, registry.BindOptions{Registered: true, Schema: text})
	_, err = topic.Subscribe(t.Context(), nil, "g", nil, jetbus.SubscribeOptions{})
	r.is(err, jetbus.ErrInvalidOption)
	_, err = topic.Subscribe(t.Context(), nil, "g", func(context.Context, beatOne, *jetbus.Delivery) error { return nil }, jetbus.SubscribeOptions{Topics: []string{"other"}})
	r.is(err, jetbus.ErrInvalidOption)
}

// shouting is a codec that is not encoding/json.
type shouting struct{ jetbus.JSONCodec[beatOne] }

func (shouting) Encode(b beatOne) ([]byte, error) {
	return []byte(`"` + strings.ToUpper(b.Host) + `"`), nil
}

func TestBindCodec(t *testing.T) {
	r := newRig(t)
	topic, err := registry.Bind(t.Context(), r.reg, jetbus.Topic[beatOne]{Name: "shouts", Codec: shouting{}}, registry.BindOptions{Schema: `{"type":"string"}`})
	r.ok(err)
	e := must(topic.Event(t.Context(), beatOne{Host: "a"}))(t)
	if string(e.Payload) != `"A"` || !reflect.DeepEqual(e.Headers[registry.HeaderSchemaVersion], "1") {
		t.Errorf("%+v", e)
	}
	standard, err := registry.Bind(t.Context(), r.reg, jetbus.Topic[beatOne]{Name: "beats", Codec: jetbus.JSONCodec[beatOne]{}}, registry.BindOptions{})
	if err != nil || standard.Version().Number != 1 {
		t.Errorf("the codec that is the default: %v", err)
	}
}
