//go:build unix

// Package rig is what tests of programs share that end in the midst of their work: a
// [Process] that plays a part of such a program and tells of it, and what the test itself
// does at the bus around it.
package rig

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

// Limit bounds every wait. It only matters where a test fails: on a machine that is
// busy with other things a wait of seconds may take a minute.
const Limit = 3 * time.Minute

// Role is what a child does. It ends when ctx does, by SIGTERM.
type Role func(ctx context.Context, config []byte, p *Parent) error

// Main is the TestMain of a binary with these roles by name.
func Main(m *testing.M, roles map[string]Role) {
	all := map[string]child.Role{}
	for name, play := range roles {
		all[name] = func(ctx context.Context, config []byte, p *child.Parent) error { return play(ctx, config, &Parent{p}) }
	}
	child.Main(broker.Roles(all))
	flag.Parse()
	if err := flag.Set("test.parallel", "20"); err != nil { // most of the time they wait
		panic(err)
	}
	os.Exit(m.Run())
}

// Report is what a child tells its parent.
type Report struct {
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

// Parent is the other end of a child.
type Parent struct{ *child.Parent }

// Tell reports what happened just now.
func (p *Parent) Tell(r Report) {
	r.At = time.Now()
	p.Parent.Tell(r)
}

// Process is a child that plays a role.
type Process struct{ *child.Process[Report] }

// Spawn starts a child, which is killed at the end of the test if it still lives.
func Spawn(t *testing.T, role string, config any) *Process {
	t.Helper()
	p, err := child.Start[Report](role, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if said := p.Stderr(); t.Failed() && said != "" {
			t.Logf("%s said:\n%s", p, said)
		}
	})
	return &Process{p}
}

// Said returns the reports of a kind so far.
func (p *Process) Said(what string) (out []Report) {
	all, _ := p.Reports()
	for _, r := range all {
		if r.What == what {
			out = append(out, r)
		}
	}
	return out
}

// Await waits for a report of a kind that matches.
func (p *Process) Await(t *testing.T, what string, match func(Report) bool) Report {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), Limit, fmt.Errorf("not within %v", Limit))
	defer cancel()
	r, err := p.Process.Await(ctx, func(r Report) bool { return r.What == what && match(r) })
	if err != nil {
		t.Fatalf("waited for %q: %v", what, err)
	}
	return r
}

// First waits for the first report of a kind.
func (p *Process) First(t *testing.T, what string) Report {
	t.Helper()
	return p.Await(t, what, func(Report) bool { return true })
}

// Of waits for a report of a kind about an event.
func (p *Process) Of(t *testing.T, what, id string) Report {
	t.Helper()
	return p.Await(t, what, func(r Report) bool { return r.ID == id })
}

// Order tells the child something.
func (p *Process) Order(t *testing.T, text string) {
	t.Helper()
	Must(t, p.Process.Order(text))
}

// Freeze stops the child as SIGSTOP does.
func (p *Process) Freeze(t *testing.T) {
	t.Helper()
	Must(t, p.Process.Freeze())
}

// Thaw lets it go on.
func (p *Process) Thaw(t *testing.T) {
	t.Helper()
	Must(t, p.Process.Thaw())
}

// Terminate asks the child to end in order.
func (p *Process) Terminate(t *testing.T) {
	t.Helper()
	Must(t, p.Process.Terminate())
}

// Gone waits for the end of a child that ends in order.
func (p *Process) Gone(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Limit)
	defer cancel()
	if err := p.Wait(ctx); err != nil {
		t.Error(err)
	}
}

// Must ends the test if there is an error.
func Must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Text is that of an error; none is empty.
func Text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
