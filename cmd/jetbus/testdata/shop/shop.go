// Package shop does everything wrong that jetbus lint finds, with the bus itself and not
// the stand-in that the tests of the checks use.
package shop

import (
	"context"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/projector"
	"github.com/seed-63e9a637/jetbus/registry"
)

type bad struct{ Done chan int }

var prices = jetbus.TopicConfig{Name: "prices", Compact: true} // BUS003

var clicks = jetbus.TopicConfig{Name: "clicks"} //nolint:topiclint // rows of CSV have no schema

var orders = jetbus.Topic[int]{Name: "orders"}

var refunds = jetbus.TopicConfig{Name: "refunds"}

// Carts are no more.
//
// Deprecated: use orders.
var carts = jetbus.Topic[string]{Name: "carts"} // BUS003

var (
	bads = jetbus.Topic[bad]{Name: "bads"}                                                    // BUS003 BUS008
	ints = jetbus.Topic[int]{Name: "carts"}                                                   // BUS009
	view = projector.Options{Map: func(jetbus.Event) (any, error) { return time.Now(), nil }} // BUS019
)

func sell(ctx context.Context, b jetbus.Backend, h jetbus.Handler) {
	b.Publish(ctx, jetbus.Event{Topic: "Orders", Headers: map[string]string{"X-Shop": "1"}})                           // BUS001 BUS005 BUS006
	_, _ = b.Publish(ctx, jetbus.Event{Topic: "prices"})                                                               // BUS010
	_, _ = b.Publish(ctx, jetbus.Tombstone("clicks", "k"))                                                             // BUS018
	_ = jetbus.Event{Topic: "carts"}                                                                                   // BUS016
	_, _ = b.Subscribe(context.Background(), "carts", "a group", func(ctx context.Context, d *jetbus.Delivery) error { // BUS011 BUS013 BUS014 BUS016
		_, err := b.TopicInfo(context.Background(), d.Topic) // BUS007
		return err
	}, jetbus.SubscribeOptions{ManualAck: true})
	_ = registry.UpcastJSON(func(context.Context, int) (time.Time, error) { return time.Now(), nil }) // BUS019
}

func register(ctx context.Context, r *registry.Registry) error {
	if _, err := r.Register(ctx, refunds.Name, "{}", registry.RegisterOptions{}); err != nil {
		return err
	}
	_, err := registry.Bind(ctx, r, orders, registry.BindOptions{})
	return err
}
