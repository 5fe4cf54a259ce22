package adapter_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// dlqFull leaves no room for dead letters, or makes some.
func (r *rig) dlqFull(full bool) {
	r.Helper()
	c := must(r.JS.Stream(r.Context(), "EV_DLQ"))(r.T).CachedInfo().Config
	c.MaxBytes = 1 << 30
	if full {
		c.MaxBytes = 1
	}
	must(r.JS.UpdateStream(r.Context(), c))(r.T)
}

// What is to be a dead letter waits for room, however long, and does not run again.
func TestFateOutlastsAFullLog(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "t"})
		var runs atomic.Int64
		must(r.Bus.Subscribe(r.Context(), "t", "g", func(context.Context, *jetbus.Delivery) error {
			runs.Add(1)
			return jetbus.Reject(errors.New("bad"))
		}, jetbus.SubscribeOptions{Backoff: jetbus.Backoff{Min: 2 * time.Minute, Max: 8 * time.Minute, NoJitter: true}}))(r.T)
		r.dlqFull(true)
		r.Publish("t", "a")
		time.Sleep(time.Hour)
		r.dlqFull(false)
		time.Sleep(20 * time.Minute)
		d := r.dead("t", 1)[0]
		r.Equal("runs, reason, error", []any{runs.Load(), d.Reason, d.Error, d.Attempts}, []any{1, jetbus.DeadRejected, "bad", 1})
		r.Equal("copies among the retries", r.Stream("EV_RETRY").State.Msgs, 0)
	})
}

// Where the stream of dead letters is gone it is made anew, by those who need it, and the
// event does not run again for that.
func TestDeadLettersStreamGone(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "t"})
		var runs atomic.Int64
		must(r.Bus.Subscribe(r.Context(), "t", "g", func(_ context.Context, d *jetbus.Delivery) error {
			runs.Add(1)
			return jetbus.Reject(errors.New("bad " + d.Key))
		}, jetbus.SubscribeOptions{}))(r.T)
		r.Publish("t", "a")
		r.dead("t", 1)
		r.OK(r.JS.DeleteStream(r.Context(), "EV_DLQ"))
		last := r.Publish("t", "b")[0]
		time.Sleep(time.Minute)
		d := r.dead("t", 1)[0]
		r.Equal("dead letter, runs", []any{d.Event.Key, d.Error, runs.Load()}, []any{"b", "bad b", 2})
		r.Equal("settled up to", r.Group("t", "g").AckedSeq, last.Seq)
	})
}

// A handler that panics each time is the error of a dead letter, and of no other event's.
func TestPanicsBecomeADeadLetter(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "t"})
		s := must(r.Bus.Subscribe(r.Context(), "t", "g", func(_ context.Context, d *jetbus.Delivery) error {
			if d.Key == "bad" {
				panic("on purpose")
			}
			return nil
		}, jetbus.SubscribeOptions{MaxAttempts: 3}))(r.T)
		last := r.Publish("t", "bad", "good")[1]
		time.Sleep(time.Minute)
		d := r.dead("t", 1)[0]
		r.Equal("dead letter", []any{d.Event.Key, d.Reason, d.Attempts, d.Error}, []any{"bad", jetbus.DeadMaxAttempts, 3, "handler panicked: on purpose"})
		r.Equal("settled up to", r.Group("t", "g").AckedSeq, last.Seq)
		r.Equal("acked", s.Stats().Acked, 1)
	})
}

// Burying is tried less and less often.
func TestBuryingBacksOff(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "t"})
		var fails atomic.Int64
		_, b := r.Open(adapter.Config{Observer: func(o jetbus.Observation) {
			if o.Kind == jetbus.DeadFail {
				fails.Add(1)
			}
		}})
		must(b.Subscribe(r.Context(), "t", "g", func(context.Context, *jetbus.Delivery) error {
			return jetbus.Reject(errors.New("down"))
		}, jetbus.SubscribeOptions{}))(r.T)
		r.dlqFull(true)
		r.Publish("t", "a")
		time.Sleep(10 * time.Minute)
		if n := fails.Load(); n > 50 {
			r.Errorf("%d tries to bury one event in ten minutes", n)
		}
	})
}

// An event whose stream is gone can be buried all the same.
func TestDeadLetterOfAStreamThatIsGone(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "t"})
		var fails atomic.Int64
		_, b := r.Open(adapter.Config{Observer: func(o jetbus.Observation) {
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
		must(r.JS.PublishMsg(r.Context(), m))(r.T)
		time.Sleep(30 * time.Minute)
		r.Equal("failures", fails.Load(), 0)
		r.dead("t", 1)
	})
}

// rejecting joins group g of topic t, which rejects its events while the flag is true, as it is at first.
func (r *rig) rejecting() *atomic.Bool {
	r.Helper()
	r.Ensure(jetbus.TopicConfig{Name: "t"})
	bad := &atomic.Bool{}
	bad.Store(true)
	must(r.Bus.Subscribe(r.Context(), "t", "g", func(context.Context, *jetbus.Delivery) error {
		if bad.Load() {
			return jetbus.Reject(errors.New("bad"))
		}
		return nil
	}, jetbus.SubscribeOptions{}))(r.T)
	return bad
}

// An event that fails again when its group is moved back, after its dead letter was
// replayed, gets another one, which can be replayed.
func TestFailsAgainAfterItsReplay(t *testing.T) {
	inBubble(t, func(r *rig) {
		bad := r.rejecting()
		r.Publish("t", "a")
		r.dead("t", 1)
		bad.Store(false)
		stats := must(jetbus.Replay(r.Context(), r.Bus, jetbus.ReplayOptions{DeadLetterQuery: jetbus.DeadLetterQuery{Topic: "t"}}))(r.T)
		r.Equal("replayed", stats.Replayed, 1)
		time.Sleep(time.Minute)
		bad.Store(true)
		r.OK(r.Bus.SetCursor(r.Context(), "t", "g", jetbus.Cursor{}, jetbus.SeekOptions{}))
		time.Sleep(time.Minute)
		open := 0
		for _, err := range jetbus.DeadLetters(r.Context(), r.Bus, jetbus.DeadLetterQuery{Topic: "t", Open: true}) {
			r.OK(err)
			open++
		}
		r.Equal("open dead letters", open, 1)
		bad.Store(false)
		stats = must(jetbus.Replay(r.Context(), r.Bus, jetbus.ReplayOptions{DeadLetterQuery: jetbus.DeadLetterQuery{Topic: "t"}}))(r.T)
		r.Equal("replayed again", stats.Replayed, 1)
	})
}

// Dead letters that were replayed and have since left their topic are not spoken of any more.
func TestReplayAfterRetention(t *testing.T) {
	inBubble(t, func(r *rig) {
		bad := r.rejecting()
		for _, key := range []string{"a", "b", "c"} {
			r.Publish("t", key)
		}
		r.dead("t", 3)
		bad.Store(false)
		of := jetbus.ReplayOptions{DeadLetterQuery: jetbus.DeadLetterQuery{Topic: "t"}}
		r.Equal("replayed", must(jetbus.Replay(r.Context(), r.Bus, of))(r.T).Replayed, 3)
		before := func(want int) {
			stats, err := jetbus.Replay(r.Context(), r.Bus, of)
			if stats.Already != want || stats.Matched != want || errors.Is(err, jetbus.ErrNoDeadLetters) != (want == 0) {
				r.Errorf("%+v, %v; want %d replayed before", stats, err, want)
			}
		}
		before(3)
		stream := must(r.JS.Stream(r.Context(), "EV_DLQ"))(r.T)
		r.OK(stream.Purge(r.Context(), jetstream.WithPurgeSequence(3))) // as the server does with what is too old
		before(1)
		r.OK(stream.Purge(r.Context()))
		before(0)
	})
}

// A retry from before its stream was made anew is not taken for the event that has
// its sequence now.
func TestStreamMadeAnew(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "t"})
		h := func(_ context.Context, d *jetbus.Delivery) error {
			if string(d.Payload) == `"a"` && d.Attempt == 1 {
				return jetbus.RetryIn(10*time.Minute, errors.New("down"))
			}
			return jetbus.Reject(errors.New("bad"))
		}
		s := must(r.Bus.Subscribe(r.Context(), "t", "g", h, jetbus.SubscribeOptions{}))(r.T)
		r.Publish("t", "a")
		time.Sleep(time.Second)
		r.OK(s.Stop(r.Context()))
		r.OK(r.JS.DeleteStream(r.Context(), "EV_T"))
		time.Sleep(time.Second)
		r.Ensure(jetbus.TopicConfig{Name: "t"})
		must(r.Bus.Subscribe(r.Context(), "t", "g", h, jetbus.SubscribeOptions{}))(r.T)
		r.Publish("t", "b")
		time.Sleep(time.Hour)
		r.dead("t", 2)
	})
}

// What others drop while there is no room for dead letters is not forgotten.
func TestAdvisoriesOutlastAFullLog(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "t"})
		s := must(r.Bus.Subscribe(r.Context(), "t", "g", func(context.Context, *jetbus.Delivery) error { return nil }, jetbus.SubscribeOptions{}))(r.T)
		s.Pause()
		r.dlqFull(true)
		r.Publish("t", "a", "b", "c")
		for _, m := range r.foreign("EV_T", "t__g", 3) {
			r.OK(m.TermWithReason("no use for it"))
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
		r.Ensure(jetbus.TopicConfig{Name: "t"})
		var runs atomic.Int64
		must(r.Bus.Subscribe(r.Context(), "t", "g", func(context.Context, *jetbus.Delivery) error {
			if runs.Add(1) <= 12 {
				return jetbus.Snooze(2 * time.Minute)
			}
			return nil
		}, jetbus.SubscribeOptions{}))(r.T)
		must(r.Bus.Publish(r.Context(), jetbus.Event{Topic: "t", Payload: []byte(`"` + strings.Repeat("x", 10000) + `"`)}))(r.T)
		time.Sleep(30 * time.Minute)
		info := r.Stream("EV_RETRY")
		r.Equal("runs", runs.Load(), 13)
		r.Equal("copies, bytes", []any{info.State.Msgs, info.State.Bytes}, []any{0, 0})
	})
}

// A bus whose stream of retries was deleted makes it anew.
func TestRetriesStreamGone(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "t"})
		h := func(context.Context, *jetbus.Delivery) error { return nil }
		s := must(r.Bus.Subscribe(r.Context(), "t", "g", h, jetbus.SubscribeOptions{}))(r.T)
		r.OK(r.JS.DeleteStream(r.Context(), "EV_RETRY"))
		time.Sleep(time.Minute)
		<-s.Done()
		r.WantErr(s.Err(), jetbus.ErrNoTopic)
		must(r.Bus.Subscribe(r.Context(), "t", "g", h, jetbus.SubscribeOptions{}))(r.T)
	})
}

// The same after the restart of a broker that kept it in memory.
func TestStreamsInMemoryGone(t *testing.T) {
	inBubble(t, func(r *rig) {
		_, b := r.Open(adapter.Config{AutoCreate: true, Storage: jetbus.MemoryStorage})
		h := func(context.Context, *jetbus.Delivery) error { return nil }
		s := must(b.Subscribe(r.Context(), "t", "g", h, jetbus.SubscribeOptions{}))(r.T)
		r.OK(r.Broker.Restart(r.Context()))
		<-s.Done()
		must(b.Subscribe(r.Context(), "t", "g", h, jetbus.SubscribeOptions{}))(r.T)
	})
}

// A paused group gets no retries.
func TestPauseHoldsRetries(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "t"})
		var runs atomic.Int64
		must(r.Bus.Subscribe(r.Context(), "t", "g", func(context.Context, *jetbus.Delivery) error {
			runs.Add(1)
			return jetbus.RetryIn(2*time.Minute, errors.New("down"))
		}, jetbus.SubscribeOptions{}))(r.T)
		r.Publish("t", "a")
		time.Sleep(time.Second)
		r.OK(r.Bus.PauseGroup(r.Context(), "t", "g", time.Now().Add(24*time.Hour)))
		time.Sleep(time.Hour)
		r.Equal("runs while paused", runs.Load()-1, 0)
	})
}

// Receive does not believe in a lease longer than the server does.
func TestReceiveTrustsTheShorterLease(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "t"})
		s := must(r.Bus.Subscribe(r.Context(), "t", "g", func(context.Context, *jetbus.Delivery) error {
			return jetbus.RetryIn(55*time.Second, errors.New("down"))
		}, jetbus.SubscribeOptions{AckTimeout: 30 * time.Second}))(r.T)
		e := r.Publish("t", "a")[0]
		time.Sleep(time.Second)
		r.OK(s.Stop(r.Context()))
		must(r.Bus.Retry(r.Context(), "g", e, jetbus.RetryOptions{Name: "n"}))(r.T)
		time.Sleep(time.Second)
		o := jetbus.ReceiveOptions{Max: 1, AckTimeout: 2 * time.Second, Wait: -1}
		first := must(r.Bus.Receive(r.Context(), "t", "g", o))(r.T)
		time.Sleep(3 * time.Second)
		second := must(r.Bus.Receive(r.Context(), "t", "g", o))(r.T)
		if len(first) == 1 && len(second) == 1 && time.Until(first[0].Deadline()) > 0 {
			r.Errorf("%s is held twice; the first holder's lease ends in %v", second[0].ID, time.Until(first[0].Deadline()))
		}
	})
}

// Events whose leases were lost with the connection of a process that lives run side
// by side when they come again.
func TestSurvivorsAreNoSuspects(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "t"})
		w, b := r.OpenCabled(adapter.Config{})
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
		for _, e := range adaptertest.Numbered("t", 50) {
			must(r.Bus.Publish(r.Context(), e))(r.T)
		}
		time.Sleep(2 * time.Second)
		w.Deaf.Store(true)
		time.Sleep(20 * time.Second)
		after.Store(true)
		w.Cut()
		began := time.Now()
		for r.Group("t", "g").Held+int(r.Group("t", "g").Pending) > 0 && time.Since(began) < time.Hour {
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
		_, staging := r.Open(adapter.Config{Prefix: "staging"})
		for _, b := range []*adapter.Bus{r.Bus, staging} {
			must(b.EnsureTopic(r.Context(), jetbus.TopicConfig{Name: "a"}))(t)
			must(b.Publish(r.Context(), adaptertest.Event("a", "k")))(t)
		}
		ds := must(r.Bus.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{From: jetbus.Earliest()}))(t)
		tries := make(chan int, 10)
		r.Subscribe(staging, func(_ context.Context, d *jetbus.Delivery) error {
			tries <- d.Attempt
			return errors.New("down")
		}, jetbus.SubscribeOptions{Backoff: jetbus.Backoff{Min: 10 * time.Second, Max: 10 * time.Second, NoJitter: true}})
		for want := 1; want <= 4; want++ {
			r.Equal("attempt under the other prefix", <-tries, want)
			time.Sleep(time.Second) // it is recorded
			r.OK(ds[0].GiveBack(r.Context()))
			ds = must(r.Bus.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{Wait: time.Minute}))(t)
		}
		r.Equal("attempts here", ds[0].Attempt, 1)
	})
}

// What is recorded of an event is not taken for that of another one which has its place in a
// stream that was made anew by somebody else, who does not drop what is recorded.
func TestAttemptsOfAStreamMadeAnew(t *testing.T) {
	inBubble(t, func(r *rig) {
		anew := func() {
			r.Ensure(jetbus.TopicConfig{Name: "a"})
			r.Publish("a", "k")
		}
		anew()
		tries := make(chan int, 1)
		sub := r.Subscribe(r.Bus, func(_ context.Context, d *jetbus.Delivery) error {
			if d.Attempt == 3 {
				tries <- d.Attempt
			}
			return errors.New("down")
		}, jetbus.SubscribeOptions{From: jetbus.Earliest(), MaxAttempts: -1, Backoff: jetbus.Backoff{Min: time.Second, Max: time.Second}})
		<-tries
		r.OK(sub.Stop(r.Context()))
		r.OK(r.JS.DeleteStream(r.Context(), "EV_A"))
		anew()
		nc, dead := r.Open(adapter.Config{})
		o := jetbus.ReceiveOptions{From: jetbus.Earliest(), Wait: 2 * time.Minute, AckTimeout: time.Minute}
		must(dead.Receive(r.Context(), "a", "g", o))(t)
		nc.Close()
		again := must(r.Bus.Receive(r.Context(), "a", "g", o))(t)[0]
		r.Equal("attempt, redelivered", []any{again.Attempt, again.Redelivered}, []any{1, true})
		r.OK(again.Ack(r.Context()))
	})
}

// Where there is no room for what is known of attempts, members join all the same, and what
// fails each time becomes a dead letter, by the server's count of deliveries.
func TestAttemptsBucketFull(t *testing.T) {
	inBubble(t, func(r *rig) {
		kv := must(r.JS.CreateKeyValue(r.Context(), jetstream.KeyValueConfig{Bucket: "JETBUS_ATTEMPTS", History: 1, LimitMarkerTTL: time.Second, MaxBytes: 1 << 10}))(r.T)
		must(kv.Put(r.Context(), "x", make([]byte, 950)))(r.T)
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		attempts := make(chan int, 10)
		r.Subscribe(r.Bus, func(_ context.Context, d *jetbus.Delivery) error {
			attempts <- d.Attempt
			return errors.New("down")
		}, jetbus.SubscribeOptions{MaxAttempts: 3, Backoff: jetbus.Backoff{Min: time.Second, Max: time.Second}})
		r.Publish("a", "k")
		for want := 1; want <= 3; want++ {
			r.Equal("attempt", <-attempts, want)
		}
		r.Equal("attempts of the dead letter", r.dead("a", 1)[0].Attempts, 3)
		time.Sleep(time.Minute)
		r.Equal("runs after that", len(attempts), 0)
	})
}
