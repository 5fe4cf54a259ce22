package registry_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/registry"
)

// A program binds its types at the start. A type that was changed in a way that
// breaks readers is refused with an event that shows it.
func ExampleBind() {
	ctx := context.Background()
	check := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	broker, err := embedded.Start(ctx, embedded.Config{})
	check(err)
	defer func() { check(broker.Stop(ctx)) }()
	nc, err := broker.Connect()
	check(err)
	defer nc.Close()
	bus, err := adapter.Open(ctx, nc, adapter.Config{})
	check(err)
	defer func() { check(bus.Close(ctx)) }()
	schemas, err := registry.Open(ctx, nc, registry.Config{})
	check(err)
	defer func() { check(schemas.Close(ctx)) }()
	_, err = bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: "order.created"})
	check(err)

	type Order struct {
		ID    string `json:"id" jsonschema:"minLength=1"`
		Total int    `json:"total"`
	}
	orders, err := registry.Bind(ctx, schemas, jetbus.Topic[Order]{Name: "order.created"}, registry.BindOptions{By: "shop 1.0"})
	check(err)
	receipt, err := orders.Publish(ctx, bus, Order{ID: "o-1", Total: 250})
	check(err)
	fmt.Println("published under version", receipt.Event.Headers[registry.HeaderSchemaVersion])
	_, err = orders.Publish(ctx, bus, Order{Total: 250})
	fmt.Println("refused:", errors.Is(err, jetbus.ErrSchema))

	// The next release has a field more, which old events do not have.
	type OrderInEuro struct {
		ID       string `json:"id" jsonschema:"minLength=1"`
		Total    int    `json:"total"`
		Currency string `json:"currency"`
	}
	_, err = registry.Bind(ctx, schemas, jetbus.Topic[OrderInEuro]{Name: "order.created"}, registry.BindOptions{By: "shop 1.1"})
	if incompatible, ok := errors.AsType[*registry.IncompatibleError](err); ok {
		fmt.Println(incompatible.Verdict)
	}
	// Output:
	// published under version 1
	// refused: true
	// this event was valid before and is not now: {"id":"a","total":0}
	//   the event: lacks the required property "currency"
	//   because: property currency is required now
}
