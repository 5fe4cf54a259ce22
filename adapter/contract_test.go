package adapter_test

import (
	"context"
	"slices"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

// connector is what gives connections: a broker or a cluster.
type connector interface {
	Connect(o ...nats.Option) (*nats.Conn, error)
}

// openBus opens a bus with a connection of its own until the end of the test.
func openBus(t *testing.T, c connector, cfg adapter.Config) *adapter.Bus {
	t.Helper()
	nc, err := c.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	b, err := adapter.Open(t.Context(), nc, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return b
}

// subject is two buses and an administrator on c.
func subject(t *testing.T, c connector, cfg adapter.Config) bustest.Subject {
	t.Helper()
	return bustest.Subject{
		A: openBus(t, c, cfg), B: openBus(t, c, cfg), Admin: openBus(t, c, cfg),
		Open: func(ctx context.Context, nc *nats.Conn) (bustest.ClosingBus, error) {
			return adapter.Open(ctx, nc, cfg)
		},
	}
}

// onBroker makes subjects on a fresh broker each.
func onBroker(cfg adapter.Config) func(t *testing.T) bustest.Subject {
	return func(t *testing.T) bustest.Subject {
		t.Helper()
		br, err := embedded.Start(t.Context(), embedded.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := br.Stop(context.Background()); err != nil {
				t.Error(err)
			}
		})
		s := subject(t, br, cfg)
		s.Broker = br
		return s
	}
}

func TestContractInMemory(t *testing.T) {
	bustest.Contract(t, bustest.Options{Without: bustest.NeedRestart}, onBroker(adapter.Config{Storage: jetbus.MemoryStorage}))
}

func TestContractInFiles(t *testing.T) {
	bustest.Contract(t, bustest.Options{Without: bustest.NeedAging}, onBroker(adapter.Config{}))
}

// The cluster is one for all behaviors, and its time is real.
func TestContractInCluster(t *testing.T) {
	c, err := embedded.StartCluster(t.Context(), embedded.ClusterConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	o := bustest.Options{
		RealTime: true,
		Without:  bustest.NeedRestart | bustest.NeedPipe | bustest.NeedOpen | bustest.NeedMany,
		Only:     func(b bustest.Behavior) bool { return slices.ContainsFunc(b.Cases, clustered) },
	}
	bustest.Contract(t, o, func(t *testing.T) bustest.Subject {
		t.Helper()
		return subject(t, c, adapter.Config{Replicas: 3})
	})
}

// clustered reports whether a cluster can make a difference for an edge case:
// whether it is about storing, positions or ownership, and not about what the
// client checks or does alone.
func clustered(n int) bool {
	return slices.Contains([]int{1, 2, 3, 4, 5, 12, 13, 30, 35, 37, 38, 39, 40, 53, 54, 57, 59, 64, 65, 66, 69, 70}, n)
}
