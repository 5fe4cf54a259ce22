package adapter

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/seed-63e9a637/jetbus"
)

// A ring is a slice, but for how it grows.
func TestRing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r ring
		var model []*lease
		for _, push := range rapid.SliceOf(rapid.Bool()).Draw(t, "pushes") {
			if push {
				l := &lease{}
				r.push(l)
				model = append(model, l)
			} else {
				var want *lease
				if len(model) > 0 {
					want, model = model[0], model[1:]
				}
				if got := r.pop(); got != want {
					t.Fatalf("popped %p, want %p", got, want)
				}
			}
			if r.len() != len(model) {
				t.Fatalf("length %d, want %d", r.len(), len(model))
			}
			held := 0
			for _, l := range r.slots {
				if l != nil {
					held++
				}
			}
			if held != len(model) {
				t.Fatalf("the ring keeps %d of %d", held, len(model))
			}
		}
	})
}

func TestRate(t *testing.T) {
	start := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	var r rate
	for i := range 100 { // 10 a second, for 10 seconds
		r.add(start.Add(time.Duration(i) * 100 * time.Millisecond))
	}
	for _, c := range []struct {
		at       time.Duration
		min, max int
	}{{9900 * time.Millisecond, 9, 11}, {10 * time.Second, 9, 10}, {10500 * time.Millisecond, 4, 6}, {11 * time.Second, 0, 1}, {time.Hour, 0, 0}} {
		if got := r.lastSecond(start.Add(c.at)); got < c.min || got > c.max {
			t.Errorf("at %v: %d, want %d to %d", c.at, got, c.min, c.max)
		}
	}
	var none rate
	if got := none.lastSecond(start); got != 0 {
		t.Errorf("without any: %d", got)
	}
}

func TestMoveMark(t *testing.T) {
	for _, m := range []moveMark{
		{seq: 1, until: time.UnixMilli(0)},
		{seq: 1<<64 - 1, until: time.UnixMilli(1_700_000_000_123)},
		{seq: 2, until: time.UnixMilli(1), pause: time.UnixMilli(1_700_000_000_456)},
	} {
		got, ok := readMoveMark(map[string]string{metaMark: m.String()})
		if !ok || got != m {
			t.Errorf("%v: %v, %t", m, got, ok)
		}
	}
	for _, text := range []string{"", "@", "1", "1@", "@1", "x@1", "1@x", "-1@1", "1@1@", "1@1@x", "1@1@1@1"} {
		if m, ok := readMoveMark(map[string]string{metaMark: text}); ok {
			t.Errorf("%q was taken for %v", text, m)
		}
	}
	if _, ok := readMoveMark(nil); ok {
		t.Error("a mark where there is none")
	}
}

func TestNakPayload(t *testing.T) {
	for delay, want := range map[time.Duration]string{
		-1: "-NAK", 0: "-NAK", 1: `-NAK {"delay":1}`, time.Minute: `-NAK {"delay":60000000000}`,
	} {
		if got := string(nakPayload(delay)); got != want {
			t.Errorf("%v: %s, want %s", delay, got, want)
		}
	}
	if string(nakNow) != "-NAK" {
		t.Errorf("the shared payload was written to: %s", nakNow)
	}
}

// Of the states of a lease, each has its error.
func TestLeaseCheck(t *testing.T) {
	soon, past := time.Now().Add(time.Hour), time.Now().Add(-time.Nanosecond)
	for _, c := range []struct {
		l    *lease
		want error
	}{
		{&lease{state: leaseOpen, deadline: soon}, nil},
		{&lease{state: leaseOpen, deadline: past}, jetbus.ErrLeaseExpired},
		{&lease{state: leaseLost, deadline: soon}, jetbus.ErrLeaseExpired},
		{&lease{state: leaseSettled, deadline: soon}, jetbus.ErrAlreadySettled},
		{&lease{state: leaseSettled, deadline: past}, jetbus.ErrAlreadySettled},
	} {
		if err := c.l.check(); !errors.Is(err, c.want) {
			t.Errorf("%d until %v: %v, want %v", c.l.state, c.l.deadline, err, c.want)
		}
	}
}

// An answer revives nothing that is over, and never shortens a lease.
func TestLeaseExtended(t *testing.T) {
	h := &leaseSet{ackTimeout: time.Minute}
	now := time.Now()
	l := &lease{h: h, deadline: now.Add(30 * time.Second)}
	if !l.extended(now) || !l.deadline.Equal(now.Add(54*time.Second)) || !l.asked.Equal(now) {
		t.Errorf("until %v, asked %v", l.deadline.Sub(now), l.asked)
	}
	if !l.extended(now.Add(-time.Minute)) || !l.deadline.Equal(now.Add(54*time.Second)) {
		t.Errorf("an old answer: until %v", l.deadline.Sub(now))
	}
	l.deadline = now.Add(-time.Second)
	if l.extended(now) || l.deadline.After(now) {
		t.Error("an answer after the deadline revived the lease")
	}
	l.deadline, l.state = now.Add(time.Minute), leaseSettled
	if l.extended(now) {
		t.Error("an answer revived a settled lease")
	}
}

func TestExtendable(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		maxLease time.Duration
		l        *lease
		want     bool
	}{
		{10 * time.Minute, &lease{}, true}, // waits for a handler
		{10 * time.Minute, &lease{started: now.Add(-9 * time.Minute)}, true},
		{10 * time.Minute, &lease{started: now.Add(-10 * time.Minute)}, false},
		{10 * time.Minute, &lease{started: now.Add(-time.Hour), keepUntil: now.Add(1)}, true},
		{-1, &lease{}, false},
		{-1, &lease{started: now}, false},
		{-1, &lease{keepUntil: now.Add(time.Second)}, true},
		{-1, &lease{keepUntil: now}, false},
	} {
		h := &leaseSet{maxLease: c.maxLease}
		if got := h.extendable(c.l, now); got != c.want {
			t.Errorf("MaxLease %v, started %v, kept until %v: %t", c.maxLease, c.l.started, c.l.keepUntil, got)
		}
	}
}

// Every key has an escaped form of its own that key-value tools take, and comes
// back from it.
func TestBucketKey(t *testing.T) {
	for key, want := range map[string]string{
		"a": "a", "a.b": "a.b", ".a": "=2Ea", "a.": "a=2E", "a..b": "a.=2Eb", ".": "=2E", "..": "=2E=2E", "=": "=3D", "=2E": "=3D2E",
		"a/b-c_D9": "a/b-c_D9", "a b": "a=20b", "*": "=2A", ">": "=3E", "\u00e4": "=C3=A4",
	} {
		if got := bucketKey(key); got != want {
			t.Errorf("%q: %s, want %s", key, got, want)
		}
	}
	seen := map[string]string{}
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.OneOf(rapid.StringN(1, -1, 60), rapid.StringMatching(`[.=/a2E]{1,8}`)).Draw(t, "key")
		escaped := bucketKey(key)
		if back, ok := parseBucketKey(escaped); !ok || back != key {
			t.Fatalf("%q became %s became %q", key, escaped, back)
		}
		if other, twice := seen[escaped]; twice && other != key {
			t.Fatalf("%q and %q are both %s", key, other, escaped)
		}
		seen[escaped] = key
		legal := func(r rune) bool { return keyRune(r) || r == '.' || r == '=' }
		if escaped[0] == '.' || strings.HasSuffix(escaped, ".") || strings.Contains(escaped, "..") || strings.ContainsFunc(escaped, func(r rune) bool { return !legal(r) }) {
			t.Fatalf("%q became %s", key, escaped)
		}
	})
	for _, bad := range []string{"=", "=2", "a=", "=ZZ", "=+1"} {
		if key, ok := parseBucketKey(bad); ok {
			t.Errorf("%s was taken for %q", bad, key)
		}
	}
}

// The ring of leases keeps the order and the count, whatever leaves it, and its index
// has what is in it and nothing else.
func TestHoldingRing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &leaseSet{keeping: true, ackTimeout: time.Minute} // no keeper
		h.init()
		name := func(l *lease, id string) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.noteEventLocked(l, &jetbus.Event{ID: id})
		}
		var model []*lease
		for _, add := range rapid.SliceOf(rapid.Bool()).Draw(t, "adds") {
			if add || len(model) == 0 {
				l := &lease{t: &topic{config: jetbus.TopicConfig{Name: "a"}}}
				h.add(l, time.Now())
				model = append(model, l)
				if id := rapid.SampledFrom([]string{"", "1", "2", "3"}).Draw(t, "id"); id != "" { // else it is not decoded yet
					name(l, id)
					name(l, id) // its next turn
				}
			} else {
				at := rapid.IntRange(0, len(model)-1).Draw(t, "at")
				if err := h.take(model[at]); err != nil {
					t.Fatal(err)
				}
				if err := h.take(model[at]); !errors.Is(err, jetbus.ErrAlreadySettled) {
					t.Fatalf("taken twice: %v", err)
				}
				name(model[at], "1") // by a handler that comes too late
				model = slices.Delete(model, at, at+1)
			}
			if got := h.all(); !slices.Equal(got, model) || h.count != len(model) {
				t.Fatalf("%d leases, want %d", len(got), len(model))
			}
			ids := map[string][]*lease{}
			for _, l := range model {
				if l.id != "" {
					ids[l.id] = slices.Insert(ids[l.id], 0, l)
				}
			}
			for id, want := range ids {
				if got := h.find("a", id); !slices.Equal(got, want) || h.find("b", id) != nil {
					t.Fatalf("%d leases are found for %s, want %d", len(got), id, len(want))
				}
			}
			if len(h.named) != len(ids) {
				t.Fatalf("the index has %d ids, want %d", len(h.named), len(ids))
			}
		}
	})
}

// What can be kept is halved by a loss, at most once within the time of a lease, and
// grows back.
func TestGrip(t *testing.T) {
	const lease = time.Second
	start := time.Now()
	var g grip
	want := func(after time.Duration, hold int) {
		t.Helper()
		if got := g.hold(1000, start.Add(after), lease); got != hold {
			t.Errorf("after %v: %d, want %d", after, got, hold)
		}
	}
	want(0, 1000)
	g.slipped(1000, start, lease)
	want(0, 500)
	g.slipped(999, start.Add(lease-1), lease)
	want(lease-1, 500)
	g.slipped(600, start.Add(lease), lease)
	want(lease, 300)
	want(2*lease, 375)
	want(3*lease, 468)
	for i := range 20 { // however often, one is left
		g.slipped(1, start.Add(time.Duration(4+i)*lease), lease)
	}
	want(23*lease, 1)
	want(24*lease, 2)
	want(time.Hour, 1000)
	g.slipped(10, start.Add(time.Hour), lease)
	want(time.Hour, 5)
}
