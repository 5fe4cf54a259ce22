package jetbus_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
)

// A group that could not process an event gets it again once its handler is
// repaired.
func ExampleReplay() {
	ctx := context.Background()
	broker, err := embedded.Start(ctx, embedded.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer broker.Stop(ctx)
	nc, _ := broker.Connect()
	defer nc.Close()
	bus, _ := adapter.Open(ctx, nc, adapter.Config{})
	defer bus.Close(ctx)
	bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: "orders.created"})

	var repaired atomic.Bool
	handled := make(chan *jetbus.Delivery)
	bus.Subscribe(ctx, "orders.created", "mailer", func(_ context.Context, d *jetbus.Delivery) error {
		if !repaired.Load() {
			return jetbus.Reject(errors.New("no address in order 7"))
		}
		handled <- d
		return nil
	}, jetbus.SubscribeOptions{})
	watch := make(chan jetbus.Event)
	bus.Subscribe(ctx, "dlq.orders.created", "watch", func(_ context.Context, d *jetbus.Delivery) error {
		watch <- d.Event
		return nil
	}, jetbus.SubscribeOptions{})

	bus.Publish(ctx, jetbus.Event{Topic: "orders.created", ID: "order-7", Payload: []byte(`{"id": 7}`)})
	dead, _ := jetbus.ParseDeadLetter(<-watch)
	fmt.Printf("%s could not process %s: %s\n", dead.Group, dead.Event.ID, dead.Error)

	repaired.Store(true)
	stats, err := jetbus.Replay(ctx, bus, jetbus.ReplayOptions{
		DeadLetterQuery: jetbus.DeadLetterQuery{Topic: "orders.created", Group: "mailer"},
		Transform: func(e jetbus.Event) (jetbus.Event, error) {
			e.Payload = []byte(`{"id": 7, "address": "Main Street 1"}`)
			return e, nil
		},
	})
	fmt.Println(stats.Replayed, "replayed,", err)
	d := <-handled
	fmt.Printf("%s, the replay of dead letter %d: %s\n", d.ID, d.ReplayOf, d.Payload)
	// Output:
	// mailer could not process order-7: no address in order 7
	// 1 replayed, <nil>
	// order-7, the replay of dead letter 1: {"id": 7, "address": "Main Street 1"}
}

// Errors of one kind have one fingerprint.
func ExampleErrorFingerprint() {
	fmt.Println(jetbus.ErrorFingerprint(`dial tcp 10.0.0.7:25: connection refused`))
	fmt.Println(jetbus.ErrorFingerprint(`customer "Jane" of order 4711 is unknown`))
	// Output:
	// dial tcp #: connection refused
	// customer "*" of order # is unknown
}
