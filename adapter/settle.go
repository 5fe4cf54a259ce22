package adapter

import (
	"context"
	"fmt"

	"github.com/seed-63e9a637/jetbus"
)

// Ack implements jetbus.Settler.
func (b *Bus) Ack(ctx context.Context, topic, group, id string) error {
	l, err := b.heldLease(ctx, "ack", topic, group, id)
	if err != nil {
		return err
	}
	defer b.calls.end()
	return l.Ack(ctx)
}

// Nack implements jetbus.Settler.
func (b *Bus) Nack(ctx context.Context, topic, group, id, reason string) error {
	l, err := b.heldLease(ctx, "nack", topic, group, id)
	if err != nil {
		return err
	}
	defer b.calls.end()
	return l.Nack(ctx, jetbus.NackOptions{Reason: reason})
}

// heldLease finds the lease this process holds on the only event that is meant, and
// enters the call.
func (b *Bus) heldLease(ctx context.Context, verb, topic, group, id string) (jetbus.Lease, error) {
	op := fmt.Sprintf("%s %s %s in group %s", verb, topic, id, group)
	if err := b.enter(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	var found []*lease
	for _, h := range b.leaseSets(topic, group) {
		found = append(found, h.find(topic, id)...)
	}
	if len(found) == 1 {
		return found[0].current(), nil
	}
	b.calls.end()
	if len(found) > 1 {
		return nil, fmt.Errorf("%s: %w: %d events of this ID are held; settle each by its delivery", op, jetbus.ErrConflict, len(found))
	}
	return nil, fmt.Errorf("%s: %w", op, jetbus.ErrNotHeld)
}

// leaseSets lists who may hold events of a group.
func (b *Bus) leaseSets(topic, group string) []*leaseSet {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []*leaseSet
	for m := range b.members {
		if s, ok := m.(*subscription); ok && s.group == group {
			out = append(out, &s.leaseSet)
		}
	}
	for key, r := range b.held {
		if key.topic == topic && key.group == group {
			out = append(out, &r.leaseSet)
		}
	}
	return out
}
