// Package file is checked with a catalog in a file (BUS002, BUS003, BUS009, BUS010, BUS016, BUS020). // want package:`topics\(orders orders\)`
package file

import (
	"context"

	"github.com/seed-63e9a637/jetbus"
)

type order struct{ ID string }

var (
	_ = jetbus.Topic[order]{Name: "orders", Key: func(o order) string { return o.ID }}
	_ = jetbus.Topic[int]{Name: "orders", Key: func(int) string { return "k" }} // want `BUS009: topic orders carries file.order by the catalog, here int`
	_ = jetbus.Event{Topic: "orders", Headers: map[string]string{"x-schema-version": "3"}}
	_ = jetbus.Event{Topic: "orders", Headers: map[string]string{"x-schema-version": "2"}} // want `BUS020: the event has version 2 of the schema of orders, the latest is 3`
	_ = jetbus.Event{Topic: "logs"}                                                        // want `BUS003: topic logs has no schema`
	_ = jetbus.Event{Topic: "older"}                                                       // want `BUS016: topic older is deprecated: use orders`
	_ = jetbus.Event{Topic: "order"}                                                       // want `BUS002: .*did you mean`
	_ = jetbus.Event{Topic: "order.v2"}                                                    // want `BUS002`
)

func publish(ctx context.Context, b jetbus.Bus) {
	_, _ = b.Publish(ctx, jetbus.Event{Topic: "orders"}) // want `BUS010`
}
