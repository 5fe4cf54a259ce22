// Package wrap makes topics of its parameters; those who call it give them.
package wrap

import (
	"context"

	"github.com/seed-63e9a637/jetbus"
)

type Sender struct{ Bus jetbus.Bus }

func (s *Sender) Send(ctx context.Context, topic string, payload []byte) error { // want Send:`takesTopic\(\[1\]\)`
	return s.send(ctx, payload, topic)
}

func (s *Sender) send(ctx context.Context, payload []byte, name string) error { // want send:`takesTopic\(\[2\]\)`
	_, err := s.Bus.Publish(ctx, jetbus.Event{Topic: name, Payload: payload})
	return err
}

type Name string

func Generic[T any](ctx context.Context, b jetbus.Bus, name Name, v T) error { // want Generic:`takesTopic\(\[2\]\)`
	e := jetbus.Event{}
	e.Topic = string(name)
	_, err := b.Publish(ctx, e)
	return err
}

// Prefixed makes another topic of its parameter: nothing is known about that.
func Prefixed(ctx context.Context, b jetbus.Bus, name string) error {
	return b.Read(ctx, []string{"Prefix." + name}) // want `BUS004`
}
