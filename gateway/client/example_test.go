package client_test

import (
	"context"
	"fmt"
	"log"
	"net/http/httptest"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/gateway/client"
)

// Order is what the example's events hold.
type Order struct {
	Number string `json:"number"`
	Total  int    `json:"total"`
}

// orders is declared once, as with any bus.
var orders = jetbus.Topic[Order]{Name: "orders.placed", Key: func(o Order) string { return o.Number }}

// A typed topic works over a gateway as it does beside the broker.
func Example() {
	ctx := context.Background()
	web, stop := exampleGateway(ctx)
	defer stop()

	bus, err := client.Dial(ctx, client.Config{URL: web}) // with Token, where the gateway asks for one
	if err != nil {
		log.Fatal(err)
	}
	defer bus.Close(ctx)

	done := make(chan struct{})
	_, err = orders.Subscribe(ctx, bus, "billing", func(_ context.Context, o Order, d *jetbus.Delivery) error {
		fmt.Printf("order %s over %d, attempt %d\n", o.Number, o.Total, d.Attempt)
		close(done)
		return nil
	}, jetbus.SubscribeOptions{})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := orders.Publish(ctx, bus, Order{Number: "7", Total: 120}); err != nil {
		log.Fatal(err)
	}
	<-done
	// Output: order 7 over 120, attempt 1
}

// exampleGateway is a broker with a gateway, both in this process.
func exampleGateway(ctx context.Context) (web string, stop func()) {
	broker, err := embedded.Start(ctx, embedded.Config{})
	if err != nil {
		log.Fatal(err)
	}
	nc, err := broker.Connect()
	if err != nil {
		log.Fatal(err)
	}
	bus, err := adapter.Open(ctx, nc, adapter.Config{})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: orders.Name}); err != nil {
		log.Fatal(err)
	}
	g, err := gateway.New(bus, gateway.Config{})
	if err != nil {
		log.Fatal(err)
	}
	server := httptest.NewServer(g)
	return server.URL, func() {
		_ = g.Drain(ctx)
		server.Close()
		_ = bus.Close(ctx)
		nc.Close()
		_ = broker.Stop(ctx)
	}
}
