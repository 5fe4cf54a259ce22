package adapter

import (
	"context"
	"log/slog"

	"github.com/nats-io/nats.go/jetstream"
)

// What the groups of a replicated topic need must not be on one server: the bus's own
// streams, and the buckets it keeps, get as many replicas as the widest topic that
// somebody has joined has, and Config.Replicas at least.

// needReplicas notes that what the bus keeps is to have that many replicas at least. It
// returns how many that makes.
func (b *Bus) needReplicas(n int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.replicas = max(b.replicas, b.cfg.Replicas, n)
	return b.replicas
}

// widenAll gives what is there as many replicas. It is no condition for joining a group:
// where it cannot be done, for want of a permission or of servers, the log tells, once, and
// the bus depends on the servers that it has.
func (b *Bus) widenAll(ctx context.Context, replicas int) {
	if replicas == 1 {
		return
	}
	ctx, cancel := b.bound(ctx)
	defer cancel()
	for _, stream := range []string{
		ownStream(b.cfg.Prefix, deadStream), ownStream(b.cfg.Prefix, retryStream),
		bucketStream(attemptsBucket), bucketStream(locksBucket), bucketStream(ownersBucket),
	} {
		if err := b.widen(ctx, stream, replicas); err != nil {
			if !b.narrow.Swap(true) {
				b.cfg.Logger.WarnContext(ctx, "a stream of the bus's own has fewer replicas than a topic that needs it",
					slog.String("stream", stream), slog.Int("replicas", replicas), slog.Any("error", err))
			}
			return
		}
	}
}

// widen gives a stream as many replicas, if it exists and has fewer.
func (b *Bus) widen(ctx context.Context, stream string, replicas int) error {
	if info, err := b.narrowerThan(ctx, stream, replicas); info == nil {
		return err
	}
	return b.lockStream(ctx, stream, func(ctx context.Context) error {
		info, err := b.narrowerThan(ctx, stream, replicas)
		if info == nil { // somebody was faster
			return err
		}
		info.Config.Replicas = replicas
		_, err = b.updateStream(ctx, info.Config)
		return err
	})
}

// narrowerThan returns a stream that has fewer replicas, or nil.
func (b *Bus) narrowerThan(ctx context.Context, stream string, replicas int) (*jetstream.StreamInfo, error) {
	info, err := b.streamInfo(ctx, stream)
	switch {
	case apiCode(err) == jetstream.JSErrCodeStreamNotFound:
		return nil, nil //nolint:nilnil // none, and nothing wrong
	case err != nil:
		return nil, b.translate("look at stream "+stream, b.api+"STREAM.INFO."+stream, err)
	case info.Config.Replicas >= replicas:
		return nil, nil //nolint:nilnil // the same
	}
	return info, nil
}
