package jetbus_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

// rig is a broker in a bubble of fake time, with a bus on it.
type rig struct {
	*testing.T
	broker *embedded.Broker
	bus    *adapter.Bus
}

func inBubble(t *testing.T, f func(r *rig)) {
	t.Helper()
	bustest.Run(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Second) }) // the store writes behind for a moment
		r := &rig{T: t, broker: bustest.Start(t, embedded.Config{})}
		r.bus = bustest.Open(t, r.broker, adapter.Config{})
		f(r)
	})
}

// open opens another bus on a connection of its own, which cut closes for good.
func (r *rig) open() (b *adapter.Bus, cut func()) {
	r.Helper()
	b, cut, err := r.dial()
	r.ok(err)
	return b, cut
}

// dial is open for when the broker may be away.
func (r *rig) dial() (b *adapter.Bus, cut func(), err error) {
	nc, err := r.broker.Connect()
	if err != nil {
		return b, nil, err
	}
	nc.SetErrorHandler(nil) // quiet
	r.Cleanup(nc.Close)
	if b, err = adapter.Open(r.Context(), nc, adapter.Config{}); err != nil {
		return b, nil, err
	}
	r.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := b.Close(ctx); err != nil {
			r.Errorf("close the bus: %v", err)
		}
	})
	return b, nc.Close, nil
}

func (r *rig) ok(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) wantErr(err, want error) {
	r.Helper()
	if !errors.Is(err, want) {
		r.Errorf("got error %v, want one that is %q", err, want)
	}
}

// took reports a duration that is not within bounds.
func (r *rig) took(what string, got, least, most time.Duration) {
	r.Helper()
	if got < least || got > most {
		r.Errorf("%s: after %v, want %v to %v", what, got, least, most)
	}
}

// publish stores an event and returns its sequence.
func (r *rig) publish(e jetbus.Event) uint64 {
	r.Helper()
	receipt, err := r.bus.Publish(r.Context(), e)
	r.ok(err)
	return receipt.Event.Seq
}

func (r *rig) ensure(c jetbus.TopicConfig) {
	r.Helper()
	_, err := r.bus.EnsureTopic(r.Context(), c)
	r.ok(err)
}
