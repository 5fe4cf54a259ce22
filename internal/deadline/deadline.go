// Package deadline tells when a time is over during which something was ours: a lease,
// a lock, a session.
//
// Go compares times by the monotonic clock, which stands still while a Linux machine is
// suspended; those who wait for what we hold go by clocks that do not. So a deadline is
// over when either clock says so. A wall clock that is set forward ends it early, which
// costs work and not safety; for one that is set back there is the monotonic one.
package deadline

import (
	"sync"
	"time"
)

// Over reports whether a deadline that was made from time.Now is over at now.
func Over(at, now time.Time) bool { return left(at, now) <= 0 }

// left is how long it is to a deadline, by the clock by which it is over first.
func left(at, now time.Time) time.Duration {
	return min(at.Sub(now), at.Round(0).Sub(now.Round(0))) // Round takes the monotonic reading away
}

// look is how often an Alarm looks at the wall clock: timers stand still with the
// monotonic one.
const look = time.Second

// Alarm calls a function when a deadline is over, within a second where the machine
// slept. Its methods may be called concurrently.
type Alarm struct {
	over  func()
	timer *time.Timer

	mu   sync.Mutex
	at   time.Time
	done bool // it was stopped, or has called over
}

// NewAlarm makes an alarm that calls over, once and on a goroutine of its own, when at
// is over.
func NewAlarm(at time.Time, over func()) *Alarm {
	a := &Alarm{over: over, at: at}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.timer = time.AfterFunc(pause(at), a.check)
	return a
}

// Move puts the deadline to another time. One that is over stays: it is too late.
func (a *Alarm) Move(to time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.done && !Over(a.at, time.Now()) {
		a.at = to
	}
	a.timer.Reset(pause(a.at))
}

// Stop ends the alarm. A call that has begun goes on.
func (a *Alarm) Stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.done = true
	a.timer.Stop()
}

// check is the timer's.
func (a *Alarm) check() {
	if a.due() {
		a.over()
	}
}

// due reports whether the deadline is over, once; until then it looks again.
func (a *Alarm) due() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.done:
		return false
	case Over(a.at, time.Now()):
		a.done = true
		return true
	}
	a.timer.Reset(pause(a.at))
	return false
}

// pause is how long to wait before a deadline is looked at again.
func pause(at time.Time) time.Duration { return min(max(left(at, time.Now()), 0), look) }
