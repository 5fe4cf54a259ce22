package adapter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// DeleteTopic implements jetbus.Topics. An adopted topic is only forgotten,
// with its groups removed; the stream is not JetBus's to delete. Where the topic is gone
// already, what is left of its retries is removed all the same.
func (b *Bus) DeleteTopic(ctx context.Context, name string) error {
	if err := b.enter(ctx); err != nil {
		return fmt.Errorf("delete topic %s: %w", name, err)
	}
	defer b.calls.end()
	ctx, cancel := b.bound(ctx)
	defer cancel()
	var left error
	t, info, err := b.inspect(ctx, name)
	switch {
	case errors.Is(err, jetbus.ErrNoTopic): // it may have been deleted by a call that got no further
		left = errors.Join(b.removeRetries(ctx, name, ""), b.sweepDeleted(ctx, ownStream(b.cfg.Prefix, name)))
	case err != nil:
	case t.config.SnapshotOf != "":
		if err = b.deleteSnapshot(ctx, t); err == nil {
			err = errors.Join(b.dropRecords(ctx, t.stream), b.removeRetries(ctx, name, ""))
		}
	case !t.adopted():
		err = b.removeDeclared(ctx, t, info)
	default:
		err = b.removeTopic(ctx, t, info)
	}
	if err == nil {
		left = b.sweepDeleted(ctx, t.stream)
	}
	if err = errors.Join(notThere(err), left); err != nil {
		return fmt.Errorf("delete topic %s: %w", name, err)
	}
	return nil
}

// removeDeclared removes a topic that this bus did not adopt, under the lock of its stream, as
// another topic may be declared into that this moment. Where the lock is outlived it goes on, under
// another one, with the stream that it began with; not if others share that: there a topic that is
// declared anew looks as the one that was to be removed.
func (st *streams) removeDeclared(ctx context.Context, t *topic, info *jetstream.StreamInfo) error {
	name, stream := t.name(), t.stream
	isAlone := func(info *jetstream.StreamInfo) bool { return len(topicsOf(&info.Config)) == 1 }
	locked := st.lockedAgain
	if !isAlone(info) {
		locked = st.locked
	}
	var begun time.Time // when that stream was made; zero: it has not begun
	return locked(ctx, stream, func(ctx context.Context) error {
		t, info, err := st.inspect(ctx, name)
		again := !begun.IsZero()
		switch {
		case again && errors.Is(err, jetbus.ErrNoTopic):
			return errors.Join(st.dropRecords(ctx, stream), st.removeRetries(ctx, name, ""))
		case err != nil:
			return err
		case again && (!info.Created.Equal(begun) || !isAlone(info)):
			return errReplaced
		}
		if err := st.noSnapshots(ctx, name, info); err != nil {
			return err
		}
		begun = info.Created
		return st.removeTopic(ctx, t, info)
	})
}

// errReplaced: what was being deleted is gone, and what is left of it may be of what is there now.
var errReplaced = fmt.Errorf("%w: somebody has made it anew meanwhile", jetbus.ErrUnavailable)

// removeTopic removes a topic's stream, or the topic from one that is not its own.
func (st *streams) removeTopic(ctx context.Context, t *topic, info *jetstream.StreamInfo) error {
	var err error
	if !t.adopted() && len(topicsOf(&info.Config)) == 1 {
		err = st.js.DeleteStream(ctx, t.stream)
		if err = st.translate("", st.api+"STREAM.DELETE."+t.stream, err); err == nil {
			err = st.dropRecords(ctx, t.stream)
		}
	} else {
		err = st.removeFromStream(ctx, t)
	}
	if err == nil {
		err = st.removeRetries(ctx, t.name(), "")
		st.drop(t)
	}
	return err
}

// removeFromStream takes a topic out of a stream that is not its own.
func (st *streams) removeFromStream(ctx context.Context, t *topic) error {
	op := "remove it from stream " + t.stream
	groups, err := st.groupsOf(ctx, t)
	if err != nil {
		return err
	}
	for _, g := range groups {
		if err := st.js.DeleteConsumer(ctx, t.stream, g.Name); err != nil && apiCode(err) != jetstream.JSErrCodeConsumerNotFound {
			return st.translate(op, st.api+"CONSUMER.DELETE."+t.stream+"."+g.Name, err)
		}
		if err := st.dropRecords(ctx, t.stream, g.Name); err != nil {
			return err
		}
	}
	if t.adopted() {
		return nil
	}
	info, err := st.purgeTopic(ctx, t)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	config := info.Config
	config.Subjects = slices.DeleteFunc(slices.Clone(config.Subjects), func(s string) bool {
		return s == t.filter || s == delayFilter(st.cfg.Prefix, t.name())
	})
	config.Metadata = maps.Clone(config.Metadata)
	delete(config.Metadata, metaTopic+t.name())
	delete(config.Metadata, metaSnapshots+t.name())
	if _, err = st.updateStream(ctx, info, config); err == nil {
		st.drop(t)
		_, err = st.purgeTopic(ctx, t) // of what came meanwhile; no more can
	}
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

// purgeTopic removes the events of a topic, and returns its stream as it was before.
func (st *streams) purgeTopic(ctx context.Context, t *topic) (*jetstream.StreamInfo, error) {
	s, err := st.js.Stream(ctx, t.stream)
	if err != nil {
		return nil, st.translate("", st.api+"STREAM.INFO."+t.stream, err)
	}
	for _, subject := range []string{t.filter, delayFilter(st.cfg.Prefix, t.name())} {
		if err := st.js.purge(ctx, s, subject); err != nil {
			return nil, st.translate("", st.api+"STREAM.PURGE."+t.stream, err)
		}
	}
	return s.CachedInfo(), nil
}
