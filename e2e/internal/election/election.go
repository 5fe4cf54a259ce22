// Package election gives tests a cluster, and has them sit out elections that nobody asked
// for: on a slow machine a cluster holds one now and then.
package election

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/seed-63e9a637/jetbus/embedded/cluster"
)

// Cluster starts a cluster, which ends with the test.
func Cluster(t *testing.T, cfg cluster.Config) *cluster.Cluster {
	t.Helper()
	c, err := cluster.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(context.Background()); err != nil {
			t.Errorf("stop the cluster: %v", err)
		}
	})
	return c
}

// SitOut asks what needs a leader until there is one, or ctx ends.
func SitOut(ctx context.Context, c *cluster.Cluster, ask func() error) error {
	for {
		err := ask()
		if !errors.Is(err, cluster.ErrNoLeader) {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
		if err := c.WaitReady(ctx); err != nil {
			return err
		}
	}
}

// Leader is SitOut for who asks which node leads.
func Leader(ctx context.Context, c *cluster.Cluster, ask func() (int, error)) (leader int, err error) {
	err = SitOut(ctx, c, func() (err error) {
		leader, err = ask()
		return err
	})
	return leader, err
}

// StepDown has the leader of a stream step down.
func StepDown(ctx context.Context, c *cluster.Cluster, stream string) error {
	return SitOut(ctx, c, func() error { return c.StepDown(ctx, stream) })
}
