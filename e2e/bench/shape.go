package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// Rows about what must cost nothing extra: the yardstick is the bus at the same work in its
// plainest shape, or the way to the server.

const (
	// manyTopics is how many topics one subscription of these rows has, with so many events of
	// so many bytes in all of them: a thousand in each, since the first few hundred measure how the
	// server begins the files of 300 durables, and not how it goes on.
	manyTopics = 300
	manyEvents = 300_000
	manySize   = 128
	// farAway and near are how long a message and its answer take in them.
	farAway = 10 * time.Millisecond
	near    = 2 * time.Millisecond
)

// far opens a bus on a connection of its own over a long way.
func (e *env) far(ctx context.Context, rtt time.Duration) (bus *adapter.Bus, nc *nats.Conn, closeBoth func(), err error) {
	nc, err = nats.Connect("", nats.InProcessServer(&adaptertest.Distant{Broker: e.broker, RTT: rtt}), quiet)
	if err != nil {
		return nil, nil, nil, err
	}
	if bus, err = adapter.Open(ctx, nc, adapter.Config{SID: sid}); err != nil {
		nc.Close()
		return nil, nil, nil, err
	}
	return bus, nc, func() {
		_ = bus.Close(context.Background())
		nc.Close()
	}, nil
}

// filledLanes makes lanes with n events in all, which lie in them by turns.
func (e *env) filledLanes(ctx context.Context, topics, n, size int) (lanes []*lane, drop func(), err error) {
	drop = func() {
		for _, l := range lanes {
			l.drop()
		}
	}
	for range topics {
		l, err := e.lane(ctx)
		if err != nil {
			drop()
			return nil, nil, err
		}
		lanes = append(lanes, l)
	}
	all := events(lanes[0].topic, n, size)
	for i := range all {
		all[i].Topic = lanes[i%topics].topic
	}
	if _, err = e.bus.PublishBatch(ctx, all, jetbus.BatchOptions{}); err != nil {
		drop()
		return nil, nil, err
	}
	return lanes, drop, nil
}

// consumeTopics runs a no-op handler over n events that lie in some topics, all of one subscription.
func consumeTopics(name string, topics int) job {
	return job{name: name, count: manyEvents, run: func(ctx context.Context, e *env, n int, c *clock) error {
		lanes, drop, err := e.filledLanes(ctx, topics, n, manySize)
		if err != nil {
			return err
		}
		defer drop()
		var others []string
		for _, l := range lanes[1:] {
			others = append(others, l.topic)
		}
		return acked(ctx, e.bus2, lanes[0].topic, jetbus.SubscribeOptions{Topics: others}, n, c)
	}}
}

// rawConsumeTopics is a pull loop for each topic, written by hand: what the server can give
// from so many durables, each of whose state it keeps in a file of its own. It has as many events
// of each under way as the bus has by default: with a thousand of each the server has to keep
// more for the connection than it allows, and cuts it off.
func rawConsumeTopics(topics int) job {
	return job{name: "raw pull loops", count: manyEvents, run: func(ctx context.Context, e *env, n int, c *clock) error {
		lanes, drop, err := e.filledLanes(ctx, topics, n, manySize)
		if err != nil {
			return err
		}
		defer drop()
		for _, l := range lanes {
			if _, err := l.durable(ctx); err != nil {
				return err
			}
		}
		var got atomic.Int64
		done := make(chan struct{})
		c.start()
		for _, l := range lanes {
			p, err := newPullLoop(e.raw2, l.stream, "raw", jetbus.DefaultBatchSize, func(m *nats.Msg) {
				_ = e.raw2.Publish(m.Reply, nil) // the empty acknowledgement; without it the run times out
				if got.Add(1) == int64(n) {
					close(done)
				}
			})
			if err != nil {
				return err
			}
			defer p.stop()
		}
		if err := wait(ctx, done); err != nil {
			return err
		}
		c.stop(n)
		return nil
	}}
}

// consumeFiltered lets a filter see n events over a long way, of which all or none match.
func consumeFiltered(name string, count, size int, match bool) job {
	return job{name: name, count: count, run: onFilledLane(size, func(ctx context.Context, l *lane, n int, c *clock) error {
		bus, _, closeBoth, err := l.e.far(ctx, farAway)
		if err != nil {
			return err
		}
		defer closeBoth()
		return acked(ctx, bus, l.topic, jetbus.SubscribeOptions{FilterFunc: func(*jetbus.Event) bool { return match }}, n, c)
	})}
}

// acked runs a no-op handler until n events are acknowledged, by it or by the filter.
func acked(ctx context.Context, bus *adapter.Bus, topic string, o jetbus.SubscribeOptions, n int, c *clock) error {
	o.From = jetbus.Earliest()
	gate := make(chan struct{}) // joining is setup
	filter := o.FilterFunc
	o.FilterFunc = func(e *jetbus.Event) bool {
		<-gate
		return filter == nil || filter(e)
	}
	s, err := bus.Subscribe(ctx, topic, group, func(context.Context, *jetbus.Delivery) error { return nil }, o)
	if err != nil {
		close(gate)
		return err
	}
	defer func() { _ = s.Stop(context.Background()) }()
	c.start()
	close(gate)
	pause := time.NewTicker(500 * time.Microsecond)
	defer pause.Stop()
	for {
		stats := s.Stats()
		if stats.Acked >= uint64(n) {
			c.stop(n)
			return nil
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d events are acknowledged: %w", stats.Acked, n, ctx.Err())
		}
	}
}

// receiveOne takes n events over a way, one a call, and acknowledges each.
func receiveOne(count, size int) job {
	return job{name: "bus", count: count, run: onFilledLane(size, func(ctx context.Context, l *lane, n int, c *clock) error {
		bus, _, closeBoth, err := l.e.far(ctx, near)
		if err != nil {
			return err
		}
		defer closeBoth()
		o := jetbus.ReceiveOptions{From: jetbus.Earliest(), Max: 1}
		one := func() error {
			got, err := bus.Receive(ctx, l.topic, group, o)
			if err == nil && len(got) != 1 {
				err = fmt.Errorf("received %d events, want 1", len(got))
			}
			if err != nil {
				return err
			}
			return got[0].Ack(ctx)
		}
		if err := one(); err != nil { // it makes the group
			return err
		}
		c.start()
		for range n - 1 {
			if err := one(); err != nil {
				return err
			}
		}
		c.stop(n - 1)
		return nil
	})}
}

// roundTrips asks the server over that way for a sign of life, as often.
func roundTrips(count int) job {
	return job{name: "round trips", count: count, run: func(ctx context.Context, e *env, n int, c *clock) error {
		_, nc, closeBoth, err := e.far(ctx, near)
		if err != nil {
			return err
		}
		defer closeBoth()
		c.start()
		for range n {
			if _, err := nc.RTT(); err != nil {
				return err
			}
		}
		c.stop(n)
		return nil
	}}
}
