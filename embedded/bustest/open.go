package bustest

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
)

// closing bounds how long a bus may take to close at the end of a test.
const closing = time.Minute

// Start starts a broker until the end of the test, which fails where it cannot be
// started or stopped. The zero Config is a broker without listeners and with a
// folder of its own, which it removes.
func Start(t testing.TB, c embedded.Config) *embedded.Broker {
	t.Helper()
	b, err := embedded.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Stop(context.Background()); err != nil {
			t.Errorf("stop the broker: %v", err)
		}
	})
	return b
}

// Server is what a bus can be opened on: an embedded.Broker or a cluster.Cluster.
type Server interface {
	Connect(o ...nats.Option) (*nats.Conn, error)
}

// quiet keeps nats.go from printing asynchronous errors.
var quiet = nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})

// Connect opens a connection until the end of the test. What the server refuses
// later is not printed, unless the options say so.
func Connect(t testing.TB, s Server, o ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := s.Connect(append([]nats.Option{quiet}, o...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// Open opens a bus on a connection of its own, as another process would, until the
// end of the test, which fails where it cannot be opened or closed.
func Open(t testing.TB, s Server, c adapter.Config) *adapter.Bus {
	t.Helper()
	b, err := adapter.Open(t.Context(), Connect(t, s), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closing)
		defer cancel()
		if err := b.Close(ctx); err != nil {
			t.Errorf("close the bus: %v", err)
		}
	})
	return b
}

// OnBroker makes subjects of plain buses, as [SubjectOn] does, on a fresh broker each:
// what [Contract] and [Scripts] take.
func OnBroker(c adapter.Config) func(t *testing.T) Subject {
	return func(t *testing.T) Subject {
		t.Helper()
		return SubjectOn(t, Start(t, embedded.Config{}), c)
	}
}

// SubjectOn returns two plain buses and an administrator on a server. Decorate A, B
// and Open to test what is built around them.
func SubjectOn(t *testing.T, s Server, c adapter.Config) Subject {
	t.Helper()
	subject := Subject{
		A: Open(t, s, c), B: Open(t, s, c), Admin: Open(t, s, c),
		Open: func(ctx context.Context, nc *nats.Conn) (ClosingBus, error) {
			return adapter.Open(ctx, nc, c)
		},
	}
	subject.Broker, _ = s.(Broker) // a cluster is none
	return subject
}
