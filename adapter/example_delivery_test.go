package adapter_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// What an event needs is not there yet: the handler puts it off, which is no
// failed attempt.
func ExampleBus_Subscribe_snooze() {
	bus, end := open()
	defer end()
	ctx := context.Background()

	paid := false
	done := make(chan struct{})
	_, err := bus.Subscribe(ctx, "orders.created", "shipping", func(_ context.Context, d *jetbus.Delivery) error {
		fmt.Printf("attempt %d, delivered before: %v\n", d.Attempt, d.Redelivered)
		if !paid {
			paid = true
			return jetbus.Snooze(10 * time.Millisecond)
		}
		close(done)
		return nil
	}, jetbus.SubscribeOptions{})
	check(err)
	_, err = bus.Publish(ctx, jetbus.Event{Topic: "orders.created", Key: "7"})
	check(err)
	<-done
	// Output:
	// attempt 1, delivered before: false
	// attempt 1, delivered before: true
}

// An event that no attempt would help becomes a dead letter at once, with all that
// is known of it. Once the handler is mended it is put before its group again.
func Example_deadLetters() {
	bus, end := open()
	defer end()
	ctx := context.Background()

	mended, replayed := false, make(chan struct{})
	_, err := bus.Subscribe(ctx, "orders.created", "billing", func(_ context.Context, d *jetbus.Delivery) error {
		if !mended {
			return jetbus.Reject(errors.New("unknown currency"))
		}
		fmt.Printf("order %s, replay of dead letter %d\n", d.Key, d.ReplayOf)
		close(replayed)
		return nil
	}, jetbus.SubscribeOptions{})
	check(err)
	_, err = bus.Publish(ctx, jetbus.Event{Topic: "orders.created", Key: "7"})
	check(err)

	for e, err := range bus.Read(ctx, []string{"dlq.orders.created"}, jetbus.ReadOptions{From: jetbus.Earliest(), Follow: true}) {
		check(err)
		d, err := jetbus.ParseDeadLetter(e)
		check(err)
		fmt.Printf("%s could not process order %s: %s, %s\n", d.Group, d.Event.Key, d.Reason, d.Error)
		break
	}
	mended = true
	stats, err := jetbus.Replay(ctx, bus, jetbus.ReplayOptions{DeadLetterQuery: jetbus.DeadLetterQuery{Topic: "orders.created"}})
	check(err)
	<-replayed
	fmt.Println("replayed:", stats.Replayed)
	// Output:
	// billing could not process order 7: rejected, unknown currency
	// order 7, replay of dead letter 1
	// replayed: 1
}

// Events of one key are handled in their order, also where one of them fails: the
// next waits for it.
func ExampleBus_Subscribe_orderedByKey() {
	bus, end := open()
	defer end()
	ctx := context.Background()

	done := make(chan struct{})
	_, err := bus.Subscribe(ctx, "account.booked", "ledger", func(_ context.Context, d *jetbus.Delivery) error {
		fmt.Printf("%s, attempt %d\n", d.Payload, d.Attempt)
		switch {
		case string(d.Payload) == "1" && d.Attempt == 1:
			return errors.New("the database is away")
		case string(d.Payload) == "3":
			close(done)
		}
		return nil
	}, jetbus.SubscribeOptions{Order: jetbus.PerKey, Concurrency: 8, Backoff: jetbus.Backoff{Max: 10 * time.Millisecond}})
	check(err)
	for _, booking := range []string{"1", "2", "3"} {
		_, err := bus.Publish(ctx, jetbus.Event{Topic: "account.booked", Key: "ann", Payload: []byte(booking)})
		check(err)
	}
	<-done
	// Output:
	// 1, attempt 1
	// 1, attempt 2
	// 2, attempt 1
	// 3, attempt 1
}

// PauseGroup stops delivery to all members of a group, over restarts; a member
// stops and goes on for itself by Pause and Resume of its subscription.
func ExampleBus_PauseGroup_pauseAndResume() {
	bus, end := open()
	defer end()
	ctx := context.Background()

	got := make(chan string, 1)
	sub, err := bus.Subscribe(ctx, "orders.created", "billing", func(_ context.Context, d *jetbus.Delivery) error {
		got <- d.Key
		return nil
	}, jetbus.SubscribeOptions{})
	check(err)
	check(bus.PauseGroup(ctx, "orders.created", "billing", time.Now().Add(time.Hour)))
	_, err = bus.Publish(ctx, jetbus.Event{Topic: "orders.created", Key: "7"})
	check(err)
	groups, err := bus.Groups(ctx, "orders.created")
	check(err)
	fmt.Printf("paused: %v, delivered: %d\n", groups[0].Paused, len(got))
	check(bus.ResumeGroup(ctx, "orders.created", "billing"))
	fmt.Println("got", <-got)

	sub.Pause()
	fmt.Println("member paused:", sub.Stats().Paused)
	sub.Resume()
	_, err = bus.Publish(ctx, jetbus.Event{Topic: "orders.created", Key: "8"})
	check(err)
	fmt.Println("got", <-got)
	// Output:
	// paused: true, delivered: 0
	// got 7
	// member paused: true
	// got 8
}
