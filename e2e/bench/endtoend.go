package main

import (
	"context"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
)

// endToEnd publishes with one bus while another consumes, until all is settled.
func endToEnd(count, size int) job {
	return job{name: "bus", count: count, run: onLane(size, func(ctx context.Context, l *lane, all []jetbus.Event, c *clock) error {
		n, got := len(all), 0
		done := make(chan struct{})
		s, err := l.e.bus2.Subscribe(ctx, l.topic, group, func(context.Context, *jetbus.Delivery) error {
			if got++; got == n {
				close(done)
			}
			return nil
		}, jetbus.SubscribeOptions{})
		if err != nil {
			return err
		}
		defer func() { _ = s.Stop(context.Background()) }()
		names, err := l.durables(ctx)
		if err != nil {
			return err
		}
		c.start()
		if err := l.publishBatches(ctx, all, batchSize, jetbus.BatchOptions{}); err != nil {
			return err
		}
		if err := wait(ctx, done); err != nil {
			return err
		}
		if err := settled(ctx, l.e.js, l.stream, names[0], n); err != nil {
			return err
		}
		c.stop(n)
		return nil
	})}
}

// rawEndToEnd is the same by hand: e2e-lean-explicit-hdr.
func rawEndToEnd(count, size int) job {
	return job{name: "hand-written path", count: count, run: onLane(size, func(ctx context.Context, l *lane, all []jetbus.Event, c *clock) error {
		if _, err := l.durable(ctx); err != nil {
			return err
		}
		n, got := len(all), 0
		done := make(chan struct{})
		p, err := newPullLoop(l.e.raw2, l.stream, "raw", 5000, func(m *nats.Msg) {
			_ = l.e.raw2.Publish(m.Reply, nil) // without it the run times out
			if got++; got == n {
				close(done)
			}
		})
		if err != nil {
			return err
		}
		defer p.stop()
		w, err := newWindowed(l.e.raw)
		if err != nil {
			return err
		}
		c.start()
		for i := range all {
			if err := w.publish(&nats.Msg{Subject: l.subject, Header: rawHeader(&all[i]), Data: all[i].Payload}); err != nil {
				return err
			}
		}
		if err := w.finish(ctx); err != nil {
			return err
		}
		if err := wait(ctx, done); err != nil {
			return err
		}
		if err := settled(ctx, l.e.js, l.stream, "raw", n); err != nil {
			return err
		}
		c.stop(n)
		return nil
	})}
}
