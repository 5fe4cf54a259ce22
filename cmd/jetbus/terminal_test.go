package main

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Who waits is told what for, but not of what was there within a second.
func TestLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b strings.Builder
		over := later(&b, "connecting to a")
		time.Sleep(999 * time.Millisecond)
		over()
		time.Sleep(time.Minute)
		over = later(&b, "connecting to b\x1b")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		over()
		if want := `connecting to b\x1b` + "\n"; b.String() != want {
			t.Errorf("%q, want %q", b.String(), want)
		}
	})
	var b strings.Builder
	sayLater(&b, "connecting to c")()
	if b.Len() > 0 {
		t.Errorf("without a terminal it says %q", b.String())
	}
}
