//go:build unix

package partitions

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/e2e/internal/broker"
	"github.com/seed-63e9a637/jetbus/e2e/internal/child"
)

// limit bounds every wait. It only matters where a test fails: on a machine that is
// busy with other things a wait of seconds may take a minute.
const limit = 3 * time.Minute

func TestMain(m *testing.M) { broker.Main(m, map[string]child.Role{"member": runMember}) }

// What a member tells of.
const (
	isReady    = "ready"
	isAssigned = "assigned" // a partition: a turn begins
	isRevoked  = "revoked"  // and ends
	isStarted  = "started"  // a handler
	isHandled  = "handled"  // it succeeds; told before the event is acknowledged
	isCanceled = "canceled" // it gives up
	isStalled  = "stalled"  // the process did not run for a while
)

// report is what a member tells its parent.
type report struct {
	What      string
	At        time.Time        // by the clock of the machine, which all processes share
	Partition jetbus.Partition `json:",omitzero"`
	Epoch     uint64           `json:",omitempty"` // of the turn
	Key, ID   string           `json:",omitempty"` // of the event
	Clean     bool             `json:",omitempty"` // the turn was handed over
	For       time.Duration    `json:",omitempty"` // how long it did not run, until At
	Err       string           `json:",omitempty"`
}

// member is a child that is a member of the group.
type member struct {
	*child.Process[report]
	config memberConfig
	asked  bool      // to end in order, by chaos
	dead   time.Time // when it did its last deed at the latest, if it was killed
	frozen time.Time // since when; zero: it is not
}

// said returns the reports of a kind so far.
func (m *member) said(what string) (out []report) {
	all, _ := m.Reports()
	for _, r := range all {
		if r.What == what {
			out = append(out, r)
		}
	}
	return out
}

// has reports whether it told of an event.
func (m *member) has(what, id string) bool {
	return slices.ContainsFunc(m.said(what), func(r report) bool { return r.ID == id })
}

// await waits for a report of a kind that matches.
func (m *member) await(t *testing.T, what string, match func(report) bool) report {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), limit, fmt.Errorf("not within %v", limit))
	defer cancel()
	r, err := m.Await(ctx, func(r report) bool { return r.What == what && match(r) })
	if err != nil {
		t.Fatalf("waited for %q: %v", what, err)
	}
	return r
}

// kill ends it by SIGKILL.
func (m *member) kill() {
	if m.dead = time.Now(); !m.frozen.IsZero() {
		m.dead = m.frozen
	}
	m.Kill()
}

func (m *member) freeze() error {
	m.frozen = time.Now()
	return m.Freeze()
}

func (m *member) thaw() error {
	m.frozen = time.Time{}
	return m.Thaw()
}

// stop ends it in order, and waits for that.
func (m *member) stop(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if err := m.End(ctx); err != nil {
		t.Error(err)
	}
}

// tooEarly reports whether the signal that asked it to end came before it could take it.
func (m *member) tooEarly() bool {
	exit, ok := errors.AsType[*exec.ExitError](m.Err())
	if !ok {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGTERM
}

// lives reports whether the process has not ended.
func (m *member) lives() bool {
	select {
	case <-m.Ended():
		return false
	default:
		return true
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func launch(c memberConfig) (*member, error) {
	p, err := child.Start[report]("member", c)
	if err != nil {
		return nil, err
	}
	return &member{Process: p, config: c}, nil
}
