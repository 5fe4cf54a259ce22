package jetbus

import (
	"errors"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus/internal/deadline/deadlinetest"
)

// A lock is lost in a machine's sleep, in which its timers stand still: a write from
// before the sleep is too old to hold it.
func TestLockAfterSleep(t *testing.T) {
	lost := make(chan error, 1)
	h := &holder{Lock: Lock{TTL: time.Hour}, lose: func(cause error) { lost <- cause }}
	if h.arm(deadlinetest.Slept(t, time.Now(), -2*time.Hour)) {
		t.Error("a lock that was taken before the sleep is held after it")
	}
	if !h.arm(time.Now()) {
		t.Fatal("a lock that was taken this moment is not held")
	}
	h.renewed(2, deadlinetest.Slept(t, time.Now(), -2*time.Hour)) // it was answered after the sleep
	select {
	case err := <-lost:
		if !errors.Is(err, ErrLockLost) {
			t.Errorf("lost by %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("a renewal from before the sleep keeps the lock")
	}
}
