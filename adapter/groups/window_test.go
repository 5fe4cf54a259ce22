package groups_test

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// What no handler sees counts in the rate by which a member asks for more: it does not go
// to the broker and back for each event.
func TestUnseenEventsOverALongWay(t *testing.T) {
	const rtt = 10 * time.Millisecond
	for name, c := range map[string]struct {
		events  int
		foreign bool // nobody can decode them
		each    time.Duration
	}{
		"filtered":    {2000, false, rtt / 10},
		"undecodable": {200, true, 5 * rtt / 2}, // to make a dead letter of one takes two requests
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.Ensure(jetbus.TopicConfig{Name: "a"})
				if c.foreign {
					for range c.events {
						m := nats.NewMsg("ev.a._")
						m.Header.Set("content-type", "application/cloudevents+json")
						m.Data = []byte("{") // and no more
						must(r.JS.PublishMsg(r.Context(), m))(r.T)
					}
				} else {
					must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("a", c.events), jetbus.BatchOptions{}))(r.T)
				}
				b := r.OpenDistant(rtt)
				began := time.Now()
				r.Subscribe(b, func(context.Context, *jetbus.Delivery) error {
					t.Error("the handler runs")
					return nil
				}, jetbus.SubscribeOptions{Filter: jetbus.Filter{Key: "nobody"}})
				time.Sleep(time.Duration(c.events) * c.each)
				if g := r.Group("a", "g"); g.AckedSeq < uint64(c.events) {
					r.Errorf("after %v: %+v", time.Since(began), g)
				}
			})
		})
	}
}

// While all handlers are stuck a member asks for nothing, in none of its topics; when one
// comes back, it asks in all of them.
func TestHandlersComeBackForAllTopics(t *testing.T) {
	inBubble(t, func(r *rig) {
		for _, name := range []string{"a", "b", "c"} {
			r.Ensure(jetbus.TopicConfig{Name: name})
		}
		const lease = 10 * time.Minute
		got, release := make(chan string, 10), make(chan struct{})
		sub := r.Subscribe(r.Bus, func(_ context.Context, d *jetbus.Delivery) error {
			if d.Key == "stuck" {
				<-release
			}
			got <- d.Key
			return nil
		}, jetbus.SubscribeOptions{Topics: []string{"b", "c"}, AckTimeout: lease, MaxLease: lease, MaxAttempts: 1})
		r.Publish("a", "stuck")
		for sub.Stats().LeasesLost == 0 {
			time.Sleep(time.Minute)
		}
		time.Sleep(lease) // what was asked for is over
		r.Publish("b", "b")
		r.Publish("c", "c")
		time.Sleep(lease)
		r.Equal("handled meanwhile", len(got), 0)
		close(release)
		time.Sleep(time.Second)
		r.Equal("handled then", len(got), 3)
	})
}

// The topics of a member take turns of a hundredth of a second: an event of one that has few does
// not wait for the backlogs of the others, and these are not gone through one event at a time.
func TestTopicsTakeTurns(t *testing.T) {
	inBubble(t, func(r *rig) {
		const each = 3000
		for _, name := range []string{"a", "b", "c", "quiet"} {
			r.Ensure(jetbus.TopicConfig{Name: name})
			if name != "quiet" {
				must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered(name, each), jetbus.BatchOptions{}))(r.T)
			}
		}
		var mu sync.Mutex
		var handled []string // topics
		var waited time.Duration
		sub := r.Subscribe(r.Bus, func(_ context.Context, d *jetbus.Delivery) error {
			time.Sleep(time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			if handled = append(handled, d.Topic); d.Topic == "quiet" {
				waited = time.Since(d.Time)
			}
			return nil
		}, jetbus.SubscribeOptions{Topics: []string{"b", "c", "quiet"}})
		time.Sleep(3*time.Second + time.Millisecond/2)
		r.Publish("quiet", "k")
		time.Sleep(time.Second)
		r.Equal("backlog left", sub.Stats().Held > 100, true)
		mu.Lock()
		defer mu.Unlock()
		if waited == 0 || waited > 5*time.Millisecond {
			r.Errorf("an event of a topic that has nothing else was handled after %v", waited)
		}
		turns := 0
		last := handled[len(handled)-1000:]
		for i := range last[1:] {
			if last[i] != last[i+1] {
				turns++
			}
		}
		if turns < 50 || turns > 200 {
			r.Errorf("%d turns in a second, want about 100", turns)
		}
	})
}

// Where no lease is extended, no more retries are held than have their turns in time, beside
// topics that have enough for all handlers.
func TestRetriesThatNothingExtendsHaveTheirTurns(t *testing.T) {
	inBubble(t, func(r *rig) {
		const topics, takes = 10, 10 * time.Second
		names := []string{"a"}
		for i := range topics - 1 {
			names = append(names, "other"+strconv.Itoa(i))
		}
		for _, name := range names {
			r.Ensure(jetbus.TopicConfig{Name: name})
			must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered(name, 500), jetbus.BatchOptions{}))(r.T)
		}
		sub := r.Subscribe(r.Bus, func(_ context.Context, d *jetbus.Delivery) error {
			time.Sleep(takes)
			if d.Topic == names[0] {
				return jetbus.RetryIn(2*time.Minute, nil)
			}
			return nil
		}, jetbus.SubscribeOptions{Topics: names[1:], Concurrency: topics, MaxLease: -1, MaxAttempts: -1})
		time.Sleep(30 * time.Minute)
		stats := sub.Stats()
		r.Equal("leases lost", stats.LeasesLost, uint64(0))
		r.Equal("events retried", stats.Nacked > 100, true)
	})
}
