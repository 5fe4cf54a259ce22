//go:build unix

package faults

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus/e2e/internal/broker"
	"github.com/seed-63e9a637/jetbus/e2e/internal/child"
)

// limit bounds every wait. It only matters where a test fails: on a machine that is
// busy with other things a wait of seconds may take a minute.
const limit = 3 * time.Minute

// role is what a child does. It ends when ctx does, by SIGTERM.
type role func(ctx context.Context, config []byte, p *parent) error

var roles = map[string]role{
	"consumer":  runConsumer,
	"mover":     runMover,
	"chaotic":   runChaotic,
	"worker":    runWorker,
	"projector": runProjector,
	"rebuild":   runRebuild,
}

func TestMain(m *testing.M) {
	all := map[string]child.Role{}
	for name, play := range roles {
		all[name] = func(ctx context.Context, config []byte, p *child.Parent) error { return play(ctx, config, &parent{p}) }
	}
	child.Main(broker.Roles(all))
	flag.Parse()
	if err := flag.Set("test.parallel", "20"); err != nil { // most of the time they wait
		panic(err)
	}
	os.Exit(m.Run())
}

// report is what a child tells its parent.
type report struct {
	What        string    // what happened
	ID          string    `json:",omitempty"` // of the event
	Seq         uint64    `json:",omitempty"`
	Attempt     int       `json:",omitempty"`
	Redelivered bool      `json:",omitempty"`
	Count       int       `json:",omitempty"`
	Until       time.Time `json:",omitzero"` // the lease's deadline
	At          time.Time // by the clock of the machine, which all processes share
	Err         string    `json:",omitempty"`
	Is          string    `json:",omitempty"` // the condition behind Err, as the role names it
}

// parent is the other end of a child.
type parent struct{ *child.Parent }

func (p *parent) tell(r report) {
	r.At = time.Now()
	p.Tell(r)
}

// process is a child that plays a role.
type process struct{ *child.Process[report] }

// spawn starts a child, which is killed at the end of the test if it still lives.
func spawn(t *testing.T, role string, config any) *process {
	t.Helper()
	p, err := child.Start[report](role, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if said := p.Stderr(); t.Failed() && said != "" {
			t.Logf("%s said:\n%s", p, said)
		}
	})
	return &process{p}
}

// said returns the reports of a kind so far.
func (p *process) said(what string) (out []report) {
	all, _ := p.Reports()
	for _, r := range all {
		if r.What == what {
			out = append(out, r)
		}
	}
	return out
}

// await waits for a report of a kind that matches.
func (p *process) await(t *testing.T, what string, match func(report) bool) report {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), limit, fmt.Errorf("not within %v", limit))
	defer cancel()
	r, err := p.Await(ctx, func(r report) bool { return r.What == what && match(r) })
	if err != nil {
		t.Fatalf("waited for %q: %v", what, err)
	}
	return r
}

// first waits for the first report of a kind.
func (p *process) first(t *testing.T, what string) report {
	t.Helper()
	return p.await(t, what, func(report) bool { return true })
}

// of waits for a report of a kind about an event.
func (p *process) of(t *testing.T, what, id string) report {
	t.Helper()
	return p.await(t, what, func(r report) bool { return r.ID == id })
}

// order tells the child something.
func (p *process) order(t *testing.T, text string) {
	t.Helper()
	must(t, p.Order(text))
}

func (p *process) freeze(t *testing.T) {
	t.Helper()
	must(t, p.Freeze())
}

func (p *process) thaw(t *testing.T) {
	t.Helper()
	must(t, p.Thaw())
}

// terminate asks the child to end in order.
func (p *process) terminate(t *testing.T) {
	t.Helper()
	must(t, p.Terminate())
}

// gone waits for the end of a child that ends in order.
func (p *process) gone(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if err := p.Wait(ctx); err != nil {
		t.Error(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
