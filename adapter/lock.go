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
	lockTTL     = 15 * time.Second // of one whose holder died
	// How long who waits for a lock waits before it asks again: longer each time, as most
	// are held for moments, and those of the dead for long.
	lockPoll    = 20 * time.Millisecond
	lockPollMax = 500 * time.Millisecond
	// How long giving a lock back may take; what is not given back ends by its TTL.
	unlockTimeout = 5 * time.Second
)

// lockStream lets one process at a time change a stream that several topics
// share. The server knows no conditional update: of two topics that are added
// at once, the later update would undo the earlier.
func (b *Bus) lockStream(ctx context.Context, stream string) (unlock func(), err error) {
	return b.lock(ctx, stream, lockTTL)
}

// lock waits for a lock and takes it.
func (b *Bus) lock(ctx context.Context, name string, ttl time.Duration) (unlock func(), err error) {
	for wait := lockPoll; ; wait = min(2*wait, lockPollMax) {
		if unlock, err = b.lockOnce(ctx, name, ttl); err == nil {
			return unlock, nil
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
func (b *Bus) lockOnce(ctx context.Context, name string, ttl time.Duration) (unlock func(), err error) {
	for {
		sent := time.Now()
		revision, err := b.KeySet(ctx, locksBucket, name, []byte(b.cfg.SID), 0, ttl)
		if err != nil {
			return nil, err
		}
		unlock = func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unlockTimeout)
			defer cancel()
			_ = b.KeyDelete(ctx, locksBucket, name, revision)
		}
		if !deadline.Over(sent.Add(ttl/2), time.Now()) {
			return unlock, nil
		}
		unlock()
	}
}
