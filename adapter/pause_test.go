package adapter_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

// Of Pause and Resume at once one comes first, for all topics alike.
func TestPauseAndResumeAtOnce(t *testing.T) {
	inBubble(t, func(r *rig) {
		topics := []string{"a", "b", "c"}
		for _, name := range topics {
			r.ensure(jetbus.TopicConfig{Name: name})
		}
		const rtt = 10 * time.Millisecond // a Pause waits that long for each topic, and for its retries
		got := make(chan string, 100)
		sub := r.subscribe(r.openDistant(rtt), func(_ context.Context, d *jetbus.Delivery) error {
			got <- d.Key
			return nil
		}, jetbus.SubscribeOptions{Topics: topics[1:]})
		for round := range 40 {
			var wg sync.WaitGroup
			wg.Go(sub.Pause)
			time.Sleep(time.Duration(round) * rtt / 4)
			wg.Go(sub.Resume)
			wg.Wait()
			sub.Resume()
			for _, name := range topics {
				r.publish(name, fmt.Sprint(name, round))
			}
			for i := range topics {
				if _, ok := awaited(got); !ok {
					r.Fatalf("round %d: %d of %d topics bring events; %+v, %v", round, i, len(topics), sub.Stats(), sub.Err())
				}
			}
		}
	})
}

// awaited returns what comes within a minute.
func awaited[T any](from <-chan T) (v T, ok bool) {
	select {
	case v = <-from:
		return v, true
	case <-time.After(time.Minute):
		return v, false
	}
}

// A handler may pause and resume its subscription while others do, and while it stops.
func TestPauseFromInside(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "a"})
		b := r.openDistant(10 * time.Millisecond)
		ready, handled := make(chan struct{}), make(chan string, 100)
		var sub jetbus.Subscription
		sub = r.subscribe(b, func(ctx context.Context, d *jetbus.Delivery) error {
			<-ready
			if d.Key == "last" {
				r.wantNil(sub.Stop(ctx))
			}
			sub.Pause()
			sub.Resume()
			handled <- d.Key
			return nil
		}, jetbus.SubscribeOptions{})
		close(ready)
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(sub.Pause)
			wg.Go(sub.Resume)
			wg.Wait()
			sub.Resume()
			r.publish("a", fmt.Sprint(i))
			if _, ok := awaited(handled); !ok {
				r.Fatalf("round %d: the event does not come; %+v, %v", i, sub.Stats(), sub.Err())
			}
		}
		r.publish("a", "last")
		wg.Go(sub.Pause)
		wg.Wait()
		sub.Resume()
		awaited(handled)
		<-sub.Done()
		r.ok(sub.Err())
	})
}

// A Resume that comes with the end of the subscription leaves nothing behind on the connection.
func TestResumeAndStopAtOnce(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "a"})
		nc, b := r.open(adapter.Config{})
		r.ok(r.subscribe(b, ignore, jetbus.SubscribeOptions{}).Stop(r.Context()))
		synctest.Wait()
		before := nc.NumSubscriptions()
		for range 60 {
			sub := r.subscribe(b, ignore, jetbus.SubscribeOptions{})
			sub.Pause()
			var wg sync.WaitGroup
			wg.Go(sub.Resume)
			wg.Go(func() { r.wantNil(sub.Stop(r.Context())) })
			wg.Wait()
		}
		synctest.Wait()
		r.equal("subscriptions", nc.NumSubscriptions(), before)
	})
}
