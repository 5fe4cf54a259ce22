package bustest

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server/ats"
)

// bubbles lets one bubble run at a time.
var bubbles sync.Mutex

// Run runs f in a synctest bubble in which an embedded broker works; see the
// package comment. The time in the bubble starts at midnight UTC 2000-01-01.
//
// f starts the broker, connects, and ends both before it returns or by defer or
// t.Cleanup. As in [synctest.Test], t.Run, t.Parallel and t.Deadline must not be
// called in f; Run itself may be called in a subtest. Bubbles run one at a time.
// The caller must not be parallel (t.Parallel) with tests that use NATS clients
// outside bubbles: they would share the client's recycled timers, which ends
// the process.
func Run(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	bubbles.Lock()
	defer bubbles.Unlock()
	if raceDetector {
		// A timer of a bubble that is due at once, of which the server's stores set many,
		// runs on the goroutine that sets it, and all share one context of the race
		// detector (Go 1.26, runtime.unlockAndRun): two at the same time end the process.
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	}
	// The server has one clock per process, which its stores start when the
	// first opens. Started in the bubble, it would never be idle in the sense of
	// synctest and the fake time would stand still. So it runs before.
	ats.Register()
	defer ats.Unregister()
	dropPools()
	defer dropPools()
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(grace) }) // fake time; the last cleanup of the bubble
		f(t)
	})
}

// grace is how long after the end of everything a goroutine of the bubble may
// still run. The server does not wait for all of its own when it shuts down: the
// flusher of a file store ends at the end of its nap.
const grace = time.Second

// dropPools empties every sync.Pool. Server and client keep timers in some, and
// a timer belongs to the bubble it was made in: one from outside never fires in
// a bubble, one from a bubble is a fatal error elsewhere. A pool gives up its
// items at the second collection.
func dropPools() {
	runtime.GC()
	runtime.GC()
}
