package registry_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/registry"
)

// Who meets others again and again gives up at last, and says so.
func TestContended(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		tries, err := registry.DecideAmongOthers(t.Context(), newRig(t).reg)
		if !errors.Is(err, registry.ErrContended) || tries != registry.MaxAttempts {
			t.Errorf("%v after %d attempts, want %v after %d", err, tries, registry.ErrContended, registry.MaxAttempts)
		}
	})
}

// What others store between an import's look at what is there and its own writes is kept, and
// the import says what it is.
func TestAppearedDuringImport(t *testing.T) {
	const text, other = `{"type":"object"}`, `{"type":"string"}`
	from := newRig(t).reg
	if _, err := from.Register(t.Context(), "t", text, registry.RegisterOptions{}); err != nil {
		t.Fatal(err)
	}
	set := func(level registry.Level) func(*registry.Settings) {
		return func(s *registry.Settings) { s.Level = level }
	}
	if _, err := from.UpdateSettings(t.Context(), "t", set(registry.LevelFull)); err != nil {
		t.Fatal(err)
	}
	if _, err := from.UpdateGlobalSettings(t.Context(), set(registry.LevelForward)); err != nil {
		t.Fatal(err)
	}
	var exported bytes.Buffer
	if err := from.Export(t.Context(), &exported); err != nil {
		t.Fatal(err)
	}
	for what, meanwhile := range map[string]func(ctx context.Context, r *registry.Registry) error{
		"": func(context.Context, *registry.Registry) error { return nil },
		"id 1": func(ctx context.Context, r *registry.Registry) error {
			_, err := r.Register(ctx, "u", other, registry.RegisterOptions{})
			return err
		},
		"schema://t/1": func(ctx context.Context, r *registry.Registry) error {
			_, err := r.Register(ctx, "t", text, registry.RegisterOptions{By: "somebody else"})
			return err
		},
		"settings of t": func(ctx context.Context, r *registry.Registry) error {
			_, err := r.UpdateSettings(ctx, "t", set(registry.LevelNone))
			return err
		},
		"global settings": func(ctx context.Context, r *registry.Registry) error {
			_, err := r.UpdateGlobalSettings(ctx, set(registry.LevelNone))
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t).reg
			err := registry.ImportWith(t.Context(), r, bytes.NewReader(exported.Bytes()), func() error { return meanwhile(t.Context(), r) })
			if what == "" && err != nil || what != "" && (!errors.Is(err, jetbus.ErrConflict) || !strings.Contains(err.Error(), what+" came into being")) {
				t.Errorf("%v, want a conflict with %q", err, what)
			}
		})
	}
}
