package adapter_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

// abandonSeek leaves group g of topic a as a mover does that dies after it took
// its lock and wrote its mark, or after it created the next durable, too.
func (r *rig) abandonSeek(seq uint64, until time.Time, created bool) {
	r.Helper()
	must(r.bus.KeySet(r.Context(), "JETBUS_LOCKS", "group.EV_A.a__g", nil, 0, time.Until(until)))(r.T)
	s := must(r.js.Stream(r.Context(), "EV_A"))(r.T)
	c := must(s.Consumer(r.Context(), "a__g"))(r.T).CachedInfo().Config
	c.Metadata["jetbus.seek"] = fmt.Sprintf("%d@%d", seq, until.UnixMilli())
	must(s.UpdateConsumer(r.Context(), c))(r.T)
	must(s.PauseConsumer(r.Context(), "a__g", until))(r.T)
	if created {
		delete(c.Metadata, "jetbus.seek")
		c.Durable, c.Name, c.PauseUntil = "a__g__e1", "a__g__e1", nil
		c.DeliverPolicy, c.OptStartSeq = jetstream.DeliverByStartSequencePolicy, seq
		c.Metadata["jetbus.epoch"] = "1"
		must(s.CreateConsumer(r.Context(), c))(r.T)
	}
}

// Whoever comes next completes what a mover began: it waits while the mover may
// be alive, and then does the rest.
func TestAbandonedSeek(t *testing.T) {
	for _, created := range []bool{false, true} {
		t.Run(fmt.Sprint("created ", created), func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.ensure(jetbus.TopicConfig{Name: "a"})
				r.publish("a", "1", "2", "3", "4")
				for _, d := range r.receive("g", jetbus.ReceiveOptions{}) {
					r.ok(d.Ack(r.Context()))
				}
				r.abandonSeek(3, time.Now().Add(time.Minute), created)
				began := time.Now()
				r.wantErr(r.bus.SetCursor(r.Context(), "a", "g", jetbus.Cursor{}, jetbus.SeekOptions{}), jetbus.ErrGroupBusy)
				r.equal("groups", len(must(r.bus.Groups(r.Context(), "a"))(r.T)), 1)
				_, b := r.open(adapter.Config{Timeout: 5 * time.Minute})
				var asked atomic.Int32
				must(r.nc.Subscribe("$KV.JETBUS_LOCKS.>", func(*nats.Msg) { asked.Add(1) }))(r.T)
				ds := must(b.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{}))(r.T)
				r.equal("received", deliveredKeys(ds), "3 4")
				if waited := time.Since(began); waited < time.Minute || waited > 90*time.Second {
					r.Errorf("waited %v for the mover", waited)
				}
				if n := asked.Load(); n > 200 {
					r.Errorf("asked for the lock %d times in a minute", n)
				}
				for _, d := range ds {
					r.ok(d.Ack(r.Context()))
				}
				r.equal("durables", r.stream("EV_A").State.Consumers, 1)
				r.equal("settled up to", r.group("a", "g").AckedSeq, 4)
			})
		})
	}
}

// A mark does not get in the way of its group, however old it is: the move is completed,
// or dropped where nobody expects it any more, by members with the usual patience.
func TestOldSeek(t *testing.T) {
	for _, c := range []struct {
		age  time.Duration // since the mover is taken to be dead
		o    jetbus.Order
		want string
	}{
		{2 * time.Minute, jetbus.NoOrder, "3 4 5"},
		{2 * time.Minute, jetbus.PerKey, "3 4 5"},
		{seekForget + time.Minute, jetbus.NoOrder, "5"},
		{seekForget + time.Minute, jetbus.PerKey, "5"},
	} {
		t.Run(fmt.Sprint(c.age, " ", c.o), func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.ensure(jetbus.TopicConfig{Name: "a"})
				o := jetbus.SubscribeOptions{From: jetbus.Earliest(), Order: c.o, Concurrency: 1}
				var mu sync.Mutex
				var keys []string
				begin := func() jetbus.Subscription {
					return r.subscribe(r.bus, func(_ context.Context, d *jetbus.Delivery) error {
						mu.Lock()
						defer mu.Unlock()
						keys = append(keys, d.Key)
						return nil
					}, o)
				}
				sub := begin()
				r.publish("a", "1", "2", "3", "4")
				r.settled(time.Minute)
				r.ok(sub.Stop(r.Context()))
				r.abandonSeek(3, time.Now().Add(time.Minute), false)
				time.Sleep(time.Minute + c.age)
				mu.Lock()
				keys = nil
				mu.Unlock()
				r.publish("a", "5")
				sub = begin()
				r.settled(time.Minute)
				r.ok(sub.Stop(r.Context()))
				r.equal("handled", strings.Join(keys, " "), c.want)
				r.equal("durables", r.stream("EV_A").State.Consumers, 1)
			})
		})
	}
}

// seekForget is after what time a move that was begun is dropped.
const seekForget = 10 * time.Minute

// A move that is refused because events are held changes nothing.
func TestSeekBusy(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "a"})
		r.publish("a", "1", "2", "3")
		h := newBlock()
		sub := r.subscribe(r.bus, h.handle, jetbus.SubscribeOptions{})
		<-h.running
		began := time.Now()
		err := r.bus.SetCursor(r.Context(), "a", "g", jetbus.Cursor{}, jetbus.SeekOptions{Wait: 5 * time.Second})
		busy, ok := errors.AsType[*jetbus.GroupBusyError](err)
		if !ok || busy.Held != 1 || busy.Topic != "a" || busy.Group != "g" {
			r.Errorf("got %v", err)
		}
		r.equal("waited", time.Since(began).Round(time.Second), 5*time.Second)
		if g := r.group("a", "g"); g.Paused {
			r.Error("the group is paused")
		}
		close(h.release)
		<-h.running
		<-h.running
		r.ok(sub.Stop(r.Context()))
		r.equal("settled up to", r.group("a", "g").AckedSeq, 3)
	})
}

// A group that PauseGroup paused is moved and remains paused.
func TestSeekPausedGroup(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.ensure(jetbus.TopicConfig{Name: "a"})
		r.publish("a", "1", "2", "3")
		for _, d := range r.receive("g", jetbus.ReceiveOptions{}) {
			r.ok(d.Ack(ctx))
		}
		until := time.Now().Add(time.Hour)
		r.ok(r.bus.PauseGroup(ctx, "a", "g", until))
		r.ok(r.bus.SetCursor(ctx, "a", "g", jetbus.Cursor{LastSeq: 1}, jetbus.SeekOptions{}))
		if g := r.group("a", "g"); !g.Paused || g.AckedSeq != 1 || g.Pending != 2 {
			r.Errorf("%+v", g)
		}
		r.equal("while paused", len(r.receive("g", jetbus.ReceiveOptions{Wait: time.Minute})), 0)
		r.equal("afterwards", deliveredKeys(r.receive("g", jetbus.ReceiveOptions{Wait: 2 * time.Hour})), "2 3")
		if early := time.Until(until); early > 0 {
			r.Errorf("the pause ended %v early", early)
		}
		r.wantErr(r.bus.PauseGroup(ctx, "a", "g", time.Now()), jetbus.ErrInvalidOption)
		r.wantErr(r.bus.ResumeGroup(ctx, "a", "none"), jetbus.ErrNoGroup)
	})
}

func TestSeekTargets(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.ensure(jetbus.TopicConfig{Name: "a"})
		var events []jetbus.Event
		for i := range 5 {
			time.Sleep(time.Minute)
			events = append(events, r.publish("a", fmt.Sprint(i))...)
		}
		must(r.bus.Receive(ctx, "a", "g", jetbus.ReceiveOptions{Wait: -1}))(r.T)
		for _, c := range []struct {
			cursor jetbus.Cursor
			o      jetbus.SeekOptions
			want   string
		}{
			{jetbus.Cursor{}, jetbus.SeekOptions{}, "0 1 2 3 4"},
			{jetbus.Cursor{LastSeq: 3, LastID: "ignored"}, jetbus.SeekOptions{}, "3 4"},
			{jetbus.Cursor{Topic: "a", LastID: events[3].ID}, jetbus.SeekOptions{}, "4"},
			{jetbus.Cursor{LastTime: events[1].Time}, jetbus.SeekOptions{}, "2 3 4"}, // each is stored at its time
			{jetbus.Cursor{}, jetbus.SeekOptions{ToLatest: true}, ""},
		} {
			r.ok(r.bus.SetCursor(ctx, "a", "g", c.cursor, c.o))
			ds := must(r.bus.Receive(ctx, "a", "g", jetbus.ReceiveOptions{Wait: -1}))(r.T)
			r.equal(fmt.Sprintf("from %+v", c.cursor), deliveredKeys(ds), c.want)
			for _, d := range ds {
				r.ok(d.Ack(ctx))
			}
		}
		for _, c := range []struct {
			topic, group string
			cursor       jetbus.Cursor
			o            jetbus.SeekOptions
			want         error
		}{
			{"a", "none", jetbus.Cursor{}, jetbus.SeekOptions{}, jetbus.ErrNoGroup},
			{"none", "g", jetbus.Cursor{}, jetbus.SeekOptions{}, jetbus.ErrNoTopic},
			{"a", "g", jetbus.Cursor{Topic: "b"}, jetbus.SeekOptions{}, jetbus.ErrInvalidOption},
			{"a", "g", jetbus.Cursor{LastSeq: 1}, jetbus.SeekOptions{ToLatest: true}, jetbus.ErrInvalidOption},
			{"a", "g", jetbus.Cursor{}, jetbus.SeekOptions{Wait: -1}, jetbus.ErrInvalidOption},
			{"a", "g", jetbus.Cursor{LastSeq: 99}, jetbus.SeekOptions{}, jetbus.ErrPositionUnknown},
			{"a", "g", jetbus.Cursor{LastID: "none"}, jetbus.SeekOptions{}, jetbus.ErrPositionUnknown},
		} {
			r.wantErr(r.bus.SetCursor(ctx, c.topic, c.group, c.cursor, c.o), c.want)
		}
		_, err := r.bus.Cursor(ctx, "a", "none")
		r.wantErr(err, jetbus.ErrNoGroup)
	})
}

// The time of a cursor is when its event was stored, whatever the publisher's clock says:
// to move a group by it changes nothing.
func TestCursorTime(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.ensure(jetbus.TopicConfig{Name: "a"})
		for i := range 3 {
			time.Sleep(time.Minute)
			e := event("a", fmt.Sprint(i))
			e.Time = time.Now().Add(-time.Hour)
			must(r.bus.Publish(ctx, e))(t)
		}
		stored := r.storedAt("EV_A", 1)
		receive := func(n int) []*jetbus.Delivery {
			r.Helper()
			return must(r.bus.Receive(ctx, "a", "g", jetbus.ReceiveOptions{From: jetbus.Earliest(), Max: n, Wait: -1}))(t)
		}
		first := receive(1)[0]
		r.equal("the delivery's", first.Cursor().LastTime, stored)
		r.ok(first.Nack(ctx, jetbus.NackOptions{Delay: 10 * time.Minute})) // for which it is stored among the retries
		time.Sleep(11 * time.Minute)
		again := receive(1)[0]
		r.equal("that of a retry", again.Cursor(), first.Cursor())
		r.ok(again.Ack(ctx))
		r.settle()
		c := must(r.bus.Cursor(ctx, "a", "g"))(t)
		r.equal("the group's", c, first.Cursor())
		r.ok(r.bus.SetCursor(ctx, "a", "g", jetbus.Cursor{LastTime: c.LastTime}, jetbus.SeekOptions{}))
		r.equal("behind it", deliveredKeys(receive(10)), "1 2")

		got := make(chan *jetbus.Delivery, 3)
		s := must(r.bus.Subscribe(ctx, "a", "ordered", func(_ context.Context, d *jetbus.Delivery) error {
			got <- d
			return nil
		}, jetbus.SubscribeOptions{From: jetbus.Earliest(), Order: jetbus.PerKey}))(t)
		r.equal("in order", (<-got).Cursor(), first.Cursor())
		r.ok(s.Stop(ctx))
	})
}
