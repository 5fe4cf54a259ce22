package client

import (
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// tries are the frames by which something is published, under the same IDs. A topic knows what it has by them for
// its DuplicateWindow. How long that is the gateway knows: it is told how old the first frame is that may
// have stored it, and refuses what would be stored a second time.
type tries struct {
	sent  time.Time // when the frame was written that has no answer; zero: there is none
	since time.Time // when the first one was that may have stored it; zero: none may
}

// write notes that a frame is written, and returns the age of the first one that may have stored it; 0: there is none.
func (t *tries) write(now time.Time) time.Duration {
	t.unanswered()
	t.sent = now
	if t.since.IsZero() {
		return 0
	}
	return ageBy(now.Sub(t.since), now.Round(0).Sub(t.since.Round(0)))
}

// ageBy makes an age of what two clocks say that has passed: that which does not jump may have stood still while the
// machine slept, and the other one may have been set. It is never 0, which says that there is none.
func ageBy(steady, wall time.Duration) time.Duration {
	return max(steady, wall, time.Millisecond)
}

// unanswered notes that the last frame may have stored it.
func (t *tries) unanswered() {
	if t.since.IsZero() {
		t.since = t.sent
	}
}

// failed notes the answer to the last frame, or that there will be none.
func (t *tries) failed(stored jetbus.Stored) {
	if stored == jetbus.StoredUnknown {
		t.unanswered()
	}
	t.sent = time.Time{}
}

// stored says whether one of the frames may have stored it.
func (t *tries) stored() jetbus.Stored {
	if t.since.IsZero() {
		return jetbus.StoredNo
	}
	return jetbus.StoredUnknown
}
