package main

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/seed-63e9a637/jetbus"
)

// ackByID acknowledges n events that are held, by their ids.
func ackByID(count, size int) job {
	return ackHeld("bus", count, size, func(ctx context.Context, l *lane, d *jetbus.Delivery) error {
		return l.e.bus2.Ack(ctx, l.topic, group, d.ID)
	})
}

// ackByDelivery acknowledges as many by their deliveries, for which nothing is looked up.
func ackByDelivery(count, size int) job {
	return ackHeld("by delivery", count, size, func(ctx context.Context, _ *lane, d *jetbus.Delivery) error {
		return d.Ack(ctx)
	})
}

// ackHeld receives n events and acknowledges them in an order that is none.
func ackHeld(name string, count, size int, ack func(context.Context, *lane, *jetbus.Delivery) error) job {
	return job{name: name, count: count, run: onFilledLane(size, func(ctx context.Context, l *lane, n int, c *clock) error {
		held, err := l.e.bus2.Receive(ctx, l.topic, group, jetbus.ReceiveOptions{From: jetbus.Earliest(), Max: n})
		if err == nil && len(held) != n {
			err = fmt.Errorf("received %d events, want %d", len(held), n)
		}
		if err != nil {
			return err
		}
		rand.New(rand.NewPCG(1, 1)).Shuffle(n, func(i, j int) { held[i], held[j] = held[j], held[i] }) //nolint:gosec // the same each time
		names, err := l.durables(ctx)
		if err != nil {
			return err
		}
		c.start()
		for _, d := range held {
			if err := ack(ctx, l, d); err != nil {
				return err
			}
		}
		if err := settled(ctx, l.e.js, l.stream, names[0], n); err != nil {
			return err
		}
		c.stop(n)
		return nil
	})}
}
