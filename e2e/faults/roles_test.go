//go:build unix

package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
)

// brokerConfig is that of a broker process.
type brokerConfig struct{ Listen, Dir string }

func runBroker(ctx context.Context, config []byte, p *parent) error {
	var c brokerConfig
	if err := json.Unmarshal(config, &c); err != nil {
		return err
	}
	b, err := embedded.Start(ctx, embedded.Config{Listen: c.Listen, Dir: c.Dir})
	if err != nil {
		return err
	}
	p.tell(report{What: "ready"})
	<-ctx.Done()
	return b.Stop(context.Background())
}

// nodeConfig is that of a node of a cluster.
type nodeConfig struct {
	Name, Dir   string
	Port, Route int
	Routes      []int
}

func runNode(ctx context.Context, config []byte, p *parent) error {
	var c nodeConfig
	if err := json.Unmarshal(config, &c); err != nil {
		return err
	}
	o := &server.Options{
		ServerName: c.Name, Host: "127.0.0.1", Port: c.Port, NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: filepath.Join(c.Dir, c.Name), DisableJetStreamBanner: true,
		Cluster: server.ClusterOpts{Name: "faults", Host: "127.0.0.1", Port: c.Route, NoAdvertise: true},
	}
	for _, port := range c.Routes {
		o.Routes = append(o.Routes, &url.URL{Scheme: "nats", Host: fmt.Sprintf("127.0.0.1:%d", port)})
	}
	s, err := server.NewServer(o)
	if err != nil {
		return err
	}
	s.Start()
	if !s.ReadyForConnections(limit) {
		return fmt.Errorf("node %s does not come up", c.Name)
	}
	p.tell(report{What: "ready"})
	<-ctx.Done()
	s.Shutdown()
	s.WaitForShutdown()
	return nil
}

// dial connects as a program would that is to survive its broker.
func dial(url string) (*nats.Conn, error) {
	return nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond),
		nats.ReconnectJitter(10*time.Millisecond, 10*time.Millisecond), nats.Timeout(10*time.Second),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // else it prints what the test breaks
}

// consumerConfig is that of a member of a group.
type consumerConfig struct {
	URL, Topic, Group string
	AckTimeout        time.Duration
	// Hold is the id of an event whose handler runs until it is released by an
	// order or its context is canceled.
	Hold string
}

// consumer is a member of a group in a process of its own. It tells of each
// handler's start and end, and takes the orders "release" and "publish <id>".
type consumer struct {
	consumerConfig
	p       *parent
	bus     *adapter.Bus
	release chan struct{}
	once    sync.Once
}

func runConsumer(ctx context.Context, config []byte, p *parent) error {
	c := &consumer{p: p, release: make(chan struct{})}
	if err := json.Unmarshal(config, &c.consumerConfig); err != nil {
		return err
	}
	nc, err := dial(c.URL)
	if err != nil {
		return err
	}
	defer nc.Close()
	if c.bus, err = adapter.Open(ctx, nc, adapter.Config{}); err != nil {
		return err
	}
	s, err := c.bus.Subscribe(context.WithoutCancel(ctx), c.Topic, c.Group, c.handle, jetbus.SubscribeOptions{
		From: jetbus.Earliest(), AckTimeout: c.AckTimeout,
	})
	if err != nil {
		return err
	}
	p.tell(report{What: "ready"})
	go c.obey()
	select {
	case <-ctx.Done():
	case <-s.Done():
		return fmt.Errorf("the subscription ended by itself: %w", s.Err())
	}
	err = errors.Join(s.Stop(context.Background()), c.bus.Close(context.Background()))
	p.tell(report{What: "stopped", Count: int(s.Stats().GivenBack)}) //nolint:gosec // a few
	return err
}

func (c *consumer) obey() {
	for order := range c.p.orders {
		if id, ok := strings.CutPrefix(order, "publish "); ok {
			go c.publish(id)
			continue
		}
		c.once.Do(func() { close(c.release) })
	}
}

// publish stores an event from this process, whatever happens to its connection meanwhile.
func (c *consumer) publish(id string) {
	c.p.tell(report{What: "publishing", ID: id})
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	r, err := c.bus.Publish(ctx, jetbus.Event{Topic: c.Topic, ID: id})
	c.p.tell(report{What: "published", ID: id, Seq: r.Event.Seq, Err: text(err)})
}

func (c *consumer) handle(ctx context.Context, d *jetbus.Delivery) error {
	c.p.tell(report{What: "started", ID: d.ID, Seq: d.Seq, Attempt: d.Attempt})
	if d.ID == c.Hold && d.Attempt == 1 {
		select {
		case <-c.release:
		case <-ctx.Done():
			now := report{What: "canceled", ID: d.ID, Err: context.Cause(ctx).Error(), Is: condition(context.Cause(ctx))}
			c.p.tell(now)
			err := d.Ack(context.Background())
			c.p.tell(report{What: "acked late", ID: d.ID, Err: text(err), Is: condition(err)})
			return nil
		}
	}
	c.p.tell(report{What: "handled", ID: d.ID, Seq: d.Seq, Attempt: d.Attempt})
	return nil
}

// condition names the conditions that tests ask for.
func condition(err error) string {
	switch {
	case errors.Is(err, jetbus.ErrLeaseExpired):
		return "lease expired"
	case errors.Is(err, jetbus.ErrGroupBusy):
		return "group busy"
	}
	return ""
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// moverConfig is that of a process that moves a group.
type moverConfig struct {
	URL, Topic, Group string
	Seq               uint64
	Wait              time.Duration
}

// runMover moves a group once it is ordered to.
func runMover(ctx context.Context, config []byte, p *parent) error {
	var c moverConfig
	if err := json.Unmarshal(config, &c); err != nil {
		return err
	}
	nc, err := dial(c.URL)
	if err != nil {
		return err
	}
	defer nc.Close()
	bus, err := adapter.Open(ctx, nc, adapter.Config{})
	if err != nil {
		return err
	}
	p.tell(report{What: "ready"})
	<-p.orders
	err = bus.SetCursor(ctx, c.Topic, c.Group, jetbus.Cursor{LastSeq: c.Seq}, jetbus.SeekOptions{Wait: c.Wait})
	done := report{What: "moved", Err: text(err), Is: condition(err)}
	if busy, ok := errors.AsType[*jetbus.GroupBusyError](err); ok {
		done.Count = busy.Held
	}
	p.tell(done)
	return bus.Close(context.Background())
}
