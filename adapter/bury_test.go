package adapter_test

import (
	"errors"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

// buried returns the dead letters of a topic.
func (r *rig) buried(topic string) []jetbus.DeadLetter {
	r.Helper()
	var all []jetbus.DeadLetter
	for d, err := range jetbus.DeadLetters(r.Context(), r.Bus, jetbus.DeadLetterQuery{Topic: topic}) {
		if !errors.Is(err, jetbus.ErrNoDeadLetters) {
			r.OK(err)
			all = append(all, d)
		}
	}
	return all
}

func TestBury(t *testing.T) {
	inBubble(t, func(r *rig) {
		var seen []jetbus.Observation
		_, r.Bus = r.Open(adapter.Config{Observer: func(o jetbus.Observation) { seen = append(seen, o) }})
		info := r.Ensure(jetbus.TopicConfig{Name: "orders"})
		e := r.Publish("orders", "a", "b")[1]
		for range 3 { // as often as one likes, also before any group has made the stream of dead letters
			r.OK(r.Bus.Bury(r.Context(), jetbus.DeadLetter{Event: e, Group: "reader", Error: "no\nsuch customer", Attempts: 1}))
		}
		all := r.buried("orders")
		if len(all) != 1 {
			r.Fatalf("got %d dead letters, want 1", len(all))
		}
		d := all[0]
		r.Equal("event", d.Event, e)
		r.Equal("group, reason, error, attempts", []any{d.Group, d.Reason, d.Error, d.Attempts}, []any{"reader", jetbus.DeadRejected, "no such customer", 1})
		r.Equal("stream", []any{d.Stream, d.StreamCreated}, []any{info.Stream, info.Created})
		if d.FirstFailed.IsZero() || d.LastFailed.IsZero() || d.Time.IsZero() {
			r.Errorf("failed from %v to %v, given up at %v", d.FirstFailed, d.LastFailed, d.Time)
		}
		r.OK(r.Bus.Bury(r.Context(), jetbus.DeadLetter{Event: e, Group: "other", Reason: jetbus.DeadSchema}))
		r.Equal("dead letters of two groups", len(r.buried("orders")), 2)

		r.OK(r.JS.DeleteStream(r.Context(), "EV_DLQ"))
		r.OK(r.Bus.Bury(r.Context(), jetbus.DeadLetter{Event: e, Group: "reader", Stream: "gone", StreamCreated: time.Unix(1, 0)}))
		d = r.buried("orders")[0]
		r.Equal("stream as it was said", []any{d.Stream, d.StreamCreated}, []any{"gone", time.Unix(1, 0).UTC()})
		n := 0
		for _, o := range seen {
			if o.Kind == jetbus.DeadLettered {
				n++
				r.Equal("observed", []any{o.Topic, o.Seq, o.ID}, []any{"orders", e.Seq, e.ID})
			}
		}
		r.Equal("observations", n, 5)
	})
}

func TestBuryRefuses(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "orders"})
		good := jetbus.DeadLetter{Event: r.Publish("orders", "a")[0], Group: "reader"}
		for name, c := range map[string]struct {
			change func(d *jetbus.DeadLetter)
			want   error
		}{
			"no topic":          {func(d *jetbus.DeadLetter) { d.Event.Topic = "missing" }, jetbus.ErrNoTopic},
			"no name":           {func(d *jetbus.DeadLetter) { d.Event.Topic = "" }, jetbus.ErrInvalidTopic},
			"no group":          {func(d *jetbus.DeadLetter) { d.Group = "" }, jetbus.ErrInvalidGroup},
			"no position":       {func(d *jetbus.DeadLetter) { d.Event.Seq = 0 }, jetbus.ErrInvalidOption},
			"of a dead letter":  {func(d *jetbus.DeadLetter) { d.Event.Topic = "dlq.orders" }, jetbus.ErrInvalidTopic},
			"negative attempts": {func(d *jetbus.DeadLetter) { d.Attempts = -1 }, jetbus.ErrInvalidOption},
			"half a stream":     {func(d *jetbus.DeadLetter) { d.Stream = "s" }, jetbus.ErrInvalidOption},
		} {
			d := good
			c.change(&d)
			err := r.Bus.Bury(r.Context(), d)
			if err == nil {
				r.Errorf("%s: no error", name)
			}
			r.WantErr(err, c.want)
		}
		r.Equal("dead letters", len(r.buried("orders")), 0)
	})
}
