//go:build unix

package schemas

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/e2e/internal/broker"
	"github.com/seed-63e9a637/jetbus/e2e/internal/rig"
	"github.com/seed-63e9a637/jetbus/registry"
)

// backfillConfig is that of a process that runs a backfill.
type backfillConfig struct{ URL, From, To string }

var backfillSteps = registry.Upcasters{"readings": {1: registry.Edit{Rename: map[string]string{"mb": "mib"}}}}

// runBackfill tells of each batch, and of the end.
func runBackfill(ctx context.Context, config []byte, p *rig.Parent) error {
	var c backfillConfig
	if err := json.Unmarshal(config, &c); err != nil {
		return err
	}
	return rig.OnBus(ctx, c.URL, adapter.Config{}, func(nc *nats.Conn, bus *adapter.Bus) error {
		return onRegistry(ctx, nc, func(reg *registry.Registry) error { return c.run(ctx, bus, reg, p) })
	})
}

func (c backfillConfig) run(ctx context.Context, bus *adapter.Bus, reg *registry.Registry, p *rig.Parent) error {
	stats, err := backfill(ctx, bus, reg, registry.BackfillOptions{
		From: c.From, To: c.To, BatchSize: 100, Upcasters: backfillSteps,
		Progress: func(s registry.BackfillStats) { p.Tell(rig.Report{What: "batch", Count: s.Read}) },
	})
	if err != nil {
		return err
	}
	p.Tell(rig.Report{What: "finished", Count: stats.Written, ID: fmt.Sprintf("%+v", stats)})
	return nil
}

// backfill runs one to its end. A machine that is busy with other things may cost
// it the lock; then it goes on where it was.
func backfill(ctx context.Context, bus jetbus.Backend, reg *registry.Registry, o registry.BackfillOptions) (registry.BackfillStats, error) {
	for {
		stats, err := registry.Backfill(ctx, bus, reg, o)
		if !errors.Is(err, jetbus.ErrLockLost) || ctx.Err() != nil {
			return stats, err
		}
	}
}

// A backfill whose process is killed again and again, and whose broker is killed in
// between, ends with what one writes that is left alone: into a log and into a
// compacted topic, each event once, in order, and with the same report.
func TestBackfillKilled(t *testing.T) {
	t.Parallel()
	const events = 6000
	b := broker.Start(t)
	bus := rig.OpenBus(t, b.URL())
	reg := openRegistry(t, b.URL())
	for _, name := range []string{"mb", "mib"} {
		text := fmt.Sprintf(`{"type":"object","properties":{%q:{"type":"integer"}},"required":[%q]}`, name, name)
		if _, err := reg.Register(t.Context(), "readings", text, registry.RegisterOptions{Force: true, By: "test"}); err != nil {
			t.Fatal(err)
		}
	}
	rig.Declare(t, bus, jetbus.TopicConfig{Name: "readings"})
	var batch []jetbus.Event
	for i := range events {
		payload := fmt.Sprintf(`{"mb":%d}`, i)
		if i%97 == 96 {
			payload = `{"mb":"bad"}`
		}
		batch = append(batch, jetbus.Event{
			Topic: "readings", ID: fmt.Sprint("r", i), Key: fmt.Sprint("k", i%50), Payload: []byte(payload), Headers: map[string]string{"x-schema-version": "1"},
		})
	}
	setUp, cancel := context.WithTimeout(t.Context(), rig.Limit) // without a deadline it has that of the bus
	defer cancel()
	if _, err := bus.PublishBatch(setUp, batch, jetbus.BatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, compact := range []bool{false, true} {
		whole, killed := fmt.Sprint("whole.", compact), fmt.Sprint("killed.", compact)
		for _, name := range []string{whole, killed} {
			rig.Declare(t, bus, jetbus.TopicConfig{Name: name, Compact: compact})
		}
		want, err := backfill(t.Context(), bus, reg, registry.BackfillOptions{From: "readings", To: whole, BatchSize: 100, Upcasters: backfillSteps})
		if err != nil {
			t.Fatal(err)
		}
		c := rig.Spawn(t, "backfill", backfillConfig{URL: b.URL(), From: "readings", To: killed})
		for kill, at := range []int{600, 2100, 4200} {
			c.Await(t, "batch", func(r rig.Report) bool { return r.Count >= at })
			c.Kill()
			if done := c.Said("finished"); len(done) > 0 {
				t.Logf("compact %v: it was faster than its end", compact)
			}
			if kill == 1 {
				rig.KillAndRestart(t, b)
			}
			c = rig.Spawn(t, "backfill", backfillConfig{URL: b.URL(), From: "readings", To: killed})
		}
		if end := c.First(t, "finished"); end.ID != fmt.Sprintf("%+v", want) {
			t.Errorf("compact %v: the report is\n%s, want\n%+v", compact, end.ID, want)
		}
		c.Gone(t)
		compareTargets(t, bus, whole, killed, compact)
	}
}

// compareTargets compares what two backfills of one topic wrote.
func compareTargets(t *testing.T, bus jetbus.Backend, whole, killed string, compact bool) {
	t.Helper()
	read := func(topic string) (out []string) {
		for e, err := range bus.Scan(t.Context(), topic, jetbus.ScanQuery{}) {
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, fmt.Sprintf("%s %s %s %v", e.Headers[registry.HeaderBackfillOf], e.Key, e.Payload, e.CausedBy))
		}
		if compact { // keys are written at once
			slices.Sort(out)
		}
		return out
	}
	want, got := read(whole), read(killed)
	if !slices.Equal(want, got) {
		t.Errorf("compact %v: %d events, want %d", compact, len(got), len(want))
		for i := range min(len(want), len(got)) {
			if want[i] != got[i] {
				t.Fatalf("the first that differs is %d: %s, want %s", i, got[i], want[i])
			}
		}
	}
}
