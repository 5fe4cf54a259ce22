package adapter_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

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
	finish := sync.OnceFunc(func() { close(done) }) // an event may come more than once
	sub, err := bus.Subscribe(ctx, "orders.created", "billing", func(ctx context.Context, d *jetbus.Delivery) error {
		fmt.Printf("order %s: %s\n", d.Key, d.Payload)
		finish()
		return nil // acknowledges the event; an error makes it come back
	}, jetbus.SubscribeOptions{})
	check(err)
	_, err = bus.Publish(ctx, jetbus.Event{Topic: "orders.created", Key: "7", Payload: []byte(`{"total":120}`)})
	check(err)
	<-done
	check(sub.Stop(ctx))
	// Output: order 7: {"total":120}
}

// open starts a broker and opens a bus on it, for the Examples below.
func open() (bus *adapter.Bus, end func()) {
	ctx := context.Background()
	broker, err := embedded.Start(ctx, embedded.Config{})
	check(err)
	nc, err := broker.Connect()
	check(err)
	bus, err = adapter.Open(ctx, nc, adapter.Config{AutoCreate: true})
	check(err)
	return bus, func() {
		check(bus.Close(ctx))
		nc.Close()
		check(broker.Stop(ctx))
	}
}

// A topic is declared at start, each time. One that exists keeps its events.
func ExampleBus_EnsureTopic() {
	bus, end := open()
	defer end()
	ctx := context.Background()

	_, err := bus.TopicInfo(ctx, "orders.created")
	fmt.Println("there is none:", errors.Is(err, jetbus.ErrNoTopic))
	_, err = bus.EnsureTopic(ctx, jetbus.TopicConfig{
		Name:         "orders.created",
		Retention:    30 * 24 * time.Hour, // 7 days by default; -1: for ever
		MaxBytes:     50 << 30,            // 10 GiB by default; beyond it the oldest go
		Replicas:     1,                   // the default; 3 in a cluster of three
		KeyInSubject: true,                // the last event of a key is found at once, see State topics
	})
	check(err)
	info, err := bus.TopicInfo(ctx, "orders.created")
	check(err)
	fmt.Println(info.Config.Retention, info.Config.MaxBytes>>30, info.Config.Replicas, info.Config.KeyInSubject)
	// Output:
	// there is none: true
	// 720h0m0s 50 1 true
}

// Many events in one call, in their order. Publishing them again stores nothing,
// because they have the same ids.
func ExampleBus_PublishBatch_publishAgain() {
	bus, end := open()
	defer end()
	ctx := context.Background()

	events := []jetbus.Event{
		{ID: "7-1", Topic: "orders.lines", Key: "7", Payload: []byte(`{"sku":"tea"}`)},
		{ID: "7-2", Topic: "orders.lines", Key: "7", Payload: []byte(`{"sku":"cup"}`)},
	}
	for range 2 {
		receipts, err := bus.PublishBatch(ctx, events, jetbus.BatchOptions{})
		check(err)
		for _, r := range receipts {
			fmt.Println(r.Event.ID, r.Event.Seq, r.Duplicate)
		}
	}
	// Output:
	// 7-1 1 false
	// 7-2 2 false
	// 7-1 1 true
	// 7-2 2 true
}

// Two topics that share a stream have one order, and a batch can store events
// of both or none.
func ExampleBus_PublishBatch_atomic() {
	bus, end := open()
	defer end()
	ctx := context.Background()

	for _, name := range []string{"orders.created", "stock.reserved"} {
		_, err := bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: name, Stream: "SALES"})
		check(err)
	}
	receipts, err := bus.PublishBatch(ctx, []jetbus.Event{
		{Topic: "orders.created", Key: "7"},
		{Topic: "stock.reserved", Key: "tea"},
	}, jetbus.BatchOptions{Atomic: true})
	check(err)
	for _, r := range receipts {
		fmt.Println(r.Event.Topic, r.Event.Seq)
	}
	// Output:
	// orders.created 1
	// stock.reserved 2
}

// A typed topic publishes and receives values of one Go type, as JSON.
func Example_typedTopic() {
	bus, end := open()
	defer end()
	ctx := context.Background()

	type Order struct {
		ID    string `json:"id"`
		Total int    `json:"total"`
	}
	orders := jetbus.Topic[Order]{Name: "orders.created", Key: func(o Order) string { return o.ID }}
	done := make(chan struct{})
	finish := sync.OnceFunc(func() { close(done) }) // an event may come more than once
	sub, err := orders.Subscribe(ctx, bus, "billing", func(_ context.Context, o Order, d *jetbus.Delivery) error {
		fmt.Println(d.Key, o.Total)
		finish()
		return nil
	}, jetbus.SubscribeOptions{})
	check(err)
	_, err = orders.Publish(ctx, bus, Order{ID: "7", Total: 120})
	check(err)
	<-done
	check(sub.Stop(ctx))
	// Output: 7 120
}

// Reading needs no group. With Follow it goes on with new events until the loop
// ends; After goes on where an earlier reader was.
func ExampleBus_Read_follow() {
	bus, end := open()
	defer end()
	ctx := context.Background()

	for _, key := range []string{"6", "7", "8"} {
		_, err := bus.Publish(ctx, jetbus.Event{Topic: "orders.created", Key: key})
		check(err)
	}
	after := map[string]uint64{"orders.created": 1}
	for e, err := range bus.Read(ctx, []string{"orders.created"}, jetbus.ReadOptions{After: after, Follow: true}) {
		check(err)
		fmt.Println(e.Seq, e.Key)
		if e.Key == "8" {
			break
		}
	}
	// Output:
	// 2 7
	// 3 8
}

// A program without a handler takes events when it has time for them, and
// settles each.
func ExampleBus_Receive_withoutHandler() {
	bus, end := open()
	defer end()
	ctx := context.Background()

	for _, key := range []string{"6", "7"} {
		_, err := bus.Publish(ctx, jetbus.Event{Topic: "orders.created", Key: key})
		check(err)
	}
	deliveries, err := bus.Receive(ctx, "orders.created", "archive", jetbus.ReceiveOptions{From: jetbus.Earliest(), Max: 10})
	check(err)
	for _, d := range deliveries {
		fmt.Println(d.Key, d.Attempt)
		check(d.Ack(ctx))
	}
	// Output:
	// 6 1
	// 7 1
}

// A group is declared before the service that is its member runs.
func ExampleBus_EnsureGroup() {
	bus, end := open()
	defer end()
	ctx := context.Background()

	_, err := bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: "orders.created"})
	check(err)
	_, err = bus.EnsureGroup(ctx, "orders.created", jetbus.GroupConfig{Group: "billing", Inactive: 7 * 24 * time.Hour})
	check(err)
	_, err = bus.Publish(ctx, jetbus.Event{Topic: "orders.created", Key: "7"})
	check(err)

	// Later, and elsewhere. Without the declaration, the group would begin here.
	got, err := bus.Receive(ctx, "orders.created", "billing", jetbus.ReceiveOptions{})
	check(err)
	for _, d := range got {
		fmt.Println(d.Key)
		check(d.Ack(ctx))
	}
	// Output: 7
}

// A group is moved back to process events again.
func ExampleBus_SetCursor_processAgain() {
	bus, end := open()
	defer end()
	ctx := context.Background()

	for _, key := range []string{"6", "7", "8"} {
		_, err := bus.Publish(ctx, jetbus.Event{Topic: "orders.created", Key: key})
		check(err)
	}
	done := make(chan string)
	sub, err := bus.Subscribe(ctx, "orders.created", "billing", func(_ context.Context, d *jetbus.Delivery) error {
		done <- d.Key
		return nil
	}, jetbus.SubscribeOptions{From: jetbus.Earliest()})
	check(err)
	fmt.Println(<-done, <-done, <-done)

	check(bus.SetCursor(ctx, "orders.created", "billing", jetbus.Cursor{LastSeq: 1}, jetbus.SeekOptions{}))
	fmt.Println(<-done, <-done)
	check(sub.Stop(ctx))
	// Output:
	// 6 7 8
	// 7 8
}

// A lease for one of several processes: whoever sets the key first has it, for
// as long as it renews it.
func ExampleBus_KeySet_leaderElection() {
	bus, end := open()
	defer end()
	ctx := context.Background()

	mine, err := bus.KeySet(ctx, "leases", "mailer", []byte("host-1"), 0, 30*time.Second)
	check(err)
	_, err = bus.KeySet(ctx, "leases", "mailer", []byte("host-2"), 0, 30*time.Second)
	fmt.Println(errors.Is(err, jetbus.ErrWrongSequence))
	_, err = bus.KeySet(ctx, "leases", "mailer", []byte("host-1"), mine, 30*time.Second)
	fmt.Println(err)
	// Output:
	// true
	// <nil>
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
