package partition_test

import (
	"context"
	"fmt"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/partition"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// Replicas of a service share the partitions of a topic. The events of an order are
// handled one after the other, in one replica at a time.
func ExampleSubscribe() {
	ctx := context.Background()
	broker, err := embedded.Start(ctx, embedded.Config{})
	check(err)
	defer func() { check(broker.Stop(ctx)) }()
	nc, err := broker.Connect()
	check(err)
	defer nc.Close()
	bus, err := adapter.Open(ctx, nc, adapter.Config{})
	check(err)
	defer func() { check(bus.Close(ctx)) }()

	_, err = bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: "orders", Partitions: 8})
	check(err)
	done := make(chan struct{})
	sub, err := partition.Subscribe(ctx, bus, "orders", "billing", func(_ context.Context, d *jetbus.Delivery) error {
		fmt.Printf("order %s: %s\n", d.Key, d.Payload)
		if string(d.Payload) == "paid" {
			close(done)
		}
		return nil
	}, partition.SubscribeOptions{
		PerPartition: jetbus.SubscribeOptions{Concurrency: 4}, // orders at a time, in each partition
	})
	check(err)
	for _, what := range []string{"created", "packed", "paid"} {
		_, err = bus.Publish(ctx, jetbus.Event{Topic: "orders", Key: "7", Payload: []byte(what)})
		check(err)
	}
	<-done
	check(sub.Stop(ctx)) // its partitions go to the other replicas at once
	// Output:
	// order 7: created
	// order 7: packed
	// order 7: paid
}

// A topic grows while its group works. Events that are published from then on go to the
// new generation, and wait there for older ones of their keys.
func ExampleLookupTopic() {
	ctx := context.Background()
	broker, err := embedded.Start(ctx, embedded.Config{})
	check(err)
	defer func() { check(broker.Stop(ctx)) }()
	nc, err := broker.Connect()
	check(err)
	defer nc.Close()
	bus, err := adapter.Open(ctx, nc, adapter.Config{})
	check(err)
	defer func() { check(bus.Close(ctx)) }()

	_, err = bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: "orders", Partitions: 8})
	check(err)
	assigned := make(chan partition.Assigned, 20)
	sub, err := partition.Subscribe(ctx, bus, "orders", "billing", func(context.Context, *jetbus.Delivery) error { return nil },
		partition.SubscribeOptions{Member: "replica-1", OnAssigned: func(_ context.Context, a partition.Assigned) { assigned <- a }})
	check(err)
	for range 8 {
		<-assigned
	}
	_, err = bus.Repartition(ctx, "orders", 12)
	check(err)
	for range 12 {
		<-assigned
	}
	a, err := partition.LookupTopic(ctx, bus, "", "orders", "billing")
	check(err)
	newest := a.Generations[1]
	fmt.Printf("generation %d: %s has %d partitions\n", newest.Generation, newest.Partitions[0].Member, len(newest.Members[0].Partitions))
	check(sub.Stop(ctx))
	// Output:
	// generation 2: replica-1 has 12 partitions
}
