package jetbus

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"
)

// Backoff is the wait before an event that failed is tried again: after the
// n-th failed attempt a random time of up to Min * 2^(n-1), at most Max
// ("full jitter": many events that failed together do not come back together).
type Backoff struct {
	Min time.Duration // bound of the first wait; defaults to 1 second, or Max where that is shorter
	Max time.Duration // bound of every wait; defaults to 5 minutes, or Min where that is longer
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
	d := b.Max
	if doublings := max(attempt, 1) - 1; b.Min <= b.Max>>doublings { // a wide shift gives 0
		d = b.Min << doublings
	}
	if b.NoJitter || d <= 0 {
		return max(d, 0)
	}
	return 1 + rand.N(d) // spreading load needs no secret randomness
}

// backoffJSON is the JSON form of a Backoff.
type backoffJSON struct {
	MinMs    millis `json:"minMs,omitempty"`
	MaxMs    millis `json:"maxMs,omitempty"`
	NoJitter bool   `json:"noJitter,omitempty"`
}

// MarshalJSON gives {"minMs":...,"maxMs":...,"noJitter":...}.
func (b Backoff) MarshalJSON() ([]byte, error) {
	return json.Marshal(backoffJSON{millis(b.Min), millis(b.Max), b.NoJitter})
}

// UnmarshalJSON reads what MarshalJSON writes. It does not validate.
func (b *Backoff) UnmarshalJSON(text []byte) error {
	w, err := unmarshal[backoffJSON](text, "backoff")
	if err != nil {
		return err
	}
	*b = Backoff{Min: time.Duration(w.MinMs), Max: time.Duration(w.MaxMs), NoJitter: w.NoJitter}
	return nil
}
