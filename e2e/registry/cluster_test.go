// Package registry tests the schema registry where the leader of its bucket changes and
// nodes are killed.
package registry

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus/e2e/internal/election"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/embedded/cluster"
	"github.com/seed-63e9a637/jetbus/registry"
)

// patience bounds a step, which may wait for an election and for a second one.
const patience = 2 * time.Minute

// registrars register versions of one topic's schema, all at once.
type registrars struct {
	wg   sync.WaitGroup
	mu   sync.Mutex
	got  []registry.Version
	more chan struct{} // has a value when got has grown
}

func (g *registrars) start(t *testing.T, reg *registry.Registry, name string, n int) {
	g.wg.Go(func() {
		ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
		defer cancel()
		for i := range n {
			text := fmt.Sprintf(`{"type": "object", "title": "%s-%d"}`, name, i)
			v, err := reg.Register(ctx, "t", text, registry.RegisterOptions{By: name})
			if err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			g.mu.Lock()
			g.got = append(g.got, v)
			g.mu.Unlock()
			select {
			case g.more <- struct{}{}:
			default:
			}
		}
	})
}

// reach waits until n are registered.
func (g *registrars) reach(t *testing.T, n int) {
	t.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		g.mu.Lock()
		have := len(g.got)
		g.mu.Unlock()
		if have >= n {
			return
		}
		select {
		case <-g.more:
		case <-timeout.C:
			t.Fatalf("%d are registered, want %d", have, n)
		}
	}
}

// On three replicas the leader changes and a node is killed under registrars: every
// registration is there once, under the number it was told, without gaps.
func TestCluster(t *testing.T) {
	nodes := election.Cluster(t, cluster.Config{})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	open := func() *registry.Registry {
		t.Helper()
		reg, err := registry.Open(t.Context(), bustest.Connect(t, nodes), registry.Config{Replicas: 3, Timeout: patience})
		must(err)
		t.Cleanup(func() {
			if err := reg.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		return reg
	}
	const processes, each = 3, 12
	g := &registrars{more: make(chan struct{}, 1)}
	for p := range processes {
		reg := open()
		for i := range 2 {
			g.start(t, reg, fmt.Sprintf("%d-%d", p, i), each)
		}
	}
	step := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		t.Cleanup(cancel)
		return ctx
	}
	g.reach(t, 15)
	must(election.StepDown(step(), nodes, "KV_SCHEMAS"))
	g.reach(t, 35)
	leader, err := election.Leader(step(), nodes, func() (int, error) { return nodes.StreamLeader("KV_SCHEMAS") })
	must(err)
	must(nodes.KillNode(step(), leader))
	g.reach(t, 50)
	must(nodes.RestartNode(step(), leader))
	g.wg.Wait()

	slices.SortFunc(g.got, func(a, b registry.Version) int { return a.Number - b.Number })
	versions, err := open().Versions(t.Context(), "t", true)
	must(err)
	if len(versions) != processes*2*each || len(g.got) != len(versions) {
		t.Fatalf("%d versions are stored and %d were told, want %d", len(versions), len(g.got), processes*2*each)
	}
	for i, v := range versions {
		if v.Number != i+1 || v.Text != g.got[i].Text || v.Number != g.got[i].Number {
			t.Errorf("in place %d there is version %d, %s; told was %d, %s", i+1, v.Number, v.Text, g.got[i].Number, g.got[i].Text)
		}
	}
}
