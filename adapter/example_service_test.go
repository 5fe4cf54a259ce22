package adapter_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
)

// serve is a whole service: it works until ctx ends, or one of its subscriptions does.
func serve(ctx context.Context, nc *nats.Conn) (err error) {
	bus, err := adapter.Open(ctx, nc, adapter.Config{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bus.Close(ctx)) }() // lets handlers finish
	if _, err = bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: "orders.created"}); err != nil {
		return err
	}
	billing, err := bus.Subscribe(ctx, "orders.created", "billing", bill, jetbus.SubscribeOptions{Concurrency: 8})
	if err != nil {
		return err
	}
	mailer, err := bus.Subscribe(ctx, "orders.created", "mailer", mail, jetbus.SubscribeOptions{})
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done(): // SIGTERM
		return nil
	case <-billing.Done(): // its group was deleted, the connection was closed, a right is missing
		return billing.Err()
	case <-mailer.Done():
		return mailer.Err()
	}
}

var (
	ordered = make(chan struct{})
	bill    = func(ctx context.Context, d *jetbus.Delivery) error {
		close(ordered)
		time.Sleep(100 * time.Millisecond) // the service is told to end meanwhile
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		fmt.Printf("order %s is billed\n", d.Key)
		return nil
	}
	mail = func(context.Context, *jetbus.Delivery) error { return nil }
)

// A service that ends with its context, which is that of signal.NotifyContext: what its handlers
// have begun is finished first.
func Example_gracefulShutdown() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // after the first signal the next has its usual effect
	broker, err := embedded.Start(ctx, embedded.Config{})
	check(err)
	defer func() { check(broker.Stop(ctx)) }() // like serve, by a context that has ended
	nc, err := broker.Connect()
	check(err)
	defer nc.Close()
	bus, err := adapter.Open(ctx, nc, adapter.Config{})
	check(err)
	defer func() { check(bus.Close(ctx)) }()

	served := make(chan error)
	go func() { served <- serve(ctx, nc) }()
	for working := 0; working < 2; time.Sleep(10 * time.Millisecond) {
		working = 0
		groups, _ := bus.Groups(ctx, "orders.created") // there is no topic at first
		for _, g := range groups {
			if g.Waiting > 0 { // a member asks for events
				working++
			}
		}
	}
	_, err = bus.Publish(ctx, jetbus.Event{Topic: "orders.created", Key: "7"})
	check(err)
	<-ordered
	stop() // ctx ends as by a signal
	check(<-served)
	// Output: order 7 is billed
}
