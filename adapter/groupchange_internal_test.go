package adapter

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// meddled lets something happen between what was read of a durable and what is written.
type meddled struct {
	jetstream.JetStream

	meddle func()
}

func (m *meddled) UpdateConsumer(ctx context.Context, stream string, c jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	if c.Durable == "a__g" && m.meddle != nil {
		m.meddle()
		m.meddle = nil
	}
	return m.JetStream.UpdateConsumer(ctx, stream, c)
}

// What two change of a group at the same time is changed, both.
func TestGroupChangedByTwo(t *testing.T) {
	later := time.Now().Add(time.Hour)
	member := func(ctx context.Context, b *Bus) error {
		_, err := b.Receive(ctx, "a", "g", jetbus.ReceiveOptions{AckTimeout: time.Minute, Wait: -1})
		return err
	}
	move := func(ctx context.Context, b *Bus) error {
		return b.SetCursor(ctx, "a", "g", jetbus.Cursor{}, jetbus.SeekOptions{})
	}
	pause := func(ctx context.Context, b *Bus) error { return b.PauseGroup(ctx, "a", "g", later) }
	resume := func(ctx context.Context, b *Bus) error { return b.ResumeGroup(ctx, "a", "g") }
	limit := func(ctx context.Context, b *Bus) error {
		s, err := b.Subscribe(ctx, "a", "g", func(context.Context, *jetbus.Delivery) error { return nil }, jetbus.SubscribeOptions{GroupMaxInFlight: 77})
		if err != nil {
			return err
		}
		return s.Stop(ctx)
	}
	for what, c := range map[string]struct {
		paused          bool // before
		first, meantime func(ctx context.Context, b *Bus) error
		want            func(info *jetstream.ConsumerInfo) bool
	}{
		"a pause beside a member": {false, member, pause, func(info *jetstream.ConsumerInfo) bool { return info.Paused }},
		"a pause beside a move":   {false, move, pause, func(info *jetstream.ConsumerInfo) bool { return info.Paused }},
		"its end beside a move":   {true, move, resume, func(info *jetstream.ConsumerInfo) bool { return !info.Paused }},
		"two members":             {false, member, limit, func(info *jetstream.ConsumerInfo) bool { return info.Config.MaxAckPending == 77 }},
	} {
		t.Run(what, func(t *testing.T) {
			_, nc, js := directStream(t)
			var buses [2]*Bus
			for i := range buses {
				b := openBus(t, nc, Config{AutoCreate: true})
				buses[i] = b
			}
			bus, other := buses[0], buses[1]
			if _, err := bus.Receive(t.Context(), "a", "g", jetbus.ReceiveOptions{Wait: -1}); err != nil {
				t.Fatal(err)
			}
			if c.paused {
				if err := pause(t.Context(), bus); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := bus.KeySet(t.Context(), locksBucket, "there", nil, 0, time.Minute); err != nil { // else the listener is its only subscriber
				t.Fatal(err)
			}
			locked := make(chan *nats.Msg, 1000)
			sub, err := nc.ChanSubscribe("$KV."+locksBucket+".group.EV_A.a__g", locked)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := sub.Unsubscribe(); err != nil {
					t.Error(err)
				}
			}()
			done := make(chan error, 1)
			bus.js.JetStream = &meddled{JetStream: js, meddle: func() {
				for len(locked) > 0 {
					<-locked
				}
				go func() { done <- c.meantime(t.Context(), other) }()
				select {
				case err := <-done: // it did not wait
					done <- err
				case <-locked: // it waits
				}
			}}
			if err := c.first(t.Context(), bus); err != nil {
				t.Error(err)
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
			a, err := other.lookup(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			info, err := other.findGroup(t.Context(), a, "g")
			if err != nil || !c.want(info) {
				t.Errorf("%+v, %v", info, err)
			}
		})
	}
}
