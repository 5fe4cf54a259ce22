// Package dynamic has topics that are no constants (BUS004). // want package:`topics\(orders\)`
package dynamic

import (
	"context"

	"github.com/seed-63e9a637/jetbus"
)

var orders = jetbus.Topic[int]{Name: "orders"}

func use(ctx context.Context, b jetbus.Bus, e jetbus.Event, names map[string]string, topic string) error { // want use:`takesTopic`
	_ = jetbus.Event{Topic: names["x"]} // want `BUS004: .*use a constant`
	_ = jetbus.Event{Topic: names["x"]} //topiclint:dynamic from the configuration
	//topiclint:dynamic from the configuration
	_ = jetbus.Event{Topic: names["y"]}
	_ = jetbus.Event{Topic: names["z"]} // want `BUS004`
	_ = jetbus.Event{Topic: orders.Name}
	_ = jetbus.Event{Topic: e.Topic}
	_ = jetbus.Event{Topic: jetbus.DeadLetterTopic("orders")}
	return b.Read(ctx, []string{topic})
}
