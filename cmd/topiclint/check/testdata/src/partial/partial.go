// Package partial is checked with the schemas of a registry as its catalog (BUS003). // want package:`topics\(orders carts orders.v1 bound\) schemas\(bound\)`
package partial

import (
	"context"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/registry"
)

var (
	_ = jetbus.Topic[int]{Name: "orders"}
	_ = jetbus.Topic[int]{Name: "carts"}      // want `BUS003: topic carts has no schema in the catalog`
	_ = jetbus.TopicConfig{Name: "orders.v1"} // registry.DualWrite stores the events of orders in it
	_ = jetbus.Event{Topic: "orders"}
	_ = jetbus.Event{Topic: "carts"}              // declared above
	_ = jetbus.Event{Topic: "nobody.declares.v2"} // want `BUS003: topic nobody.declares.v2 has no schema in the catalog`
	_ = jetbus.Event{Topic: "orders.v2"}
	_ = jetbus.Event{Topic: "dlq.orders"}
	_ = jetbus.Event{Topic: "dlq.nobody.declares"}
)

func read(ctx context.Context, b jetbus.Bus, r *registry.Registry) error {
	_, _ = registry.Bind(ctx, r, jetbus.Topic[int]{Name: "bound"}, registry.BindOptions{}) // not in the registry yet
	return b.Read(ctx, []string{"of.others"})
}
