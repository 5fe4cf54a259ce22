// Package pure has upcasters and projections (BUS019).
package pure

import (
	"context"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/projector"
	"github.com/seed-63e9a637/jetbus/registry"
)

type (
	v1 struct{ At time.Time }
	v2 struct{ Ms int64 }
)

type up struct{}

func (up) Upcast(ctx context.Context, e jetbus.Event) (jetbus.Event, error) {
	e.ID = jetbus.NewID() // want `BUS019: jetbus.NewID in an upcaster`
	return e, nil
}

func byName(e jetbus.Event) (any, error) {
	return time.Until(time.Time{}), nil // want `BUS019: time.Until in a projection`
}

var (
	_ = registry.UpcastJSON(func(ctx context.Context, old v1) (v2, error) {
		return v2{old.At.UnixMilli()}, nil
	})
	_ = registry.UpcastJSON(func(ctx context.Context, old v1) (v2, error) {
		return v2{time.Now().UnixMilli()}, nil // want `BUS019: time.Now in an upcaster`
	})
	_ = registry.UpcasterFunc(func(ctx context.Context, e jetbus.Event) (jetbus.Event, error) {
		_ = time.Since(time.Time{}) // want `BUS019: time.Since`
		return e, nil
	})
	_ = projector.Options{Topic: "a", Map: byName}
	_ = projector.Options{Topic: "A"} // want `BUS001`
)

func elsewhere() time.Time { return time.Now() }
