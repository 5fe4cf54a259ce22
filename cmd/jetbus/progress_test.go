package main

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// Progress is shown now and then, and taken away at the end.
func TestProgressLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b strings.Builder
		p := &progressLine{out: &b}
		p.clear()
		for i := range 400 {
			p.show(func() string { return count(i) + " read" })
			time.Sleep(time.Millisecond)
		}
		p.clear()
		p.clear()
		want := "\r0 read\x1b[K\r100 read\x1b[K\r200 read\x1b[K\r300 read\x1b[K"
		if got := b.String(); got != want+"\r\x1b[K" {
			t.Errorf("%q, want %q", got, want)
		}
		nobody := newProgressLine(&b)
		nobody.show(func() string { t.Error("asked for what nobody sees"); return "" })
		nobody.clear()
	})
}

// Who waits for a long walk through dead letters sees how far it is.
func TestWatchedBusShows(t *testing.T) {
	t.Parallel()
	b := deadBench(t)
	var out strings.Builder
	watched := &watchedBus{Bus: b.bus(t), line: &progressLine{out: &out}}
	if _, err := jetbus.DeadLetterStats(t.Context(), watched, "orders"); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(out.String(), "\r1 looked at\x1b[K") || watched.read != 3 {
		t.Errorf("%d read, and %q", watched.read, out.String())
	}
	watched.line.shown, watched.read = time.Time{}, 0
	n, err := jetbus.PurgeDeadLetters(t.Context(), watched, jetbus.DeadLetterQuery{Topic: "orders"})
	if err != nil || n != 3 || watched.removed != 3 || watched.read != 3 {
		t.Errorf("%d removed, %v; shown %d of %d", n, err, watched.removed, watched.read)
	}
	watched.line.shown = time.Time{}
	watched.show()
	if !strings.HasSuffix(out.String(), "\r3 looked at, 3 removed\x1b[K") {
		t.Errorf("%q", out.String())
	}
}
