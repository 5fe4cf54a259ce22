package adapter

import (
	"context"
	"sync"
	"time"
)

// How long records of attempts are waited for, once there is a connection. Their bucket
// may be away while their topic is not, and an attempt too many is better than events that
// wait: a record that was waited for in vain lets those that follow be waited for not as
// long, for a while.
const (
	recordTimeout = time.Second
	recordHurry   = 50 * time.Millisecond
	recordAway    = 5 * time.Second        // how long the hurry lasts
	recordEach    = 200 * time.Microsecond // on top, for each of those that are written at once
	recordLink    = 5 * time.Second        // for the connection: without it nothing else goes on either
	recallTimeout = 5 * time.Second        // of the records of many events
)

// breaker says how long records are waited for now.
type breaker struct {
	mu    sync.Mutex
	until time.Time // of the hurry
}

func (k *breaker) timeout() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Now().Before(k.until) {
		return recordHurry
	}
	return recordTimeout
}

// answered ends the hurry.
func (k *breaker) answered() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.until = time.Time{}
}

// silent begins a hurry, if there is none.
func (k *breaker) silent() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now := time.Now(); !now.Before(k.until) {
		k.until = now.Add(recordAway)
	}
}

// forRecords bounds ctx for a request about n records. Whoever asks tells end how it went.
func (rec *records) forRecords(ctx context.Context, n int) (bounded context.Context, end func(err error)) {
	connecting, connected := context.WithTimeout(ctx, recordLink)
	_, _ = rec.link.Wait(connecting) // the request will say the same
	connected()
	bounded, cancel := context.WithTimeout(ctx, rec.breaker.timeout()+time.Duration(n)*recordEach)
	return bounded, func(err error) {
		switch {
		case err == nil:
			rec.breaker.answered()
		case bounded.Err() != nil && ctx.Err() == nil && rec.link.IsUp():
			rec.breaker.silent()
		}
		cancel()
	}
}
