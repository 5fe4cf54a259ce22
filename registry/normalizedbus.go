package registry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// Normalized returns a backend whose Subscribe, SubscribePartition and Receive deliver
// events in the version that the program was written for; see [Normalizer.Normalize] for how.
// Publishing and reading are those of b: use a Normalizer for what is read.
//
// An event that cannot be brought there goes to the dead letters without being
// handled (jetbus.DeadSchema; by Receive, which cannot say so, jetbus.DeadRejected),
// as it was stored, and with a reason that names the hop or the parts that are wrong.
// An event of a newer version that cannot be read as one of this is put off for
// NewerDelay, which counts no attempt: in a rolling deploy a newer member takes it.
// So is any event while the registry cannot be asked what it needs. A group with an
// Order has one active member: there such an event holds back those behind it until
// a newer member is the active one, which it is when the older one has ended.
//
// Filters see events as they were stored.
func Normalized(b jetbus.Backend, r *Registry, o NormalizedOptions) jetbus.Backend {
	return &normalized{Backend: b, n: NewNormalizer(r, o)}
}

// normalized is the decorator.
type normalized struct {
	jetbus.Backend

	n *Normalizer
}

// ready reports options that are not valid, or a version that they name for one of
// these topics and that does not exist.
func (n *Normalizer) ready(ctx context.Context, topics ...string) error {
	if n.wrong != nil {
		return n.wrong
	}
	for _, topic := range topics {
		if version := n.o.Versions[topic]; version != 0 {
			if _, err := wanted(ctx, n.r, topic, version); err != nil {
				return fmt.Errorf("normalize to version %d: %w", version, err)
			}
		}
	}
	return nil
}

// Subscribe implements jetbus.Subscriber. Its error wraps jetbus.ErrInvalidOption
// for NormalizedOptions that are not valid, and [ErrNoVersion] or [ErrNoSchema] for
// a version of theirs that does not exist.
func (b *normalized) Subscribe(ctx context.Context, topic, group string, h jetbus.Handler, o jetbus.SubscribeOptions) (jetbus.Subscription, error) {
	if err := b.n.ready(ctx, append([]string{topic}, o.Topics...)...); err != nil {
		return nil, fmt.Errorf("subscribe %s/%s: %w", topic, group, err)
	}
	return b.Backend.Subscribe(ctx, topic, group, b.handler(h), o)
}

// SubscribePartition implements jetbus.Partitions. Its errors are those of Subscribe, too.
func (b *normalized) SubscribePartition(ctx context.Context, topic, group string, turn jetbus.PartitionTurn, h jetbus.Handler, o jetbus.SubscribeOptions) (jetbus.PartitionSubscription, error) {
	if err := b.n.ready(ctx, topic); err != nil {
		return nil, fmt.Errorf("subscribe %s/%s to %s: %w", topic, group, turn.Partition, err)
	}
	return b.Backend.SubscribePartition(ctx, topic, group, turn, b.handler(h), o)
}

// handler lets a handler have events in its version. No handler stays none: the bus
// says so.
func (b *normalized) handler(h jetbus.Handler) jetbus.Handler {
	if h == nil {
		return nil
	}
	return func(ctx context.Context, d *jetbus.Delivery) error {
		e, err := b.n.Normalize(ctx, d.Event)
		if err != nil {
			return b.n.steer(ctx, err)
		}
		own := *d
		own.Event = e
		return h(ctx, &own)
	}
}

// steer says what is to become of an event that could not be normalized.
func (n *Normalizer) steer(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return err
	case errors.Is(err, ErrNewer):
		return jetbus.Snooze(n.o.NewerDelay)
	case jetbus.DispositionOf(err).Action != jetbus.ActionRetry || jetbus.DispositionOf(err).Delay > 0:
		return err
	case errors.Is(err, jetbus.ErrSchema):
		return jetbus.RejectAs(jetbus.DeadSchema, err)
	}
	return jetbus.Snooze(n.o.NewerDelay) // the registry is away, which is no fault of the event
}

// Receive implements jetbus.Receiver. Events that are not for this program are
// settled, and others waited for in their place.
func (b *normalized) Receive(ctx context.Context, topic, group string, o jetbus.ReceiveOptions) ([]*jetbus.Delivery, error) {
	if err := b.n.ready(ctx, topic); err != nil {
		return nil, fmt.Errorf("receive %s/%s: %w", topic, group, err)
	}
	full, err := o.Normalize()
	if err != nil {
		return b.Backend.Receive(ctx, topic, group, o) // it says what is wrong
	}
	until := time.Now().Add(full.Wait)
	for {
		batch, err := b.Backend.Receive(ctx, topic, group, o)
		if err != nil || len(batch) == 0 {
			return batch, err
		}
		out := batch[:0]
		for _, d := range batch {
			if b.receive(ctx, d) {
				out = append(out, d)
			}
		}
		switch {
		case len(out) > 0:
			return out, nil
		case ctx.Err() != nil:
			return nil, fmt.Errorf("receive %s/%s: %w", topic, group, context.Cause(ctx))
		}
		if o.Wait = time.Until(until); full.Wait < 0 || o.Wait <= 0 {
			o.Wait = -1
		}
	}
}

// receive normalizes a delivery, or settles it: then it is false. One that cannot
// be settled comes back by itself.
func (b *normalized) receive(ctx context.Context, d *jetbus.Delivery) bool {
	e, err := b.n.Normalize(ctx, d.Event)
	if err == nil {
		d.Event = e
		return true
	}
	settling := context.WithoutCancel(ctx)
	if ctx.Err() != nil {
		_ = d.GiveBack(settling)
		return false
	}
	switch what := jetbus.DispositionOf(b.n.steer(ctx, err)); what.Action {
	case jetbus.ActionAck:
		_ = d.Ack(settling)
	case jetbus.ActionSnooze:
		_ = d.Snooze(settling, what.Delay)
	case jetbus.ActionReject:
		_ = d.RejectWith(settling, jetbus.RejectOptions{As: what.Reason, Reason: what.Err.Error(), Stack: jetbus.StackOf(err)})
	case jetbus.ActionRetry:
		o := jetbus.NackOptions{Delay: what.Delay, Reason: what.Err.Error()}
		if d.MaxAttempts > 0 && d.Attempt >= d.MaxAttempts {
			o.Stack = jetbus.StackOf(err)
		}
		_ = d.Nack(settling, o)
	}
	return false
}
