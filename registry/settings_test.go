package registry_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/registry"
	"github.com/seed-63e9a637/jetbus/registry/schema"
)

func TestSettings(t *testing.T) {
	r := newRig(t)
	tests := []struct {
		name        string
		global, own registry.Settings
		want        registry.Settings
	}{
		{
			"defaults",
			registry.Settings{},
			registry.Settings{},
			registry.Settings{Level: registry.LevelBackward, Model: schema.Strict, Mode: registry.ReadWrite},
		},
		{
			"the declared model is not transitive",
			registry.Settings{Model: schema.Declared},
			registry.Settings{},
			registry.Settings{Level: registry.LevelBackwardTransitive, Model: schema.Declared, Mode: registry.ReadWrite},
		},
		{
			"inherited",
			registry.Settings{Level: registry.LevelFull, Mode: registry.ReadOnly, AssumeVersion: 2},
			registry.Settings{},
			registry.Settings{Level: registry.LevelFull, Model: schema.Strict, Mode: registry.ReadOnly, AssumeVersion: 2},
		},
		{
			"of its own",
			registry.Settings{Level: registry.LevelFull, Mode: registry.ReadOnly, AssumeVersion: 2},
			registry.Settings{Level: registry.LevelNone, Model: schema.Declared, Mode: registry.ReadWrite, AssumeVersion: 1},
			registry.Settings{Level: registry.LevelNone, Model: schema.Declared, Mode: registry.ReadWrite, AssumeVersion: 1},
		},
		{
			"a global level holds for the declared model of a topic",
			registry.Settings{Level: registry.LevelForward},
			registry.Settings{Model: schema.Declared},
			registry.Settings{Level: registry.LevelForward, Model: schema.Declared, Mode: registry.ReadWrite},
		},
		{
			"taken back",
			registry.Settings{},
			registry.Settings{},
			registry.Settings{Level: registry.LevelBackward, Model: schema.Strict, Mode: registry.ReadWrite},
		},
	}
	other := r.open(registry.Config{})
	for _, test := range tests {
		r.ok(r.reg.SetGlobalSettings(t.Context(), test.global))
		r.ok(r.reg.SetSettings(t.Context(), "t", test.own))
		if got := must(r.reg.Settings(t.Context(), "t"))(t); got != test.want {
			t.Errorf("%s: got %+v, want %+v", test.name, got, test.want)
		}
		if got := must(r.reg.TopicSettings(t.Context(), "t"))(t); got != test.own {
			t.Errorf("%s: the topic's own are %+v, want %+v", test.name, got, test.own)
		}
		if got := must(r.reg.GlobalSettings(t.Context()))(t); got != test.global {
			t.Errorf("%s: the global ones are %+v, want %+v", test.name, got, test.global)
		}
		eventually(t, func() string {
			if got := must(other.Settings(t.Context(), "t"))(t); got != test.want {
				return test.name + ": another process does not see it"
			}
			return ""
		})
	}
	r.nothingStored(func() { r.ok(r.reg.SetSettings(t.Context(), "t", registry.Settings{})) }) // as they are
}

// Changes of different fields do not undo each other, whoever makes them.
func TestSettingsChangedTogether(t *testing.T) {
	r := newRig(t)
	other := r.open(registry.Config{})
	var wg sync.WaitGroup
	for _, change := range []struct {
		reg *registry.Registry
		f   func(*registry.Settings)
	}{
		{r.reg, func(s *registry.Settings) { s.Level = registry.LevelFull }},
		{other, func(s *registry.Settings) { s.Model = schema.Declared }},
		{r.reg, func(s *registry.Settings) { s.AssumeVersion = 3 }},
		{other, func(s *registry.Settings) { s.Mode = registry.ReadOnly }},
	} {
		wg.Go(func() {
			if _, err := change.reg.UpdateSettings(t.Context(), "t", change.f); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	want := registry.Settings{Level: registry.LevelFull, Model: schema.Declared, Mode: registry.ReadOnly, AssumeVersion: 3}
	if got := must(r.open(registry.Config{}).Settings(t.Context(), "t"))(t); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestReadOnly(t *testing.T) {
	r := newRig(t)
	v := r.register("t", object("a"))
	r.ok(r.reg.SetGlobalSettings(t.Context(), registry.Settings{Mode: registry.ReadOnly}))
	r.nothingStored(func() {
		_, err := r.reg.Register(t.Context(), "t", object("b"), registry.RegisterOptions{Force: true, By: "ana"})
		r.is(err, registry.ErrReadOnly)
		_, err = r.reg.Delete(t.Context(), "t", 1, registry.DeleteOptions{})
		r.is(err, registry.ErrReadOnly)
		if again := r.register("t", object("a")); again.Number != v.Number { // services that start up go on
			t.Errorf("what is registered is %+v", again)
		}
	})
	r.ok(r.reg.SetSettings(t.Context(), "t", registry.Settings{Mode: registry.ReadWrite}))
	must(r.reg.Delete(t.Context(), "t", 1, registry.DeleteOptions{}))(t)
	_, err := r.reg.Register(t.Context(), "u", object("a"), registry.RegisterOptions{})
	r.is(err, registry.ErrReadOnly)
}

// What holds for a topic is part of what a publisher sees, also when only the
// global settings change.
func TestCurrentFollowsSettings(t *testing.T) {
	r := newRig(t)
	r.register("t", object("a"))
	for _, model := range []schema.Model{schema.Strict, schema.Declared} {
		r.ok(r.reg.SetGlobalSettings(t.Context(), registry.Settings{Model: model}))
		if got := must(r.reg.Current("t"))(t); got.Settings.Model != model || got.Version.Number != 1 {
			t.Errorf("with %s: %+v", model, got)
		}
	}
}

// Settings that cannot be read keep a topic, or all, from taking new versions. That is
// nobody's setting: it is neither told nor exported nor written back, until they are replaced
// as a whole.
func TestUnreadableSettings(t *testing.T) {
	readOnly := registry.Settings{Mode: registry.ReadOnly} // as what cannot be read is taken for
	for _, key := range []string{"s.t.c", "g.c"} {
		r := newRig(t)
		set, update, get := r.reg.SetGlobalSettings, r.reg.UpdateGlobalSettings, r.reg.GlobalSettings
		line := `{"kind":"global","settings":{"mode":"readonly"}}`
		if key == "s.t.c" {
			line = `{"kind":"settings","topic":"t","settings":{"mode":"readonly"}}`
			set = func(ctx context.Context, s registry.Settings) error { return r.reg.SetSettings(ctx, "t", s) }
			update = func(ctx context.Context, f func(*registry.Settings)) (registry.Settings, error) {
				return r.reg.UpdateSettings(ctx, "t", f)
			}
			get = func(ctx context.Context) (registry.Settings, error) { return r.reg.TopicSettings(ctx, "t") }
		}
		r.register("t", object("a"))
		js := must(jetstream.New(bustest.Connect(t, r.broker)))(t)
		kv := must(js.KeyValue(t.Context(), "SCHEMAS"))(t)
		must(kv.Put(t.Context(), key, []byte(`{"level": "of the future", "assume_version": 7}`)))(t)
		eventually(t, func() string {
			if got := must(r.reg.Settings(t.Context(), "t"))(t); got.Mode != registry.ReadOnly {
				return key + ": the topic is not read-only"
			}
			return ""
		})
		r.nothingStored(func() {
			_, err := r.reg.Register(t.Context(), "t", object("a", "b"), registry.RegisterOptions{})
			r.is(err, registry.ErrReadOnly)
			_, err = get(t.Context())
			r.is(err, registry.ErrUnreadable)
			r.is(r.reg.Export(t.Context(), new(bytes.Buffer)), registry.ErrUnreadable)
			_, err = update(t.Context(), func(s *registry.Settings) { s.Model = schema.Declared })
			r.is(err, registry.ErrUnreadable)
			_, err = r.reg.Import(t.Context(), strings.NewReader(`{"kind":"schemas","format":"1"}`+"\n"+line+"\n"+`{"kind":"end","lines":2}`+"\n"), registry.ImportOptions{})
			r.is(err, jetbus.ErrConflict)
		})
		for _, want := range []registry.Settings{readOnly, {}} {
			r.ok(set(t.Context(), want))
			if got := must(get(t.Context()))(t); got != want {
				t.Errorf("%s: got %+v, want %+v", key, got, want)
			}
			r.ok(r.reg.Export(t.Context(), new(bytes.Buffer)))
		}
	}
}

// A call whose time ends while another one of the process decides does not blame the server.
func TestWriteWaitsForAnother(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		r := newRig(t)
		deciding, leave, done := make(chan struct{}), make(chan struct{}), make(chan error)
		go func() {
			_, err := r.reg.UpdateSettings(t.Context(), "t", func(*registry.Settings) {
				close(deciding)
				<-leave
			})
			done <- err
		}()
		<-deciding
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := r.reg.Register(ctx, "u", object("a"), registry.RegisterOptions{})
		close(leave)
		r.ok(<-done)
		if !errors.Is(err, jetbus.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got the error %v", err)
		}
		if text := err.Error(); !strings.Contains(text, "another write of this process") || strings.Contains(text, "server") || strings.Contains(text, "broker") {
			t.Errorf("it says %q", text)
		}
	})
}
