package adapter_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

// dlqFull leaves no room for dead letters, or makes some.
func (r *rig) dlqFull(full bool) {
	r.Helper()
	c := must(r.js.Stream(r.Context(), "EV_DLQ"))(r.T).CachedInfo().Config
	c.MaxBytes = 1 << 30
	if full {
		c.MaxBytes = 1
	}
	must(r.js.UpdateStream(r.Context(), c))(r.T)
}

// What is to be a dead letter waits for room, however long, and does not run again.
func TestFateOutlastsAFullLog(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "t"})
		var runs atomic.Int64
		must(r.bus.Subscribe(r.Context(), "t", "g", func(context.Context, *jetbus.Delivery) error {
			runs.Add(1)
			return jetbus.Reject(errors.New("bad"))
		}, jetbus.SubscribeOptions{Backoff: jetbus.Backoff{Min: 2 * time.Minute, Max: 8 * time.Minute, NoJitter: true}}))(r.T)
		r.dlqFull(true)
		r.publish("t", "a")
		time.Sleep(time.Hour)
		r.dlqFull(false)
		time.Sleep(20 * time.Minute)
		d := r.dead("t", 1)[0]
		r.equal("runs, reason, error", []any{runs.Load(), d.Reason, d.Error, d.Attempts}, []any{1, jetbus.DeadRejected, "bad", 1})
		r.equal("copies among the retries", r.stream("EV_RETRY").State.Msgs, 0)
	})
}

// Where the stream of dead letters is gone it is made anew, by those who need it, and the
// event does not run again for that.
func TestDeadLettersStreamGone(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "t"})
		var runs atomic.Int64
		must(r.bus.Subscribe(r.Context(), "t", "g", func(_ context.Context, d *jetbus.Delivery) error {
			runs.Add(1)
			return jetbus.Reject(errors.New("bad " + d.Key))
		}, jetbus.SubscribeOptions{}))(r.T)
		r.publish("t", "a")
		r.dead("t", 1)
		r.ok(r.js.DeleteStream(r.Context(), "EV_DLQ"))
		last := r.publish("t", "b")[0]
		time.Sleep(time.Minute)
		d := r.dead("t", 1)[0]
		r.equal("dead letter, runs", []any{d.Event.Key, d.Error, runs.Load()}, []any{"b", "bad b", 2})
		r.equal("settled up to", r.group("t", "g").AckedSeq, last.Seq)
	})
}

// A handler that panics each time is the error of a dead letter, and of no other event's.
func TestPanicsBecomeADeadLetter(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "t"})
		s := must(r.bus.Subscribe(r.Context(), "t", "g", func(_ context.Context, d *jetbus.Delivery) error {
			if d.Key == "bad" {
				panic("on purpose")
			}
			return nil
		}, jetbus.SubscribeOptions{MaxAttempts: 3}))(r.T)
		last := r.publish("t", "bad", "good")[1]
		time.Sleep(time.Minute)
		d := r.dead("t", 1)[0]
		r.equal("dead letter", []any{d.Event.Key, d.Reason, d.Attempts, d.Error}, []any{"bad", jetbus.DeadMaxAttempts, 3, "handler panicked: on purpose"})
		r.equal("settled up to", r.group("t", "g").AckedSeq, last.Seq)
		r.equal("acked", s.Stats().Acked, 1)
	})
}

// Burying is tried less and less often.
func TestBuryingBacksOff(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "t"})
		var fails atomic.Int64
		_, b := r.open(adapter.Config{Observer: func(o jetbus.Observation) {
			if o.Kind == jetbus.DeadFail {
				fails.Add(1)
			}
		}})
		must(b.Subscribe(r.Context(), "t", "g", func(context.Context, *jetbus.Delivery) error {
			return jetbus.Reject(errors.New("down"))
		}, jetbus.SubscribeOptions{}))(r.T)
		r.dlqFull(true)
		r.publish("t", "a")
		time.Sleep(10 * time.Minute)
		if n := fails.Load(); n > 50 {
			r.Errorf("%d tries to bury one event in ten minutes", n)
		}
	})
}

// An event whose stream is gone can be buried all the same.
func TestDeadLetterOfAStreamThatIsGone(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "t"})
		var fails atomic.Int64
		_, b := r.open(adapter.Config{Observer: func(o jetbus.Observation) {
			if o.Kind == jetbus.DeadFail {
				fails.Add(1)
			}
		}})
		must(b.Subscribe(r.Context(), "t", "g", func(context.Context, *jetbus.Delivery) error {
			return errors.New("down")
		}, jetbus.SubscribeOptions{MaxAttempts: 1}))(r.T)
		m := nats.NewMsg("ev.R.t.g.x1")
		m.Header.Set("Jetbus-Retry", `{"stream":"NO_SUCH","seq":7}`)
		m.Data = []byte("1")
		must(r.js.PublishMsg(r.Context(), m))(r.T)
		time.Sleep(30 * time.Minute)
		r.equal("failures", fails.Load(), 0)
		r.dead("t", 1)
	})
}

// An event that fails again when its group is moved back, after its dead letter was
// replayed, gets another one, which can be replayed.
func TestFailsAgainAfterItsReplay(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "t"})
		var bad atomic.Bool
		bad.Store(true)
		must(r.bus.Subscribe(r.Context(), "t", "g", func(context.Context, *jetbus.Delivery) error {
			if bad.Load() {
				return jetbus.Reject(errors.New("bad"))
			}
			return nil
		}, jetbus.SubscribeOptions{}))(r.T)
		r.publish("t", "a")
		r.dead("t", 1)
		bad.Store(false)
		stats := must(jetbus.Replay(r.Context(), r.bus, jetbus.ReplayOptions{DeadLetterQuery: jetbus.DeadLetterQuery{Topic: "t"}}))(r.T)
		r.equal("replayed", stats.Replayed, 1)
		time.Sleep(time.Minute)
		bad.Store(true)
		r.ok(r.bus.SetCursor(r.Context(), "t", "g", jetbus.Cursor{}, jetbus.SeekOptions{}))
		time.Sleep(time.Minute)
		open := 0
		for _, err := range jetbus.DeadLetters(r.Context(), r.bus, jetbus.DeadLetterQuery{Topic: "t", Open: true}) {
			r.ok(err)
			open++
		}
		r.equal("open dead letters", open, 1)
		bad.Store(false)
		stats = must(jetbus.Replay(r.Context(), r.bus, jetbus.ReplayOptions{DeadLetterQuery: jetbus.DeadLetterQuery{Topic: "t"}}))(r.T)
		r.equal("replayed again", stats.Replayed, 1)
	})
}

// A retry from before its stream was made anew is not taken for the event that has
// its sequence now.
func TestStreamMadeAnew(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "t"})
		h := func(_ context.Context, d *jetbus.Delivery) error {
			if string(d.Payload) == `"a"` && d.Attempt == 1 {
				return jetbus.RetryIn(10*time.Minute, errors.New("down"))
			}
			return jetbus.Reject(errors.New("bad"))
		}
		s := must(r.bus.Subscribe(r.Context(), "t", "g", h, jetbus.SubscribeOptions{}))(r.T)
		r.publish("t", "a")
		time.Sleep(time.Second)
		r.ok(s.Stop(r.Context()))
		r.ok(r.js.DeleteStream(r.Context(), "EV_T"))
		time.Sleep(time.Second)
		r.ensure(jetbus.TopicConfig{Name: "t"})
		must(r.bus.Subscribe(r.Context(), "t", "g", h, jetbus.SubscribeOptions{}))(r.T)
		r.publish("t", "b")
		time.Sleep(time.Hour)
		r.dead("t", 2)
	})
}

// What others drop while there is no room for dead letters is not forgotten.
func TestAdvisoriesOutlastAFullLog(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "t"})
		s := must(r.bus.Subscribe(r.Context(), "t", "g", func(context.Context, *jetbus.Delivery) error { return nil }, jetbus.SubscribeOptions{}))(r.T)
		s.Pause()
		r.dlqFull(true)
		r.publish("t", "a", "b", "c")
		for _, m := range r.foreign("EV_T", "t__g", 3) {
			r.ok(m.TermWithReason("no use for it"))
		}
		time.Sleep(20 * time.Minute)
		r.dlqFull(false)
		time.Sleep(10 * time.Minute)
		r.dead("t", 3)
	})
}

// An event that waits again and again leaves no copies.
func TestRetriesLeaveNothing(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "t"})
		var runs atomic.Int64
		must(r.bus.Subscribe(r.Context(), "t", "g", func(context.Context, *jetbus.Delivery) error {
			if runs.Add(1) <= 12 {
				return jetbus.Snooze(2 * time.Minute)
			}
			return nil
		}, jetbus.SubscribeOptions{}))(r.T)
		must(r.bus.Publish(r.Context(), jetbus.Event{Topic: "t", Payload: []byte(`"` + strings.Repeat("x", 10000) + `"`)}))(r.T)
		time.Sleep(30 * time.Minute)
		info := r.stream("EV_RETRY")
		r.equal("runs", runs.Load(), 13)
		r.equal("copies, bytes", []any{info.State.Msgs, info.State.Bytes}, []any{0, 0})
	})
}

// A bus whose stream of retries was deleted makes it anew.
func TestRetriesStreamGone(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "t"})
		h := func(context.Context, *jetbus.Delivery) error { return nil }
		s := must(r.bus.Subscribe(r.Context(), "t", "g", h, jetbus.SubscribeOptions{}))(r.T)
		r.ok(r.js.DeleteStream(r.Context(), "EV_RETRY"))
		time.Sleep(time.Minute)
		<-s.Done()
		r.wantErr(s.Err(), jetbus.ErrNoTopic)
		must(r.bus.Subscribe(r.Context(), "t", "g", h, jetbus.SubscribeOptions{}))(r.T)
	})
}

// The same after the restart of a broker that kept it in memory.
func TestStreamsInMemoryGone(t *testing.T) {
	inBubble(t, func(r *rig) {
		_, b := r.open(adapter.Config{AutoCreate: true, Storage: jetbus.MemoryStorage})
		h := func(context.Context, *jetbus.Delivery) error { return nil }
		s := must(b.Subscribe(r.Context(), "t", "g", h, jetbus.SubscribeOptions{}))(r.T)
		r.ok(r.broker.Restart(r.Context()))
		<-s.Done()
		must(b.Subscribe(r.Context(), "t", "g", h, jetbus.SubscribeOptions{}))(r.T)
	})
}

// A paused group gets no retries.
func TestPauseHoldsRetries(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "t"})
		var runs atomic.Int64
		must(r.bus.Subscribe(r.Context(), "t", "g", func(context.Context, *jetbus.Delivery) error {
			runs.Add(1)
			return jetbus.RetryIn(2*time.Minute, errors.New("down"))
		}, jetbus.SubscribeOptions{}))(r.T)
		r.publish("t", "a")
		time.Sleep(time.Second)
		r.ok(r.bus.PauseGroup(r.Context(), "t", "g", time.Now().Add(24*time.Hour)))
		time.Sleep(time.Hour)
		r.equal("runs while paused", runs.Load()-1, 0)
	})
}

// Receive does not believe in a lease longer than the server does.
func TestReceiveTrustsTheShorterLease(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "t"})
		s := must(r.bus.Subscribe(r.Context(), "t", "g", func(context.Context, *jetbus.Delivery) error {
			return jetbus.RetryIn(55*time.Second, errors.New("down"))
		}, jetbus.SubscribeOptions{AckTimeout: 30 * time.Second}))(r.T)
		e := r.publish("t", "a")[0]
		time.Sleep(time.Second)
		r.ok(s.Stop(r.Context()))
		must(r.bus.Retry(r.Context(), "g", e, jetbus.RetryOptions{Name: "n"}))(r.T)
		time.Sleep(time.Second)
		o := jetbus.ReceiveOptions{Max: 1, AckTimeout: 2 * time.Second, Wait: -1}
		first := must(r.bus.Receive(r.Context(), "t", "g", o))(r.T)
		time.Sleep(3 * time.Second)
		second := must(r.bus.Receive(r.Context(), "t", "g", o))(r.T)
		if len(first) == 1 && len(second) == 1 && time.Until(first[0].Deadline()) > 0 {
			r.Errorf("%s is held twice; the first holder's lease ends in %v", second[0].ID, time.Until(first[0].Deadline()))
		}
	})
}

// Events whose leases were lost with the connection of a process that lives run side
// by side when they come again.
func TestSurvivorsAreNoSuspects(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "t"})
		w, b := r.openWired(adapter.Config{})
		var running, most atomic.Int64
		var done atomic.Int64
		after := atomic.Bool{}
		must(b.Subscribe(r.Context(), "t", "g", func(ctx context.Context, _ *jetbus.Delivery) error {
			n := running.Add(1)
			defer running.Add(-1)
			if after.Load() && n > most.Load() {
				most.Store(n)
			}
			select {
			case <-time.After(10 * time.Second):
				done.Add(1)
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}, jetbus.SubscribeOptions{Concurrency: 50, MaxInFlight: 50, AckTimeout: 5 * time.Second}))(r.T)
		for _, e := range numbered("t", 50) {
			must(r.bus.Publish(r.Context(), e))(r.T)
		}
		time.Sleep(2 * time.Second)
		w.deaf.Store(true)
		time.Sleep(20 * time.Second)
		after.Store(true)
		w.cut()
		began := time.Now()
		for r.group("t", "g").Held+int(r.group("t", "g").Pending) > 0 && time.Since(began) < time.Hour {
			time.Sleep(time.Second)
		}
		if d := time.Since(began); d > time.Minute {
			r.Errorf("50 events of 10 s on 50 workers took %v after the connection was back; at most %d ran at a time", d, most.Load())
		}
	})
}

// Groups of one name under two prefixes share a bucket, and no attempts: what is given back
// here is no attempt there, and what fails there is one.
func TestAttemptsOfTwoPrefixes(t *testing.T) {
	inBubble(t, func(r *rig) {
		_, staging := r.open(adapter.Config{Prefix: "staging"})
		for _, b := range []*adapter.Bus{r.bus, staging} {
			must(b.EnsureTopic(r.Context(), jetbus.TopicConfig{Name: "a"}))(t)
			must(b.Publish(r.Context(), event("a", "k")))(t)
		}
		ds := must(r.bus.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{From: jetbus.Earliest()}))(t)
		for range 3 {
			r.ok(ds[0].GiveBack(r.Context()))
			ds = must(r.bus.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{Wait: time.Minute}))(t)
		}
		var attempts []int
		done := make(chan struct{})
		sub := r.subscribe(staging, func(_ context.Context, d *jetbus.Delivery) error {
			if attempts = append(attempts, d.Attempt); len(attempts) == 4 {
				close(done)
				return nil
			}
			return errors.New("down")
		}, jetbus.SubscribeOptions{From: jetbus.Earliest(), Backoff: jetbus.Backoff{Min: time.Second, Max: time.Second}})
		select {
		case <-done:
		case <-time.After(time.Hour):
		}
		r.ok(sub.Stop(r.Context()))
		r.equal("attempts under the other prefix", attempts, []int{1, 2, 3, 4})
		r.equal("attempts here", ds[0].Attempt, 1)
	})
}
