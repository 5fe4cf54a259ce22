package adapter

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/seed-63e9a637/jetbus"
)

// Bury implements jetbus.Burier.
func (b *Bus) Bury(ctx context.Context, d jetbus.DeadLetter) error {
	op := fmt.Sprintf("bury event %d of %s", d.Event.Seq, d.Event.Topic)
	if err := b.enter(ctx); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	defer b.calls.end()
	ctx, cancel := b.bound(ctx)
	defer cancel()
	if err := d.Validate(); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	d.Reason = cmp.Or(d.Reason, jetbus.DeadRejected)
	replicas := 0
	if d.Stream == "" {
		t, info, err := b.inspect(ctx, d.Event.Topic)
		if err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		d.Stream, d.StreamCreated, replicas = t.stream, info.Created.UTC(), t.config.Replicas
	}
	if err := b.keepStreams(ctx, replicas); err != nil {
		return b.translate(op, "", err)
	}
	if err := b.publishDead(ctx, d); err != nil {
		return b.translate(op, "", err) // of the question for the one that is there, too
	}
	b.cfg.Observer.Observe(jetbus.Observation{
		Kind: jetbus.DeadLettered, Topic: d.Event.Topic, Group: d.Group, ID: d.Event.ID, Seq: d.Event.Seq,
		Count: d.Attempts, Reason: string(d.Reason), Err: errors.New(d.Error),
	})
	return nil
}
