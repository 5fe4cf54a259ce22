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
func (kv *buckets) needReplicas(n int) int {
	kv.wide.Lock()
	defer kv.wide.Unlock()
	kv.replicas = max(kv.replicas, kv.cfg.Replicas, n)
	return kv.replicas
}

// widenAll gives what is there as many replicas. It is no condition for joining a group:
// where it cannot be done, for want of a permission or of servers, the log tells, once, and
// the bus depends on the servers that it has.
func (kv *buckets) widenAll(ctx context.Context, replicas int) {
	if replicas == 1 {
		return
	}
	ctx, cancel := kv.bound(ctx)
	defer cancel()
	for _, stream := range []string{
		ownStream(kv.cfg.Prefix, deadStream), ownStream(kv.cfg.Prefix, retryStream),
		bucketStream(attemptsBucket), bucketStream(locksBucket), bucketStream(ownersBucket),
	} {
		if err := kv.widen(ctx, stream, replicas); err != nil {
			if !kv.narrow.Swap(true) {
				kv.cfg.Logger.WarnContext(ctx, "a stream of the bus's own has fewer replicas than a topic that needs it",
					slog.String("stream", stream), slog.Int("replicas", replicas), slog.Any("error", err))
			}
			return
		}
	}
}

// widen gives a stream as many replicas, if it exists and has fewer.
func (kv *buckets) widen(ctx context.Context, stream string, replicas int) error {
	if info, err := kv.narrowerThan(ctx, stream, replicas); info == nil {
		return err
	}
	return kv.lockStream(ctx, stream, func(ctx context.Context) error {
		info, err := kv.narrowerThan(ctx, stream, replicas)
		if info == nil { // somebody was faster
			return err
		}
		config := info.Config
		config.Replicas = replicas
		_, err = kv.updateStream(ctx, info, config)
		return err
	})
}

// narrowerThan returns a stream that has fewer replicas, or nil.
func (srv *server) narrowerThan(ctx context.Context, stream string, replicas int) (*jetstream.StreamInfo, error) {
	info, err := srv.streamInfo(ctx, stream)
	switch {
	case apiCode(err) == jetstream.JSErrCodeStreamNotFound:
		return nil, nil //nolint:nilnil // none, and nothing wrong
	case err != nil:
		return nil, srv.translate("look at stream "+stream, srv.api+"STREAM.INFO."+stream, err)
	case info.Config.Replicas >= replicas:
		return nil, nil //nolint:nilnil // the same
	}
	return info, nil
}
