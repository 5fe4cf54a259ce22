package jetbus_test

import (
	"context"
	"fmt"

	"github.com/seed-63e9a637/jetbus"
)

// The last event of each key, in memory and kept up to date.
func ExampleTable() {
	bus, end := openExample()
	defer end()
	ctx := context.Background()
	_, err := bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: "stock", Compact: true})
	if err != nil {
		panic(err)
	}
	put := func(key, value string) uint64 {
		r, err := bus.Publish(ctx, jetbus.Event{Topic: "stock", Key: key, Payload: []byte(value)})
		if err != nil {
			panic(err)
		}
		return r.Event.Seq
	}

	put("tea", "120")
	put("cup", "8")
	stock, err := jetbus.OpenTable(ctx, bus, "stock", jetbus.TableOptions{})
	if err != nil {
		panic(err)
	}
	defer stock.Close()

	last := put("tea", "119")
	fmt.Println(stock.WaitFor(ctx, last)) // reads what it wrote
	tea, ok := stock.Get("tea")
	fmt.Println(string(tea.Payload), ok, stock.Len())
	// Output:
	// <nil>
	// 119 true 2
}

// The last order of each customer, of a topic whose key is the order. Any number
// of processes may run this; one works.
func ExampleCompactor() {
	bus, end := openExample()
	defer end()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	_, err := bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: "orders.by_customer", Compact: true})
	if err != nil {
		panic(err)
	}
	for _, order := range []struct{ number, customer string }{{"1", "ann"}, {"2", "bob"}, {"3", "ann"}} {
		e := jetbus.Event{Topic: "orders.created", Key: order.number, Headers: map[string]string{"x-customer": order.customer}}
		if _, err := bus.Publish(ctx, e); err != nil {
			panic(err)
		}
	}

	ended := make(chan error)
	go func() {
		ended <- jetbus.Compactor{
			Source: "orders.created", Target: "orders.by_customer", Group: "by-customer",
			KeyOf: func(e jetbus.Event) (string, bool) {
				customer := e.Headers["x-customer"]
				return customer, customer != ""
			},
		}.Run(ctx, bus)
	}()

	for e, err := range bus.Read(ctx, []string{"orders.by_customer"}, jetbus.ReadOptions{From: jetbus.Earliest(), Follow: true}) {
		if err != nil {
			panic(err)
		}
		if e.Key == "ann" && e.Headers[jetbus.HeaderCompactedSeq] == "3" {
			fmt.Println("the last order of ann is number 3")
			break
		}
	}
	cancel()
	fmt.Println(<-ended)
	// Output:
	// the last order of ann is number 3
	// <nil>
}
