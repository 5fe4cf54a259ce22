// Package schemas2 registers schemas for topics of another package (BUS003). // want package:`topics\(here.too bound.v3 alone\) schemas\(bound here.too passed\)`
package schemas2

import (
	"context"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/registry"

	"schemas"
)

var (
	_ = jetbus.TopicConfig{Name: "here.too"}
	_ = jetbus.TopicConfig{Name: "bound.v3"}
	_ = jetbus.TopicConfig{Name: "alone"} // want `BUS003: topic alone has no schema`
	_ = jetbus.Event{Topic: "missing"}    // package schemas declares it
)

func register(ctx context.Context, r *registry.Registry) {
	_, _ = registry.Bind(ctx, r, schemas.Bound, registry.BindOptions{})
	schemas.Must(ctx, r, schemas.Passed)
	schemas.Put(ctx, r, "here.too")
}
