//go:build unix

package jobs

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/e2e/internal/broker"
	"github.com/seed-63e9a637/jetbus/e2e/internal/rig"
)

const poison = "poison"

// workerConfig is that of a member that handles many events at once.
type workerConfig struct {
	URL, Topic, Group        string
	Concurrency, MaxAttempts int
	// Fixed: the event with the id poison is handled like any other. Else it kills
	// the process that handles it.
	Fixed bool
}

// ackTimeout is short for those whose leases are waited for, and else so long that none
// ends whatever stands still.
func (c workerConfig) ackTimeout() time.Duration {
	if c.Fixed {
		return 30 * time.Second
	}
	return 3 * time.Second
}

// runWorker tells of each event that it has handled.
func runWorker(ctx context.Context, config []byte, p *rig.Parent) error {
	var c workerConfig
	if err := json.Unmarshal(config, &c); err != nil {
		return err
	}
	return rig.OnBus(ctx, c.URL, adapter.Config{}, func(_ *nats.Conn, bus *adapter.Bus) error { return c.run(ctx, bus, p) })
}

func (c workerConfig) run(ctx context.Context, bus *adapter.Bus, p *rig.Parent) error {
	_, err := bus.Subscribe(context.WithoutCancel(ctx), c.Topic, c.Group, func(ctx context.Context, d *jetbus.Delivery) error {
		if d.ID == poison && !c.Fixed {
			p.Tell(rig.Report{What: "swallowed", ID: d.ID, Attempt: d.Attempt})
			if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
				return err
			}
			select {} // the process is as good as dead
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		p.Tell(rig.Report{What: "handled", ID: d.ID, Seq: d.ReplayOf, Attempt: d.Attempt})
		return nil
	}, jetbus.SubscribeOptions{From: jetbus.Earliest(), AckTimeout: c.ackTimeout(), Concurrency: c.Concurrency, MaxAttempts: c.MaxAttempts})
	if err != nil {
		return err
	}
	p.Tell(rig.Report{What: "ready"})
	<-ctx.Done()
	return nil
}

// An event that kills every process that handles it, among others that run at
// the same time, ends as a dead letter, and its neighbors do not. After a fix it
// is replayed to the group that failed, and to no other.
func TestPoison(t *testing.T) {
	t.Parallel()
	b := broker.Start(t)
	bus := rig.OpenBus(t, b.URL())
	rig.Declare(t, bus, jetbus.TopicConfig{Name: "poison"})
	ids := rig.Publish(t, bus, "poison", "before", 60)
	if _, err := bus.Publish(t.Context(), jetbus.Event{ID: poison, Topic: "poison", Payload: []byte(`{"deadly":true}`)}); err != nil {
		t.Fatal(err)
	}
	ids = append(ids, rig.Publish(t, bus, "poison", "after", 60)...)
	healthy := rig.Spawn(t, "worker", workerConfig{URL: b.URL(), Topic: "poison", Group: "healthy", Concurrency: 8, MaxAttempts: 3, Fixed: true})
	healthy.Of(t, "handled", poison)

	sick := workerConfig{URL: b.URL(), Topic: "poison", Group: "sick", Concurrency: 8, MaxAttempts: 3}
	workers, deaths := []*rig.Process{rig.Spawn(t, "worker", sick)}, 0
	for done := false; !done; {
		select {
		case <-workers[len(workers)-1].Ended():
			if deaths++; deaths > 20 {
				t.Fatal("it goes on for ever")
			}
			workers = append(workers, rig.Spawn(t, "worker", sick))
		case <-time.After(50 * time.Millisecond):
			g, err := rig.Group(t, bus, "poison", "sick")
			done = err == nil && g.Pending == 0 && g.Held == 0
		}
	}
	if deaths < 3 || deaths > 5 { // the first is not recorded, and one may be counted while another suspect runs
		t.Errorf("the event killed %d processes, MaxAttempts is 3", deaths)
	}
	rig.AwaitHandled(t, ids, workers...) // all are settled; what the last worker said of them may still be on its way
	dead := rig.DeadLetters(t, bus, "poison")
	if len(dead) != 1 || dead[0].Event.ID != poison || dead[0].Reason != jetbus.DeadCrashLoop || dead[0].Group != "sick" ||
		string(dead[0].Event.Payload) != `{"deadly":true}` || dead[0].Attempts != 3 {
		t.Fatalf("dead letters %+v", dead)
	}

	last := workers[len(workers)-1]
	last.Terminate(t)
	last.Gone(t)
	sick.Fixed = true
	cured := rig.Spawn(t, "worker", sick)
	cured.First(t, "ready")
	command := buildJetbus(t)
	replay := func() { fmt.Fprint(t.Output(), command(t, "dlq", "replay", "poison", "--yes", "--server", b.URL())) }
	replay()
	if r := cured.Of(t, "handled", poison); r.Seq != dead[0].Seq {
		t.Errorf("handled as a replay of %d, the dead letter is %d", r.Seq, dead[0].Seq)
	}
	replay() // a second time changes nothing
	marker := rig.Publish(t, bus, "poison", "marker", 1)[0]
	for name, w := range map[string]*rig.Process{"the group that failed": cured, "the other group": healthy} {
		w.Of(t, "handled", marker)
		reports := w.Said("handled")
		runs := slices.DeleteFunc(reports, func(r rig.Report) bool { return r.ID != poison })
		if len(runs) != 1 {
			t.Errorf("%s handled the event %d times: %+v", name, len(runs), runs)
		}
	}
	if reports := cured.Said("handled"); len(reports) != 2 {
		t.Errorf("after the fix the group handled %+v, want the replay and the marker", reports)
	}
}

// buildJetbus builds the command and returns what runs it.
func buildJetbus(t *testing.T) func(t *testing.T, args ...string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "jetbus")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "./cmd/jetbus")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build jetbus: %v\n%s", err, out)
	}
	return func(t *testing.T, args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), bin, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("jetbus %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
}
