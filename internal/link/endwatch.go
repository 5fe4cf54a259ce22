package link

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// watchEnd is how long a watcher whose context is over may take to say so.
const watchEnd = 5 * time.Second

// EndWatch stops a watcher of keys by the end of its context, and takes what it still has: it
// would wait for that, with its goroutine, for ever. Its consumer is deleted by nats.go, whose
// request for that, which a lost connection does not answer, is not waited for, as it would be
// by Stop. One whose connection broke as it was made may not say that it has ended; that is
// waited for no longer than five seconds.
func EndWatch(cancel context.CancelFunc, w jetstream.KeyWatcher) {
	cancel()
	late := time.NewTimer(watchEnd)
	defer late.Stop()
	for {
		select {
		case _, open := <-w.Updates():
			if !open {
				return
			}
		case <-late.C:
			return
		}
	}
}
