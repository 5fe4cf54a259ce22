package embedded_test

import (
	"context"
	"errors"
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

// start starts a broker that the test's end stops.
func start(t *testing.T, cfg embedded.Config) *embedded.Broker {
	t.Helper()
	b, err := embedded.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return b
}

// onKeptPorts runs a test whose broker is down for a moment, and wants its ports back: anew,
// with a broker of its own, where another program on this machine took one meanwhile. The
// test returns the error of Restart.
func onKeptPorts(t *testing.T, test func(t *testing.T) error) {
	t.Helper()
	err := test(t)
	for tries := 1; err != nil && strings.Contains(err.Error(), "address already in use") && tries < 3; tries++ {
		t.Logf("once more: %v", err)
		err = test(t)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// connect connects to b until the test's end.
func connect(t *testing.T, b *embedded.Broker, o ...nats.Option) jetstream.JetStream {
	t.Helper()
	nc, err := b.Connect(o...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// comesBack waits until the client has an answer from the broker. A flush is over with an
// error when the connection that it was written to ends, which the client may not know yet.
func comesBack(t *testing.T, nc *nats.Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		err := nc.FlushWithContext(ctx)
		switch {
		case err == nil:
			return
		case ctx.Err() != nil || nc.IsClosed():
			t.Fatalf("the client did not come back: %v; its last error: %v", err, nc.LastError())
		}
	}
}

// stream creates the file stream S of the subjects s.>.
func stream(t *testing.T, js jetstream.JetStream, replicas int) jetstream.Stream {
	t.Helper()
	s, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "S", Subjects: []string{"s.>"}, Storage: jetstream.FileStorage, Replicas: replicas,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// waitMsgs waits until the stream S can be asked again and returns its message count.
func waitMsgs(t *testing.T, js jetstream.JetStream) uint64 {
	t.Helper()
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		s, err := js.Stream(ctx, "S")
		cancel()
		if err == nil {
			return s.CachedInfo().State.Msgs
		}
		if t.Context().Err() != nil || errors.Is(err, jetstream.ErrStreamNotFound) {
			t.Fatal(err)
		}
	}
}

func TestStoreSurvivesRestartAndStop(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "by", "Start")
	b := start(t, embedded.Config{Dir: dir})
	if b.Dir() != dir {
		t.Errorf("Dir() = %q, want %q", b.Dir(), dir)
	}
	js := connect(t, b)
	stream(t, js, 1)
	if _, err := js.Publish(t.Context(), "s.a", []byte("one")); err != nil {
		t.Fatal(err)
	}
	first := b.Server()
	if err := b.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b.Server() == first || !b.Server().Running() || first.Running() {
		t.Error("Restart did not replace the server")
	}
	if n := waitMsgs(t, js); n != 1 {
		t.Errorf("after Restart: %d messages, want 1", n)
	}
	if err := b.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := waitMsgs(t, connect(t, start(t, embedded.Config{Dir: dir}))); n != 1 {
		t.Errorf("in a new Broker: %d messages, want 1", n)
	}
}

func TestTemporaryFolder(t *testing.T) {
	b := start(t, embedded.Config{})
	stream(t, connect(t, b), 1)
	if _, err := os.Stat(filepath.Join(b.Dir(), "jetstream")); err != nil {
		t.Fatal(err)
	}
	if err := b.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(b.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the temporary folder is still there: %v", err)
	}
}

func TestStopIsTotalAndIdempotent(t *testing.T) {
	for _, kill := range []bool{false, true} {
		b := start(t, embedded.Config{})
		if err := b.Err(); err != nil {
			t.Errorf("Err of a broker that works: %v", err)
		}
		if kill {
			if err := b.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := b.Err(); !errors.Is(err, embedded.ErrNotRunning) {
				t.Errorf("Err after Kill: %v, want ErrNotRunning", err)
			}
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if err := b.Stop(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if b.Server() != nil {
			t.Error("Server() of a stopped broker is not nil")
		}
		if err := b.Stop(t.Context()); err != nil {
			t.Errorf("second Stop: %v", err)
		}
		for op, err := range map[string]error{
			"Restart": b.Restart(t.Context()),
			"Kill":    b.Kill(t.Context()),
			"Connect": connectErr(b),
			"Err":     b.Err(),
		} {
			if !errors.Is(err, embedded.ErrStopped) {
				t.Errorf("%s after Stop: %v, want ErrStopped", op, err)
			}
		}
	}
}

func connectErr(b *embedded.Broker) error {
	nc, err := b.Connect()
	if err == nil {
		nc.Close()
	}
	return err
}

func TestStopWithEndedContext(t *testing.T) {
	b := start(t, embedded.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Stop(ctx); err != nil {
		t.Errorf("Stop: %v", err)
	}
	if _, err := os.Stat(b.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("not stopped: %v", err)
	}
}

func TestStartWithEndedContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := filepath.Join(t.TempDir(), "store")
	if _, err := embedded.Start(ctx, embedded.Config{Dir: dir}); !errors.Is(err, context.Canceled) {
		t.Errorf("Start: %v, want context.Canceled", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a refused Start left its folder: %v", err)
	}
	b := start(t, embedded.Config{})
	if err := b.Restart(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Restart: %v, want context.Canceled", err)
	}
	if b.Server() == nil {
		t.Error("a refused Restart took the broker down")
	}
}

func TestFolderInUse(t *testing.T) {
	cfg := embedded.Config{Dir: t.TempDir()}
	b := start(t, cfg)
	_, err := embedded.Start(t.Context(), cfg)
	if !errors.Is(err, embedded.ErrInUse) || !strings.Contains(err.Error(), cfg.Dir) {
		t.Errorf("second Start: %v, want ErrInUse with the folder", err)
	}
	// It stays ours while the server is down.
	if err := b.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := embedded.Start(t.Context(), cfg); !errors.Is(err, embedded.ErrInUse) {
		t.Errorf("Start after Kill: %v, want ErrInUse", err)
	}
	if err := b.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	start(t, cfg)
}
