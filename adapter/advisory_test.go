package adapter_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

// foreign takes n messages of a group as a client without JetBus does.
func (r *rig) foreign(stream, durable string, n int) []jetstream.Msg {
	r.Helper()
	c := must(r.JS.Consumer(r.Context(), stream, durable))(r.T)
	batch := must(c.Fetch(n, jetstream.FetchMaxWait(time.Second)))(r.T)
	var out []jetstream.Msg
	for m := range batch.Messages() {
		out = append(out, m)
	}
	return out
}

// dead waits for the dead letters of a topic.
func (r *rig) dead(topic string, n int) []jetbus.DeadLetter {
	r.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		var out []jetbus.DeadLetter
		for e, err := range r.Bus.Scan(r.Context(), jetbus.DeadLetterTopic(topic), jetbus.ScanQuery{}) {
			r.OK(err)
			out = append(out, must(jetbus.ParseDeadLetter(e))(r.T))
		}
		if len(out) >= n || time.Now().After(deadline) {
			if len(out) != n {
				r.Fatalf("%d dead letters, want %d: %+v", len(out), n, out)
			}
			return out
		}
	}
}

func TestOthersTerminate(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "t"})
		s := must(r.Bus.Subscribe(r.Context(), "t", "g", func(context.Context, *jetbus.Delivery) error { return nil }, jetbus.SubscribeOptions{}))(r.T)
		s.Pause()
		events := r.Publish("t", "a", "b", "c")
		for i, m := range r.foreign("EV_T", "t__g", 3) {
			if i < 2 {
				r.OK(m.TermWithReason("no use for it"))
			} else {
				r.OK(m.Ack())
			}
		}
		for i, d := range r.dead("t", 2) {
			r.Equal("dead letter", []any{d.Event.ID, d.Event.Key, d.Group, d.Reason, d.Event.Seq}, []any{events[i].ID, events[i].Key, "g", jetbus.DeadTerminated, events[i].Seq})
		}
	})
}

func TestOthersGiveUp(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "t"})
		s := must(r.Bus.Subscribe(r.Context(), "t", "g", func(context.Context, *jetbus.Delivery) error { return nil }, jetbus.SubscribeOptions{AckTimeout: time.Second}))(r.T)
		s.Pause()
		config := must(r.JS.Consumer(r.Context(), "EV_T", "t__g"))(r.T).CachedInfo().Config
		config.MaxDeliver = 2
		must(r.JS.UpdateConsumer(r.Context(), "EV_T", config))(r.T)
		event := r.Publish("t", "a")[0]
		for range 3 { // the last request makes the server notice
			r.foreign("EV_T", "t__g", 1)
			time.Sleep(2 * time.Second)
		}
		d := r.dead("t", 1)[0]
		r.Equal("dead letter", []any{d.Event.ID, d.Group, d.Reason, d.Attempts}, []any{event.ID, "g", jetbus.DeadMaxDeliver, 2})
	})
}

// Our own terminations make one dead letter, not two, and those of consumers that
// are nobody's of ours make none.
func TestOwnTerminations(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "t"})
		must(r.Bus.Subscribe(r.Context(), "t", "g", func(context.Context, *jetbus.Delivery) error {
			return jetbus.Reject(nil)
		}, jetbus.SubscribeOptions{}))(r.T)
		r.Publish("t", "a")
		r.Equal("reason", r.dead("t", 1)[0].Reason, jetbus.DeadRejected)
		must(r.JS.CreateConsumer(r.Context(), "EV_T", jetstream.ConsumerConfig{Durable: "theirs", AckPolicy: jetstream.AckExplicitPolicy}))(r.T)
		for _, m := range r.foreign("EV_T", "theirs", 1) {
			r.OK(m.TermWithReason("theirs"))
		}
		time.Sleep(time.Minute)
		r.dead("t", 1)
		r.Equal("advisories seen", r.Stream("JETBUS_ADVISORIES").State.Msgs, 2)
		c := must(r.JS.Consumer(r.Context(), "JETBUS_ADVISORIES", "jetbus_advisories__jetbus-ev"))(r.T).CachedInfo()
		r.Equal("advisories left", []any{c.NumPending, c.NumAckPending}, []any{0, 0})
	})
}

// However often an advisory comes, and whoever of several processes looks at it, there is
// one dead letter of its event and group, also where the group has buried the event itself.
func TestAdvisoryTwice(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "t"})
		h := func(_ context.Context, d *jetbus.Delivery) error {
			if d.Key == "ours" {
				return jetbus.Reject(errors.New("bad"))
			}
			return nil
		}
		_, second := r.Open(adapter.Config{})
		for _, b := range []*adapter.Bus{r.Bus, second} {
			must(b.Subscribe(r.Context(), "t", "g", h, jetbus.SubscribeOptions{}))(r.T).Pause()
			must(b.Subscribe(r.Context(), "t", "h", h, jetbus.SubscribeOptions{}))(r.T)
		}
		ours := r.Publish("t", "a", "ours")[1]
		for _, m := range r.foreign("EV_T", "t__g", 2) {
			r.OK(m.TermWithReason("no use for it"))
		}
		r.dead("t", 3)
		advisories := must(r.JS.Stream(r.Context(), "JETBUS_ADVISORIES"))(r.T)
		count := r.Stream("JETBUS_ADVISORIES").State.Msgs
		for seq := range count {
			m := must(advisories.GetMsg(r.Context(), seq+1))(r.T)
			text := strings.Replace(string(m.Data), "jetbus: rejected", "another's word", 1) // as if it were not the group's own
			for range 3 {
				must(r.JS.Publish(r.Context(), m.Subject, []byte(text)))(r.T)
			}
		}
		time.Sleep(time.Minute)
		c := must(r.JS.Consumer(r.Context(), "JETBUS_ADVISORIES", "jetbus_advisories__jetbus-ev"))(r.T).CachedInfo()
		r.Equal("advisories, left of them", []any{count, r.Stream("JETBUS_ADVISORIES").State.Msgs, c.NumPending, c.NumAckPending}, []any{3, 12, 0, 0})
		for _, d := range r.dead("t", 3) {
			want := jetbus.DeadTerminated
			if d.Group == "h" {
				want = jetbus.DeadRejected
			}
			if d.Reason != want || d.Group == "h" && d.Event.Seq != ours.Seq {
				r.Errorf("dead letter of %s in %s: %s", d.Event.Key, d.Group, d.Reason)
			}
		}
	})
}

// A stream of somebody else's that has the advisories serves as well.
func TestAdvisoriesElsewhere(t *testing.T) {
	inBubble(t, func(r *rig) {
		must(r.JS.CreateStream(r.Context(), jetstream.StreamConfig{Name: "AUDIT", Subjects: []string{"$JS.EVENT.ADVISORY.>"}, NoAck: false}))(r.T)
		r.Ensure(jetbus.TopicConfig{Name: "t"})
		s := must(r.Bus.Subscribe(r.Context(), "t", "g", func(context.Context, *jetbus.Delivery) error { return nil }, jetbus.SubscribeOptions{}))(r.T)
		s.Pause()
		r.Publish("t", "a")
		r.OK(r.foreign("EV_T", "t__g", 1)[0].TermWithReason("no"))
		r.dead("t", 1)
	})
}

// Advisories that cannot be watched when a member joins, as in an election, are watched later.
func TestAdvisoriesLater(t *testing.T) {
	inBubble(t, func(r *rig) {
		audit := must(r.JS.CreateStream(r.Context(), jetstream.StreamConfig{Name: "AUDIT", Subjects: []string{"$JS.EVENT.ADVISORY.>"}, MaxConsumers: 1}))(r.T)
		must(audit.CreateConsumer(r.Context(), jetstream.ConsumerConfig{Durable: "full"}))(r.T)
		var log bytes.Buffer
		_, b := r.Open(adapter.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		r.Ensure(jetbus.TopicConfig{Name: "t"})
		must(b.Subscribe(r.Context(), "t", "g", func(context.Context, *jetbus.Delivery) error { return nil }, jetbus.SubscribeOptions{}))(r.T).Pause()
		time.Sleep(5 * time.Minute)
		r.Settle()
		r.Equal("told", strings.Count(log.String(), "not become dead letters"), 1)
		r.OK(audit.DeleteConsumer(r.Context(), "full"))
		time.Sleep(time.Minute)
		event := r.Publish("t", "a")[0]
		r.OK(r.foreign("EV_T", "t__g", 1)[0].TermWithReason("no use for it"))
		r.Equal("dead letter", r.dead("t", 1)[0].Event.ID, event.ID)
		r.OK(b.Close(r.Context()))
	})
}

// When the stream of the advisories is lost, as one in memory is with its broker, the log
// tells, and it is made anew.
func TestAdvisoriesLost(t *testing.T) {
	inBubble(t, func(r *rig) {
		var log bytes.Buffer
		_, b := r.Open(adapter.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		r.Ensure(jetbus.TopicConfig{Name: "t"})
		nothing := func(context.Context, *jetbus.Delivery) error { return nil }
		must(b.Subscribe(r.Context(), "t", "g", nothing, jetbus.SubscribeOptions{}))(r.T).Pause()
		r.OK(r.JS.DeleteStream(r.Context(), "JETBUS_ADVISORIES"))
		time.Sleep(time.Minute)
		r.Settle()
		r.Equal("told", strings.Count(log.String(), "not become dead letters"), 1)
		event := r.Publish("t", "a")[0]
		r.OK(r.foreign("EV_T", "t__g", 1)[0].TermWithReason("no use for it"))
		d := r.dead("t", 1)[0]
		r.Equal("dead letter", []any{d.Event.ID, d.Group, d.Reason}, []any{event.ID, "g", jetbus.DeadTerminated})
		r.OK(b.Close(r.Context()))
		r.Equal("told of the end of the bus", strings.Count(log.String(), "not become dead letters"), 1)
	})
}

func TestWithoutAdvisories(t *testing.T) {
	inBubble(t, func(r *rig) {
		_, b := r.Open(adapter.Config{NoAdvisories: true})
		r.Ensure(jetbus.TopicConfig{Name: "t"})
		must(b.Subscribe(r.Context(), "t", "g", func(context.Context, *jetbus.Delivery) error { return nil }, jetbus.SubscribeOptions{}))(r.T)
		_, err := r.JS.Stream(r.Context(), "JETBUS_ADVISORIES")
		r.WantErr(err, jetstream.ErrStreamNotFound)
	})
}
