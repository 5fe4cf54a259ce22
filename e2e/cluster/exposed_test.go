package cluster

import (
	"bytes"
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/e2e/internal/election"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

// holding is a way to a node on which the first extension of a lease is held up, and all behind it.
type holding struct {
	nats.InProcessConnProvider
	held chan struct{} // closed when it is
	free chan struct{} // to be closed
	once sync.Once
}

func (w *holding) InProcessConn() (net.Conn, error) {
	inner, err := w.InProcessConnProvider.InProcessConn()
	return holdingConn{inner, w}, err
}

type holdingConn struct {
	net.Conn
	w *holding
}

func (c holdingConn) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("+WPI")) {
		c.w.once.Do(func() {
			close(c.w.held)
			<-c.w.free
		})
	}
	return c.Conn.Write(p)
}

// A server that takes the lead before it has heard of the first extension of an old event gives
// that to another member, and extends its lease for both: the first one must not handle it.
func TestOldEventOfAnotherLeader(t *testing.T) {
	const lease = 20 * time.Second // longer than it takes until another one leads
	c, bus := onCluster(t, jetbus.TopicConfig{})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	wait := func(what string, on <-chan struct{}) {
		t.Helper()
		select {
		case <-on:
		case <-ctx.Done():
			t.Fatal(what)
		}
	}
	_, err := bus.Receive(ctx, "a", "g", jetbus.ReceiveOptions{Wait: -1, AckTimeout: lease}) // the group
	must(err)
	_, err = bus.Publish(ctx, jetbus.Event{Topic: "a"})
	must(err)
	time.Sleep(lease + time.Second)
	must(c.WaitReady(ctx))
	leader, err := election.Leader(ctx, c, func() (int, error) { return c.ConsumerLeader("EV_A", "a__g") })
	must(err)

	way := &holding{InProcessConnProvider: c.Node((leader + 1) % 3), held: make(chan struct{}), free: make(chan struct{})}
	lost := make(chan struct{}, 10)
	first, err := adapter.Open(ctx, bustest.Connect(t, c.Node((leader+1)%3), nats.InProcessServer(way)), adapter.Config{
		Timeout: patience, Observer: func(o jetbus.Observation) {
			if o.Kind == jetbus.LeaseLost && strings.Contains(o.Reason, "nobody else") { // else its time was over
				lost <- struct{}{}
			}
		},
	})
	must(err)
	defer func() { must(first.Close(context.WithoutCancel(ctx))) }()
	_, err = first.Subscribe(ctx, "a", "g", func(context.Context, *jetbus.Delivery) error {
		t.Error("the event is in two handlers")
		return nil
	}, jetbus.SubscribeOptions{AckTimeout: lease})
	must(err)
	wait("nothing is extended", way.held)

	eventually(t, func() string {
		if now, err := c.ConsumerLeader("EV_A", "a__g"); err != nil || now != leader {
			return ""
		}
		_ = c.Node(leader).Server().JetStreamStepdownConsumer(server.DEFAULT_GLOBAL_ACCOUNT, "EV_A", "a__g") // asked until it has
		return "it does not step down"
	})
	began, end := make(chan struct{}), make(chan struct{})
	second := bustest.Open(t, c.Node((leader+2)%3), adapter.Config{Timeout: patience})
	_, err = second.Subscribe(ctx, "a", "g", func(ctx context.Context, _ *jetbus.Delivery) error {
		close(began)
		select {
		case <-end:
		case <-ctx.Done():
			t.Errorf("the second lost its lease: %v", context.Cause(ctx))
		}
		return nil
	}, jetbus.SubscribeOptions{AckTimeout: lease})
	must(err)
	wait("the next leader gives the event to nobody", began)
	close(way.free)
	wait("the first holds on to the event", lost)
	close(end)
	eventually(t, func() string {
		if g, err := bus.Groups(ctx, "a"); err != nil || len(g) != 1 || g[0].AckedSeq != 1 {
			return "the event is not settled"
		}
		return ""
	})
}
