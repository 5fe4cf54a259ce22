package main

import (
	"bytes"
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/internal/leaktest"
)

// A server that stops leaves a goroutine to wait for what a snapshot asked its topic, for up to 30 seconds.
var waitsForSource = goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server.(*stream).trySetupSourceConsumer.func3")

func TestMain(m *testing.M) {
	askTimeout = patience // what a command said last is looked at
	leaktest.Main(m, waitsForSource)
}

// patience is how long what is to happen may take: it matters only where that does not.
const patience = time.Minute

// result is what a command did.
type result struct {
	code        int
	out, errOut string
}

// command runs a command line in this process.
func command(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	return commandEnv(t, nil, stdin, args...)
}

func commandEnv(t *testing.T, env map[string]string, stdin string, args ...string) result {
	t.Helper()
	var out, errOut bytes.Buffer
	code := run(t.Context(), args, strings.NewReader(stdin), &out, &errOut, func(name string) string { return env[name] })
	return result{code, out.String(), errOut.String()}
}

// ok runs a command that must succeed and returns its output.
func (b *bench) ok(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	r := b.run(t, stdin, args...)
	if r.code != 0 {
		t.Fatalf("jetbus %s: exit code %d: %s", strings.Join(args, " "), r.code, r.errOut)
	}
	return r.out
}

// bench is a broker and commands on it.
type bench struct{ url string }

func (b *bench) run(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	return command(t, stdin, append([]string{"--server", b.url}, args...)...)
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b, err := embedded.Start(t.Context(), embedded.Config{Listen: "127.0.0.1:0", Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return &bench{b.URL()}
}

// request asks the broker of the bench for something that no command does.
func (b *bench) request(t *testing.T, subject, body string) {
	t.Helper()
	nc, err := nats.Connect(b.url, nats.Timeout(patience))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := nc.Request(subject, []byte(body), patience); err != nil {
		t.Fatal(err)
	}
}

// bus opens a bus on the bench until the test's end.
func (b *bench) bus(t *testing.T) *adapter.Bus {
	t.Helper()
	nc, err := nats.Connect(b.url, nats.Timeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	bus, err := adapter.Open(t.Context(), nc, adapter.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := bus.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return bus
}

// running is a command that runs beside the test.
type running struct {
	out  *buffer
	err  *buffer
	stop context.CancelFunc
	done chan struct{}
	code int
}

func begin(t *testing.T, env map[string]string, args ...string) *running {
	t.Helper()
	return beginReading(t, strings.NewReader(""), env, args...)
}

// beginReading is begin with a standard input.
func beginReading(t *testing.T, stdin io.Reader, env map[string]string, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{out: newBuffer(), err: newBuffer(), stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.code = run(ctx, args, stdin, r.out, r.err, func(name string) string { return env[name] })
	}()
	t.Cleanup(func() { r.end() })
	return r
}

// end interrupts the command and returns its exit code.
func (r *running) end() int {
	r.stop()
	<-r.done
	return r.code
}

// complaints are the lines of the command's errors but for those that a machine without time
// brings about: something did not answer at once, and is asked again.
func (r *running) complaints() string {
	var said strings.Builder
	for line := range strings.Lines(r.err.String()) {
		if !strings.Contains(line, "heartbeats not published") && !strings.Contains(line, "does not answer yet") {
			said.WriteString(line)
		}
	}
	return said.String()
}

// buffer collects output and lets a test wait for some.
type buffer struct {
	mu      sync.Mutex
	text    bytes.Buffer
	changed chan struct{}
}

func newBuffer() *buffer { return &buffer{changed: make(chan struct{})} }

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.changed)
	b.changed = make(chan struct{})
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// wait returns the output once it contains some text.
func (r *running) wait(t *testing.T, text string) string {
	t.Helper()
	return r.waitTimes(t, text, 1)
}

// waitTimes returns the output once it contains some text so many times.
func (r *running) waitTimes(t *testing.T, text string, times int) string {
	t.Helper()
	return r.waitIn(t, r.out, text, times)
}

// waitIn is waitTimes for either output.
func (r *running) waitIn(t *testing.T, b *buffer, text string, times int) string {
	t.Helper()
	for {
		b.mu.Lock()
		have, changed := b.text.String(), b.changed
		b.mu.Unlock()
		if strings.Count(have, text) >= times {
			return have
		}
		select {
		case <-changed:
		case <-r.done:
			t.Fatalf("ended with code %d without %q; output:\n%s\nerrors:\n%s", r.code, text, r.out, r.err)
		case <-t.Context().Done():
			t.Fatalf("no %q in:\n%s", text, have)
		}
	}
}
