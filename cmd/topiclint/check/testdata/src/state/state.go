// Package state publishes into topics that keep state (BUS010, BUS018). // want package:`topics\(prices prices clicks\)`
package state

import (
	"context"

	"github.com/seed-63e9a637/jetbus"

	_ "declared"
)

type price struct{ ID int }

var (
	_ = jetbus.Topic[price]{Name: "prices", Key: func(p price) string { return string(rune(p.ID)) }}
	_ = jetbus.Topic[price]{Name: "prices"} // want `BUS010: what the Topic publishes has no key`
	_ = jetbus.Topic[price]{Name: "clicks"}
)

func publish(ctx context.Context, b jetbus.Bus, key string) {
	_, _ = b.Publish(ctx, jetbus.Event{Topic: "prices", Key: key})
	_, _ = b.Publish(ctx, jetbus.Event{Topic: "prices", Key: ""}) // want `BUS010`
	_, _ = b.Publish(ctx, jetbus.Event{Topic: "prices"})          // want `BUS010: the event has no key`
	_, _ = b.Publish(ctx, jetbus.Event{Topic: "clicks"})
	_, _ = b.Publish(ctx, jetbus.Event{Topic: "nobody.knows"})
	e := jetbus.Event{Topic: "prices"} // gets one
	e.Key = key
	_, _ = b.Publish(ctx, e)

	_ = jetbus.Tombstone("prices", key)
	_ = jetbus.Tombstone("carts", key)
	_ = jetbus.Tombstone("nobody.knows", key)
	_ = jetbus.Tombstone("clicks", key) // want `BUS018: topic clicks keeps no state`
}
