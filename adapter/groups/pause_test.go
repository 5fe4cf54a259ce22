package groups_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// Of Pause and Resume at once one comes first, for all topics alike.
func TestPauseAndResumeAtOnce(t *testing.T) {
	inBubble(t, func(r *rig) {
		topics := []string{"a", "b", "c"}
		for _, name := range topics {
			r.Ensure(jetbus.TopicConfig{Name: name})
		}
		const rtt = 10 * time.Millisecond // a Pause waits that long for each topic, and for its retries
		got := make(chan string, 100)
		sub := r.Subscribe(r.OpenDistant(rtt), func(_ context.Context, d *jetbus.Delivery) error {
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
				r.Publish(name, fmt.Sprint(name, round))
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
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		b := r.OpenDistant(10 * time.Millisecond)
		ready, handled := make(chan struct{}), make(chan string, 100)
		var sub jetbus.Subscription
		sub = r.Subscribe(b, func(ctx context.Context, d *jetbus.Delivery) error {
			<-ready
			if d.Key == "last" {
				r.WantNil(sub.Stop(ctx))
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
			r.Publish("a", fmt.Sprint(i))
			if _, ok := awaited(handled); !ok {
				r.Fatalf("round %d: the event does not come; %+v, %v", i, sub.Stats(), sub.Err())
			}
		}
		r.Publish("a", "last")
		wg.Go(sub.Pause)
		wg.Wait()
		sub.Resume()
		awaited(handled)
		<-sub.Done()
		r.OK(sub.Err())
	})
}

// A Resume that comes with the end of the subscription leaves nothing behind on the connection.
func TestResumeAndStopAtOnce(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		nc, b := r.Open(adapter.Config{})
		r.OK(r.Subscribe(b, adaptertest.Ignore, jetbus.SubscribeOptions{}).Stop(r.Context()))
		synctest.Wait()
		before := nc.NumSubscriptions()
		for range 60 {
			sub := r.Subscribe(b, adaptertest.Ignore, jetbus.SubscribeOptions{})
			sub.Pause()
			var wg sync.WaitGroup
			wg.Go(sub.Resume)
			wg.Go(func() { r.WantNil(sub.Stop(r.Context())) })
			wg.Wait()
		}
		synctest.Wait()
		r.Equal("subscriptions", nc.NumSubscriptions(), before)
	})
}

// A Stop beside a Pause gives back what that one still has on its way, and does not wait for
// handlers of it, which there will be none. The retries are what a Pause asks last.
func TestPauseAndStopAtOnce(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		const rtt = 400 * time.Millisecond
		running, finish := make(chan struct{}), make(chan struct{})
		sub := r.Subscribe(r.OpenDistant(rtt), func(_ context.Context, d *jetbus.Delivery) error {
			if d.Key == "dead" {
				return jetbus.Reject(nil)
			}
			close(running)
			<-finish
			return nil
		}, jetbus.SubscribeOptions{Concurrency: 2})
		r.Publish("a", "dead")
		r.Within(time.Minute, "it is a dead letter", func() bool { return len(r.deadOf("a")) == 1 })
		r.Publish("a", "slow")
		<-running

		var wg sync.WaitGroup
		wg.Go(sub.Pause)
		time.Sleep(rtt + rtt/4) // the server has heard of it for the topic, and not for the retries
		began := time.Now()
		for range 2 {
			wg.Go(func() { r.WantNil(sub.Stop(r.Context())) })
		}
		synctest.Wait()
		r.Equal("replayed", must(jetbus.Replay(r.Context(), r.Bus, jetbus.ReplayOptions{DeadLetterQuery: jetbus.DeadLetterQuery{Topic: "a"}}))(r.T).Replayed, 1)
		close(finish)
		wg.Wait()
		if took := time.Since(began); took > 5*time.Second {
			r.Errorf("it took %v", took)
		}
		r.Equal("given back, held", []any{sub.Stats().GivenBack, sub.Stats().Held}, []any{1, 0})
	})
}

// A group that is paused before a member joins gets no retries either.
func TestPausedBeforeItsMembers(t *testing.T) {
	for what, join := range map[string]func(*rig, jetbus.Handler) error{
		"Subscribe": func(r *rig, h jetbus.Handler) error {
			return adaptertest.Last(r.Bus.Subscribe(r.Context(), "a", "g", h, jetbus.SubscribeOptions{}))
		},
		"Receive": func(r *rig, _ jetbus.Handler) error {
			return adaptertest.Last(r.Bus.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{Wait: -1}))
		},
		"Retry": func(*rig, jetbus.Handler) error { return nil },
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.Ensure(jetbus.TopicConfig{Name: "a"})
				e := r.Publish("a", "0")[0]
				must(r.Bus.EnsureGroup(r.Context(), "a", jetbus.GroupConfig{Group: "g"}))(r.T)
				r.OK(r.Bus.PauseGroup(r.Context(), "a", "g", time.Now().Add(time.Hour)))
				got := make(chan string, 10)
				take := func(_ context.Context, d *jetbus.Delivery) error {
					got <- d.ID
					return nil
				}
				r.OK(join(r, take))
				must(r.Bus.Retry(r.Context(), "g", e, jetbus.RetryOptions{Name: "n"}))(r.T)
				r.Subscribe(r.Bus, take, jetbus.SubscribeOptions{})
				time.Sleep(time.Minute)
				r.Equal("runs while it is paused", len(got), 0)
				r.OK(r.Bus.ResumeGroup(r.Context(), "a", "g"))
				if id, _ := awaited(got); id != e.ID {
					r.Errorf("behind the pause came %q", id)
				}
			})
		})
	}
}

// Whatever became of who paused or resumed a group half way: when a member joins, its retries
// are as it is.
func TestRetriesArePausedAsTheirGroup(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		e := r.Publish("a", "0")[0]
		got := make(chan string, 10)
		join := func() {
			s := r.Subscribe(r.Bus, func(_ context.Context, d *jetbus.Delivery) error {
				got <- d.ID
				return nil
			}, jetbus.SubscribeOptions{})
			time.Sleep(time.Minute)
			r.OK(s.Stop(r.Context()))
		}
		join()
		r.Equal("runs before", len(got), 1)
		must(r.JS.PauseConsumer(r.Context(), "EV_A", "a__g", time.Now().Add(time.Hour)))(r.T)
		must(r.Bus.Retry(r.Context(), "g", e, jetbus.RetryOptions{Name: "n"}))(r.T)
		join()
		r.Equal("runs while it is paused", len(got), 1)
		must(r.JS.ResumeConsumer(r.Context(), "EV_A", "a__g"))(r.T)
		join()
		r.Equal("runs when it is resumed", len(got), 2)
	})
}
