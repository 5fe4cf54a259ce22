package adapter

import (
	"context"
	"fmt"

	"github.com/seed-63e9a637/jetbus"
)

// partitionMember is a process's turn at one partition: a subscription with one owner,
// which has its topic not by a lock but until the turn is over.
type partitionMember struct {
	*subscription

	turn  jetbus.PartitionTurn
	clean bool // guarded by mu
}

// SubscribePartition implements jetbus.Partitions.
func (b *Bus) SubscribePartition(ctx context.Context, topic, group string, turn jetbus.PartitionTurn, h jetbus.Handler, o jetbus.SubscribeOptions) (jetbus.PartitionSubscription, error) {
	op := fmt.Sprintf("subscribe %s/%s to %s", topic, group, turn.Partition)
	if err := b.enterNew(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	defer b.calls.end()
	o, err := partitionOptions(group, o)
	if err == nil && h == nil {
		err = fmt.Errorf("%w: no handler", jetbus.ErrInvalidOption)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	m := &partitionMember{subscription: newSubscription(ctx, b, group, h, o), turn: turn}
	if err = b.tied(ctx, func(ctx context.Context) error { return m.join(ctx, topic) }); err == nil {
		err = m.start(ctx)
	} else {
		m.abandon()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	return m, nil
}

// join finds the durable, and makes sure of that of the retries.
func (m *partitionMember) join(ctx context.Context, name string) error {
	ctx, cancel := m.b.bound(ctx)
	defer cancel()
	t, err := m.b.lookup(ctx, name)
	if err == nil && !t.hasPart(m.turn.Partition) { // it may have grown
		t, err = m.b.partitionedTopic(ctx, name)
	}
	switch {
	case err != nil:
		return err
	case !t.hasPart(m.turn.Partition):
		return fmt.Errorf("%w: the topic has no partition %s", jetbus.ErrInvalidOption, m.turn.Partition)
	}
	part := m.b.partOf(t, m.turn.Partition)
	info, err := m.b.findGroup(ctx, part, m.group)
	if err != nil {
		return err
	}
	m.topics = 1
	m.mu.Lock()
	m.adoptLocked(info)
	m.mu.Unlock()
	m.pullers = append(m.pullers, m.newPuller(part, info.Name))
	if err := m.attachRetries(ctx, part, info); err != nil {
		return err
	}
	o := m.newOwner(m.pullers[0], m.pullers[1])
	o.epoch, o.move = m.turn.Epoch, m.turn.Move
	m.owners = []*owner{o}
	return nil
}

// start lets events flow.
func (m *partitionMember) start(ctx context.Context) error {
	if err := m.enlist(); err != nil {
		return err
	}
	unwatch := m.b.link.Watch(m.owners[0].reconnected)
	stop := context.AfterFunc(ctx, func() { m.expel(context.Cause(ctx)) })
	m.mu.Lock()
	m.unwatch = append(m.unwatch, unwatch, func() { stop() })
	m.mu.Unlock()
	m.owning.Go(func() { m.run(ctx) })
	return nil
}

// run has the partition until the turn is over or the member stops. While it is
// paused, the partition stands still.
func (m *partitionMember) run(ctx context.Context) {
	o, clean := m.owners[0], m.turn.Clean
	for o.resumed(ctx) {
		clean, _ = o.own(ctx, jetbus.Held{Epoch: m.turn.Epoch, Clean: clean}) // it has no error of its own
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.clean = clean && ctx.Err() == nil
}

// resumed waits while the member is paused. It reports false when the member stops,
// or the turn is over.
func (o *owner) resumed(ctx context.Context) bool {
	for {
		err := o.await(ctx, func() bool { return o.s.stopping || !o.s.paused })
		o.s.mu.Lock()
		goOn := err == nil && !o.s.stopping
		if goOn && o.s.paused { // once more, this moment
			o.s.mu.Unlock()
			continue
		}
		if goOn {
			o.leaving, o.reason = false, ""
		}
		o.s.mu.Unlock()
		return goOn
	}
}

// expel ends the member because its turn is over: the next owner is not waiting for
// anything. What is in hand is given up before handlers hear of anything else.
func (m *partitionMember) expel(cause error) {
	m.mu.Lock()
	m.owners[0].loseLocked()
	m.failLocked(fmt.Errorf("subscribe %s/%s to %s: the turn is over: %w", m.owners[0].name(), m.group, m.turn.Partition, cause))
	m.mu.Unlock()
	m.die(cause) // no patience with handlers
}

// Began implements jetbus.PartitionSubscription.
func (m *partitionMember) Began() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.owners[0].began
}

// Clean implements jetbus.PartitionSubscription.
func (m *partitionMember) Clean() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.clean
}

// moved ends the member of a partition that is not of the first generation, where
// somebody has moved the group: events of its keys in older generations may have to
// be handled first, again, for which the next turn waits.
func (o *owner) moved(part jetbus.Partition) {
	if part.Generation > 1 || o.move != "" {
		o.s.mu.Lock()
		defer o.s.mu.Unlock()
		o.s.failLocked(nil)
	}
}

var _ jetbus.PartitionSubscription = (*partitionMember)(nil)
