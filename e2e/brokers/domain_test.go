package brokers

import (
	"context"
	"errors"
	"net"
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

// TestDomain: over a leaf node, which has JetStream of its own, the bus is where the
// domain says, with all that it keeps beside events: keys, attempts, retries, dead letters.
func TestDomain(t *testing.T) {
	hub := runServer(t, server.Options{JetStreamDomain: "hub", LeafNode: server.LeafNodeOpts{Host: "127.0.0.1", Port: -1}})
	v, err := hub.Varz(nil)
	if err != nil {
		t.Fatal(err)
	}
	at := &url.URL{Scheme: "nats-leaf", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(v.LeafNode.Port))}
	leaf := runServer(t, server.Options{JetStreamDomain: "leaf", LeafNode: server.LeafNodeOpts{
		ReconnectInterval: 50 * time.Millisecond, Remotes: []*server.RemoteLeafOpts{{URLs: []*url.URL{at}}},
	}})
	persist(t, func(context.Context) error {
		if leaf.NumLeafNodes() == 0 {
			return errors.New("the leaf node is not connected")
		}
		return nil
	})
	bus := openAt(t, leaf, adapter.Config{Domain: "hub"})
	ctx := patient(t)
	if _, err := bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: "orders"}); err != nil {
		t.Fatal(err)
	}
	attempts, dead := make(chan int, 100), make(chan jetbus.Event, 1)
	_, err = bus.Subscribe(ctx, "orders", "billing", func(_ context.Context, d *jetbus.Delivery) error {
		attempts <- d.Attempt
		return errors.New("no")
	}, jetbus.SubscribeOptions{MaxAttempts: 3, Backoff: jetbus.Backoff{Min: time.Millisecond, Max: time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bus.Subscribe(ctx, "dlq.orders", "watch", func(_ context.Context, d *jetbus.Delivery) error {
		dead <- d.Event
		return nil
	}, jetbus.SubscribeOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := bus.Publish(ctx, jetbus.Event{Topic: "orders", Payload: []byte("1")}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-dead:
	case <-ctx.Done():
		t.Fatal("there is no dead letter")
	}
	calls := 0
	for ; len(attempts) > 0; calls++ {
		// It is less where an attempt could not be recorded, or looked up, in time.
		if got := <-attempts; got > calls+1 {
			t.Errorf("call %d is attempt %d", calls+1, got)
		}
	}
	if calls < 3 {
		t.Errorf("the event is dead after %d attempts, MaxAttempts is 3", calls)
	}
	revision, err := bus.KeySet(ctx, "settings", "a", []byte("1"), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bus.KeySet(ctx, "settings", "a", []byte("2"), revision, 0); err != nil {
		t.Fatal(err)
	}
	home := openAt(t, hub, adapter.Config{})
	if got, err := home.KeyGet(ctx, "settings", "a"); err != nil || string(got.Value) != "2" {
		t.Errorf("at the hub the key is %q, %v", got.Value, err)
	}
	other := openAt(t, leaf, adapter.Config{})
	if _, err := other.TopicInfo(ctx, "orders"); !errors.Is(err, jetbus.ErrNoTopic) {
		t.Errorf("the leaf's own JetStream has the topic: %v", err)
	}
}

// runServer runs a server until the end of the test.
func runServer(t *testing.T, o server.Options) *server.Server {
	t.Helper()
	o.Host, o.Port, o.NoLog, o.NoSigs = "127.0.0.1", server.RANDOM_PORT, true, true
	o.JetStream, o.StoreDir = true, t.TempDir()
	s, err := server.NewServer(&o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(patience) {
		t.Fatal("the server does not start")
	}
	return s
}

// openAt opens a bus at a server until the end of the test.
func openAt(t *testing.T, s *server.Server, c adapter.Config) *adapter.Bus {
	t.Helper()
	nc, err := nats.Connect(s.ClientURL(), nats.Timeout(patience))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	bus, err := adapter.Open(t.Context(), nc, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := bus.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return bus
}
