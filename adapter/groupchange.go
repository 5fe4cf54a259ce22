package adapter

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// changeGroup runs f on a group as it is at that moment, while nobody else changes, moves
// or pauses it: the server knows no conditional update, and one writes all that was read,
// also over what others have written since. A move that its mover left behind is
// completed first.
func (dur *durables) changeGroup(ctx context.Context, t *topicGroup, f func(ctx context.Context) error) error {
	for {
		err := dur.changeOnce(ctx, t, f)
		if !errors.Is(err, errMoved) {
			return err
		}
		if mark, ok := readMoveMark(t.info.Config.Metadata); ok {
			if err := dur.finishMove(ctx, t.topic, t.group, t.info, mark); err != nil {
				return err
			}
		}
	}
}

// changeOnce is changeGroup for a group that nobody is moving; errMoved says that somebody was.
func (dur *durables) changeOnce(ctx context.Context, t *topicGroup, f func(ctx context.Context) error) error {
	return dur.lockedAgain(ctx, groupLock(t), func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, dur.cfg.Timeout)
		defer cancel()
		info, err := dur.findGroup(ctx, t.topic, t.group)
		if err != nil {
			return err
		}
		t.info = info
		if _, moving := readMoveMark(info.Config.Metadata); moving {
			return errMoved
		}
		return f(ctx)
	})
}

// alignUnderLock is alignGroup for settings that differ from the group's.
func (dur *durables) alignUnderLock(ctx context.Context, t *topic, group string, set groupSettings) (info *jetstream.ConsumerInfo, err error) {
	set.locked = true
	g := &topicGroup{topic: t, group: group}
	err = dur.changeGroup(ctx, g, func(ctx context.Context) error {
		info, err = dur.alignGroup(ctx, t, group, g.info, set)
		return err
	})
	return info, err
}

// lockMove takes the lock of a group for its mover. Who changes the group's settings or
// pauses it has the lock for a moment, and is waited for; where it is being moved, that
// is a [jetbus.GroupBusyError], but for one that has had the lock before: the mark may be its own.
func (dur *durables) lockMove(ctx context.Context, t *topicGroup, ttl time.Duration, before bool) (held *heldLock, err error) {
	if before {
		return dur.hold(ctx, groupLock(t), ttl)
	}
	for wait := lockPoll; ; wait = min(2*wait, lockPollMax) {
		held, err = dur.lockOnce(ctx, groupLock(t), ttl)
		if !errors.Is(err, jetbus.ErrWrongSequence) {
			return held, err
		}
		if t.info, err = dur.findGroup(ctx, t.topic, t.group); err != nil {
			return nil, err
		}
		_, moving := readMoveMark(t.info.Config.Metadata)
		if moving {
			return nil, &jetbus.GroupBusyError{Topic: t.name(), Group: t.group, Held: t.info.NumAckPending}
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
