// Package handlers has handlers (BUS007, BUS012, BUS014). // want package:`topics\(orders\)`
package handlers

import (
	"context"

	"github.com/seed-63e9a637/jetbus"
)

var orders = jetbus.Topic[int]{Name: "orders"}

func work(ctx context.Context) error { return nil }

func named(ctx context.Context, d *jetbus.Delivery) error {
	if err := work(context.TODO()); err != nil { // want `BUS007`
		return nil // want `BUS012`
	}
	return nil
}

func other(ctx context.Context, d *jetbus.Delivery) error { return work(context.Background()) } // no handler

func subscribe(ctx context.Context, b jetbus.Bus, keep func(jetbus.Subscription, error), pass func(*jetbus.Delivery)) {
	keep(b.Subscribe(ctx, "a", "g", named, jetbus.SubscribeOptions{}))
	keep(b.Subscribe(ctx, "a", "g", func(ctx context.Context, d *jetbus.Delivery) error {
		defer work(context.Background())
		go work(context.Background())
		return work(context.Background()) // want `BUS007`
	}, jetbus.SubscribeOptions{}))
	keep(orders.Subscribe(ctx, b, "g", func(ctx context.Context, n int, d *jetbus.Delivery) error {
		return work(context.Background()) // want `BUS007`
	}, jetbus.SubscribeOptions{}))
	_ = jetbus.Handler(func(ctx context.Context, d *jetbus.Delivery) error {
		err := work(ctx)
		if err != nil {
			return err
		}
		return work(context.TODO()) // want `BUS007`
	})

	manual := jetbus.SubscribeOptions{ManualAck: true}
	keep(b.Subscribe(ctx, "a", "g", func(ctx context.Context, d *jetbus.Delivery) error { // want `BUS014`
		_ = d.Payload
		return nil
	}, jetbus.SubscribeOptions{ManualAck: true}))
	keep(b.Subscribe(ctx, "a", "g", func(context.Context, *jetbus.Delivery) error { return nil }, jetbus.SubscribeOptions{ManualAck: true})) // want `BUS014`
	keep(b.Subscribe(ctx, "a", "g", func(ctx context.Context, d *jetbus.Delivery) error { return d.Ack(ctx) }, jetbus.SubscribeOptions{ManualAck: true}))
	keep(b.Subscribe(ctx, "a", "g", func(ctx context.Context, d *jetbus.Delivery) error { return b.Ack(ctx, d.Topic, "g", d.ID) }, jetbus.SubscribeOptions{ManualAck: true}))
	keep(b.Subscribe(ctx, "a", "g", func(ctx context.Context, d *jetbus.Delivery) error { pass(d); return nil }, jetbus.SubscribeOptions{ManualAck: true}))
	keep(b.Subscribe(ctx, "a", "g", func(ctx context.Context, d *jetbus.Delivery) error { return nil }, manual))
}
