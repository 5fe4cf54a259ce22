package partition

import (
	"context"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/deadline/deadlinetest"
)

// willing takes every write.
type willing struct{ jetbus.Keys }

func (willing) KeySet(context.Context, string, string, []byte, uint64, time.Duration) (uint64, error) {
	return 1, nil
}

// A member loses its session in a machine's sleep, in which its timers stand still: a
// renewal from before the sleep is too old.
func TestSessionAfterSleep(t *testing.T) {
	m := &Membership{o: Options{TTL: time.Hour}, keys: willing{}, wake: make(chan struct{}, 1)}
	s := &session{tries: map[string]bool{}}
	s.ctx, s.end = context.WithCancel(t.Context())
	if err := m.begin(s.ctx, s, 0); err != nil {
		t.Fatal(err)
	}
	m.renewed(s, 2, deadlinetest.Slept(t, time.Now(), -2*time.Hour)) // it was answered after the sleep
	select {
	case <-s.ctx.Done():
	case <-time.After(time.Minute):
		t.Error("a renewal from before the sleep keeps the session")
	}
	if got := m.Stats().Expelled; got != 1 {
		t.Errorf("expelled %d times", got)
	}
}
