package jetbus

import (
	"context"
	"encoding/json"
	"fmt"
)

// Topic publishes and receives values of one Go type. The zero Codec is JSON.
// A Topic is a value that holds no state; declare it as a package variable.
type Topic[T any] struct {
	Name  string
	Key   func(T) string // the event's key; nil: no key
	Codec Codec[T]       // nil: JSON
}

// Codec turns values into payloads and back.
type Codec[T any] interface {
	Encode(T) ([]byte, error)
	Decode([]byte) (T, error)
	ContentType() string
}

// Event returns the event that Publish would publish, for PublishBatch or to add
// headers, an id or causes.
func (t Topic[T]) Event(v T) (Event, error) {
	codec := t.codec()
	payload, err := codec.Encode(v)
	if err != nil {
		return Event{}, fmt.Errorf("encode %s: %w", t.Name, err)
	}
	e := Event{Topic: t.Name, Payload: payload, Headers: map[string]string{HeaderContentType: codec.ContentType()}}
	if t.Key != nil {
		e.Key = t.Key(v)
	}
	return e, nil
}

// Publish encodes v and publishes it. The errors are those of the codec and of
// [Publisher].
func (t Topic[T]) Publish(ctx context.Context, p Publisher, v T, o ...PublishOptions) (Receipt, error) {
	e, err := t.Event(v)
	if err != nil {
		return Receipt{}, err
	}
	return p.Publish(ctx, e, o...)
}

// Decode returns the value of an event. Of a deletion ([Event.IsTombstone]) that is the zero value
// with JSON, and what Codec makes of null else.
func (t Topic[T]) Decode(e Event) (T, error) {
	v, err := t.codec().Decode(e.Payload)
	if err != nil {
		return v, fmt.Errorf("decode %s %s: %w", t.Name, e.ID, err)
	}
	return v, nil
}

// Subscribe delivers decoded values. A payload that does not decode is a failed
// attempt like any other. In a topic that keeps state the handler gets deletions, too: look at
// d.IsTombstone first, since what JSON makes of their null is the zero value.
func (t Topic[T]) Subscribe(ctx context.Context, s Subscriber, group string, h func(context.Context, T, *Delivery) error, o SubscribeOptions) (Subscription, error) {
	return s.Subscribe(ctx, t.Name, group, func(ctx context.Context, d *Delivery) error {
		v, err := t.Decode(d.Event)
		if err != nil {
			return err
		}
		return h(ctx, v, d)
	}, o)
}

func (t Topic[T]) codec() Codec[T] {
	if t.Codec != nil {
		return t.Codec
	}
	return JSONCodec[T]{}
}

// JSONCodec encodes with encoding/json.
type JSONCodec[T any] struct{}

// Encode returns the value as JSON.
func (JSONCodec[T]) Encode(v T) ([]byte, error) { return json.Marshal(v) }

// Decode reads JSON.
func (JSONCodec[T]) Decode(b []byte) (T, error) {
	var v T
	err := json.Unmarshal(b, &v)
	return v, err
}

// ContentType is application/json.
func (JSONCodec[T]) ContentType() string { return "application/json" }
