//go:build unix

package child_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus/e2e/internal/child"
)

// limit bounds every wait. It only matters where a test fails.
const limit = 3 * time.Minute

func TestMain(m *testing.M) {
	child.Main(map[string]child.Role{"echo": echo})
	os.Exit(m.Run())
}

// echo says its configuration, and then what it is ordered, until it is ordered to fail.
func echo(ctx context.Context, config []byte, p *child.Parent) error {
	p.Tell(string(config))
	for {
		select {
		case o := <-p.Orders():
			if o == "fail" {
				return errors.New("as ordered")
			}
			p.Tell(o)
		case <-ctx.Done():
			p.Tell("terminated")
			return nil
		}
	}
}

func start(t *testing.T, role string) *child.Process[string] {
	t.Helper()
	p, err := child.Start[string](role, 7)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

func says(t *testing.T, p *child.Process[string], want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if _, err := p.Await(ctx, func(s string) bool { return s == want }); err != nil {
		t.Fatal(err)
	}
}

// The ends that a child may come to, and what is known then.
func TestEnds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for name, c := range map[string]struct {
		role string
		end  func(*child.Process[string]) error
		last string
		err  string // of the end
	}{
		"in order": {"echo", func(p *child.Process[string]) error { return p.End(ctx) }, "terminated", ""},
		"killed":   {"echo", func(p *child.Process[string]) error { p.Kill(); return p.Wait(ctx) }, "7", "signal: killed"},
		"by an error": {"echo", func(p *child.Process[string]) error {
			return errors.Join(p.Order("fail"), p.Wait(ctx))
		}, "7", "as ordered"},
		"while frozen": {"echo", func(p *child.Process[string]) error {
			if err := p.Freeze(); err != nil {
				return err
			}
			p.Kill()
			return p.Err()
		}, "7", "signal: killed"},
		"without a role": {"none", func(p *child.Process[string]) error { return p.Wait(ctx) }, "", `no role is called "none"`},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, c.role)
			if c.last != "" {
				says(t, p, "7")
			}
			err := p.Err()
			if c.last != "" && err != nil {
				t.Errorf("while it lives: %v", err)
			}
			err = c.end(p)
			if c.err == "" && err != nil || c.err != "" && !strings.Contains(fmt.Sprint(err), c.err) {
				t.Errorf("got error %v, want %q", err, c.err)
			}
			if last := p.Last(); last != c.last {
				t.Errorf("last it said %q, want %q", last, c.last)
			}
			if _, err := p.Await(ctx, func(s string) bool { return s == "never" }); err == nil {
				t.Error("it said what it did not")
			}
		})
	}
}

// A frozen child does nothing until it is let go.
func TestFreeze(t *testing.T) {
	p := start(t, "echo")
	says(t, p, "7")
	if err := errors.Join(p.Freeze(), p.Order("while frozen")); err != nil {
		t.Fatal(err)
	}
	brief, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if said, err := p.Await(brief, func(s string) bool { return s != "7" }); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while frozen it says %q: %v", said, err)
	}
	if err := p.Thaw(); err != nil {
		t.Fatal(err)
	}
	says(t, p, "while frozen")
}
