package groups_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// durables lists the consumers of a stream with their settings.
func (r *rig) durables(stream string) string {
	r.Helper()
	r.Settle()
	var out []string
	list := must(r.JS.Stream(r.Context(), stream))(r.T).ListConsumers(r.Context())
	for info := range list.Info() {
		out = append(out, fmt.Sprintf("%v %d", info.Config.AckWait, info.Config.MaxAckPending))
	}
	r.OK(list.Err())
	return strings.Join(out, ", ")
}

// Whoever joins a group without saying how it is to be leaves it as it is, whether others
// are there or not; a new group gets the defaults.
func TestGroupKeepsItsSettings(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a", Retention: -1})
		r.Ensure(jetbus.TopicConfig{Name: "b", Retention: -1})
		want := func(what, settings string) {
			r.Helper()
			r.Equal(what, r.durables("EV_A"), settings)
			r.Equal(what+", retries", r.durables("EV_RETRY"), settings)
		}
		subscribe := func(o jetbus.SubscribeOptions) jetbus.Subscription {
			r.Helper()
			return must(r.Bus.Subscribe(r.Context(), "a", "billing", adaptertest.Ignore, o))(t)
		}
		receive := func(o jetbus.ReceiveOptions) {
			r.Helper()
			o.Wait = -1
			must(r.Bus.Receive(r.Context(), "a", "billing", o))(t)
		}
		first := subscribe(jetbus.SubscribeOptions{GroupMaxInFlight: 8, AckTimeout: 5 * time.Minute})
		want("as it was made", "5m0s 8")
		r.OK(subscribe(jetbus.SubscribeOptions{}).Stop(r.Context()))
		want("with another member", "5m0s 8")
		receive(jetbus.ReceiveOptions{})
		want("with a receiver", "5m0s 8")
		r.OK(first.Stop(r.Context()))
		time.Sleep(time.Minute)
		receive(jetbus.ReceiveOptions{})
		want("with a receiver alone", "5m0s 8")
		r.OK(subscribe(jetbus.SubscribeOptions{}).Stop(r.Context()))
		want("with a member alone", "5m0s 8")
		r.OK(subscribe(jetbus.SubscribeOptions{GroupMaxInFlight: 4}).Stop(r.Context()))
		want("what a member asks for", "5m0s 4")
		receive(jetbus.ReceiveOptions{AckTimeout: 10 * time.Minute})
		want("what a receiver asks for", "10m0s 4")
		r.OK(subscribe(jetbus.SubscribeOptions{AckTimeout: time.Minute}).Stop(r.Context()))
		want("a member who asks for less time", "10m0s 4")

		must(r.Bus.Receive(r.Context(), "b", "new", jetbus.ReceiveOptions{Wait: -1}))(t)
		must(r.Bus.Subscribe(r.Context(), "b", "newer", adaptertest.Ignore, jetbus.SubscribeOptions{}))(t)
		r.Equal("new groups", r.durables("EV_B"), "30s 10000, 30s 10000")
	})
}

// So do the partitions of a group, and those that come later get what the others have.
func TestPartitionsKeepTheirSettings(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a", Partitions: 2, Retention: -1})
		join := func(o jetbus.SubscribeOptions) {
			r.Helper()
			o.Order = jetbus.PerKey
			r.OK(r.Bus.JoinPartitions(r.Context(), "a", "g", o))
		}
		join(jetbus.SubscribeOptions{GroupMaxInFlight: 8, AckTimeout: 5 * time.Minute})
		join(jetbus.SubscribeOptions{})
		r.Equal("as they were made", r.durables("EV_A"), "5m0s 8, 5m0s 8")
		must(r.Bus.Repartition(r.Context(), "a", 3))(t)
		join(jetbus.SubscribeOptions{})
		r.Equal("with a new generation", r.durables("EV_A"), strings.TrimSuffix(strings.Repeat("5m0s 8, ", 5), ", "))
	})
}

// A member that has no request open for a moment, as between two of them or while it is
// paused, counts on the group's ack timeout all the same.
func TestAckTimeoutIsNotLowered(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		const long, short = 30 * time.Second, 200 * time.Millisecond
		sub := must(r.Bus.Subscribe(r.Context(), "a", "g", adaptertest.Ignore, jetbus.SubscribeOptions{AckTimeout: long}))(t)
		sub.Pause()
		time.Sleep(long)
		g := r.Group("a", "g")
		r.Equal("requests that are open", g.Waiting, 0)
		r.Publish("a", "k")
		ds := must(r.Bus.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{AckTimeout: short}))(t)
		r.Equal("the group's ack timeout", r.Group("a", "g").AckTimeout, long)
		r.Equal("events", len(ds), 1)
		if left := time.Until(ds[0].Deadline()); left < long/2 || left > long {
			r.Errorf("the lease lasts %v", left)
		}
		r.OK(ds[0].Ack(r.Context()))
		r.OK(sub.Stop(r.Context()))
		time.Sleep(long)
		must(r.Bus.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{AckTimeout: short, Wait: -1}))(t)
		r.Equal("the group's ack timeout, with nobody there", r.Group("a", "g").AckTimeout, long)
	})
}

// A member that asks for a shorter ack timeout than its group has extends its leases as
// often as if it had it, and has them for as long as the group says.
func TestShorterAckTimeoutExtendsMoreOften(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		const long, short = time.Minute, 3 * time.Second
		must(r.Bus.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{AckTimeout: long, Wait: -1}))(t)
		var extended atomic.Int64
		_, b := r.Open(adapter.Config{Observer: func(o jetbus.Observation) {
			if o.Kind == jetbus.Extended {
				extended.Add(1)
			}
		}})
		deadline := make(chan time.Duration, 1)
		sub := must(b.Subscribe(r.Context(), "a", "g", func(_ context.Context, d *jetbus.Delivery) error {
			deadline <- time.Until(d.Deadline())
			time.Sleep(30 * time.Second)
			return nil
		}, jetbus.SubscribeOptions{AckTimeout: short}))(t)
		r.Publish("a", "k")
		if left := <-deadline; left < long/2 {
			r.Errorf("the lease lasts %v", left)
		}
		time.Sleep(time.Minute)
		if n := extended.Load(); n < 25 || n > 31 {
			r.Errorf("it was extended %d times in 30 seconds, want once a second", n)
		}
		r.Equal("lost", sub.Stats().LeasesLost, 0)
	})
}
