package groups_test

import (
	"context"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// Who takes one event at a time pays one way there and back for each, and once in a while
// one for the group and its retries.
func TestReceiveOneByOne(t *testing.T) {
	inBubble(t, func(r *rig) {
		const rtt, n = 2 * time.Millisecond, 200
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("a", n+1), jetbus.BatchOptions{}))(r.T)
		b := r.OpenDistant(rtt)
		one := func() {
			got, err := b.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{Max: 1, From: jetbus.Earliest()})
			if r.OK(err); len(got) != 1 {
				r.Fatalf("received %d", len(got))
			}
		}
		one() // and makes the group
		began := time.Now()
		for range n {
			one()
		}
		if took := time.Since(began); took > n*rtt*5/4 {
			r.Errorf("%d events took %v, which is %.1f ways each", n, took, float64(took)/n/float64(rtt))
		}
	})
}

// replay puts what group g of topic a rejected before it again, from elsewhere.
func (r *rig) replay() {
	r.Helper()
	_, b := r.Open(adapter.Config{})
	must(jetbus.Replay(r.Context(), b, jetbus.ReplayOptions{DeadLetterQuery: jetbus.DeadLetterQuery{Topic: "a", Group: "g"}}))(r.T)
}

// A group's retries do not wait for the end of its topic.
func TestReceiveRetriesBesideATopic(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.Publish("a", "bad")
		one := func() *jetbus.Delivery {
			got := r.receive("g", jetbus.ReceiveOptions{Max: 1, Wait: -1})
			if len(got) != 1 {
				r.Fatalf("received %d", len(got))
			}
			return got[0]
		}
		r.OK(one().Reject(r.Context(), "bad"))
		must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("a", 10), jetbus.BatchOptions{}))(r.T)
		r.Within(time.Minute, "the group is told", func() bool { return r.Group("a", "g").Pending == 10 }) // by the server, when it has answered the publisher
		r.Equal("the first", one().Key, "0")
		r.replay()
		r.Equal("at once", one().Key, "1")
		time.Sleep(100 * time.Millisecond) // of the bubble
		r.Equal("a moment later", one().Key, "bad")
		r.Equal("then", one().Key, "2")
		r.Equal("the rest", len(r.receive("g", jetbus.ReceiveOptions{Wait: -1})), 7)
	})
}

// Retries come at once where the topic has nothing.
func TestReceiveRetriesAtOnce(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.Publish("a", "bad")
		for range 3 {
			got := r.receive("g", jetbus.ReceiveOptions{Max: 1, Wait: -1})
			r.Equal("received", deliveredKeys(got), "bad")
			r.OK(got[0].Reject(r.Context(), "bad"))
			r.Settle()
			r.replay()
		}
	})
}

// What one bus knows of a group, another one may change at any moment.
func TestReceiveOfAChangedGroup(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.Publish("a", "0", "1", "2")
		_, other := r.Open(adapter.Config{})
		next := func(want string) {
			r.Helper()
			got := r.receive("g", jetbus.ReceiveOptions{Max: 1, Wait: -1})
			r.Equal("next", deliveredKeys(got), want)
			for _, d := range got {
				r.OK(d.Ack(ctx))
			}
			r.Settle()
		}
		next("0")
		r.OK(other.SetCursor(ctx, "a", "g", jetbus.Cursor{}, jetbus.SeekOptions{}))
		next("0")
		next("1")
		r.OK(other.DeleteGroup(ctx, "a", "g"))
		next("0")
		s := must(other.Subscribe(ctx, "a", "g", func(context.Context, *jetbus.Delivery) error { return nil },
			jetbus.SubscribeOptions{GroupMaxInFlight: 1}))(r.T)
		r.OK(s.Stop(ctx))
		r.OK(other.DeleteTopic(ctx, "a"))
		must(other.EnsureTopic(ctx, jetbus.TopicConfig{Name: "a"}))(r.T)
		r.Publish("a", "new")
		next("new")
	})
}

// Where retries have come already when the group turns out to be elsewhere, the rest of what
// there is room for comes with them.
func TestReceiveOfRetriesAndAMovedGroup(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.Publish("a", "bad", "1", "2", "3")
		_, other := r.Open(adapter.Config{})
		r.OK(r.receive("g", jetbus.ReceiveOptions{Max: 1, Wait: -1})[0].Reject(ctx, "bad"))
		r.Settle()
		r.replay()
		time.Sleep(100 * time.Millisecond) // of the bubble
		r.OK(r.receive("g", jetbus.ReceiveOptions{Max: 1, Wait: -1})[0].Reject(ctx, "bad"))
		r.Settle()
		r.replay()
		r.OK(other.SetCursor(ctx, "a", "g", jetbus.Cursor{LastSeq: 1}, jetbus.SeekOptions{}))
		r.Equal("all", deliveredKeys(r.receive("g", jetbus.ReceiveOptions{Max: 3, Wait: -1})), "bad 1 2")
		r.Equal("the rest", deliveredKeys(r.receive("g", jetbus.ReceiveOptions{Max: 3, Wait: -1})), "3")
	})
}

// A group may be made anew within the second, with leases that are shorter.
func TestReceiveOfAGroupMadeAnew(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.Publish("a", "0", "1")
		_, other := r.Open(adapter.Config{})
		for _, lease := range []time.Duration{time.Minute, time.Second} {
			must(other.EnsureGroup(r.Context(), "a", jetbus.GroupConfig{Group: "g", AckTimeout: lease, From: jetbus.Earliest()}))(r.T)
			got := r.receive("g", jetbus.ReceiveOptions{Max: 1, Wait: -1})
			r.Equal("received", deliveredKeys(got), "0")
			if left := time.Until(got[0].Deadline()); left > lease {
				r.Errorf("a lease of %v is believed to last %v", lease, left)
			}
			r.OK(other.DeleteGroup(r.Context(), "a", "g"))
		}
	})
}

// A group that holds all it may, as others have made it, has nothing to give.
func TestReceiveOfAGroupThatOthersFilled(t *testing.T) {
	inBubble(t, func(r *rig) {
		held := r.filled(1)
		_, other := r.Open(adapter.Config{})
		r.Equal("received", len(r.receive("g", jetbus.ReceiveOptions{Max: 1, Wait: -1})), 1)
		got := must(other.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{Max: 1, Wait: -1}))(r.T)
		r.Equal("received by another", len(got), 1)
		r.Equal("received", len(r.receive("g", jetbus.ReceiveOptions{Max: 1, Wait: -1})), 0)
		r.OK(held[0].Ack(r.Context()))
		r.Settle()
		r.Equal("received", len(r.receive("g", jetbus.ReceiveOptions{Max: 1, Wait: -1})), 1)
	})
}

// The durable that is found in the middle of a call may have shorter leases than the call goes by.
func TestReceiveOfRetriesAndAGroupMadeAnew(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.Publish("a", "bad", "1")
		must(r.Bus.EnsureGroup(ctx, "a", jetbus.GroupConfig{Group: "g", From: jetbus.Earliest(), AckTimeout: 2 * time.Minute}))(r.T)
		r.OK(r.receive("g", jetbus.ReceiveOptions{Max: 1, Wait: -1})[0].Reject(ctx, "bad"))
		r.Settle()
		r.replay()
		time.Sleep(100 * time.Millisecond) // of the bubble
		r.OK(r.receive("g", jetbus.ReceiveOptions{Max: 1, Wait: -1})[0].Reject(ctx, "bad"))
		r.Settle()
		r.replay()
		r.OK(r.JS.DeleteConsumer(ctx, "EV_A", "a__g"))
		retried, anew := r.receive("g", jetbus.ReceiveOptions{Max: 3, Wait: -1}), r.receive("g", jetbus.ReceiveOptions{Max: 3, From: jetbus.Earliest(), Wait: -1})
		replays, events := 0, 0
		for _, d := range append(retried, anew...) {
			if d.ReplayOf > 0 {
				replays++
				continue
			}
			events++
			if left := time.Until(d.Deadline()); left > 30*time.Second {
				r.Errorf("%s is held for %v, and the durable gives 30s", d.Key, left)
			}
		}
		r.Equal("replays and events", []int{replays, events}, "[1 2]")
	})
}
