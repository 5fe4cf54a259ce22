package jetbus

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Backoff is the wait before an event that failed is tried again: after the
// n-th failed attempt a random time between 0 and Min * 2^(n-1), at most Max
// ("full jitter": many events that failed together do not come back together).
type Backoff struct {
	Min time.Duration // bound of the first wait; defaults to 1 second
	Max time.Duration // bound of every wait; defaults to 5 minutes
	// NoJitter waits the whole bound instead of a random part of it.
	NoJitter bool
}

// Normalize returns the backoff with defaults filled in, or an error wrapping
// [ErrInvalidOption].
func (b Backoff) Normalize() (Backoff, error) {
	if b.Max == 0 {
		b.Max = max(5*time.Minute, b.Min)
	}
	if b.Min == 0 {
		b.Min = min(time.Second, b.Max)
	}
	if b.Min < 0 || b.Max < b.Min {
		return b, fmt.Errorf("%w: Backoff from %v to %v, use 0 < Min <= Max", ErrInvalidOption, b.Min, b.Max)
	}
	return b, nil
}

// Delay returns the wait after the given number of failed attempts, which
// counts from 1. The backoff must be normalized.
func (b Backoff) Delay(attempt int) time.Duration {
	bound := float64(b.Min) * math.Pow(2, float64(max(attempt, 1)-1))
	d := time.Duration(min(bound, float64(b.Max)))
	if b.NoJitter {
		return d
	}
	return rand.N(d + 1) //nolint:gosec // spreading load needs no secret randomness
}

// backoffJSON is the JSON form of a Backoff.
type backoffJSON struct {
	MinMs    int64 `json:"minMs,omitempty"`
	MaxMs    int64 `json:"maxMs,omitempty"`
	NoJitter bool  `json:"noJitter,omitempty"`
}

// MarshalJSON gives {"minMs":...,"maxMs":...,"noJitter":...}.
func (b Backoff) MarshalJSON() ([]byte, error) {
	return json.Marshal(backoffJSON{MinMs: b.Min.Milliseconds(), MaxMs: b.Max.Milliseconds(), NoJitter: b.NoJitter})
}

// UnmarshalJSON reads what MarshalJSON writes. It does not validate.
func (b *Backoff) UnmarshalJSON(text []byte) error {
	var w backoffJSON
	if err := json.Unmarshal(text, &w); err != nil {
		return fmt.Errorf("unmarshal backoff: %w", err)
	}
	*b = Backoff{Min: fromMillis(w.MinMs), Max: fromMillis(w.MaxMs), NoJitter: w.NoJitter}
	return nil
}
