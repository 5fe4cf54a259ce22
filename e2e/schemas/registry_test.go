//go:build unix

package schemas

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/seed-63e9a637/jetbus/e2e/internal/broker"
	"github.com/seed-63e9a637/jetbus/e2e/internal/rig"
	"github.com/seed-63e9a637/jetbus/registry"
)

// registrarConfig is that of a process that registers schemas of its own.
type registrarConfig struct {
	URL, Topic, Name string
	Registrars, Each int // goroutines, and schemas of each
}

// runRegistrar registers and tells of each version: its number, and its id as Seq.
func runRegistrar(ctx context.Context, config []byte, p *rig.Parent) error {
	var c registrarConfig
	if err := json.Unmarshal(config, &c); err != nil {
		return err
	}
	nc, err := broker.Dial(c.URL)
	if err != nil {
		return err
	}
	defer nc.Close()
	return onRegistry(ctx, nc, func(reg *registry.Registry) error {
		c.run(ctx, reg, p)
		return nil
	})
}

func (c registrarConfig) run(ctx context.Context, reg *registry.Registry, p *rig.Parent) {
	p.Tell(rig.Report{What: "ready"})
	<-p.Orders()
	var wg sync.WaitGroup
	for g := range c.Registrars {
		wg.Go(func() {
			for i := range c.Each {
				title := fmt.Sprintf("%s-%d-%d", c.Name, g, i)
				v, err := reg.Register(ctx, c.Topic, fmt.Sprintf(`{"type":"object","title":%q}`, title), registry.RegisterOptions{By: title})
				p.Tell(rig.Report{What: "registered", ID: title, Count: v.Number, Seq: uint64(max(v.ID, 0)), Err: rig.Text(err)})
			}
		})
	}
	wg.Wait()
	p.Tell(rig.Report{What: "done"})
	<-ctx.Done()
}

// TestRegistrars has 4 processes register from 4 goroutines each in one topic, and
// kills the broker by SIGKILL meanwhile, again and again: every registration is
// there once, under the number and id that its process was told, and both count
// from 1 without gaps.
func TestRegistrars(t *testing.T) {
	t.Parallel()
	const (
		processes, perProcess, each = 4, 4, 20
		total                       = processes * perProcess * each
		kills                       = 3
	)
	b := broker.Start(t)
	var children []*rig.Process
	for i := range processes {
		children = append(children, rig.Spawn(t, "registrar", registrarConfig{
			URL: b.URL(), Topic: "orders.created", Name: fmt.Sprint("p", i), Registrars: perProcess, Each: each,
		}))
	}
	for _, c := range children {
		c.First(t, "ready")
	}
	for _, c := range children {
		c.Order(t, "go")
	}
	told := func() []rig.Report {
		var out []rig.Report
		for _, c := range children {
			reports := c.Said("registered")
			out = append(out, reports...)
		}
		return out
	}
	for i := range kills {
		rig.Eventually(t, func() string {
			if n := len(told()); n < (i+1)*total/(kills+2) {
				return fmt.Sprintf("%d are registered before kill %d", n, i+1)
			}
			return ""
		})
		rig.KillAndRestart(t, b)
	}
	for _, c := range children {
		c.First(t, "done")
	}
	checkRegistered(t, b.URL(), told(), total)
}

// checkRegistered compares what processes were told with what is stored.
func checkRegistered(t *testing.T, url string, told []rig.Report, total int) {
	t.Helper()
	reg := openRegistry(t, url)
	versions, err := reg.Versions(t.Context(), "orders.created", true)
	if err != nil {
		t.Fatal(err)
	}
	stored := map[string]registry.Version{}
	var ids []int
	for i, v := range versions {
		if v.Number != i+1 {
			t.Errorf("number %d is in place %d", v.Number, i+1)
		}
		if other, twice := stored[v.By]; twice {
			t.Errorf("%s is stored twice, as %d and %d", v.By, other.Number, v.Number)
		}
		stored[v.By] = v
		ids = append(ids, v.ID)
	}
	slices.Sort(ids)
	for i, id := range ids {
		if id != i+1 {
			t.Fatalf("id %d is in place %d", id, i+1)
		}
	}
	for _, r := range told {
		if v := stored[r.ID]; r.Err != "" || v.Number != r.Count || uint64(max(v.ID, 0)) != r.Seq {
			t.Errorf("%s was told version %d with id %d (error %q), and version %d with id %d is stored", r.ID, r.Count, r.Seq, r.Err, v.Number, v.ID)
		}
	}
	if len(versions) != total || len(told) != total {
		t.Errorf("%d versions are stored, and %d were told of, want %d", len(versions), len(told), total)
	}
}
