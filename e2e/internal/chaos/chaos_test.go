package chaos_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-63e9a637/jetbus/e2e/internal/chaos"
)

// A hand does its deeds until it is to stop, as its seed says.
func TestBreak(t *testing.T) {
	play := func(seed uint64) (done []string, tally string) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			h := chaos.Hand{Pause: time.Second, Hurt: 3 * time.Second}
			for _, name := range []string{"kill", "freeze"} {
				h.Deeds = append(h.Deeds, chaos.Deed{Name: name, Do: func(ctx context.Context, hurt time.Duration, _ *rand.Rand) error {
					if hurt < 100*time.Millisecond || hurt >= h.Hurt {
						t.Errorf("it hurts for %v", hurt)
					}
					done = append(done, name+hurt.String())
					chaos.Linger(ctx, hurt)
					return nil
				}})
			}
			var counts chaos.Tally
			if err := h.Break(ctx, &counts, chaos.Random(seed, 1)); err != nil {
				t.Error(err)
			}
			var text strings.Builder
			if err := counts.Print(&text); err != nil {
				t.Error(err)
			}
			tally = text.String()
		})
		return done, tally
	}
	first, tally := play(1)
	if again, _ := play(1); !slices.Equal(first, again) {
		t.Error("one seed gave two runs")
	}
	if other, _ := play(2); slices.Equal(first, other) {
		t.Error("two seeds gave one run")
	}
	if len(first) < 3600/8 || len(first) > 3600 {
		t.Errorf("%d deeds in an hour", len(first))
	}
	if !strings.Contains(tally, "kill\t") || !strings.Contains(tally, "freeze\t") || !strings.Contains(tally, "faults in all\t") {
		t.Errorf("the tally is %q", tally)
	}
}

// A deed that cannot be done ends the hand.
func TestBreakFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		h := chaos.Hand{Pause: time.Second, Deeds: []chaos.Deed{{Name: "kill", Do: func(context.Context, time.Duration, *rand.Rand) error { return broken }}}}
		if err := h.Break(t.Context(), new(chaos.Tally), chaos.Random(1, 1)); !errors.Is(err, broken) || !strings.Contains(err.Error(), "kill") {
			t.Errorf("got %v", err)
		}
	})
}
