//go:build unix

package broker_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus/e2e/internal/broker"
	"github.com/seed-63e9a637/jetbus/e2e/internal/child"
)

// limit bounds every wait. It only matters where a test fails.
const limit = 3 * time.Minute

func TestMain(m *testing.M) {
	child.Main(broker.Roles(map[string]child.Role{}))
	os.Exit(m.Run())
}

func connect(t *testing.T, url string) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	nc, err := broker.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return nc, js
}

// What was stored is there after every end that a broker can come to.
func TestBroker(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	b := broker.Start(t)
	nc, js := connect(t, b.Proxy(t).URL())
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
		t.Fatal(err)
	}
	for i, end := range []func() error{b.Kill, b.Stop} {
		if _, err := js.Publish(ctx, "s", nil); err != nil {
			t.Fatal(err)
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if err := b.Restart(); err != nil {
			t.Fatal(err)
		}
		if err := nc.FlushWithContext(ctx); err != nil { // on the next connection, or it is cut off
			t.Logf("flush: %v", err)
		}
		if s := stream(ctx, t, js); s.State.Msgs != uint64(i+1) {
			t.Errorf("%d messages, want %d", s.State.Msgs, i+1)
		}
	}
	if err := b.Freeze(); err != nil {
		t.Fatal(err)
	}
	brief, over := context.WithTimeout(ctx, 100*time.Millisecond)
	defer over()
	if err := nc.FlushWithContext(brief); err == nil {
		t.Error("a frozen broker answers")
	}
	if err := b.Thaw(); err != nil {
		t.Fatal(err)
	}
	if err := nc.FlushWithContext(ctx); err != nil {
		t.Error(err)
	}
}

// stream asks until it is answered.
func stream(ctx context.Context, t *testing.T, js jetstream.JetStream) *jetstream.StreamInfo {
	t.Helper()
	for {
		brief, cancel := context.WithTimeout(ctx, 5*time.Second)
		s, err := js.Stream(brief, "S")
		cancel()
		switch {
		case err == nil:
			return s.CachedInfo()
		case ctx.Err() != nil:
			t.Fatal(err)
		}
	}
}

// A broker that ended by itself is no broker that was killed.
func TestKilledTwice(t *testing.T) {
	b := broker.Start(t)
	if err := b.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := b.Kill(); err == nil {
		t.Error("it was killed a second time")
	}
}

// A port that was given out is free for a broker, and locked for others who look for one.
func TestFreePort(t *testing.T) {
	port, err := broker.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	at := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if lock, err := net.ListenPacket("udp", at); err == nil {
		t.Errorf("%d can be had twice", port)
		_ = lock.Close()
	}
}

// A cluster loses the leader of a stream, has another one, and is whole again with it.
func TestCluster(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	c := broker.StartCluster(t)
	_, js := connect(t, c.URL())
	insist := func(what string, try func(context.Context) error) {
		t.Helper()
		for err := error(nil); ; {
			brief, cancel := context.WithTimeout(ctx, 5*time.Second)
			err = try(brief)
			cancel()
			switch {
			case err == nil:
				return
			case ctx.Err() != nil:
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	insist("create the stream", func(ctx context.Context) error {
		_, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}, Replicas: 3})
		return err
	})
	insist("create the consumer", func(ctx context.Context) error {
		_, err := js.CreateOrUpdateConsumer(ctx, "S", jetstream.ConsumerConfig{Durable: "c", AckPolicy: jetstream.AckExplicitPolicy})
		return err
	})
	was, err := broker.AwaitWhole(ctx, js, "S", "c")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Kill(was.Stream); err != nil {
		t.Fatal(err)
	}
	insist("have another leader", func(ctx context.Context) error {
		s, err := js.Stream(ctx, "S")
		if err == nil && s.CachedInfo().Cluster.Leader == was.Stream {
			err = fmt.Errorf("%s leads, which is dead", was.Stream)
		}
		return err
	})
	if err := c.Restart(was.Stream); err != nil {
		t.Fatal(err)
	}
	if _, err := broker.AwaitWhole(ctx, js, "S", "c"); err != nil {
		t.Error(err)
	}
	if err := c.Kill("none"); err == nil {
		t.Error("a node that is none was killed")
	}
}
