// Package schemas declares topics, and registers schemas for some of them (BUS003). // want package:`topics\(orders bound passed elsewhere missing missing raw orders.snapshot orders.v1 orders.v2 missing.v2 literal here\) schemas\(here literal orders\)`
package schemas

import (
	"context"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/registry"
)

type Order struct{ ID string }

var (
	Orders    = jetbus.Topic[Order]{Name: "orders"}
	Bound     = jetbus.Topic[Order]{Name: "bound"}     // by package schemas2
	Passed    = jetbus.Topic[Order]{Name: "passed"}    // by package schemas2
	Elsewhere = jetbus.Topic[Order]{Name: "elsewhere"} // by another package of the program
	Missing   = jetbus.Topic[Order]{Name: "missing"}   // want `BUS003: topic missing has no schema: the program does not register one, and no catalog is given`
	_         = jetbus.TopicConfig{Name: "missing"}    // declared above
	Raw       = jetbus.Topic[[]byte]{Name: "raw"}      //nolint:topiclint // JPEG has no schema
	_         = jetbus.TopicConfig{Name: "orders.snapshot", SnapshotOf: "orders"}
	_         = jetbus.TopicConfig{Name: "orders.v1"}  // registry.DualWrite stores the events of orders in it
	_         = jetbus.TopicConfig{Name: "orders.v2"}  // the same
	_         = jetbus.TopicConfig{Name: "missing.v2"} // want `BUS003: topic missing.v2 has no schema`
	_         = jetbus.Event{Topic: "missing"}         // declared above
	_         = jetbus.Event{Topic: "undeclared"}      // nothing is known of it
)

func register(ctx context.Context, r *registry.Registry) {
	_, _ = registry.Bind(ctx, r, Orders, registry.BindOptions{})
	_, _ = registry.Bind(ctx, r, jetbus.Topic[Order]{Name: "literal"}, registry.BindOptions{})
	here := jetbus.TopicConfig{Name: "here"}
	_, _ = r.Register(ctx, here.Name, "{}", registry.RegisterOptions{})
}

// Must binds a topic that its callers choose.
func Must[T any](ctx context.Context, r *registry.Registry, t jetbus.Topic[T]) *registry.Topic[T] { // want Must:`takesTopic\(\[\] schemas \[2\]\)`
	bound, err := registry.Bind(ctx, r, t, registry.BindOptions{})
	if err != nil {
		panic(err)
	}
	return bound
}

// Put registers a schema for a topic that its callers choose.
func Put(ctx context.Context, r *registry.Registry, topic string) { // want Put:`takesTopic\(\[2\] schemas \[2\]\)`
	_, _ = r.Register(ctx, topic, "{}", registry.RegisterOptions{})
}
