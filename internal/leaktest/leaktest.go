// Package leaktest looks for goroutines that tests leave behind, as package goleak does, and
// gives those time that end a while after what they belong to: a connection that is closed,
// or a server that is shut down, does not wait for all of its own, and on a machine that is
// busy one of them may stand still for seconds.
package leaktest

import (
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is for how long a goroutine may go on: it matters only where one stays.
const patience = 30 * time.Second

// Main is the TestMain of a package whose tests leave nothing behind. It does not return.
func Main(m *testing.M, o ...goleak.Option) { os.Exit(run(m, os.Stderr, looker(o))) }

// run runs tests and returns the exit code.
func run(m goleak.TestingM, out io.Writer, look func() error) int {
	code := m.Run()
	if code != 0 {
		return code
	}
	if err := last(look, patience); err != nil {
		fmt.Fprintf(out, "the tests passed and left something behind: %v\n", err)
		return 1
	}
	return 0
}

// None fails a test that leaves something behind. Nothing else may run beside it.
func None(t testing.TB, o ...goleak.Option) {
	t.Helper()
	if err := last(looker(o), patience); err != nil {
		t.Error(err)
	}
}

func looker(o []goleak.Option) func() error { return func() error { return goleak.Find(o...) } }

// last looks until there is nothing to find or the time is over, at least once, and returns
// what was found last.
func last(look func() error, within time.Duration) error {
	until := time.Now().Add(within)
	for {
		if err := look(); err == nil || !time.Now().Before(until) { // a look that finds something waits for it
			return err
		}
	}
}
