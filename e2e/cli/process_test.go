//go:build unix

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// patience bounds what only a broken program lets wait for so long.
const patience = 2 * time.Minute

// program is the command, built for all tests.
var program string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "jetbus-cli-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "jetbus")
	build := exec.CommandContext(context.Background(), "go", "build", "-race", "-o", program, "./cmd/jetbus")
	build.Dir = filepath.Join("..", "..") // it is of the other module
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// ok runs a command that must succeed and returns its output.
func ok(t *testing.T, args ...string) string {
	t.Helper()
	p := start(t, args...)
	<-p.ended
	if p.err != nil || p.stderr.String() != "" {
		t.Fatalf("jetbus %s: %v: %s", strings.Join(args, " "), p.err, p.stderr.String())
	}
	return p.stdout.String()
}

// process is a command that runs, and is killed with the test if it still does.
type process struct {
	cmd            *exec.Cmd
	stdout, stderr buffer
	ended          chan struct{}
	err            error // of its end
}

func start(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.CommandContext(t.Context(), program, args...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		p.err = p.cmd.Wait()
	}()
	t.Cleanup(p.kill)
	return p
}

// kill ends the process by SIGKILL and returns when it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // may be gone already
	<-p.ended
}

// interrupt ends the process in order.
func (p *process) interrupt(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	<-p.ended
	if p.err != nil || p.stderr.String() != "" {
		t.Fatalf("interrupted, it ended with %v: %s", p.err, p.stderr.String())
	}
}

// buffer collects output while somebody looks at it.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// wait returns the output once it contains some text so many times.
func (p *process) wait(t *testing.T, text string, times int) string {
	t.Helper()
	var out string
	eventually(t, func() string {
		if out = p.stdout.String(); strings.Count(out, text) >= times {
			return ""
		}
		select {
		case <-p.ended:
			t.Fatalf("ended with %v without %q; output:\n%s\nerrors:\n%s", p.err, text, out, p.stderr.String())
		default:
		}
		return fmt.Sprintf("no %q in:\n%s", text, out)
	})
	return out
}

// eventually waits until ok, which says what is missing, has nothing to say.
func eventually(t *testing.T, ok func() (missing string)) {
	t.Helper()
	within(t, patience, ok)
}

// within is eventually for what may take another time.
func within(t *testing.T, limit time.Duration, ok func() (missing string)) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(limit); ; <-tick.C {
		missing := ok()
		if missing == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(missing)
		}
	}
}

// records reads the events of a topic.
func records(t *testing.T, url, topic string) []jetbus.Event {
	t.Helper()
	var events []jetbus.Event
	for line := range strings.Lines(ok(t, "sub", topic, "--server", url, "--no-follow", "-o", "json")) {
		var e jetbus.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		events = append(events, e)
	}
	return events
}
