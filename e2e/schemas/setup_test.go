//go:build unix

package schemas

import (
	"context"
	"errors"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus/e2e/internal/rig"
	"github.com/seed-63e9a637/jetbus/registry"
)

// openRegistry opens one for a test, and closes it at its end.
func openRegistry(t *testing.T, url string) *registry.Registry {
	t.Helper()
	reg, err := registry.Open(t.Context(), rig.Connect(t, url), registry.Config{Timeout: rig.Limit})
	rig.Must(t, err)
	t.Cleanup(func() {
		if err := reg.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return reg
}

// onRegistry opens one for a role, calls f, and closes it.
func onRegistry(ctx context.Context, nc *nats.Conn, f func(*registry.Registry) error) error {
	reg, err := registry.Open(ctx, nc, registry.Config{Timeout: rig.Limit})
	if err != nil {
		return err
	}
	return errors.Join(f(reg), reg.Close(context.Background()))
}
