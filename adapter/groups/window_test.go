package groups_test

import (
	"context"
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
