// Package deadlinetest makes times as a machine has them that was suspended, for tests
// of what goes by package deadline.
package deadlinetest

import (
	"testing"
	"time"
	"unsafe"
)

// Slept returns t as it would be had the machine slept for d, whole seconds, just before:
// the wall clock is ahead by d, the monotonic one is not. With a negative d it is t as
// seen after such a sleep. t has to be of time.Now outside of a bubble of fake time, in
// which there is no monotonic clock.
func Slept(tb testing.TB, t time.Time, d time.Duration) time.Time {
	tb.Helper()
	// A Time begins with a word of one bit, 33 of seconds and 30 of nanoseconds, if it has
	// a monotonic reading. No function of package time parts the two clocks.
	out := t
	*(*uint64)(unsafe.Pointer(&out)) += uint64(int64(d/time.Second)) << 30
	if !out.Equal(t) || out.Round(0).Sub(t.Round(0)) != d {
		tb.Fatalf("%v does not have the clocks of %v with %v between them", out, t, d)
	}
	return out
}
