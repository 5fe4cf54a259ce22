package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

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
	onKeptPorts(t, killPublishers)
}

func killPublishers(t *testing.T) error {
	t.Helper()
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
				nc, err = nats.Connect(b.URL(), nats.Timeout(patience), nats.NoReconnect())
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
			return err
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
	return nil
}

// A Kill that could not put the copy in the place of the store leaves that to Restart: what is
// stored from then on is not taken away by the next Start.
func TestRestartCompletesTheSwap(t *testing.T) {
	dir := t.TempDir()
	b := start(t, embedded.Config{Dir: dir})
	js := connect(t, b)
	stream(t, js, 1)
	put := func(id string) {
		t.Helper()
		if _, err := js.Publish(t.Context(), "s."+id, []byte(id)); err != nil {
			t.Fatal(err)
		}
	}
	put("before")
	if err := b.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	killed := filepath.Join(dir, "jetstream.killed")
	if err := os.Rename(filepath.Join(dir, "jetstream"), killed); err != nil {
		t.Fatal(err)
	}
	if err := b.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := waitMsgs(t, js); n != 1 {
		t.Fatalf("%d events are stored, want the one from before", n)
	}
	put("behind")
	if err := b.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(killed); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the copy is there still: %v", err)
	}
	if have := stored(t, connect(t, start(t, embedded.Config{Dir: dir}))); !have["before"] || !have["behind"] {
		t.Errorf("stored are %v", have)
	}
}

func TestKillWritesNothing(t *testing.T) {
	b := start(t, embedded.Config{})
	js := connect(t, b)
	s := stream(t, js, 1)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "M", Storage: jetstream.MemoryStorage}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "d"}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "s.a", nil); err != nil {
		t.Fatal(err)
	}
	// The server writes the index of a stream when it shuts down.
	index := filepath.Join(b.Dir(), "jetstream", "$G", "streams", "S", "msgs", "index.db")
	if err := b.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(index); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the index after Kill: %v, want none", err)
	}
	entries, err := os.ReadDir(b.Dir())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "jetstream" && e.Name() != "jetbus.lock" {
			t.Errorf("Kill left %s behind", e.Name())
		}
	}
	if err := b.Kill(t.Context()); err != nil {
		t.Errorf("second Kill: %v", err)
	}
	if _, err := b.Connect(); !errors.Is(err, embedded.ErrNotRunning) {
		t.Errorf("Connect after Kill: %v, want ErrNotRunning", err)
	}
	for range 2 { // after the kill, and after a clean stop
		if err := b.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := waitMsgs(t, js); n != 1 {
			t.Errorf("%d messages, want 1", n)
		}
		if _, err := js.Consumer(t.Context(), "S", "d"); err != nil {
			t.Errorf("the durable consumer: %v", err)
		}
		if _, err := js.Stream(t.Context(), "M"); !errors.Is(err, jetstream.ErrStreamNotFound) {
			t.Errorf("the memory stream: %v, want none", err)
		}
	}
	if _, err := os.Stat(index); err != nil {
		t.Errorf("the index after a clean stop: %v", err)
	}
}

// TestKillAndImpatientClients lets clients knock all the time while the store is
// copied. None may be answered with a refusal, which would end it for good.
func TestKillAndImpatientClients(t *testing.T) {
	onKeptPorts(t, killAmongImpatientClients)
}

func killAmongImpatientClients(t *testing.T) error {
	t.Helper()
	b := start(t, embedded.Config{Listen: "127.0.0.1:0", WebSocket: "127.0.0.1:0", Token: "t"})
	js := connect(t, b)
	stream(t, js, 1)
	for range 32 { // some work for the copy
		if _, err := js.Publish(t.Context(), "s.a", make([]byte, 1<<19)); err != nil {
			t.Fatal(err)
		}
	}
	var clients []*nats.Conn
	for i := range 6 {
		nc, err := nats.Connect([]string{b.URL(), b.WebSocketURL()}[i%2], nats.Token("t"), nats.Timeout(patience), nats.MaxReconnects(-1),
			nats.ReconnectWait(time.Microsecond), nats.ReconnectJitter(0, 0))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		clients = append(clients, nc)
	}
	for range 3 {
		if err := b.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := b.Restart(t.Context()); err != nil {
			return err
		}
		for _, nc := range clients {
			comesBack(t, nc)
		}
	}
	if n := waitMsgs(t, js); n != 32 {
		t.Errorf("%d messages, want 32", n)
	}
	return nil
}

func TestKillThatFails(t *testing.T) {
	b := start(t, embedded.Config{Listen: "127.0.0.1:0"})
	js := connect(t, b)
	stream(t, js, 1)
	first := b.Server()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Kill(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Kill: %v, want context.Canceled", err)
	}
	odd := filepath.Join(b.Dir(), "jetstream", "odd")
	if err := os.Symlink("nowhere", odd); err != nil {
		t.Fatal(err)
	}
	if err := b.Kill(t.Context()); err == nil || !strings.Contains(err.Error(), "odd is neither a file nor a folder") {
		t.Errorf("Kill: %v, want the odd file", err)
	}
	if b.Server() != first || !first.Running() {
		t.Error("the broker does not run as before")
	}
	if _, err := os.Stat(filepath.Join(b.Dir(), "jetstream.copy")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the copy: %v, want none", err)
	}
	waitMsgs(t, js) // until the client is back
	if _, err := js.Publish(t.Context(), "s.a", nil); err != nil {
		t.Error(err)
	}
	roundTrip(t, b.URL())
	if err := os.Remove(odd); err != nil {
		t.Fatal(err)
	}
	if err := b.Kill(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestConcurrentOperations only proves that they end in a defined state.
func TestConcurrentOperations(t *testing.T) {
	onKeptPorts(t, operateConcurrently)
}

func operateConcurrently(t *testing.T) error {
	t.Helper()
	b := start(t, embedded.Config{Listen: "127.0.0.1:0"})
	var wg sync.WaitGroup
	var failures [3]error
	for i := range failures {
		wg.Go(func() {
			for range 3 {
				failures[i] = errors.Join(failures[i], b.Kill(t.Context()), b.Restart(t.Context()))
			}
		})
		wg.Go(func() {
			for range 20 {
				_, _, _ = b.Server(), b.URL(), b.Dir()
				if nc, err := b.Connect(); err == nil {
					nc.Close()
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(failures[:]...); err != nil {
		return err
	}
	if err := b.Restart(t.Context()); err != nil {
		return err
	}
	connect(t, b)
	return nil
}
