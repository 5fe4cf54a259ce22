package embedded_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus/embedded"
)

// patience bounds what waits for an election.
const patience = 30 * time.Second

func startCluster(t *testing.T, cfg embedded.ClusterConfig) (*embedded.Cluster, jetstream.JetStream) {
	t.Helper()
	c, err := embedded.StartCluster(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	nc, err := c.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return c, js
}

func TestClusterKeepsWhatItAcknowledged(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	began := time.Now()
	c, js := startCluster(t, embedded.ClusterConfig{})
	t.Log("started", time.Since(began))
	stream(t, js, 3)
	leader, err := c.StreamLeader("S")
	if err != nil {
		t.Fatal(err)
	}
	t.Log("leader", leader, time.Since(began))
	if err := c.StepDown(ctx, "S"); err != nil {
		t.Fatal(err)
	}
	t.Log("stepped down", time.Since(began))
	leader, err = c.StreamLeader("S")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.KillNode(ctx, leader); err != nil {
		t.Fatal(err)
	}
	t.Log("killed", time.Since(began))
	if err := c.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	t.Log("ready", time.Since(began))
	if err := c.RestartNode(ctx, leader); err != nil {
		t.Fatal(err)
	}
	t.Log("restarted", time.Since(began))
	if err := c.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	t.Log("ready", time.Since(began))
}
