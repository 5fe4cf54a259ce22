package groups_test

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
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// abandonMove leaves group g of topic a as a mover does that dies after it took
// its lock and wrote its mark, or after it created the next durable, too.
func (r *rig) abandonMove(seq uint64, until time.Time, created bool) {
	r.Helper()
	must(r.Bus.KeySet(r.Context(), "JETBUS_LOCKS", "group.EV_A.a__g", nil, 0, time.Until(until)))(r.T)
	s := must(r.JS.Stream(r.Context(), "EV_A"))(r.T)
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
func TestAbandonedMove(t *testing.T) {
	for _, created := range []bool{false, true} {
		t.Run(fmt.Sprint("created ", created), func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.Ensure(jetbus.TopicConfig{Name: "a"})
				r.Publish("a", "1", "2", "3", "4")
				for _, d := range r.receive("g", jetbus.ReceiveOptions{}) {
					r.OK(d.Ack(r.Context()))
				}
				r.abandonMove(3, time.Now().Add(time.Minute), created)
				began := time.Now()
				r.WantErr(r.Bus.SetCursor(r.Context(), "a", "g", jetbus.Cursor{}, jetbus.SeekOptions{}), jetbus.ErrGroupBusy)
				r.Equal("groups", len(must(r.Bus.Groups(r.Context(), "a"))(r.T)), 1)
				_, b := r.Open(adapter.Config{Timeout: 5 * time.Minute})
				var asked atomic.Int32
				must(r.NC.Subscribe("$KV.JETBUS_LOCKS.>", func(*nats.Msg) { asked.Add(1) }))(r.T)
				ds := must(b.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{}))(r.T)
				r.Equal("received", deliveredKeys(ds), "3 4")
				if waited := time.Since(began); waited < time.Minute || waited > 90*time.Second {
					r.Errorf("waited %v for the mover", waited)
				}
				if n := asked.Load(); n > 200 {
					r.Errorf("asked for the lock %d times in a minute", n)
				}
				for _, d := range ds {
					r.OK(d.Ack(r.Context()))
				}
				r.Equal("durables", r.Stream("EV_A").State.Consumers, 1)
				r.Equal("settled up to", r.Group("a", "g").AckedSeq, 4)
			})
		})
	}
}

// A mark does not get in the way of its group, however old it is: the move is completed,
// or dropped where nobody expects it any more, by members with the usual patience.
func TestOldMove(t *testing.T) {
	for _, c := range []struct {
		age  time.Duration // since the mover is taken to be dead
		o    jetbus.Order
		want string
	}{
		{2 * time.Minute, jetbus.NoOrder, "3 4 5"},
		{2 * time.Minute, jetbus.PerKey, "3 4 5"},
		{moveForget + time.Minute, jetbus.NoOrder, "5"},
		{moveForget + time.Minute, jetbus.PerKey, "5"},
	} {
		t.Run(fmt.Sprint(c.age, " ", c.o), func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.Ensure(jetbus.TopicConfig{Name: "a"})
				o := jetbus.SubscribeOptions{From: jetbus.Earliest(), Order: c.o, Concurrency: 1}
				var mu sync.Mutex
				var keys []string
				begin := func() jetbus.Subscription {
					return r.Subscribe(r.Bus, func(_ context.Context, d *jetbus.Delivery) error {
						mu.Lock()
						defer mu.Unlock()
						keys = append(keys, d.Key)
						return nil
					}, o)
				}
				sub := begin()
				r.Publish("a", "1", "2", "3", "4")
				r.settled(time.Minute)
				r.OK(sub.Stop(r.Context()))
				r.abandonMove(3, time.Now().Add(time.Minute), false)
				time.Sleep(time.Minute + c.age)
				mu.Lock()
				keys = nil
				mu.Unlock()
				r.Publish("a", "5")
				sub = begin()
				r.settled(time.Minute)
				r.OK(sub.Stop(r.Context()))
				r.Equal("handled", strings.Join(keys, " "), c.want)
				r.Equal("durables", r.Stream("EV_A").State.Consumers, 1)
			})
		})
	}
}

// moveForget is after what time a move that was begun is dropped.
const moveForget = 10 * time.Minute

// A move that is refused because events are held changes nothing.
func TestMoveBusy(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.Publish("a", "1", "2", "3")
		h := newBlock()
		sub := r.Subscribe(r.Bus, h.handle, jetbus.SubscribeOptions{})
		<-h.running
		began := time.Now()
		err := r.Bus.SetCursor(r.Context(), "a", "g", jetbus.Cursor{}, jetbus.SeekOptions{Wait: 5 * time.Second})
		busy, ok := errors.AsType[*jetbus.GroupBusyError](err)
		if !ok || busy.Held != 1 || busy.Topic != "a" || busy.Group != "g" {
			r.Errorf("got %v", err)
		}
		r.Equal("waited", time.Since(began).Round(time.Second), 5*time.Second)
		if g := r.Group("a", "g"); g.Paused {
			r.Error("the group is paused")
		}
		close(h.release)
		<-h.running
		<-h.running
		r.OK(sub.Stop(r.Context()))
		r.Equal("settled up to", r.Group("a", "g").AckedSeq, 3)
	})
}

// The pause of a move is answered and lost with who answered, or is made longer by the move's
// own renewal before it is seen: the group is moved all the same, and in no time.
func TestMoveWhosePauseIsAnother(t *testing.T) {
	for what, c := range map[string]struct{ is, as string }{
		"lost":    {"CONSUMER.PAUSE.EV_A.a__g", "CONSUMER.PAUSE.EV_A.a__h"},
		"renewed": {`"pause_until":"2000-`, `"pause_until":"2001-`},
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.Ensure(jetbus.TopicConfig{Name: "a"})
				r.Publish("a", "1", "2")
				for _, group := range []string{"g", "h"} {
					for _, d := range r.receive(group, jetbus.ReceiveOptions{}) {
						r.OK(d.Ack(r.Context()))
					}
				}
				detour, mover := r.OpenDetour(c.is, c.as)
				detour.Times.Store(1)
				began := time.Now()
				r.OK(mover.SetCursor(r.Context(), "a", "g", jetbus.Cursor{LastSeq: 1}, jetbus.SeekOptions{}))
				if took := time.Since(began); took > 10*time.Second {
					r.Errorf("the move took %v", took)
				}
				if detour.Times.Load() > 0 {
					r.Error("nothing was redirected")
				}
				r.Equal("behind the move", deliveredKeys(r.receive("g", jetbus.ReceiveOptions{})), "2")
			})
		})
	}
}

// A group that PauseGroup paused is moved and remains paused.
func TestMovePausedGroup(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.Publish("a", "1", "2", "3")
		for _, d := range r.receive("g", jetbus.ReceiveOptions{}) {
			r.OK(d.Ack(ctx))
		}
		until := time.Now().Add(time.Hour)
		r.OK(r.Bus.PauseGroup(ctx, "a", "g", until))
		r.OK(r.Bus.SetCursor(ctx, "a", "g", jetbus.Cursor{LastSeq: 1}, jetbus.SeekOptions{}))
		if g := r.Group("a", "g"); !g.Paused || g.AckedSeq != 1 || g.Pending != 2 {
			r.Errorf("%+v", g)
		}
		r.Equal("while paused", len(r.receive("g", jetbus.ReceiveOptions{Wait: time.Minute})), 0)
		r.Equal("afterwards", deliveredKeys(r.receive("g", jetbus.ReceiveOptions{Wait: 2 * time.Hour})), "2 3")
		if early := time.Until(until); early > 0 {
			r.Errorf("the pause ended %v early", early)
		}
		r.WantErr(r.Bus.PauseGroup(ctx, "a", "g", time.Now()), jetbus.ErrInvalidOption)
		r.WantErr(r.Bus.ResumeGroup(ctx, "a", "none"), jetbus.ErrNoGroup)
	})
}

func TestMoveTargets(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		var events []jetbus.Event
		for i := range 5 {
			time.Sleep(time.Minute)
			events = append(events, r.Publish("a", fmt.Sprint(i))...)
		}
		must(r.Bus.Receive(ctx, "a", "g", jetbus.ReceiveOptions{Wait: -1}))(r.T)
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
			r.OK(r.Bus.SetCursor(ctx, "a", "g", c.cursor, c.o))
			ds := must(r.Bus.Receive(ctx, "a", "g", jetbus.ReceiveOptions{Wait: -1}))(r.T)
			r.Equal(fmt.Sprintf("from %+v", c.cursor), deliveredKeys(ds), c.want)
			for _, d := range ds {
				r.OK(d.Ack(ctx))
			}
		}
		stood := must(r.Bus.Cursor(ctx, "a", "g"))(t)
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
			r.WantErr(r.Bus.SetCursor(ctx, c.topic, c.group, c.cursor, c.o), c.want)
			r.Equal("the group's position", must(r.Bus.Cursor(ctx, "a", "g"))(t), stood)
		}
		_, err := r.Bus.Cursor(ctx, "a", "none")
		r.WantErr(err, jetbus.ErrNoGroup)
	})
}

// The time of a cursor is when its event was stored, whatever the publisher's clock says:
// to move a group by it changes nothing.
func TestCursorTime(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		for i := range 3 {
			time.Sleep(time.Minute)
			e := adaptertest.Event("a", fmt.Sprint(i))
			e.Time = time.Now().Add(-time.Hour)
			must(r.Bus.Publish(ctx, e))(t)
		}
		stored := r.StoredAt("EV_A", 1)
		receive := func(n int) []*jetbus.Delivery {
			r.Helper()
			return must(r.Bus.Receive(ctx, "a", "g", jetbus.ReceiveOptions{From: jetbus.Earliest(), Max: n, Wait: -1}))(t)
		}
		first := receive(1)[0]
		r.Equal("the delivery's", first.Cursor().LastTime, stored)
		r.OK(first.Nack(ctx, jetbus.NackOptions{Delay: 10 * time.Minute})) // for which it is stored among the retries
		time.Sleep(11 * time.Minute)
		again := receive(1)[0]
		r.Equal("that of a retry", again.Cursor(), first.Cursor())
		r.OK(again.Ack(ctx))
		r.Settle()
		c := must(r.Bus.Cursor(ctx, "a", "g"))(t)
		r.Equal("the group's", c, first.Cursor())
		r.OK(r.Bus.SetCursor(ctx, "a", "g", jetbus.Cursor{LastTime: c.LastTime}, jetbus.SeekOptions{}))
		r.Equal("behind it", deliveredKeys(receive(10)), "1 2")

		got := make(chan *jetbus.Delivery, 3)
		s := must(r.Bus.Subscribe(ctx, "a", "ordered", func(_ context.Context, d *jetbus.Delivery) error {
			got <- d
			return nil
		}, jetbus.SubscribeOptions{From: jetbus.Earliest(), Order: jetbus.PerKey}))(t)
		r.Equal("in order", (<-got).Cursor(), first.Cursor())
		r.OK(s.Stop(ctx))
	})
}
