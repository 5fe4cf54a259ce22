package groups_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// ensureGroup declares group g of topic a.
func (r *rig) ensureGroup(c jetbus.GroupConfig) jetbus.GroupInfo {
	r.Helper()
	c.Group = "g"
	return must(r.Bus.EnsureGroup(r.Context(), "a", c))(r.T)
}

// has reports whether topic a has group g.
func (r *rig) has() bool {
	r.Helper()
	r.Settle()
	return slices.ContainsFunc(must(r.Bus.Groups(r.Context(), "a"))(r.T), func(g jetbus.GroupInfo) bool { return g.Group == "g" })
}

// A group can be there before its first member, and before the events it is for.
func TestEnsureGroup(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.Publish("a", "before")
		got := r.ensureGroup(jetbus.GroupConfig{})
		r.Publish("a", "after")
		if got.Group != "g" || got.AckTimeout != jetbus.DefaultAckTimeout || got.MaxInFlight != jetbus.DefaultGroupMaxInFlight || got.Inactive != 0 || got.AckedSeq != 1 {
			t.Errorf("%+v", got)
		}
		r.Equal("received", deliveredKeys(r.receive("g", jetbus.ReceiveOptions{})), "after") // which would begin at the earliest

		again := r.ensureGroup(jetbus.GroupConfig{From: jetbus.Earliest(), AckTimeout: time.Minute, MaxInFlight: 7, Inactive: time.Hour})
		if !again.Created.Equal(got.Created) || again.AckTimeout != time.Minute || again.MaxInFlight != 7 || again.Inactive != time.Hour || again.Held != 1 {
			t.Errorf("%+v", again)
		}
		r.Equal("its retries", r.durables("EV_RETRY"), "1m0s 7")
		for what, same := range map[string]jetbus.GroupInfo{
			"nothing is asked for":           r.ensureGroup(jetbus.GroupConfig{}),
			"a member comes":                 func() jetbus.GroupInfo { r.receive("g", jetbus.ReceiveOptions{Wait: -1}); return r.Group("a", "g") }(),
			"a shorter lease, which is none": r.ensureGroup(jetbus.GroupConfig{AckTimeout: time.Second}),
		} {
			if same.AckTimeout != time.Minute || same.MaxInFlight != 7 || same.Inactive != time.Hour {
				t.Errorf("%s: %+v", what, same)
			}
		}
		r.Equal("for ever", r.ensureGroup(jetbus.GroupConfig{Inactive: -1}).Inactive, time.Duration(0))
	})
}

func TestEnsureGroupRefusals(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		for _, c := range []jetbus.GroupConfig{
			{Group: "g", AckTimeout: time.Millisecond},
			{Group: "g", AckTimeout: -1},
			{Group: "g", MaxInFlight: -1},
			{Group: "g", MaxInFlight: 1 << 30},
			{Group: "g", Inactive: 59 * time.Second},
			{Group: "g", Inactive: -2},
			{Group: "g", From: jetbus.Start{Kind: "middle"}},
		} {
			_, err := r.Bus.EnsureGroup(r.Context(), "a", c)
			r.WantErr(err, jetbus.ErrInvalidOption)
		}
		for _, group := range []string{"", "a b", "*"} {
			_, err := r.Bus.EnsureGroup(r.Context(), "a", jetbus.GroupConfig{Group: group})
			r.WantErr(err, jetbus.ErrInvalidGroup)
		}
		_, err := r.Bus.EnsureGroup(r.Context(), "a", jetbus.GroupConfig{Group: "g", From: jetbus.AfterID("nothing")})
		r.WantErr(err, jetbus.ErrPositionUnknown)
		_, err = r.Bus.EnsureGroup(r.Context(), "b", jetbus.GroupConfig{Group: "g"})
		r.WantErr(err, jetbus.ErrNoTopic)
		r.Equal("groups", len(must(r.Bus.Groups(r.Context(), "a"))(r.T)), 0)
	})
}

// An ordered group keeps its order, and a group that was declared takes the order of its
// first member.
func TestEnsureGroupKeepsOrder(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.ensureGroup(jetbus.GroupConfig{Inactive: time.Hour})
		s := r.orderly(r.Bus, jetbus.PerKey, adaptertest.Ignore, jetbus.SubscribeOptions{})
		r.Within(time.Minute, "active", isActive(s))
		r.ensureGroup(jetbus.GroupConfig{MaxInFlight: 7})
		r.Publish("a", "1")
		r.settled(time.Minute)
		r.wantRunning(s)
		r.Equal("inactive", r.Group("a", "g").Inactive, time.Hour)
	})
}

func (r *rig) wantRunning(s jetbus.Subscription) {
	r.Helper()
	select {
	case <-s.Done():
		r.Errorf("the subscription has ended: %v", s.Err())
	default:
	}
}

// A group that may die with its process stays while there is one, and goes with it.
func TestInactiveGroup(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.ensureGroup(jetbus.GroupConfig{Inactive: 3 * time.Minute})
		time.Sleep(2 * time.Minute)
		s := r.Subscribe(r.Bus, adaptertest.Ignore, jetbus.SubscribeOptions{})
		time.Sleep(time.Hour)
		r.Equal("there with an idle member", r.has(), true)
		r.OK(s.Stop(ctx))

		r.Publish("a", "1")
		d := r.receive("g", jetbus.ReceiveOptions{MaxLease: 10 * time.Minute})[0]
		time.Sleep(9 * time.Minute)
		r.Equal("there while an event is held", r.has(), true)
		r.OK(d.Ack(ctx))
		time.Sleep(2 * time.Minute)
		r.Equal("there for a while", r.has(), true)
		r.OK(r.Bus.SetCursor(ctx, "a", "g", jetbus.Cursor{}, jetbus.SeekOptions{}))
		r.Equal("after a move", r.Group("a", "g").Inactive, 3*time.Minute)
		time.Sleep(5 * time.Minute)
		r.Equal("there without anybody", r.has(), false)
		r.Equal("left", r.durables("EV_A"), "")
		left := <-must(r.JS.Stream(ctx, "EV_RETRY"))(r.T).ListConsumers(ctx).Info()
		r.Equal("its retries stay for", left.Config.InactiveThreshold, 30*24*time.Hour)
		_, err := r.Bus.Cursor(ctx, "a", "g")
		r.WantErr(err, jetbus.ErrNoGroup)
	})
}

// A paused member that holds an event keeps its group, and finds its retries when it goes on.
func TestPausedGroupIsActive(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.ensureGroup(jetbus.GroupConfig{Inactive: time.Minute, From: jetbus.Earliest()})
		var calls atomic.Int32
		s := r.Subscribe(r.Bus, func(ctx context.Context, d *jetbus.Delivery) error {
			switch calls.Add(1) {
			case 1:
				return jetbus.Reject(context.DeadlineExceeded)
			case 2, 4:
				select {
				case <-time.After(9 * time.Minute):
				case <-ctx.Done():
				}
			}
			return ctx.Err()
		}, jetbus.SubscribeOptions{MaxInFlight: 1})
		r.Publish("a", "rejected", "long")
		r.Within(time.Minute, "a long handler", func() bool { return calls.Load() == 2 })
		s.Pause()
		time.Sleep(5 * time.Minute)
		s.Resume()
		time.Sleep(5 * time.Minute)
		r.wantRunning(s)
		_, other := r.Open(adapter.Config{})
		must(jetbus.Replay(ctx, other, jetbus.ReplayOptions{DeadLetterQuery: jetbus.DeadLetterQuery{Topic: "a", Group: "g"}}))(r.T)
		r.Within(time.Minute, "the retry is handled", func() bool { return calls.Load() == 3 })

		r.Publish("a", "long")
		r.Within(time.Minute, "a long handler", func() bool { return calls.Load() == 4 })
		s.Pause()
		time.Sleep(5 * time.Minute)
		s.Resume()
		time.Sleep(5 * time.Minute)
		r.wantRunning(s)
		r.Equal("handled", calls.Load(), 4) // the retry is not handled again
	})
}
