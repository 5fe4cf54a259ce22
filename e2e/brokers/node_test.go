package brokers

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus/embedded/cluster"
)

// TestKilledNodeLosesNothingAcknowledged kills the leader of a stream with one replica,
// which needs nobody's consent, while clients of another node publish to it: what it
// acknowledged while it was being killed is in its store when it comes back.
func TestKilledNodeLosesNothingAcknowledged(t *testing.T) {
	t.Parallel() // elections are mostly waiting
	c, js := startCluster(t, cluster.Config{})
	stream(t, js, 1)
	if err := c.WaitReady(patient(t)); err != nil {
		t.Fatal(err)
	}
	victim := leader(t, c)
	other := connect(t, c.Node((victim+1)%3))
	persist(t, func(ctx context.Context) error { // until the nodes know the way to each other
		_, err := other.Publish(ctx, "s.first", []byte("first"), jetstream.WithMsgID("first"))
		return err
	})
	const writers = 200
	acked := make(chan string, writers*1000)
	ended := make(chan struct{})
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	for w := range writers {
		go func() {
			defer func() { ended <- struct{}{} }()
			for i := 0; ctx.Err() == nil && i < 1000; i++ {
				id := fmt.Sprintf("w%d-%d", w, i)
				if _, err := other.Publish(ctx, "s.a", []byte(id), jetstream.WithRetryAttempts(0)); err != nil {
					return
				}
				acked <- id
			}
		}()
	}
	var ids []string
	for range writers { // they are at work
		ids = append(ids, <-acked)
	}
	if err := c.KillNode(patient(t), victim); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(time.Second, stop) // for answers that should not come
	for range writers {
		<-ended
	}
	if err := c.RestartNode(patient(t), victim); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitReady(patient(t)); err != nil {
		t.Fatal(err)
	}
	have := stored(t, connect(t, c))
	close(acked)
	for id := range acked {
		ids = append(ids, id)
	}
	for _, id := range ids {
		if !have[id] {
			t.Fatalf("%s was acknowledged and is lost", id)
		}
	}
}
