package registry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"iter"
	"maps"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/registry"
)

// opaque lets the contract suite, whose payloads are any bytes of any type, use
// buses that take JSON alone: on their way in payloads become JSON texts and content
// types other headers, and on their way out they are what they were. The headers
// that the decorators add are taken off.
type opaque struct{ jetbus.Backend }

const opaqueType = "x-opaque-type"

func wrap(e jetbus.Event) jetbus.Event {
	if e.IsTombstone() || jetbus.IsDeadLetterTopic(e.Topic) {
		return e
	}
	e.Payload, _ = json.Marshal(map[string][]byte{"opaque": e.Payload})
	if t, ok := e.Headers[jetbus.HeaderContentType]; ok {
		e.Headers = maps.Clone(e.Headers)
		delete(e.Headers, jetbus.HeaderContentType)
		e.Headers[opaqueType] = t
	}
	return e
}

func unwrap(e jetbus.Event) jetbus.Event {
	var text map[string][]byte
	if bytes.HasPrefix(e.Payload, []byte(`{"opaque":`)) && json.Unmarshal(e.Payload, &text) == nil {
		e.Payload = text["opaque"]
	}
	e.Headers = maps.Clone(e.Headers)
	if t, ok := e.Headers[opaqueType]; ok {
		e.Headers[jetbus.HeaderContentType] = t
	}
	for _, name := range []string{opaqueType, registry.HeaderSchemaVersion, registry.HeaderDataSchema} {
		delete(e.Headers, name)
	}
	if len(e.Headers) == 0 {
		e.Headers = nil
	}
	return e
}

func (o opaque) Publish(ctx context.Context, e jetbus.Event, opts ...jetbus.PublishOptions) (jetbus.Receipt, error) {
	r, err := o.Backend.Publish(ctx, wrap(e), opts...)
	r.Event = unwrap(r.Event)
	return r, err
}

func (o opaque) PublishBatch(ctx context.Context, events []jetbus.Event, opts jetbus.BatchOptions) ([]jetbus.Receipt, error) {
	in := make([]jetbus.Event, len(events))
	for i, e := range events {
		in[i] = wrap(e)
	}
	out, err := o.Backend.PublishBatch(ctx, in, opts)
	for i := range out {
		out[i].Event = unwrap(out[i].Event)
	}
	return out, err
}

func (o opaque) Retry(ctx context.Context, group string, e jetbus.Event, opts jetbus.RetryOptions) (jetbus.Receipt, error) {
	r, err := o.Backend.Retry(ctx, group, wrap(e), opts)
	r.Event = unwrap(r.Event)
	return r, err
}

func (o opaque) Subscribe(ctx context.Context, topic, group string, h jetbus.Handler, opts jetbus.SubscribeOptions) (jetbus.Subscription, error) {
	return o.Backend.Subscribe(ctx, topic, group, unwrapping(h), opts)
}

func (o opaque) SubscribePartition(ctx context.Context, topic, group string, turn jetbus.PartitionTurn, h jetbus.Handler, opts jetbus.SubscribeOptions) (jetbus.PartitionSubscription, error) {
	return o.Backend.SubscribePartition(ctx, topic, group, turn, unwrapping(h), opts)
}

func unwrapping(h jetbus.Handler) jetbus.Handler {
	if h == nil {
		return nil
	}
	return func(ctx context.Context, d *jetbus.Delivery) error {
		d.Event = unwrap(d.Event)
		return h(ctx, d)
	}
}

func (o opaque) Receive(ctx context.Context, topic, group string, opts jetbus.ReceiveOptions) ([]*jetbus.Delivery, error) {
	out, err := o.Backend.Receive(ctx, topic, group, opts)
	for _, d := range out {
		d.Event = unwrap(d.Event)
	}
	return out, err
}

func unwrapAll(in iter.Seq2[jetbus.Event, error]) iter.Seq2[jetbus.Event, error] {
	return func(yield func(jetbus.Event, error) bool) {
		for e, err := range in {
			if !yield(unwrap(e), err) {
				return
			}
		}
	}
}

func (o opaque) Read(ctx context.Context, topics []string, opts jetbus.ReadOptions) iter.Seq2[jetbus.Event, error] {
	return unwrapAll(o.Backend.Read(ctx, topics, opts))
}

func (o opaque) Scan(ctx context.Context, topic string, q jetbus.ScanQuery) iter.Seq2[jetbus.Event, error] {
	return unwrapAll(o.Backend.Scan(ctx, topic, q))
}

func (o opaque) LatestByKey(ctx context.Context, topic string, keys ...string) (map[string]jetbus.Event, error) {
	out, err := o.Backend.LatestByKey(ctx, topic, keys...)
	for key, e := range out {
		out[key] = unwrap(e)
	}
	return out, err
}

func (o opaque) ScanLatest(ctx context.Context, topic string, q jetbus.LatestQuery, each func(jetbus.Event) error) (uint64, error) {
	return o.Backend.ScanLatest(ctx, topic, q, func(e jetbus.Event) error { return each(unwrap(e)) })
}

func (o opaque) StateAt(ctx context.Context, topic string, at time.Time) (jetbus.State, error) {
	s, err := o.Backend.StateAt(ctx, topic, at)
	for key, e := range s.Events {
		s.Events[key] = unwrap(e)
	}
	return s, err
}
