// Package schemasimport imports a whole registry. // want package:`topics\(imported\) schemas\(imported\)`
package schemasimport

import (
	"context"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/registry"
)

var _ = jetbus.TopicConfig{Name: "imported"}

func register(ctx context.Context, r *registry.Registry, exported []byte) error {
	return r.Import(ctx, exported)
}
