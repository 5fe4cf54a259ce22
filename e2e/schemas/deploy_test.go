//go:build unix

package schemas

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/e2e/internal/broker"
	"github.com/seed-63e9a637/jetbus/e2e/internal/rig"
	"github.com/seed-63e9a637/jetbus/registry"
)

const (
	heartbeats  = "heartbeat.received"
	heartbeatV1 = `{"type":"object","properties":{"host":{"type":"string"},"mem_mb":{"type":"integer"}},"required":["host","mem_mb"]}`
	heartbeatV2 = `{"type":"object","properties":{"host":{"type":"string"},"mem_mib":{"type":"integer"}},"required":["host","mem_mib"]}`
)

// memberConfig is that of a process of one release, which writes heartbeats and reads them in a group.
type memberConfig struct {
	URL, Name string
	Version   int // that the release was written for
}

// field is what the release calls the memory.
func (c memberConfig) field() string { return map[int]string{1: "mem_mb", 2: "mem_mib"}[c.Version] }

// release is the bus of a release.
func (c memberConfig) release(bus jetbus.Backend, reg *registry.Registry) jetbus.Backend {
	versions := map[string]int{heartbeats: c.Version}
	o := registry.NormalizedOptions{Versions: versions}
	if c.Version == 2 {
		o.Upcasters = registry.Upcasters{heartbeats: {1: registry.Edit{Rename: map[string]string{"mem_mb": "mem_mib"}}}}
	}
	return registry.Normalized(registry.Validated(bus, reg, registry.ValidatedOptions{Versions: versions}), reg, o)
}

// runMember writes and reads until it is told to end, and tells of each event, with its memory as Count.
func runMember(ctx context.Context, config []byte, p *rig.Parent) error {
	var c memberConfig
	if err := json.Unmarshal(config, &c); err != nil {
		return err
	}
	return rig.OnBus(ctx, c.URL, adapter.Config{}, func(nc *nats.Conn, bus *adapter.Bus) error {
		return onRegistry(ctx, nc, func(reg *registry.Registry) error { return c.run(ctx, bus, reg, p) })
	})
}

func (c memberConfig) run(ctx context.Context, bus *adapter.Bus, reg *registry.Registry, p *rig.Parent) error {
	release := c.release(bus, reg)
	life := context.WithoutCancel(ctx)
	sub, err := release.Subscribe(life, heartbeats, "ops", func(_ context.Context, d *jetbus.Delivery) error {
		var beat map[string]any
		err := json.Unmarshal(d.Payload, &beat)
		mem, has := beat[c.field()].(float64)
		if err == nil && (!has || len(beat) != 2) {
			err = fmt.Errorf("not as the release reads it: %s", d.Payload)
		}
		p.Tell(rig.Report{What: "handled", ID: d.ID, Count: int(mem), Err: rig.Text(err)})
		return nil
	}, jetbus.SubscribeOptions{})
	if err != nil {
		return err
	}
	var writing sync.WaitGroup
	writing.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ctx.Err() == nil; i++ {
			id := fmt.Sprintf("%s-%d", c.Name, i)
			_, err := release.Publish(life, jetbus.Event{Topic: heartbeats, ID: id, Payload: fmt.Appendf(nil, `{"host":%q,%q:%d}`, c.Name, c.field(), i)})
			p.Tell(rig.Report{What: "published", ID: id, Count: i, Err: rig.Text(err)})
			<-tick.C
		}
	})
	writing.Wait()
	return sub.Stop(life)
}

// TestRollingDeploy replaces three processes of a release by three of the next one, one at a time, while
// all of them write and read: version 2 renames a field, and has an upcaster. Nothing is refused or
// lost, each reader gets each event as its release knows it, and there is no dead letter.
func TestRollingDeploy(t *testing.T) {
	t.Parallel()
	const members, enough = 3, 20
	b := broker.Start(t)
	bus := rig.OpenBus(t, b.URL())
	rig.Declare(t, bus, jetbus.TopicConfig{Name: heartbeats})
	reg := openRegistry(t, b.URL())
	register := func(text string, o registry.RegisterOptions) {
		t.Helper()
		_, err := reg.Register(t.Context(), heartbeats, text, o)
		rig.Must(t, err)
	}
	var all []*rig.Process
	start := func(version, i int) *rig.Process {
		t.Helper()
		c := rig.Spawn(t, "member", memberConfig{URL: b.URL(), Name: fmt.Sprintf("v%d-%d", version, i), Version: version})
		all = append(all, c)
		c.Await(t, "published", func(r rig.Report) bool { return r.Count == enough })
		return c
	}
	register(heartbeatV1, registry.RegisterOptions{By: "alice"})
	var before []*rig.Process
	for i := range members {
		before = append(before, start(1, i))
	}
	if _, err := reg.Register(t.Context(), heartbeats, heartbeatV2, registry.RegisterOptions{By: "alice"}); !errors.Is(err, registry.ErrIncompatible) {
		t.Fatalf("version 2 is let in: %v", err)
	}
	register(heartbeatV2, registry.RegisterOptions{By: "alice", Force: true})
	for i, old := range before {
		start(2, i)
		old.Terminate(t)
		old.Gone(t)
	}
	for _, c := range all[members:] { // by themselves for a while
		last := c.Said("published")
		c.Await(t, "published", func(r rig.Report) bool { return r.Count >= len(last)+enough })
	}
	rig.AwaitHandled(t, published(t, all), all...)
	for _, c := range all[members:] {
		c.Terminate(t)
		c.Gone(t)
	}
	var left sync.Map // what came between the last look and the end
	reader := memberConfig{Version: 2}.release(bus, reg)
	sub, err := reader.Subscribe(t.Context(), heartbeats, "ops", func(_ context.Context, d *jetbus.Delivery) error {
		left.Store(d.ID, true)
		return nil
	}, jetbus.SubscribeOptions{})
	rig.Must(t, err)
	rig.AwaitSettled(t, bus, heartbeats, "ops")
	rig.Must(t, sub.Stop(context.Background()))
	handled := rig.Handled(all...)
	for _, id := range published(t, all) {
		if _, late := left.Load(id); !late && !handled[id] {
			t.Errorf("%s was not handled", id)
		}
	}
	if _, err := jetbus.DeadLetterStats(t.Context(), bus, heartbeats); !errors.Is(err, jetbus.ErrNoDeadLetters) {
		t.Errorf("dead letters: %v", err)
	}
	checkHandled(t, all[:members], all[members:])
}

// published are the ids of what the members have published, none of which was refused.
func published(t *testing.T, members []*rig.Process) (ids []string) {
	t.Helper()
	for _, c := range members {
		for _, r := range c.Said("published") {
			if r.Err != "" {
				t.Errorf("%s was refused: %s", r.ID, r.Err)
			}
			ids = append(ids, r.ID)
		}
	}
	return ids
}

// checkHandled checks that each event was read as it was written, and that both releases have
// read what the old one wrote.
func checkHandled(t *testing.T, before, after []*rig.Process) {
	t.Helper()
	var kept, crossed int
	for i, c := range slices.Concat(before, after) {
		for _, r := range c.Said("handled") {
			var writer, number, mem int
			if _, err := fmt.Sscanf(r.ID, "v%d-%d-%d", &writer, &number, &mem); err != nil || r.Err != "" || r.Count != mem {
				t.Errorf("%s was read as one of %d: %s %v", r.ID, r.Count, r.Err, err)
			}
			switch isNew := i >= len(before); {
			case writer == 2 && !isNew:
				t.Errorf("%s, of the new release, was read by the old one", r.ID)
			case writer == 1 && isNew:
				crossed++
			case writer == 1:
				kept++
			}
		}
	}
	if kept == 0 || crossed == 0 {
		t.Errorf("of what the old release wrote it has read %d events, and the new one %d", kept, crossed)
	}
}
