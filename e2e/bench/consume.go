package main

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmjetstream "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/jetstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

const group = "g"

// onFilledLane makes a job's run of something that consumes n events that are there.
func onFilledLane(size int, f func(ctx context.Context, l *lane, n int, c *clock) error) func(context.Context, *env, int, *clock) error {
	return func(ctx context.Context, e *env, n int, c *clock) error {
		l, err := e.lane(ctx)
		if err != nil {
			return err
		}
		defer l.drop()
		if err := l.fill(ctx, n, size); err != nil {
			return err
		}
		return f(ctx, l, n, c)
	}
}

// durable makes a consumer with the settings that the bus gives a group.
func (l *lane) durable(ctx context.Context) (jetstream.Consumer, error) {
	return l.e.js2.CreateConsumer(ctx, l.stream, jetstream.ConsumerConfig{
		Durable: "raw", FilterSubject: "ev." + l.topic + ".*", AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: jetbus.DefaultAckTimeout, MaxAckPending: jetbus.DefaultGroupMaxInFlight, MaxDeliver: -1,
	})
}

// consume runs a no-op handler over n events, with the default options.
func consume(count, size int) job {
	return job{name: "bus", count: count, run: onFilledLane(size, func(ctx context.Context, l *lane, n int, c *clock) error {
		gate, done := make(chan struct{}), make(chan struct{})
		got := 0
		s, err := l.e.bus2.Subscribe(ctx, l.topic, group, func(context.Context, *jetbus.Delivery) error {
			if got == 0 {
				<-gate // with one event in hand: joining the group is setup
			}
			if got++; got == n {
				close(done)
			}
			return nil
		}, jetbus.SubscribeOptions{From: jetbus.Earliest()})
		if err != nil {
			return err
		}
		defer func() { _ = s.Stop(context.Background()) }()
		names, err := l.durables(ctx)
		if err != nil {
			return err
		}
		c.start()
		close(gate)
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

func wait(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// rawConsume asks for as many messages as the bus holds at most by default.
func rawConsume(count, size int) job {
	return job{name: "raw pull loop", count: count, run: onFilledLane(size, func(ctx context.Context, l *lane, n int, c *clock) error {
		if _, err := l.durable(ctx); err != nil {
			return err
		}
		done := make(chan struct{})
		got := 0
		c.start()
		p, err := newPullLoop(l.e.raw2, l.stream, "raw", jetbus.DefaultMaxInFlight, func(m *nats.Msg) {
			_ = l.e.raw2.Publish(m.Reply, nil) // the empty acknowledgement; without it the run times out
			if got++; got == n {
				close(done)
			}
		})
		if err != nil {
			return err
		}
		defer p.stop()
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

// rawConsumeCallback is nats.go's Consume, with a heartbeat that bounds the pause
// it makes when it forgets to ask.
func rawConsumeCallback(count, size int) job {
	return job{name: "raw Consume", count: count, run: onFilledLane(size, func(ctx context.Context, l *lane, n int, c *clock) error {
		durable, err := l.durable(ctx)
		if err != nil {
			return err
		}
		done := make(chan struct{})
		got := 0
		c.start()
		consuming, err := durable.Consume(func(m jetstream.Msg) {
			_ = m.Ack() // without it the run times out
			if got++; got == n {
				close(done)
			}
		}, jetstream.PullExpiry(4*time.Second), jetstream.PullHeartbeat(time.Second))
		if err != nil {
			return err
		}
		defer consuming.Stop()
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

// peerConsume is watermill's subscriber as it is by default, which waits for the
// server at every acknowledgement.
func peerConsume(count, size int) job {
	return job{name: "watermill-nats", count: count, run: onFilledLane(size, func(ctx context.Context, l *lane, n int, c *clock) error {
		durable, err := l.durable(ctx)
		if err != nil {
			return err
		}
		s, err := wmjetstream.NewSubscriber(wmjetstream.SubscriberConfig{
			Conn: l.e.peer, Logger: watermill.NopLogger{},
			ResourceInitializer: func(context.Context, jetstream.JetStream, string) (jetstream.Consumer, func(context.Context, watermill.LoggerAdapter), error) {
				return durable, nil, nil
			},
		})
		if err != nil { // never closed: that would close the connection
			return err
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		c.start()
		messages, err := s.Subscribe(ctx, l.topic)
		if err != nil {
			return err
		}
		if err := drainPeer(ctx, messages, n); err != nil {
			return err
		}
		if err := settled(ctx, l.e.js, l.stream, "raw", n); err != nil {
			return err
		}
		c.stop(n)
		return nil
	})}
}

func drainPeer(ctx context.Context, messages <-chan *message.Message, n int) error {
	for range n {
		select {
		case m, ok := <-messages:
			if !ok {
				return errors.New("the subscription ended")
			}
			m.Ack()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
