package adapter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

const (
	locksBucket = "JETBUS_LOCKS"
	lockTTL     = 15 * time.Second // of one whose holder died
	lockPoll    = 20 * time.Millisecond
)

// lockStream lets one process at a time change a stream that several topics
// share. The server knows no conditional update: of two topics that are added
// at once, the later update would undo the earlier.
func (b *Bus) lockStream(ctx context.Context, stream string) (unlock func(), err error) {
	for {
		revision, err := b.KeySet(ctx, locksBucket, stream, []byte(b.cfg.SID), 0, lockTTL)
		if err == nil {
			return func() {
				ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
				defer cancel()
				_ = b.KeyDelete(ctx, locksBucket, stream, revision) // what stays ends by its TTL
			}, nil
		}
		if !errors.Is(err, jetbus.ErrWrongSequence) {
			return nil, fmt.Errorf("lock stream %s: %w", stream, err)
		}
		select {
		case <-time.After(lockPoll):
		case <-ctx.Done():
			return nil, fmt.Errorf("lock stream %s, which somebody else is changing: %w", stream, context.Cause(ctx))
		}
	}
}
