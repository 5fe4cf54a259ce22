// Package adaptertest is a kit for tests of the adapter that need a broker of their own:
// a rig in a bubble of fake time, ways to the broker that are long or break, and servers
// that package embedded does not offer. What it makes ends with its test.
package adaptertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

// Rig is a broker, and a bus on a connection of its own. It ends with the test.
type Rig struct {
	*testing.T
	Broker *embedded.Broker
	NC     *nats.Conn
	Bus    *adapter.Bus
	JS     jetstream.JetStream // looks at the server past the bus
	Settle func()              // waits until the server has taken in what has no answer, where that can be
}

// InBubble runs f with a fresh broker in a bubble of fake time.
func InBubble(t *testing.T, f func(r *Rig)) {
	t.Helper()
	bustest.Run(t, func(t *testing.T) {
		// The store of an atomic batch writes behind for a millisecond or two, which
		// a stopped server does not wait for.
		t.Cleanup(func() { time.Sleep(time.Second) })
		r := On(t, bustest.Start(t, embedded.Config{}))
		r.Settle = synctest.Wait
		f(r)
	})
}

// InRealTime runs f with a fresh broker outside of a bubble. In one, the server
// goes by the real clock where it looks for events past their retention, so that
// a changed declaration removes all of them.
func InRealTime(t *testing.T, f func(r *Rig)) {
	t.Helper()
	f(On(t, bustest.Start(t, embedded.Config{})))
}

// On is a rig on a broker that was started for the test.
func On(t *testing.T, b *embedded.Broker) *Rig {
	t.Helper()
	r := &Rig{T: t, Broker: b, Settle: func() {}}
	r.NC, r.Bus = r.Open(adapter.Config{})
	r.JS = Must(jetstream.New(r.NC))(t)
	return r
}

// Open opens another bus on a connection of its own.
func (r *Rig) Open(c adapter.Config, o ...nats.Option) (*nats.Conn, *adapter.Bus) {
	r.Helper()
	nc := bustest.Connect(r.T, r.Broker, o...)
	b := Must(adapter.Open(r.Context(), nc, c))(r.T)
	r.Cleanup(func() { CloseBus(r.T, b) })
	return nc, b
}

// CloseBus closes a bus, which works out within a minute.
func CloseBus(t *testing.T, b *adapter.Bus) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := b.Close(ctx); err != nil {
		t.Errorf("close the bus: %v", err)
	}
}

// Must returns a result, or ends the test: Must(f())(t).
func Must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// OK ends the test where there is an error.
func (r *Rig) OK(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// Ensure declares a topic.
func (r *Rig) Ensure(c jetbus.TopicConfig) jetbus.TopicInfo {
	r.Helper()
	return Must(r.Bus.EnsureTopic(r.Context(), c))(r.T)
}

// Publish stores events with the given keys, whose payload is their key.
func (r *Rig) Publish(topic string, keys ...string) []jetbus.Event {
	r.Helper()
	var out []jetbus.Event
	for _, key := range keys {
		receipt := Must(r.Bus.Publish(r.Context(), Event(topic, key)))(r.T)
		out = append(out, receipt.Event)
	}
	return out
}

// Event is an event whose payload is its key.
func Event(topic, key string) jetbus.Event {
	return jetbus.Event{Topic: topic, Key: key, Payload: []byte(`"` + key + `"`)}
}

// Numbered makes n events with the keys 0, 1, 2, ...
func Numbered(topic string, n int) []jetbus.Event {
	out := make([]jetbus.Event, n)
	for i := range out {
		out[i] = Event(topic, fmt.Sprint(i))
	}
	return out
}

// Keys lists the keys of n events of Numbered.
func Keys(n int) string {
	var keys []string
	for i := range n {
		keys = append(keys, fmt.Sprint(i))
	}
	return strings.Join(keys, " ")
}

// Stream is the server's word on a stream.
func (r *Rig) Stream(name string) *jetstream.StreamInfo {
	r.Helper()
	r.Settle()
	s := Must(r.JS.Stream(r.Context(), name))(r.T)
	return s.CachedInfo()
}

// Stored lists the keys of a topic in the order of the log.
func (r *Rig) Stored(topic string) string {
	r.Helper()
	var keys []string
	for e, err := range r.Bus.Scan(r.Context(), topic, jetbus.ScanQuery{}) {
		r.OK(err)
		keys = append(keys, e.Key)
	}
	return strings.Join(keys, " ")
}

// Group is the server's word on a group.
func (r *Rig) Group(topic, group string) jetbus.GroupInfo {
	r.Helper()
	r.Settle()
	for _, g := range Must(r.Bus.Groups(r.Context(), topic))(r.T) {
		if g.Group == group {
			return g
		}
	}
	r.Fatalf("topic %s has no group %s", topic, group)
	return jetbus.GroupInfo{}
}

// WantErr fails the test unless err is all of those.
func (r *Rig) WantErr(err error, want ...error) {
	r.Helper()
	WantErr(r.T, err, want...)
}

// WantErr fails the test unless err is all of those.
func WantErr(t *testing.T, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("got error %v, want one that is %q", err, w)
		}
	}
}

// Equal fails the test unless two values are printed alike.
func (r *Rig) Equal(what string, got, want any) {
	r.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		r.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// FirstErr is the first error of a sequence.
func FirstErr[T any](seq func(func(T, error) bool)) error {
	for _, err := range seq {
		if err != nil {
			return err
		}
	}
	return nil
}

// WantNil is OK for other goroutines than the test's.
func (r *Rig) WantNil(err error) {
	r.Helper()
	if err != nil {
		r.Error(err)
	}
}

// StoredAt is the broker's time of an event.
func (r *Rig) StoredAt(stream string, seq uint64) time.Time {
	r.Helper()
	return Must(Must(r.JS.Stream(r.Context(), stream))(r.T).GetMsg(r.Context(), seq))(r.T).Time
}

// Within waits until ok, for fake time.
func (r *Rig) Within(limit time.Duration, what string, ok func() bool) time.Duration {
	r.Helper()
	start := time.Now()
	for !ok() {
		if time.Since(start) > limit {
			r.Fatalf("%s: not within %v", what, limit)
		}
		time.Sleep(max(5*time.Millisecond, time.Since(start)/20))
	}
	return time.Since(start)
}

// Subscribe joins group g of topic a from its beginning.
func (r *Rig) Subscribe(b *adapter.Bus, h jetbus.Handler, o jetbus.SubscribeOptions) jetbus.Subscription {
	r.Helper()
	o.From = jetbus.Earliest()
	return Must(b.Subscribe(r.Context(), "a", "g", h, o))(r.T)
}

// Ignore is a handler that does nothing.
func Ignore(context.Context, *jetbus.Delivery) error { return nil }

// Last is the error of a call whose result does not matter.
func Last[T any](_ T, err error) error { return err }

// IsClosed reports whether an error says that the bus, or its connection, is closed.
func IsClosed(err error) bool { return errors.Is(err, jetbus.ErrClosed) }
