package deadline

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-63e9a637/jetbus/internal/deadline/deadlinetest"
)

// A deadline is over when one of the clocks says so.
func TestOver(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		at   time.Time
		now  time.Time
		want bool
	}{
		"before":           {now.Add(time.Nanosecond), now, false},
		"at":               {now, now, true},
		"behind":           {now, now.Add(time.Nanosecond), true},
		"slept":            {now.Add(time.Minute), deadlinetest.Slept(t, now, time.Minute), true},
		"slept for less":   {now.Add(time.Minute), deadlinetest.Slept(t, now, 59*time.Second), false},
		"set back":         {now.Add(time.Minute), deadlinetest.Slept(t, now, -time.Hour), false},
		"set back, behind": {now.Add(time.Minute), deadlinetest.Slept(t, now.Add(time.Minute), -time.Hour), true},
		"wall clock alone": {now.Round(0), now, true},
	} {
		if got := Over(c.at, c.now); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// An alarm rings at its deadline, which can be moved until then.
func TestAlarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		rang := make(chan time.Duration, 2)
		ring := func() { rang <- time.Since(began) }
		a := NewAlarm(began.Add(3*time.Second), ring)
		time.Sleep(2500 * time.Millisecond)
		a.Move(began.Add(5500 * time.Millisecond))
		if at := <-rang; at != 5500*time.Millisecond {
			t.Errorf("it rang after %v", at)
		}
		a.Move(began.Add(time.Minute))
		stopped := NewAlarm(began.Add(10*time.Second), ring)
		stopped.Stop()
		stopped.Move(began.Add(20 * time.Second))
		time.Sleep(time.Hour)
		if len(rang) > 0 {
			t.Errorf("it rang again, or after Stop, after %v", <-rang)
		}
		late := time.Since(began)
		NewAlarm(began, ring)
		if at := <-rang; at != late {
			t.Errorf("one that was late from the beginning rang %v later", at-late)
		}
	})
}

// A machine sleeps while an alarm waits: it rings when its timer looks again, whatever
// the deadline is moved to meanwhile.
func TestAlarmAfterSleep(t *testing.T) {
	for name, awake := range map[string]func(*Alarm){
		"alone": func(*Alarm) {},
		"moved": func(a *Alarm) { a.Move(time.Now().Add(time.Hour)) },
	} {
		rang := make(chan struct{}, 1)
		a := NewAlarm(time.Now().Add(time.Hour), func() { rang <- struct{}{} })
		a.mu.Lock()
		a.at = deadlinetest.Slept(t, a.at, -2*time.Hour)
		a.mu.Unlock()
		awake(a)
		select {
		case <-rang:
		case <-time.After(time.Minute):
			t.Errorf("%s: it does not ring", name)
		}
	}
}
