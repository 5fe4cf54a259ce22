// Package chaos lets accidents happen at random while a test goes on, and keeps count of
// them. What is an accident, and what must hold after all of them, is the test's; accidents of
// a cluster are here, which several tests have ([Elect]).
package chaos

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// Deed is something bad that heals by itself.
type Deed struct {
	Name string
	// Do does it, and returns when it has healed, so far as it does that at once. Hurt is
	// how long to hurt, if it is a matter of time; when ctx ends it is over. An error
	// says that it could not be done.
	Do func(ctx context.Context, hurt time.Duration, random *rand.Rand) error
}

// Hand does one of its deeds after the other.
type Hand struct {
	Deeds []Deed
	// Pause is between two deeds: a quarter of it at least and four times as much at most.
	Pause time.Duration
	// Hurt is the time that a deed hurts at most, 100 ms at least.
	Hurt time.Duration
}

// Break lets a hand do what it draws from random until ctx ends, or a deed cannot be
// done, which is the error. It may be called at once with other hands, each with a
// random of its own.
func (h Hand) Break(ctx context.Context, t *Tally, random *rand.Rand) error {
	const least = 100 * time.Millisecond
	for {
		Linger(ctx, h.Pause/4+time.Duration(random.Int64N(int64(4*h.Pause-h.Pause/4))))
		select {
		case <-ctx.Done():
			return nil
		default:
		}
		d := h.Deeds[random.IntN(len(h.Deeds))]
		t.Add(d.Name)
		hurt := least + time.Duration(random.Int64N(max(int64(h.Hurt-least), 1)))
		if err := d.Do(ctx, hurt, random); err != nil {
			return fmt.Errorf("%s: %w", d.Name, err)
		}
	}
}

// Random returns the n-th source of numbers of a seed, so that one seed is enough to
// tell of a run with several.
func Random(seed, n uint64) *rand.Rand {
	return rand.New(rand.NewPCG(seed, n)) //nolint:gosec // reproducible on purpose
}

// Linger waits, unless ctx ends.
func Linger(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Tally counts deeds by their names. The zero value is ready; it is safe for concurrent
// use.
type Tally struct {
	mu    sync.Mutex
	times map[string]int
}

// Add counts one.
func (t *Tally) Add(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.times == nil {
		t.times = map[string]int{}
	}
	t.times[name]++
}

// Of is how many of that name were counted.
func (t *Tally) Of(name string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.times[name]
}

// Print writes a line of each deed, its name and number with a tab in between, and one
// of their sum.
func (t *Tally) Print(w io.Writer) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	sum := 0
	for _, name := range slices.Sorted(maps.Keys(t.times)) {
		if _, err := fmt.Fprintf(w, "%s\t%d\n", name, t.times[name]); err != nil {
			return err
		}
		sum += t.times[name]
	}
	_, err := fmt.Fprintf(w, "faults in all\t%d\n", sum)
	return err
}
