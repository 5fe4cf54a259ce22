package client

import (
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// TestAgeBy: of two clocks the one counts that went on.
func TestAgeBy(t *testing.T) {
	for name, c := range map[string]struct{ steady, wall, want time.Duration }{
		"both agree":          {time.Minute, time.Minute, time.Minute},
		"the machine slept":   {time.Second, 3 * time.Minute, 3 * time.Minute},
		"set back":            {3 * time.Minute, time.Second, 3 * time.Minute},
		"set back far":        {3 * time.Minute, -time.Hour, 3 * time.Minute},
		"at once":             {0, 0, time.Millisecond},
		"at once, and set":    {0, -time.Hour, time.Millisecond},
		"below a millisecond": {time.Microsecond, 0, time.Millisecond},
	} {
		if got := ageBy(c.steady, c.wall); got != c.want {
			t.Errorf("%s: %v, not %v", name, got, c.want)
		}
	}
}

// TestTriesCountFromTheFirstThatMayBeStored: what was refused does not count, and what has no answer does.
func TestTriesCountFromTheFirstThatMayBeStored(t *testing.T) {
	var frames tries
	began := time.Now()
	write := func(after, want time.Duration) {
		t.Helper()
		if got := frames.write(began.Add(after)); got != want {
			t.Errorf("the frame after %v has the age %v, not %v", after, got, want)
		}
	}
	write(0, 0)
	frames.failed(jetbus.StoredNo)
	write(time.Second, 0)
	if frames.stored() != jetbus.StoredNo {
		t.Error("nothing was stored, as far as was told")
	}
	write(2*time.Second, time.Second) // the connection broke without an answer
	frames.failed(jetbus.StoredNo)
	write(time.Minute, 59*time.Second)
	frames.failed(jetbus.StoredUnknown)
	write(2*time.Minute, 119*time.Second)
	if frames.stored() != jetbus.StoredUnknown {
		t.Error("the second frame may have stored it")
	}
	frames = tries{}
	write(0, 0)
	frames.failed(jetbus.StoredUnknown)
	write(0, time.Millisecond)
}
