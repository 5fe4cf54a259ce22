// Package cloudevents shows that events and CloudEvents 1.0 are the same thing on
// the wire: what programs without JetBus publish into a topic's subject is
// delivered with its bytes untouched, and what JetBus stores is read by the
// CloudEvents SDK and by the rules of the NATS binding.
package cloudevents

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
)

// The topic of these tests, and where it is on the server.
const (
	topic   = "order.placed"
	subject = "ev.order.placed._"
	stream  = "EV_ORDER_PLACED"
)

// limit bounds every wait.
const limit = 2 * time.Minute

// fixture is a broker, a bus, and a connection of a program that knows nothing of JetBus.
type fixture struct {
	bus   *adapter.Bus
	plain *nats.Conn
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	broker, err := embedded.Start(t.Context(), embedded.Config{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := broker.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	own, err := broker.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(own.Close)
	plain, err := nats.Connect(broker.URL(), nats.Timeout(limit))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(plain.Close)
	bus, err := adapter.Open(t.Context(), own, adapter.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := bus.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	info, err := bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: topic})
	if err != nil {
		t.Fatal(err)
	}
	if info.Stream != stream {
		t.Fatalf("the topic's stream is %s, these tests expect %s", info.Stream, stream)
	}
	return &fixture{bus: bus, plain: plain}
}

// subscribe returns the events that a group gets, in order.
func (f *fixture) subscribe(t *testing.T) <-chan jetbus.Event {
	t.Helper()
	events := make(chan jetbus.Event, 100)
	s, err := f.bus.Subscribe(t.Context(), topic, "readers", func(_ context.Context, d *jetbus.Delivery) error {
		events <- d.Event
		return nil
	}, jetbus.SubscribeOptions{From: jetbus.Earliest()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		if n := s.Stats().Nacked; n > 0 {
			t.Errorf("%d messages were refused", n)
		}
	})
	return events
}

// next waits for one item.
func next[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(limit):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}
