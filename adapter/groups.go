package adapter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// Groups implements jetbus.Topics.
func (b *Bus) Groups(ctx context.Context, name string) ([]jetbus.GroupInfo, error) {
	if err := b.enter(ctx); err != nil {
		return nil, fmt.Errorf("groups of %s: %w", name, err)
	}
	defer b.calls.end()
	ctx, cancel := b.bound(ctx)
	defer cancel()
	var all []*jetstream.ConsumerInfo
	t, info, err := b.inspect(ctx, name)
	if err == nil {
		all, err = b.durablesOf(ctx, t)
	}
	if err != nil {
		return nil, fmt.Errorf("groups of %s: %w", name, err)
	}
	out := []jetbus.GroupInfo{}
	for len(all) > 0 { // those of a group are side by side
		group := all[0].Config.Metadata[metaGroup]
		n := slices.IndexFunc(all, func(i *jetstream.ConsumerInfo) bool { return i.Config.Metadata[metaGroup] != group })
		if n < 0 {
			n = len(all)
		}
		out = append(out, describeGroup(t, all[:n], info.State.LastSeq))
		all = all[n:]
	}
	return out, nil
}

// known is lookup without AutoCreate: questions and removals create nothing.
func (st *streams) known(ctx context.Context, name string) (*topic, error) {
	t, _, err := st.inspect(ctx, name)
	return t, err
}

// describeGroup describes a group by its durables: one, or those of its partitions.
// end was the stream's before they were asked for.
func describeGroup(t *topic, durables []*jetstream.ConsumerInfo, end uint64) jetbus.GroupInfo {
	first := durables[0]
	g := jetbus.GroupInfo{
		Topic: t.name(), Group: first.Config.Metadata[metaGroup], Created: first.Created.UTC(),
		AckTimeout: first.Config.AckWait, MaxInFlight: first.Config.MaxAckPending, Inactive: first.Config.InactiveThreshold, AckedSeq: settledByAll(durables, end),
	}
	for _, info := range durables {
		if info.Created.Before(g.Created) {
			g.Created = info.Created.UTC()
		}
		g.AckTimeout = max(g.AckTimeout, info.Config.AckWait)
		g.Pending += info.NumPending
		g.Held += info.NumAckPending
		g.Retrying += info.NumRedelivered
		g.Waiting += info.NumWaiting
		g.Paused = g.Paused || info.Paused
		if last := info.AckFloor.Last; last != nil && last.After(g.LastAck) {
			g.LastAck = last.UTC()
		}
	}
	return g
}

// settledByAll is the sequence up to which everything is settled. Of several
// partitions one that has nothing left is settled as far as the stream went before
// that was known.
func settledByAll(durables []*jetstream.ConsumerInfo, end uint64) uint64 {
	if len(durables) == 1 && durables[0].Config.Metadata[metaPartition] == "" {
		return settledSeq(durables[0])
	}
	var newest uint64 // settled event
	for _, info := range durables {
		settled := settledSeq(info)
		newest = max(newest, settled)
		if info.NumPending > 0 || info.NumAckPending > 0 {
			end = min(end, settled)
		}
	}
	return min(newest, end)
}

// settledSeq is the sequence up to which everything is settled. The server's ack
// floor lags behind where nothing is pending; then all that was delivered is.
func settledSeq(info *jetstream.ConsumerInfo) uint64 {
	settled := info.AckFloor.Stream
	if info.NumAckPending == 0 {
		settled = max(settled, info.Delivered.Stream)
	}
	if info.Config.OptStartSeq > 0 {
		settled = max(settled, info.Config.OptStartSeq-1)
	}
	return settled
}

// EnsureGroup implements jetbus.Topics.
func (b *Bus) EnsureGroup(ctx context.Context, topic string, c jetbus.GroupConfig) (jetbus.GroupInfo, error) {
	op := fmt.Sprintf("ensure group %s/%s", topic, c.Group)
	if err := b.enterNew(ctx); err != nil {
		return jetbus.GroupInfo{}, fmt.Errorf("%s: %w", op, err)
	}
	defer b.calls.end()
	ctx, cancel := b.bound(ctx)
	defer cancel()
	info, err := b.ensureGroup(ctx, topic, c)
	if err != nil {
		return jetbus.GroupInfo{}, doing(op, "group "+topic+"/"+c.Group, err)
	}
	return info, nil
}

func (st *streams) ensureGroup(ctx context.Context, topic string, c jetbus.GroupConfig) (jetbus.GroupInfo, error) {
	c, err := c.Normalize()
	if err != nil {
		return jetbus.GroupInfo{}, err
	}
	t, stream, err := st.inspect(ctx, topic)
	if err != nil {
		return jetbus.GroupInfo{}, err
	}
	set := groupSettings{ackTimeout: c.AckTimeout, maxInFlight: c.MaxInFlight, inactive: c.Inactive, anyOrder: true}
	durable, err := st.joinGroup(ctx, t, c.Group, c.From, set)
	if err != nil {
		return jetbus.GroupInfo{}, err
	}
	rt := st.retryTopic(t, c.Group)
	switch have, err := st.findGroup(ctx, rt, c.Group); {
	case err == nil:
		if _, err = st.alignGroup(ctx, rt, c.Group, have, settingsOfGroup(durable)); err != nil && !errors.Is(err, jetbus.ErrNoGroup) {
			return jetbus.GroupInfo{}, err
		}
	case !errors.Is(err, jetbus.ErrNoGroup) && !errors.Is(err, jetbus.ErrNoTopic): // else its first member makes it
		return jetbus.GroupInfo{}, err
	}
	return describeGroup(t, []*jetstream.ConsumerInfo{durable}, stream.State.LastSeq), nil
}

// DeleteGroup implements jetbus.Topics.
func (b *Bus) DeleteGroup(ctx context.Context, topic, group string) error {
	return b.onGroup(ctx, "delete", topic, group, func(ctx context.Context, t *topicGroup) error {
		var err error
		if t.parts != nil {
			err = b.deleteParts(ctx, t.topic, group)
		} else if err = b.deleteDurables(ctx, t); err == nil {
			err = b.removeRetries(ctx, topic, group)
		}
		if err != nil {
			return err
		}
		return b.sweepDeleted(ctx, t.stream)
	})
}

// deleteParts deletes a group by partition: a member that joins finds all of it, or nothing. Where
// the lock is outlived it goes on, under another one, with the durables that it began with.
func (b *Bus) deleteParts(ctx context.Context, t *topic, group string) error {
	var begun map[string]bool // by the id of their last move, which their replacements inherit
	return b.lockedAgain(ctx, joinLock(t, group), func(ctx context.Context) error {
		parts, err := b.partsOf(ctx, t, group)
		if err != nil {
			return err
		}
		there := map[string]bool{}
		for _, p := range parts {
			there[p.info.Config.Metadata[metaMove]] = true
			if begun != nil && !begun[p.info.Config.Metadata[metaMove]] {
				return errReplaced
			}
		}
		if begun == nil {
			begun = there
		}
		if err := eachPart(ctx, parts, b.deleteDurables); err != nil {
			return err
		}
		return b.removeRetries(ctx, t.name(), group)
	})
}

// deleteDurables deletes the durable of a group with what is recorded of its
// attempts. A move that was left half done has left two.
func (dur *durables) deleteDurables(ctx context.Context, t *topicGroup) error {
	for {
		err := dur.js.DeleteConsumer(ctx, t.stream, t.info.Name)
		if err != nil && apiCode(err) != jetstream.JSErrCodeConsumerNotFound {
			return dur.translate("delete group", dur.api+"CONSUMER.DELETE."+t.stream+"."+t.info.Name, err)
		}
		for _, name := range slices.Compact([]string{t.info.Name, epochName(t.topic, t.group, 0)}) { // the second is what an ordered group's go by
			if err = dur.dropRecords(ctx, t.stream, name); err != nil {
				return err
			}
		}
		if t.info, err = dur.findGroup(ctx, t.topic, t.group); err != nil {
			if errors.Is(err, jetbus.ErrNoGroup) {
				return nil
			}
			return err
		}
	}
}

// PauseGroup implements jetbus.Topics.
func (b *Bus) PauseGroup(ctx context.Context, topic, group string, until time.Time) error {
	return b.onGroup(ctx, "pause", topic, group, func(ctx context.Context, t *topicGroup) error {
		if !until.After(time.Now()) {
			return fmt.Errorf("%w: until %v has passed", jetbus.ErrInvalidOption, until)
		}
		return b.pauseAll(ctx, t, until)
	})
}

// ResumeGroup implements jetbus.Topics.
func (b *Bus) ResumeGroup(ctx context.Context, topic, group string) error {
	return b.onGroup(ctx, "resume", topic, group, func(ctx context.Context, t *topicGroup) error {
		return b.pauseAll(ctx, t, time.Time{})
	})
}

// pauseAll pauses a group; a time that has passed resumes it.
func (dur *durables) pauseAll(ctx context.Context, t *topicGroup, until time.Time) error {
	pause := func(ctx context.Context, t *topicGroup) error { return dur.pause(ctx, t, until) }
	if t.parts == nil {
		return pause(ctx, t)
	}
	// A partition that joins meanwhile has copied what the first one said before.
	return dur.lockedAgain(ctx, joinLock(t.topic, t.group), func(ctx context.Context) error {
		parts, err := dur.partsOf(ctx, t.topic, t.group)
		if err != nil {
			return err
		}
		return eachPart(ctx, parts, pause)
	})
}

// pause pauses a durable, and behind that the one of its retries: what is made of it meanwhile
// is paused as the first one is, see createRetries.
func (dur *durables) pause(ctx context.Context, t *topicGroup, until time.Time) error {
	if err := dur.pauseOne(ctx, t, until); err != nil {
		return err
	}
	rt := dur.retryTopic(t.topic, t.group)
	info, err := dur.findGroup(ctx, rt, t.group)
	switch {
	case errors.Is(err, jetbus.ErrNoGroup), errors.Is(err, jetbus.ErrNoTopic): // no member has joined since there are retries
		return nil
	case err != nil:
		return err
	}
	return dur.pauseOne(ctx, &topicGroup{topic: rt, group: t.group, info: info}, until)
}

func (dur *durables) pauseOne(ctx context.Context, d *topicGroup, until time.Time) error {
	return dur.changeGroup(ctx, d, func(ctx context.Context) error { return dur.pauseDurable(ctx, d, until) })
}

// pauseDurable pauses a durable, or the one that an owner has put in its place meanwhile.
func (dur *durables) pauseDurable(ctx context.Context, d *topicGroup, until time.Time) error {
	for {
		err := dur.pauseUntil(ctx, d, until)
		if !errors.Is(err, jetbus.ErrNoGroup) {
			return err
		}
		if d.info, err = dur.findGroup(ctx, d.topic, d.group); err != nil {
			return err
		}
	}
}

// topicGroup is a group that exists.
type topicGroup struct {
	*topic
	group string
	info  *jetstream.ConsumerInfo // nil: it has partitions
	parts []*topicGroup           // which are these, oldest generation first
	end   uint64                  // of the stream, before the durables were asked for
}

// onGroup runs f on a group that exists, within a call's bounds.
func (b *Bus) onGroup(ctx context.Context, verb, topic, group string, f func(context.Context, *topicGroup) error) error {
	op := verb + " " + topic + "/" + group
	if err := b.enter(ctx); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	defer b.calls.end()
	ctx, cancel := b.bound(ctx)
	defer cancel()
	err := jetbus.ValidGroup(group)
	if err == nil {
		var t *topicGroup
		if t, err = b.findTopicGroup(ctx, topic, group); err == nil {
			err = f(ctx, t)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

func (st *streams) findTopicGroup(ctx context.Context, name, group string) (*topicGroup, error) {
	t, info, err := st.inspect(ctx, name)
	if err != nil {
		return nil, err
	}
	g := &topicGroup{topic: t, group: group, end: info.State.LastSeq}
	g.info, err = st.findGroup(ctx, t, group)
	if _, ok := errors.AsType[*partitionedError](err); ok {
		if g.parts, err = st.partsOf(ctx, t, group); err == nil && len(g.parts) == 0 { // deleted this moment
			err = jetbus.ErrNoGroup
		}
	}
	return g, err
}

// durables are the group's durable, or those of its partitions.
func (t *topicGroup) durables() []*jetstream.ConsumerInfo {
	if t.parts == nil {
		return []*jetstream.ConsumerInfo{t.info}
	}
	out := make([]*jetstream.ConsumerInfo, len(t.parts))
	for i, p := range t.parts {
		out[i] = p.info
	}
	return out
}
