package embedded_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus/embedded"
)

// publish publishes until an error, calls each with the number acknowledged so
// far, and returns the ids that were acknowledged.
func publish(t *testing.T, js jetstream.JetStream, writer string, each func(n int)) []string {
	var acked []string
	for i := 0; ; i++ {
		id := fmt.Sprintf("%s-%d", writer, i)
		_, err := js.Publish(t.Context(), "s."+writer, []byte(id), jetstream.WithMsgID(id), jetstream.WithRetryAttempts(0))
		if err != nil {
			return acked
		}
		acked = append(acked, id)
		each(len(acked))
	}
}

// stored reads the ids of all messages in the stream S.
func stored(t *testing.T, js jetstream.JetStream) map[string]bool {
	t.Helper()
	n := waitMsgs(t, js)
	ids := map[string]bool{}
	c, err := js.OrderedConsumer(t.Context(), "S", jetstream.OrderedConsumerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	it, err := c.Messages()
	if err != nil {
		t.Fatal(err)
	}
	defer it.Stop()
	for range n {
		m, err := it.Next()
		if err != nil {
			t.Fatal(err)
		}
		ids[string(m.Data())] = true
	}
	return ids
}

func TestKillLosesNothingAcknowledged(t *testing.T) {
	b := start(t, embedded.Config{Listen: "127.0.0.1:0"})
	js := connect(t, b)
	stream(t, js, 1)
	const rounds, writers = 5, 4
	var acked []string
	for round := range rounds {
		var mu sync.Mutex
		var wg sync.WaitGroup
		enough := make(chan struct{})
		var once sync.Once
		for w := range writers {
			nc, err := b.Connect(nats.NoReconnect())
			if w%2 == 1 {
				nc, err = nats.Connect(b.URL(), nats.NoReconnect())
			}
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			wjs, err := jetstream.New(nc)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := wjs.Publish(t.Context(), "s.warm", []byte("warm")); err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				ids := publish(t, wjs, fmt.Sprintf("r%dw%d", round, w), func(n int) {
					if n == 20 {
						once.Do(func() { close(enough) })
					}
				})
				mu.Lock()
				defer mu.Unlock()
				acked = append(acked, ids...)
			})
		}
		<-enough
		if err := b.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if b.Server() != nil {
			t.Fatal("Server() of a killed broker is not nil")
		}
		if err := b.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		have := stored(t, js)
		for _, id := range acked {
			if !have[id] {
				t.Fatalf("round %d: %s was acknowledged and is lost", round, id)
			}
		}
	}
	if len(acked) < rounds*20 {
		t.Fatalf("only %d acknowledged: the test shows nothing", len(acked))
	}
}
