// Package names uses names in every way there is (BUS001, BUS011). // want package:`topics\(X.y dlq s x Generic\)`
package names

import (
	"context"

	. "github.com/seed-63e9a637/jetbus"
	bus "github.com/seed-63e9a637/jetbus"

	"orders"
)

const suffix = ".received"

type wrapper struct {
	bus.Bus // its methods are promoted
	note    string
}

type namedTopic string

const named namedTopic = "Named"

func publish(ctx context.Context, b bus.Bus, w *wrapper) {
	_, _ = b.Publish(ctx, bus.Event{Topic: "Orders.Created"}) // want `BUS001: invalid topic: "Orders.Created"`
	_, _ = b.Publish(ctx, bus.Event{Topic: orders.Created})
	_, _ = w.Publish(ctx, bus.Event{Topic: orders.Bad + suffix}) // want `BUS001: .*"Orders.received"`
	_, _ = w.Publish(ctx, Event{Topic: "a..b"})                  // want `BUS001: .*empty segment`
	_, _ = b.PublishBatch(ctx, []bus.Event{
		{Topic: "good"},
		{Topic: "not good"}, // want `BUS001`
	}, bus.BatchOptions{})
	_, _ = b.PublishBatch(ctx, []bus.Event{{"id", "bad!", "key", nil, nil}}, bus.BatchOptions{}) // want `BUS001`
	e := bus.Event{}
	e.Topic = ""                // none yet
	e.Topic = orders.Base + "." // want `BUS001: .*empty segment`
	p := &bus.Delivery{}
	p.Topic = "A"                                   // want `BUS001`
	w.note = "A"                                    // no topic
	_ = bus.Tombstone("a.v0", "k")                  // want `BUS001: .*version "v0"`
	_ = bus.Event{Topic: string(named)}             // want `BUS001`
	_ = bus.Topic[int]{Name: "X.y"}                 // want `BUS001`
	_ = bus.TopicConfig{Name: "dlq"}                // want `BUS001: .*reserved`
	_ = bus.TopicConfig{Name: "s", SnapshotOf: "S"} // want `BUS001`
}

func subscribe(ctx context.Context, b bus.Bus, h bus.Handler, stop func(bus.Subscription)) error {
	s, err := b.Subscribe(ctx, "UP", "a group", h, bus.SubscribeOptions{Topics: []string{"fine", "Not"}}) // want `BUS001: .*"UP"` `BUS011: .*"a group"` `BUS001: .*"Not"`
	stop(s)
	f := b.Subscribe
	s, err = f(ctx, "Fields", ".g", h, bus.SubscribeOptions{}) // want `BUS001: .*"Fields"` `BUS011: .*starts or ends with a dot`
	stop(s)
	s, err = bus.Topic[int]{Name: "x"}.Subscribe(ctx, b, "g g", nil, bus.SubscribeOptions{}) // want `BUS011`
	stop(s)
	if err == nil {
		err = b.Read(ctx, []string{"ok", "no no"}) // want `BUS001`
	}
	return err
}

func generic[T any](ctx context.Context, b bus.Bus, v T) error {
	_, err := bus.Topic[T]{Name: "Generic"}.Publish(ctx, b, v) // want `BUS001`
	return err
}
