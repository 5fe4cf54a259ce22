package adapter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/deadline"
)

const (
	locksBucket = "JETBUS_LOCKS"
	// How long who waits for a lock waits before it asks again: longer each time, as most
	// are held for moments, and those of the dead for long.
	lockPoll    = 20 * time.Millisecond
	lockPollMax = 500 * time.Millisecond
	// How long giving a lock back may take; what is not given back ends by its TTL.
	unlockTimeout = 5 * time.Second
)

// hold waits for a lock and takes it, for a life that its holder may extend.
func (kv *buckets) hold(ctx context.Context, name string, ttl time.Duration) (*heldLock, error) {
	for wait := lockPoll; ; wait = min(2*wait, lockPollMax) {
		held, err := kv.lockOnce(ctx, name, ttl)
		if err == nil {
			return held, nil
		}
		if !errors.Is(err, jetbus.ErrWrongSequence) {
			return nil, fmt.Errorf("lock %s: %w", name, err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, fmt.Errorf("lock %s, which somebody else has: %w", name, context.Cause(ctx))
		}
	}
}

// lockOnce takes a lock that nobody has; ErrWrongSequence says that somebody does.
// Its life counts from when it was stored, which may be long before the server says so: where
// half of it may be over it is given back, and taken anew.
func (kv *buckets) lockOnce(ctx context.Context, name string, ttl time.Duration) (*heldLock, error) {
	for {
		l := &heldLock{kv: kv, name: name, value: kv.cfg.SID + " " + jetbus.NewID(), ttl: ttl}
		if err := l.set(ctx); err != nil {
			return nil, err
		}
		if !deadline.Over(l.until.Add(-ttl/2), time.Now()) {
			return l, nil
		}
		l.unlock(ctx)
	}
}

// heldLock is a lock that this process has until it gives it back, or its life is over.
// It is used by one goroutine at a time.
type heldLock struct {
	kv       *buckets
	name     string
	value    string // nobody else's
	ttl      time.Duration
	revision uint64
	until    time.Time // it is not over before that
}

// set writes the lock, and its life begins, anew.
func (l *heldLock) set(ctx context.Context) error {
	sent := time.Now()
	revision, err := l.kv.writeKey(ctx, "set lock "+l.name, locksBucket, l.name, []byte(l.value), expiring(l.ttl), l.revision)
	if err == nil {
		l.revision, l.until = revision, sent.Add(l.ttl)
	}
	return err
}

// extend begins the lock's life anew. Where that was over, until says so.
func (l *heldLock) extend(ctx context.Context) error {
	for {
		err := l.set(ctx)
		if !errors.Is(err, jetbus.ErrWrongSequence) {
			return err
		}
		m, err := l.kv.keyMessage(ctx, locksBucket, l.name)
		switch {
		case err != nil:
			return fmt.Errorf("extend lock %s: %w", l.name, err)
		case string(m.Data) != l.value:
			l.until = time.Time{}
			return fmt.Errorf("extend lock %s: it was over", l.name)
		}
		l.revision = m.seq // of an extension whose answer was lost
	}
}

func (l *heldLock) unlock(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unlockTimeout)
	defer cancel()
	_, _ = l.kv.writeKey(ctx, "give back lock "+l.name, locksBucket, l.name, nil, purging(), l.revision)
}
