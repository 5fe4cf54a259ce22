package mongobox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
)

// ErrPrivilege says that the user may not read change streams on the collection.
var ErrPrivilege = errors.New("no privilege for change streams: the user needs the actions find and changeStream")

// How long the server holds an answer back that says nothing.
const (
	watchAwait = time.Second
	minAwait   = 20 * time.Millisecond
)

// watchBackoff is the wait before a change stream is opened again.
var watchBackoff = jetbus.Backoff{Min: 50 * time.Millisecond, Max: 5 * time.Second}

// Watch calls kick when rows were added, by whatever process, until ctx ends: give it
// [jetbus.Drainer.Kick]. It follows a change stream on the collection and opens it
// again, with a growing wait, whatever ends it; kick is called then, too, since there is
// no telling what was missed. Until that works the drainer finds rows by itself. It
// returns nil at the end of ctx, and before that only for what does not pass:
// [ErrPrivilege] without the privilege changeStream, [jetbus.ErrUnsupported] where
// the server has no change streams.
func (b *Box) Watch(ctx context.Context, kick func()) error {
	if kick == nil {
		return fmt.Errorf("watch outbox %s: %w: nothing to call", b.name, jetbus.ErrInvalidOption)
	}
	await := watchAwait
	for attempt := 1; ; attempt++ {
		began := time.Now()
		err := b.watch(alone(ctx), await, kick)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end of ctx is what ended it
		}
		if final := refusal(err); final != nil {
			return fmt.Errorf("watch outbox %s: %w", b.name, final)
		}
		if time.Since(began) > watchBackoff.Max { // it worked
			attempt = 1
		}
		if mongo.IsTimeout(err) { // the client may have a Timeout that is shorter
			await = max(await/2, minAwait)
		}
		b.o.Logger.LogAttrs(ctx, slog.LevelWarn, "the change stream on the outbox ended", slog.String("outbox", b.name), slog.Any("err", err))
		timer := time.NewTimer(watchBackoff.Delay(attempt))
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// errInvalidated ends the change stream on a collection that was dropped or renamed.
var errInvalidated = errors.New("the collection was dropped or renamed")

// watch follows one change stream.
func (b *Box) watch(ctx context.Context, await time.Duration, kick func()) error {
	stream, err := b.rows.Watch(ctx, mongo.Pipeline{
		{{Key: "$match", Value: bson.D{{Key: "operationType", Value: "insert"}}}},
		{{Key: "$project", Value: bson.D{{Key: "_id", Value: 1}}}}, // the token, which may not be changed
	}, options.ChangeStream().SetMaxAwaitTime(await))
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close(context.WithoutCancel(ctx)) }()
	kick() // for what came before it was open
	for ctx.Err() == nil {
		switch {
		case stream.TryNext(ctx):
			if stream.RemainingBatchLength() == 0 {
				kick()
			}
		case stream.Err() != nil:
			return stream.Err()
		case stream.ID() == 0:
			return errInvalidated
		}
	}
	return ctx.Err()
}

// refusal is an error that opening again does not cure; nil for the others.
func refusal(err error) error {
	switch {
	case hasCode(err, codeUnauthorized, codeAuthentication):
		return fmt.Errorf("%w: %w", ErrPrivilege, err)
	case hasCode(err, codeNotReplicaSet, codeIllegal, codeOnView):
		return fmt.Errorf("%w: no change streams: %w", jetbus.ErrUnsupported, err)
	}
	return nil
}
