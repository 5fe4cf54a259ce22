package jetbus_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
)

// openExample starts a broker and opens a bus on it.
func openExample() (bus *adapter.Bus, end func()) {
	ctx := context.Background()
	broker, err := embedded.Start(ctx, embedded.Config{})
	if err != nil {
		panic(err)
	}
	nc, err := broker.Connect()
	if err != nil {
		panic(err)
	}
	bus, err = adapter.Open(ctx, nc, adapter.Config{AutoCreate: true})
	if err != nil {
		panic(err)
	}
	return bus, func() {
		_ = bus.Close(ctx) // the example is over
		nc.Close()
		_ = broker.Stop(ctx)
	}
}

// Of all processes that run this, one at a time does the work. The next one
// learns whether the one before left things in order.
func ExampleLock() {
	bus, end := openExample()
	defer end()
	ctx := context.Background()

	lock := jetbus.Lock{Key: "nightly-report", Owner: "host-1"}
	err := lock.Hold(ctx, bus, func(ctx context.Context, h jetbus.Held) (clean bool, err error) {
		fmt.Println("first, after a clean turn:", h.Clean)
		return false, errors.New("disk full") // ctx would be canceled if the lock were lost
	})
	fmt.Println(err)
	err = lock.Hold(ctx, bus, func(_ context.Context, h jetbus.Held) (bool, error) {
		fmt.Println("second, after a clean turn:", h.Clean)
		return true, nil
	})
	fmt.Println(err)
	// Output:
	// first, after a clean turn: true
	// lock JETBUS_HOLDERS/nightly-report: disk full
	// second, after a clean turn: false
	// <nil>
}
