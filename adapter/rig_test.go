package adapter_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
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

// rig is a broker, and a bus on a connection of its own. It ends with the test.
type rig struct {
	*testing.T
	broker *embedded.Broker
	nc     *nats.Conn
	bus    *adapter.Bus
	js     jetstream.JetStream // looks at the server past the bus
	settle func()              // waits until the server has taken in what has no answer, where that can be
}

// inBubble runs f with a fresh broker in a bubble of fake time.
func inBubble(t *testing.T, f func(r *rig)) {
	t.Helper()
	bustest.Run(t, func(t *testing.T) {
		// The store of an atomic batch writes behind for a millisecond or two, which
		// a stopped server does not wait for.
		t.Cleanup(func() { time.Sleep(time.Second) })
		r := &rig{T: t, broker: bustest.Start(t, embedded.Config{}), settle: synctest.Wait}
		r.nc, r.bus = r.open(adapter.Config{})
		r.js = must(jetstream.New(r.nc))(t)
		f(r)
	})
}

// inRealTime runs f with a fresh broker outside of a bubble. In one, the server
// goes by the real clock where it looks for events past their retention, so that
// a changed declaration removes all of them.
func inRealTime(t *testing.T, f func(r *rig)) {
	t.Helper()
	r := &rig{T: t, broker: bustest.Start(t, embedded.Config{}), settle: func() {}}
	r.nc, r.bus = r.open(adapter.Config{})
	r.js = must(jetstream.New(r.nc))(t)
	f(r)
}

// open opens another bus on a connection of its own.
func (r *rig) open(c adapter.Config, o ...nats.Option) (*nats.Conn, *adapter.Bus) {
	r.Helper()
	nc := bustest.Connect(r.T, r.broker, o...)
	b := must(adapter.Open(r.Context(), nc, c))(r.T)
	r.Cleanup(func() { closeBus(r.T, b) })
	return nc, b
}

func closeBus(t *testing.T, b *adapter.Bus) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := b.Close(ctx); err != nil {
		t.Errorf("close the bus: %v", err)
	}
}

// must returns a result, or ends the test: must(f())(t).
func must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func (r *rig) ok(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// ensure declares a topic.
func (r *rig) ensure(c jetbus.TopicConfig) jetbus.TopicInfo {
	r.Helper()
	return must(r.bus.EnsureTopic(r.Context(), c))(r.T)
}

// publish stores events with the given keys, whose payload is their key.
func (r *rig) publish(topic string, keys ...string) []jetbus.Event {
	r.Helper()
	var out []jetbus.Event
	for _, key := range keys {
		receipt := must(r.bus.Publish(r.Context(), event(topic, key)))(r.T)
		out = append(out, receipt.Event)
	}
	return out
}

func event(topic, key string) jetbus.Event {
	return jetbus.Event{Topic: topic, Key: key, Payload: []byte(`"` + key + `"`)}
}

// numbered makes n events with the keys 0, 1, 2, ...
func numbered(topic string, n int) []jetbus.Event {
	out := make([]jetbus.Event, n)
	for i := range out {
		out[i] = event(topic, fmt.Sprint(i))
	}
	return out
}

// stream is the server's word on a stream.
func (r *rig) stream(name string) *jetstream.StreamInfo {
	r.Helper()
	r.settle()
	s := must(r.js.Stream(r.Context(), name))(r.T)
	return s.CachedInfo()
}

// stored lists the keys of a topic in the order of the log.
func (r *rig) stored(topic string) string {
	r.Helper()
	var keys []string
	for e, err := range r.bus.Scan(r.Context(), topic, jetbus.ScanQuery{}) {
		r.ok(err)
		keys = append(keys, e.Key)
	}
	return strings.Join(keys, " ")
}

// group is the server's word on a group.
func (r *rig) group(topic, group string) jetbus.GroupInfo {
	r.Helper()
	r.settle()
	for _, g := range must(r.bus.Groups(r.Context(), topic))(r.T) {
		if g.Group == group {
			return g
		}
	}
	r.Fatalf("topic %s has no group %s", topic, group)
	return jetbus.GroupInfo{}
}

func (r *rig) wantErr(err error, want ...error) {
	r.Helper()
	wantErr(r.T, err, want...)
}

func wantErr(t *testing.T, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("got error %v, want one that is %q", err, w)
		}
	}
}

func (r *rig) equal(what string, got, want any) {
	r.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		r.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// wire is a way to the broker on which accidents can be arranged. The
// connections made through it share the fate of the present one.
type wire struct {
	broker *embedded.Broker
	deaf   atomic.Bool  // what the server says is lost
	budget atomic.Int64 // bytes that still get through to the server before the connection breaks; 0: any number
	asks   atomic.Int64 // how many extensions of a lease are still lost, and the connection with each
	last   atomic.Pointer[wireConn]
}

func (w *wire) InProcessConn() (net.Conn, error) {
	inner, err := w.broker.InProcessConn()
	if err != nil {
		return nil, err
	}
	c := &wireConn{Conn: inner, w: w}
	w.last.Store(c)
	return c, nil
}

// cut breaks the present connection.
func (w *wire) cut() {
	w.deaf.Store(false)
	_ = w.last.Load().Close()
}

type wireConn struct {
	net.Conn
	w *wire
}

func (c *wireConn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if err != nil || !c.w.deaf.Load() {
			return n, err
		}
	}
}

func (c *wireConn) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("+WPI")) && c.w.asks.Add(-1) >= 0 {
		_ = c.Close()
		return 0, net.ErrClosed
	}
	budget := c.w.budget.Load()
	if budget == 0 {
		return c.Conn.Write(p)
	}
	if int64(len(p)) < budget {
		c.w.budget.Add(-int64(len(p)))
		return c.Conn.Write(p)
	}
	c.w.budget.Store(0)
	n, _ := c.Conn.Write(p[:budget])
	_ = c.Close()
	return n, net.ErrClosed
}

// openWired opens a bus whose connection can be tampered with.
func (r *rig) openWired(c adapter.Config) (*wire, *adapter.Bus) {
	r.Helper()
	w := &wire{broker: r.broker}
	_, b := r.open(c, nats.InProcessServer(w))
	return w, b
}

// firstErr is the first error of a sequence.
func firstErr[T any](seq func(func(T, error) bool)) error {
	for _, err := range seq {
		if err != nil {
			return err
		}
	}
	return nil
}

func isClosed(err error) bool { return errors.Is(err, jetbus.ErrClosed) }
