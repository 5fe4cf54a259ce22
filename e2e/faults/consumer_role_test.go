//go:build unix

package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/e2e/internal/rig"
)

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
	p       *rig.Parent
	bus     *adapter.Bus
	release chan struct{}
	once    sync.Once
}

func runConsumer(ctx context.Context, config []byte, p *rig.Parent) error {
	c := &consumer{p: p, release: make(chan struct{})}
	if err := json.Unmarshal(config, &c.consumerConfig); err != nil {
		return err
	}
	return rig.OnBus(ctx, c.URL, adapter.Config{}, func(_ *nats.Conn, bus *adapter.Bus) error {
		c.bus = bus
		return c.run(ctx)
	})
}

func (c *consumer) run(ctx context.Context) error {
	s, err := c.bus.Subscribe(context.WithoutCancel(ctx), c.Topic, c.Group, c.handle, jetbus.SubscribeOptions{
		From: jetbus.Earliest(), AckTimeout: c.AckTimeout,
	})
	if err != nil {
		return err
	}
	c.p.Tell(rig.Report{What: "ready"})
	go c.obey()
	select {
	case <-ctx.Done():
	case <-s.Done():
		return fmt.Errorf("the subscription ended by itself: %w", s.Err())
	}
	err = errors.Join(s.Stop(context.Background()), c.bus.Close(context.Background()))
	c.p.Tell(rig.Report{What: "stopped", Count: int(s.Stats().GivenBack)}) //nolint:gosec // a few
	return err
}

func (c *consumer) obey() {
	for order := range c.p.Orders() {
		if id, ok := strings.CutPrefix(order, "publish "); ok {
			go c.publish(id)
			continue
		}
		c.once.Do(func() { close(c.release) })
	}
}

// publish stores an event from this process, whatever happens to its connection meanwhile.
func (c *consumer) publish(id string) {
	c.p.Tell(rig.Report{What: "publishing", ID: id})
	ctx, cancel := context.WithTimeout(context.Background(), rig.Limit)
	defer cancel()
	r, err := c.bus.Publish(ctx, jetbus.Event{Topic: c.Topic, ID: id})
	c.p.Tell(rig.Report{What: "published", ID: id, Seq: r.Event.Seq, Err: rig.Text(err)})
}

func (c *consumer) handle(ctx context.Context, d *jetbus.Delivery) error {
	c.p.Tell(rig.Report{What: "started", ID: d.ID, Seq: d.Seq, Attempt: d.Attempt, Redelivered: d.Redelivered})
	if d.ID == c.Hold && !d.Redelivered && !c.hold(ctx, d) {
		c.p.Tell(rig.Report{What: "canceled", ID: d.ID, Until: d.Deadline(), Err: context.Cause(ctx).Error(), Is: condition(context.Cause(ctx))})
		err := d.Ack(context.Background())
		c.p.Tell(rig.Report{What: "acked late", ID: d.ID, Err: rig.Text(err), Is: condition(err)})
		return nil
	}
	c.p.Tell(rig.Report{What: "handled", ID: d.ID, Seq: d.Seq, Attempt: d.Attempt, Redelivered: d.Redelivered})
	return nil
}

// hold waits until the event is released, and tells when its lease was extended.
// It reports false when the handler was canceled instead.
func (c *consumer) hold(ctx context.Context, d *jetbus.Delivery) bool {
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for until := d.Deadline(); ; {
		select {
		case <-c.release:
			return true
		case <-ctx.Done():
			return false
		case <-look.C:
			if now := d.Deadline(); now.After(until) {
				until = now
				c.p.Tell(rig.Report{What: "extended", ID: d.ID, Until: until})
			}
		}
	}
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

// moverConfig is that of a process that moves a group.
type moverConfig struct {
	URL, Topic, Group string
	Seq               uint64
	Wait              time.Duration
}

// runMover moves a group once it is ordered to.
func runMover(ctx context.Context, config []byte, p *rig.Parent) error {
	var c moverConfig
	if err := json.Unmarshal(config, &c); err != nil {
		return err
	}
	return rig.OnBus(ctx, c.URL, adapter.Config{}, func(_ *nats.Conn, bus *adapter.Bus) error {
		c.run(ctx, bus, p)
		return nil
	})
}

func (c moverConfig) run(ctx context.Context, bus *adapter.Bus, p *rig.Parent) {
	p.Tell(rig.Report{What: "ready"})
	<-p.Orders()
	err := bus.SetCursor(ctx, c.Topic, c.Group, jetbus.Cursor{LastSeq: c.Seq}, jetbus.SeekOptions{Wait: c.Wait})
	done := rig.Report{What: "moved", Err: rig.Text(err), Is: condition(err)}
	if busy, ok := errors.AsType[*jetbus.GroupBusyError](err); ok {
		done.Count = busy.Held
	}
	p.Tell(done)
}
