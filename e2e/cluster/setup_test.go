package cluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/e2e/internal/election"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/embedded/cluster"
)

// patience is how long a step may take: an election may come, and a second one.
const patience = 2 * time.Minute

// onCluster gives a test a cluster of three with a topic "a" on all of them, and a bus.
func onCluster(t *testing.T, topic jetbus.TopicConfig) (*cluster.Cluster, *adapter.Bus) {
	t.Helper()
	c := election.Cluster(t, cluster.Config{})
	bus := bustest.Open(t, c, adapter.Config{Replicas: 3, Timeout: patience})
	topic.Name = "a"
	if _, err := bus.EnsureTopic(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	return c, bus
}

// eventually waits until ok, which says what is missing, has nothing to say.
func eventually(t *testing.T, ok func() (missing string)) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		missing := ok()
		if missing == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(missing)
		}
	}
}

// links are the events from..to of a chain in topic "a".
func links(from, to int) (out []jetbus.Event) {
	for i := from; i <= to; i++ {
		out = append(out, jetbus.Event{Topic: "a", ID: fmt.Sprint("id-", i), Key: fmt.Sprint(i)})
	}
	return out
}

// behind is the chain behind number n, which is at position n.
func behind(n int) jetbus.BatchOptions {
	c := &jetbus.Chain{AfterSeq: uint64(n)}
	if n > 0 {
		c.AfterID = fmt.Sprint("id-", n)
	}
	return jetbus.BatchOptions{Chain: c}
}
