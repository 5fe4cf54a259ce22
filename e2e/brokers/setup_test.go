package brokers

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus/e2e/internal/election"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/embedded/cluster"
)

// patience bounds one step of a test, which may wait for an election.
const patience = 2 * time.Minute

// patient is the context of one step of a test.
func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// persist repeats f, which may come to nothing while a cluster elects, until it
// succeeds.
func persist(t *testing.T, f func(ctx context.Context) error) {
	t.Helper()
	ctx := patient(t)
	pace := time.NewTicker(100 * time.Millisecond)
	defer pace.Stop()
	for ; ; <-pace.C {
		try, cancel := context.WithTimeout(ctx, 10*time.Second)
		err := f(try)
		cancel()
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

func startCluster(t *testing.T, cfg cluster.Config) (*cluster.Cluster, jetstream.JetStream) {
	t.Helper()
	c := election.Cluster(t, cfg)
	return c, connect(t, c)
}

// connect connects to a broker or to a cluster.
func connect(t *testing.T, s bustest.Server) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(bustest.Connect(t, s))
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// stream creates the file stream S of the subjects s.>.
func stream(t *testing.T, js jetstream.JetStream, replicas int) (s jetstream.Stream) {
	t.Helper()
	persist(t, func(ctx context.Context) (err error) {
		s, err = js.CreateStream(ctx, jetstream.StreamConfig{
			Name: "S", Subjects: []string{"s.>"}, Storage: jetstream.FileStorage, Replicas: replicas,
		})
		return err
	})
	return s
}

// stored reads the payloads of all messages in the stream S, once it can be asked.
func stored(t *testing.T, js jetstream.JetStream) map[string]bool {
	t.Helper()
	var ids map[string]bool
	persist(t, func(ctx context.Context) error {
		ids = map[string]bool{}
		s, err := js.Stream(ctx, "S")
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			t.Fatal(err)
		}
		if err != nil {
			return err
		}
		c, err := js.OrderedConsumer(ctx, "S", jetstream.OrderedConsumerConfig{})
		if err != nil {
			return err
		}
		it, err := c.Messages()
		if err != nil {
			return err
		}
		defer it.Stop()
		for range s.CachedInfo().State.Msgs {
			m, err := it.Next(jetstream.NextContext(ctx))
			if err != nil {
				return err
			}
			ids[string(m.Data())] = true
		}
		return nil
	})
	return ids
}

// roundTrip sends a message through the server at url and back.
func roundTrip(t *testing.T, url string, o ...nats.Option) {
	t.Helper()
	nc, err := nats.Connect(url, append([]nats.Option{nats.Timeout(patience)}, o...)...)
	if err != nil {
		t.Fatalf("connect to %s: %v", url, err)
	}
	defer nc.Close()
	sub, err := nc.SubscribeSync("x")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Publish("x", []byte("payload")); err != nil {
		t.Fatal(err)
	}
	if m, err := sub.NextMsgWithContext(patient(t)); err != nil || string(m.Data) != "payload" {
		t.Fatalf("got %v, %v", m, err)
	}
}
