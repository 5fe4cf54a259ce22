package link

import (
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// watchEnd is how long a watcher that was stopped may take to say so.
const watchEnd = 5 * time.Second

// EndWatch stops a watcher of keys and takes what it still has: it would wait for that, with
// its goroutine, for ever. One whose connection broke as it was made may not say that it has
// ended; that is waited for no longer than five seconds.
func EndWatch(w jetstream.KeyWatcher) {
	_ = w.Stop() // the connection may be gone
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
