package main

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	wmjetstream "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/jetstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// onLane makes a job's run of something that needs a lane and its events.
func onLane(size int, f func(ctx context.Context, l *lane, all []jetbus.Event, c *clock) error) func(context.Context, *env, int, *clock) error {
	return func(ctx context.Context, e *env, n int, c *clock) error {
		l, err := e.lane(ctx)
		if err != nil {
			return err
		}
		defer l.drop()
		if err := f(ctx, l, events(l.topic, n, size), c); err != nil {
			return err
		}
		return l.checkStored(ctx, n)
	}
}

// checkStored makes sure that a run did its work.
func (l *lane) checkStored(ctx context.Context, n int) error {
	s, err := l.e.js.Stream(ctx, l.stream)
	if err != nil {
		return err
	}
	if got := s.CachedInfo().State.Msgs; got != uint64(n) && got != 0 { // 0: the peer's is elsewhere
		return fmt.Errorf("%d of %d events are stored", got, n)
	}
	return nil
}

// publishOne publishes one event at a time.
func publishOne(count, size int) job {
	return job{name: "bus", count: count, run: onLane(size, func(ctx context.Context, l *lane, all []jetbus.Event, c *clock) error {
		c.start()
		for _, e := range all {
			if _, err := l.e.bus.Publish(ctx, e); err != nil {
				return err
			}
		}
		c.stop(len(all))
		return nil
	})}
}

func rawPublishOne(count, size int) job {
	return job{name: "raw PublishMsg", count: count, run: onLane(size, func(ctx context.Context, l *lane, all []jetbus.Event, c *clock) error {
		c.start()
		for i := range all {
			m := &nats.Msg{Subject: l.subject, Header: rawHeader(&all[i]), Data: all[i].Payload}
			if _, err := l.e.js.PublishMsg(ctx, m); err != nil {
				return err
			}
		}
		c.stop(len(all))
		return nil
	})}
}

// batchSize is how many events a PublishBatch call of a job has at most.
const batchSize = 10_000

// publishBatch pipelines.
func publishBatch(count, size int) job {
	return job{name: "bus", count: count, run: onLane(size, func(ctx context.Context, l *lane, all []jetbus.Event, c *clock) error {
		c.start()
		if err := l.publishBatches(ctx, all, batchSize, jetbus.BatchOptions{}); err != nil {
			return err
		}
		c.stop(len(all))
		return nil
	})}
}

func (l *lane) publishBatches(ctx context.Context, all []jetbus.Event, size int, o jetbus.BatchOptions) error {
	for len(all) > 0 {
		n := min(size, len(all))
		if _, err := l.e.bus.PublishBatch(ctx, all[:n], o); err != nil {
			return err
		}
		all = all[n:]
	}
	return nil
}

func rawPublishAsync(count, size int) job {
	return job{name: "raw PublishMsgAsync 4096", count: count, run: onLane(size, func(ctx context.Context, l *lane, all []jetbus.Event, c *clock) error {
		js, err := jetstream.New(l.e.raw, jetstream.WithPublishAsyncMaxPending(rawWindow))
		if err != nil {
			return err
		}
		defer js.CleanupPublisher()
		c.start()
		for i := range all {
			m := &nats.Msg{Subject: l.subject, Header: rawHeader(&all[i]), Data: all[i].Payload}
			if _, err := js.PublishMsgAsync(m); err != nil {
				return err
			}
		}
		select {
		case <-js.PublishAsyncComplete():
		case <-ctx.Done():
			return ctx.Err()
		}
		c.stop(len(all))
		return nil
	})}
}

// peerPublish hands watermill all messages at once; it publishes them one by one.
func peerPublish(count, size int) job {
	return job{name: "watermill-nats", count: count, run: onLane(size, func(ctx context.Context, l *lane, all []jetbus.Event, c *clock) error {
		s, err := l.peerStream(ctx)
		if err != nil {
			return err
		}
		name := s.CachedInfo().Config.Name
		defer func() { _ = l.e.js.DeleteStream(context.Background(), name) }()
		p, err := wmjetstream.NewPublisher(wmjetstream.PublisherConfig{Conn: l.e.peer, Logger: watermill.NopLogger{}})
		if err != nil { // never closed: that would close the connection
			return err
		}
		c.start()
		messages := make([]*message.Message, len(all))
		for i := range all {
			messages[i] = peerMessage(&all[i])
		}
		if err := p.Publish(name, messages...); err != nil {
			return err
		}
		c.stop(len(all))
		return nil
	})}
}

func peerMessage(e *jetbus.Event) *message.Message {
	m := message.NewMessage(e.ID, e.Payload)
	for name, values := range rawHeader(e) {
		m.Metadata[name] = values[0]
	}
	return m
}

// publishAtomic stores batches of 1,000, all or none.
func publishAtomic(count, size int) job {
	return job{name: "bus", count: count, run: onLane(size, func(ctx context.Context, l *lane, all []jetbus.Event, c *clock) error {
		c.start()
		if err := l.publishBatches(ctx, all, 1000, jetbus.BatchOptions{Atomic: true}); err != nil {
			return err
		}
		c.stop(len(all))
		return nil
	})}
}
