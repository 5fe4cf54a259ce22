package registry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/registry"
)

const limit = 2 * time.Minute // of waits that end well before it

// rig is a broker with a registry on it. It ends with the test.
type rig struct {
	*testing.T
	broker *embedded.Broker
	reg    *registry.Registry
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{T: t, broker: bustest.Start(t, embedded.Config{})}
	r.reg = r.open(registry.Config{})
	return r
}

// open opens another registry on a connection of its own, as another process would.
func (r *rig) open(c registry.Config) *registry.Registry {
	r.Helper()
	return openOn(r.T, bustest.Connect(r.T, r.broker), c)
}

func openOn(t *testing.T, nc *nats.Conn, c registry.Config) *registry.Registry {
	t.Helper()
	reg := must(registry.Open(t.Context(), nc, c))(t)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if err := reg.Close(ctx); err != nil {
			t.Errorf("close the registry: %v", err)
		}
	})
	return reg
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

// is checks that an error is of a kind.
func (r *rig) is(err, want error) {
	r.Helper()
	if !errors.Is(err, want) {
		r.Errorf("got the error %v, want one that is %v", err, want)
	}
}

// register registers a schema that must come in.
func (r *rig) register(topic, text string) registry.Version {
	r.Helper()
	return must(r.reg.Register(r.Context(), topic, text, registry.RegisterOptions{}))(r.T)
}

// object is a schema of an object with string properties, the required ones with a
// '!' behind their names.
func object(properties ...string) string {
	var declared, required []string
	for _, p := range properties {
		name, needed := strings.CutSuffix(p, "!")
		declared = append(declared, fmt.Sprintf("%q: {\"type\": \"string\"}", name))
		if needed {
			required = append(required, fmt.Sprintf("%q", name))
		}
	}
	return fmt.Sprintf(`{"type": "object", "properties": {%s}, "required": [%s], "additionalProperties": false}`,
		strings.Join(declared, ", "), strings.Join(required, ", "))
}

// referring is a schema whose property refers to a version.
func referring(property string, ref registry.Reference) string {
	return fmt.Sprintf(`{"type": "object", "properties": {%q: {"$ref": %q}}}`, property, ref.String())
}

// lastSeq is the last sequence of the bucket: it moves when anything is stored.
func (r *rig) lastSeq() uint64 {
	r.Helper()
	js := must(jetstream.New(bustest.Connect(r.T, r.broker)))(r.T)
	stream := must(js.Stream(r.Context(), "KV_SCHEMAS"))(r.T)
	return must(stream.Info(r.Context()))(r.T).State.LastSeq
}

// stored checks that f stores nothing.
func (r *rig) nothingStored(f func()) {
	r.Helper()
	before := r.lastSeq()
	f()
	if after := r.lastSeq(); after != before {
		r.Errorf("the bucket went from sequence %d to %d", before, after)
	}
}

func eventually(t *testing.T, ok func() (missing string)) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(limit); ; <-tick.C {
		missing := ok()
		if missing == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(missing)
		}
	}
}

// tap is the way of one connection to the broker. It notices when something is
// written, once.
type tap struct {
	broker *embedded.Broker

	mu     sync.Mutex
	what   string
	before func() // called before it goes out
	cut    func() // called after it has gone out; no answer comes back, and the connection breaks
}

// connect connects through the tap.
func (p *tap) connect(t *testing.T) *nats.Conn {
	t.Helper()
	return bustest.Connect(t, p.broker, nats.InProcessServer(p))
}

// on arms the tap for a write that contains what.
func (p *tap) on(what string, before, cut func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.what, p.before, p.cut = what, before, cut
}

func (p *tap) InProcessConn() (net.Conn, error) {
	c, err := p.broker.InProcessConn()
	return &tapped{Conn: c, tap: p}, err
}

type tapped struct {
	net.Conn

	tap     *tap
	mu      sync.Mutex
	cutting bool
}

func (c *tapped) Write(b []byte) (int, error) {
	p := c.tap
	p.mu.Lock()
	before, cut := p.before, p.cut
	hit := p.what != "" && bytes.Contains(b, []byte(p.what))
	if hit {
		p.what = ""
	}
	p.mu.Unlock()
	if !hit {
		return c.Conn.Write(b)
	}
	if before != nil {
		before()
	}
	if cut == nil {
		return c.Conn.Write(b)
	}
	c.mu.Lock()
	c.cutting = true
	c.mu.Unlock()
	n, err := c.Conn.Write(b)
	cut()
	return n, errors.Join(err, c.Close())
}

func (c *tapped) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cutting {
		return 0, io.EOF
	}
	return n, err
}

// deleteConsumers takes away the watchers of all registries.
func (r *rig) deleteConsumers() {
	r.Helper()
	js := must(jetstream.New(bustest.Connect(r.T, r.broker)))(r.T)
	stream := must(js.Stream(r.Context(), "KV_SCHEMAS"))(r.T)
	names := stream.ConsumerNames(r.Context())
	for name := range names.Name() {
		r.ok(stream.DeleteConsumer(r.Context(), name))
	}
	r.ok(names.Err())
}
