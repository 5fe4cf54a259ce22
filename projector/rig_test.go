package projector_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/projector"
)

// rig is a broker in a bubble of fake time, a bus, and a topic "t" with keys in its subjects.
type rig struct {
	*testing.T

	broker *embedded.Broker
	bus    *adapter.Bus
}

func inBubble(t *testing.T, f func(r *rig)) {
	t.Helper()
	bustest.Run(t, func(t *testing.T) {
		r := &rig{T: t, broker: bustest.Start(t, embedded.Config{})}
		r.bus = r.open()
		r.ensure(jetbus.TopicConfig{Name: "t"})
		f(r)
	})
}

// open opens a bus of its own, as another process would.
func (r *rig) open() *adapter.Bus { return bustest.Open(r.T, r.broker, adapter.Config{}) }

func (r *rig) ok(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) ensure(c jetbus.TopicConfig) jetbus.TopicInfo {
	r.Helper()
	info, err := r.bus.EnsureTopic(r.Context(), c)
	r.ok(err)
	return info
}

// anew deletes a topic and makes it again.
func (r *rig) anew(name string) {
	r.Helper()
	r.ok(r.bus.DeleteTopic(r.Context(), name))
	time.Sleep(time.Second)
	r.ensure(jetbus.TopicConfig{Name: name})
}

// publish stores "key:payload" events in t.
func (r *rig) publish(items ...string) {
	r.Helper()
	events := make([]jetbus.Event, len(items))
	for i, item := range items {
		key, payload, _ := strings.Cut(item, ":")
		events[i] = jetbus.Event{Topic: "t", Key: key, Payload: []byte(payload)}
	}
	_, err := r.bus.PublishBatch(r.Context(), events, jetbus.BatchOptions{})
	r.ok(err)
}

// numbered makes "k0:0", "k1:1", ... with so many keys.
func numbered(from, to, keys int) []string {
	out := make([]string, 0, to-from)
	for i := from; i < to; i++ {
		out = append(out, fmt.Sprintf("k%d:%d", i%keys, i))
	}
	return out
}

// options are those of a projection of t named p.
func options() projector.Options { return projector.Options{Name: "p", Topic: "t"} }

// project starts a replica that is stopped with the test.
func (r *rig) project(b projector.Backend, sink projector.Sink, o projector.Options) *projector.Projection {
	r.Helper()
	p, err := projector.Start(r.Context(), b, sink, o)
	r.ok(err)
	r.Cleanup(func() { r.stop(p) })
	return p
}

func (r *rig) stop(p *projector.Projection) {
	r.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := p.Stop(ctx); err != nil {
		r.Errorf("stop: %v", err)
	}
}

// caughtUp waits until the sink is not behind any more.
func (r *rig) caughtUp(p *projector.Projection) {
	r.Helper()
	r.eventually("lag 0", func() bool {
		lag, err := p.Lag(r.Context())
		r.ok(err)
		return lag.Events == 0 && p.Stats().Phase == projector.Following
	})
}

func (r *rig) eventually(what string, ok func() bool) {
	r.Helper()
	for start := time.Now(); time.Since(start) < 5*time.Minute; time.Sleep(max(100*time.Millisecond, time.Since(start)/20)) {
		if ok() {
			return
		}
	}
	r.Fatalf("not within 5 minutes: %s", what)
}

// dead are the dead letters of t: "seq error".
func (r *rig) dead() []string {
	r.Helper()
	var out []string
	for d, err := range jetbus.DeadLetters(r.Context(), r.bus, jetbus.DeadLetterQuery{Topic: "t"}) {
		if errors.Is(err, jetbus.ErrNoDeadLetters) {
			break
		}
		r.ok(err)
		if panicked := strings.Contains(d.Error, "panic: "); panicked != strings.Contains(d.Stack, "projector_test.") {
			r.Errorf("dead letter %q has the stack\n%s", d.Error, d.Stack)
		}
		out = append(out, fmt.Sprint(d.Event.Seq, " ", d.Error))
	}
	return out
}

func (r *rig) equal(what string, got, want any) {
	r.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		r.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func (r *rig) group(name string) jetbus.GroupInfo {
	r.Helper()
	groups, err := r.bus.Groups(r.Context(), "t")
	r.ok(err)
	for _, g := range groups {
		if g.Group == name {
			return g
		}
	}
	r.Fatalf("no group %s", name)
	return jetbus.GroupInfo{}
}
