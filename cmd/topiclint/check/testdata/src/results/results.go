// Package results throws results away (BUS006, BUS013). // want package:`topics\(orders\)`
package results

import (
	"context"

	"github.com/seed-63e9a637/jetbus"
)

var orders = jetbus.Topic[int]{Name: "orders"}

func publish(ctx context.Context, b jetbus.Bus, e jetbus.Event) error {
	b.Publish(ctx, e)                                                   // want `BUS006`
	go b.Publish(ctx, e)                                                // want `BUS006`
	defer b.PublishBatch(ctx, []jetbus.Event{e}, jetbus.BatchOptions{}) // want `BUS006`
	orders.Publish(ctx, b, 1)                                           // want `BUS006`
	_, _ = b.Publish(ctx, e)                                            // said so
	_, err := b.Publish(ctx, e)
	return err
}

func subscribe(ctx context.Context, b jetbus.Bus, h jetbus.Handler) error {
	b.Subscribe(context.Background(), "a", "g", h, jetbus.SubscribeOptions{})           // want `BUS013`
	_, err := b.Subscribe(context.Background(), "a", "g", h, jetbus.SubscribeOptions{}) // want `BUS013`
	_, err = b.Subscribe(ctx, "a", "g", h, jetbus.SubscribeOptions{})                   // ends with ctx
	s, err := b.Subscribe(context.Background(), "a", "g", h, jetbus.SubscribeOptions{})
	if err != nil {
		return err
	}
	return s.Stop(ctx)
}
