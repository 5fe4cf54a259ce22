package adapter_test

import (
	"context"
	"fmt"
	"log"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
)

// A broker in this process, a topic, a group and an event.
func Example() {
	ctx := context.Background()
	broker, err := embedded.Start(ctx, embedded.Config{})
	check(err)
	defer broker.Stop(ctx)
	nc, err := broker.Connect()
	check(err)
	defer nc.Close()
	bus, err := adapter.Open(ctx, nc, adapter.Config{AutoCreate: true})
	check(err)
	defer bus.Close(ctx)

	done := make(chan struct{})
	sub, err := bus.Subscribe(ctx, "orders.created", "billing", func(ctx context.Context, d *jetbus.Delivery) error {
		fmt.Printf("order %s: %s\n", d.Key, d.Payload)
		close(done)
		return nil // acknowledges the event; an error makes it come back
	}, jetbus.SubscribeOptions{})
	check(err)
	_, err = bus.Publish(ctx, jetbus.Event{Topic: "orders.created", Key: "7", Payload: []byte(`{"total":120}`)})
	check(err)
	<-done
	check(sub.Stop(ctx))
	// Output: order 7: {"total":120}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
