package groups_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// block is a handler that says that it runs and waits to be let go, or for the
// end of its context.
type block struct {
	running chan *jetbus.Delivery
	release chan struct{}
}

func newBlock() *block {
	return &block{running: make(chan *jetbus.Delivery, 1000), release: make(chan struct{})}
}

func (h *block) handle(ctx context.Context, d *jetbus.Delivery) error {
	h.running <- d
	select {
	case <-h.release:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Running handlers finish and settle; what has not started goes back without an
// attempt.
func TestStopFinishes(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("a", 50), jetbus.BatchOptions{}))(r.T)
		h := newBlock()
		sub := r.Subscribe(r.Bus, h.handle, jetbus.SubscribeOptions{Concurrency: 3})
		for range 3 {
			<-h.running
		}
		time.AfterFunc(10*time.Second, func() { close(h.release) })
		began := time.Now()
		var wg sync.WaitGroup
		for range 3 { // at once, and again
			wg.Go(func() { r.WantNil(sub.Stop(r.Context())) })
		}
		wg.Wait()
		r.OK(sub.Stop(r.Context()))
		r.Equal("it took", time.Since(began).Round(time.Second), 10*time.Second)
		select {
		case <-sub.Done():
		default:
			r.Error("not done")
		}
		r.OK(sub.Err())
		stats := sub.Stats()
		if stats.Acked != 3 || stats.Running != 0 || stats.Held != 0 || stats.Delivered != 3 {
			r.Errorf("%+v", stats)
		}
		g := r.Group("a", "g")
		if g.AckedSeq != 3 || g.Held != 0 {
			r.Errorf("%+v", g)
		}
		rest := must(r.Bus.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{}))(r.T)
		r.Equal("the rest", len(rest), 47)
		for _, d := range rest {
			if d.Attempt != 1 {
				r.Errorf("event %s: attempt %d", d.Key, d.Attempt)
			}
		}
	})
}

// A handler that does not finish in time is canceled, and its event goes back.
func TestStopCancels(t *testing.T) {
	for name, stop := range map[string]func(r *rig, sub jetbus.Subscription) error{
		"ShutdownTimeout": func(r *rig, sub jetbus.Subscription) error { return sub.Stop(r.Context()) },
		"context": func(r *rig, sub jetbus.Subscription) error {
			ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
			defer cancel()
			return sub.Stop(ctx)
		},
		"context of Subscribe": nil,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.Ensure(jetbus.TopicConfig{Name: "a"})
				r.Publish("a", "1")
				h := newBlock()
				cause := make(chan error, 1)
				ctx, cancel := context.WithCancel(r.Context())
				defer cancel()
				o := jetbus.SubscribeOptions{From: jetbus.Earliest(), ShutdownTimeout: 5 * time.Second}
				sub := must(r.Bus.Subscribe(ctx, "a", "g", func(ctx context.Context, d *jetbus.Delivery) error {
					err := h.handle(ctx, d)
					cause <- err
					return err
				}, o))(r.T)
				<-h.running
				began := time.Now()
				if stop == nil {
					cancel()
				} else {
					r.OK(stop(r, sub))
				}
				r.WantErr(<-cause, jetbus.ErrStopped)
				<-sub.Done()
				r.Equal("it took", time.Since(began).Round(time.Second), 5*time.Second)
				r.OK(sub.Err())
				d := must(r.Bus.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{}))(r.T)[0]
				r.Equal("attempt", d.Attempt, 1)
			})
		})
	}
}

// A handler that ignores its context is left behind in the end, and Stop says so.
func TestStopIgnored(t *testing.T) {
	inBubble(t, func(r *rig) {
		var log bytes.Buffer
		_, b := r.Open(adapter.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.Publish("a", "1")
		running, release := make(chan struct{}), make(chan struct{})
		sub := r.Subscribe(b, func(context.Context, *jetbus.Delivery) error {
			close(running)
			<-release
			return nil
		}, jetbus.SubscribeOptions{ShutdownTimeout: 5 * time.Second})
		<-running
		began := time.Now()
		err := sub.Stop(r.Context())
		if err == nil || !strings.Contains(err.Error(), "1 handler") {
			r.Errorf("got %v", err)
		}
		if took := time.Since(began); took > 20*time.Second {
			r.Errorf("it took %v", took)
		}
		if !strings.Contains(log.String(), "left behind") {
			r.Errorf("the log says %q", &log)
		}
		close(release)
		synctest.Wait()
		r.Equal("running", sub.Stats().Running, 0)
		// Nothing it did afterwards counts: the event is somebody else's.
		time.Sleep(time.Minute)
		d := must(r.Bus.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{}))(r.T)[0]
		r.Equal("key", d.Key, "1")
	})
}

func TestStopFromInside(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.Publish("a", "1", "2")
		var sub jetbus.Subscription
		ready := make(chan struct{})
		runs := 0
		sub = r.Subscribe(r.Bus, func(ctx context.Context, d *jetbus.Delivery) error {
			<-ready
			runs++
			type key struct{}
			r.WantNil(sub.Stop(context.WithValue(ctx, key{}, 1)))
			time.Sleep(time.Second)
			if _, err := r.Bus.Publish(ctx, adaptertest.Event("a", "from inside")); err != nil {
				return err
			}
			return nil
		}, jetbus.SubscribeOptions{})
		close(ready)
		<-sub.Done()
		r.Equal("runs", runs, 1)
		r.Equal("settled up to", r.Group("a", "g").AckedSeq, 1)
	})
}

// Stop knows by its context that a handler waits for it; without that both wait, and not
// for ever.
func TestStopFromInsideWithAnotherContext(t *testing.T) {
	inBubble(t, func(r *rig) {
		const timeout, grace = 2 * time.Second, 10 * time.Second
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		for name, c := range map[string]struct {
			of     func(ctx context.Context) context.Context
			waited time.Duration
		}{
			"made from it": {func(ctx context.Context) context.Context {
				ctx, cancel := context.WithTimeout(ctx, time.Minute)
				r.Cleanup(cancel)
				return ctx
			}, 0},
			"another": {func(context.Context) context.Context { return context.Background() }, timeout + grace},
		} {
			var sub jetbus.Subscription
			ready, took := make(chan struct{}), make(chan time.Duration, 1)
			sub = must(r.Bus.Subscribe(r.Context(), "a", "g", func(ctx context.Context, _ *jetbus.Delivery) error {
				<-ready
				began := time.Now()
				if err := sub.Stop(c.of(ctx)); (err != nil) != (c.waited > 0) {
					r.Errorf("%s: %v", name, err)
				}
				took <- time.Since(began)
				return nil
			}, jetbus.SubscribeOptions{ShutdownTimeout: timeout, MaxAttempts: -1}))(r.T)
			close(ready)
			r.Publish("a", name)
			r.Equal(name, <-took, c.waited)
			<-sub.Done()
		}
	})
}

// Handlers may publish and settle until they are done, while the bus closes.
func TestCloseWithRunningHandlers(t *testing.T) {
	inBubble(t, func(r *rig) {
		_, b := r.Open(adapter.Config{})
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.Ensure(jetbus.TopicConfig{Name: "out"})
		r.Publish("a", "1", "2", "3")
		running := make(chan struct{}, 10)
		r.Subscribe(b, func(ctx context.Context, d *jetbus.Delivery) error {
			running <- struct{}{}
			time.Sleep(5 * time.Second)
			_, err := b.Publish(ctx, adaptertest.Event("out", d.Key))
			r.WantNil(err)
			r.WantNil(b.Ack(ctx, "a", "g", d.ID))
			return nil
		}, jetbus.SubscribeOptions{Concurrency: 2})
		<-running
		<-running
		adaptertest.CloseBus(r.T, b)
		r.Equal("published", len(strings.Fields(r.Stored("out"))), 2)
		g := r.Group("a", "g")
		if g.AckedSeq != 2 || g.Held != 0 {
			r.Errorf("%+v", g)
		}
		_, err := b.Publish(r.Context(), adaptertest.Event("out", "late"))
		r.WantErr(err, jetbus.ErrClosed)
	})
}

// A program that ends because its context has ended hands that to Close: handlers finish
// all the same, and where there is nothing to do there is no error.
func TestCloseWithEndedContext(t *testing.T) {
	over, end := context.WithCancel(t.Context())
	end()
	t.Run("a handler runs", func(t *testing.T) {
		inBubble(t, func(r *rig) {
			_, b := r.Open(adapter.Config{})
			r.Ensure(jetbus.TopicConfig{Name: "a"})
			r.Publish("a", "1")
			running := make(chan struct{})
			r.Subscribe(b, func(ctx context.Context, _ *jetbus.Delivery) error {
				close(running)
				time.Sleep(2 * time.Second) // of the bubble
				return context.Cause(ctx)
			}, jetbus.SubscribeOptions{})
			<-running
			began := time.Now()
			r.OK(b.Close(over))
			r.Equal("it took", time.Since(began).Round(time.Second), 2*time.Second)
			r.Equal("acknowledged", r.Group("a", "g").AckedSeq, 1)
		})
	})
	t.Run("nothing runs", func(t *testing.T) {
		inBubble(t, func(r *rig) {
			_, b := r.Open(adapter.Config{})
			r.OK(b.Close(over))
			r.OK(b.Close(over))
		})
	})
	t.Run("a call goes on for longer than Config.Timeout", func(t *testing.T) {
		inBubble(t, func(r *rig) {
			w, b := r.OpenCabled(adapter.Config{Timeout: 3 * time.Second})
			r.Ensure(jetbus.TopicConfig{Name: "a"})
			must(b.Publish(r.Context(), adaptertest.Event("a", "before")))(r.T) // now it knows the topic
			w.Deaf.Store(true)
			published := make(chan error, 1)
			go func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
				defer cancel()
				_, err := b.Publish(ctx, adaptertest.Event("a", "k"))
				published <- err
			}()
			synctest.Wait()
			began := time.Now()
			r.WantErr(b.Close(over), context.DeadlineExceeded)
			if took := time.Since(began); took < 3*time.Second || took > 10*time.Second {
				r.Errorf("it took %v", took)
			}
			r.WantErr(<-published, jetbus.ErrClosed)
		})
	})
}

// A context that ends while a handler runs is what cancels that; it is no error of Close.
func TestCloseCancelsHandlers(t *testing.T) {
	inBubble(t, func(r *rig) {
		_, b := r.Open(adapter.Config{})
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.Publish("a", "1")
		h := newBlock()
		r.Subscribe(b, h.handle, jetbus.SubscribeOptions{})
		<-h.running
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		began := time.Now()
		r.OK(b.Close(ctx))
		r.Equal("it took", time.Since(began).Round(time.Second), time.Second)
	})
}

// Close waits for a server that says nothing for a while as long as it may, and for
// one that is lost no longer.
func TestCloseOnBadConnection(t *testing.T) {
	for name, c := range map[string]struct {
		ctx, heals, takes time.Duration // of Close, and when the connection breaks, which ends the silence
		receives          bool          // a Receive waits
		want              error
	}{
		"silent for a while":             {time.Minute, 5 * time.Second, 5 * time.Second, false, nil},
		"silent for ever":                {time.Minute, time.Hour, time.Minute, false, context.DeadlineExceeded},
		"silent for ever, a Receive":     {time.Minute, time.Hour, time.Minute, true, context.DeadlineExceeded},
		"silent, no deadline":            {0, time.Hour, 10 * time.Second, false, context.DeadlineExceeded},
		"silent, no deadline, a Receive": {0, time.Hour, 12 * time.Second, true, context.DeadlineExceeded}, // 2 s for the group's advisories
		"lost at the same time":          {time.Minute, 0, 0, false, nil},
		"lost, a Receive":                {time.Minute, 0, 0, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				w, b := r.OpenCabled(adapter.Config{})
				var ended sync.WaitGroup
				defer ended.Wait()
				if c.receives {
					r.Ensure(jetbus.TopicConfig{Name: "a"})
					ended.Go(func() {
						_, err := b.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{Wait: time.Hour})
						r.WantErr(err, jetbus.ErrClosed)
					})
					synctest.Wait()
				}
				w.Deaf.Store(true)
				ctx := r.Context()
				if c.ctx > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.ctx)
					defer cancel()
				}
				began := time.Now()
				heal := time.AfterFunc(c.heals, w.Cut)
				defer heal.Stop()
				if err := b.Close(ctx); !errors.Is(err, c.want) {
					r.Errorf("got %v, want %v", err, c.want)
				}
				r.Equal("it took", time.Since(began).Round(time.Second), c.takes)
			})
		})
	}
}

func TestCloseFromInside(t *testing.T) {
	inBubble(t, func(r *rig) {
		nc, b := r.Open(adapter.Config{})
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.Publish("a", "1")
		closed := make(chan error, 1)
		sub := r.Subscribe(b, func(ctx context.Context, _ *jetbus.Delivery) error {
			closed <- b.Close(ctx)
			return nil
		}, jetbus.SubscribeOptions{})
		r.OK(<-closed)
		<-sub.Done()
		r.OK(nc.Flush())
		r.Equal("held", r.Group("a", "g").Held, 0)
	})
}

// Publishers race with Close: what Publish says is so.
func TestCloseWhilePublishing(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		_, b := r.Open(adapter.Config{})
		var wg sync.WaitGroup
		var stored atomic.Int64
		for i := range 10 {
			wg.Go(func() {
				for {
					_, err := b.Publish(r.Context(), adaptertest.Event("a", fmt.Sprint(i)))
					if err == nil {
						stored.Add(1)
						continue
					}
					p, ok := errors.AsType[*jetbus.PublishError](err)
					if !adaptertest.IsClosed(err) || ok && p.Stored != jetbus.StoredNo {
						r.Errorf("got %v", err)
					}
					return
				}
			})
		}
		for stored.Load() < 100 {
			synctestYield()
		}
		adaptertest.CloseBus(r.T, b)
		wg.Wait()
		r.Equal("messages", r.Stream("EV_A").State.Msgs, stored.Load())
	})
}

// synctestYield lets others run; unlike Sleep it does not wait for all of them.
func synctestYield() { time.Sleep(0) }

// With ManualAck the events held after their handler returned are still their
// holder's while Stop waits, and go back after that.
func TestStopManualAck(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.Publish("a", "1", "2", "3")
		got := make(chan *jetbus.Delivery, 3)
		sub := r.Subscribe(r.Bus, func(_ context.Context, d *jetbus.Delivery) error {
			got <- d
			return nil
		}, jetbus.SubscribeOptions{ManualAck: true, Concurrency: 3, AckTimeout: 2 * time.Second, ShutdownTimeout: 20 * time.Second})
		ds := []*jetbus.Delivery{<-got, <-got, <-got}
		time.Sleep(time.Minute) // kept for their holder all the time
		time.AfterFunc(10*time.Second, func() { r.WantNil(ds[0].Ack(r.Context())) })
		began := time.Now()
		r.OK(sub.Stop(r.Context()))
		r.Equal("it took", time.Since(began).Round(time.Second), 20*time.Second)
		if err := ds[1].Ack(r.Context()); err == nil {
			r.Error("an event that went back was acknowledged")
		}
		rest := must(r.Bus.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{}))(r.T)
		r.Equal("given back", len(rest), 2)
		for _, d := range rest {
			r.Equal("attempt", d.Attempt, 1)
		}
	})
}

func TestSubscribeAndStopAtOnce(t *testing.T) {
	inBubble(t, func(r *rig) {
		const n, members = 500, 10
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		must(r.Bus.Subscribe(r.Context(), "a", "g", adaptertest.Ignore, jetbus.SubscribeOptions{From: jetbus.Earliest()}))(r.T)
		var handled atomic.Int64
		var wg sync.WaitGroup
		done := make(chan struct{})
		for range members {
			wg.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
					}
					sub, err := r.Bus.Subscribe(r.Context(), "a", "h", func(context.Context, *jetbus.Delivery) error {
						handled.Add(1)
						return nil
					}, jetbus.SubscribeOptions{From: jetbus.Earliest()})
					if err != nil {
						r.Error(err)
						return
					}
					time.Sleep(time.Millisecond)
					r.WantNil(sub.Stop(r.Context()))
				}
			})
		}
		must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("a", n), jetbus.BatchOptions{}))(r.T)
		for handled.Load() < n {
			time.Sleep(10 * time.Millisecond)
		}
		close(done)
		wg.Wait()
		g := r.Group("a", "h")
		if handled.Load() != n || g.AckedSeq != n || g.Held != 0 {
			r.Errorf("%d handled, %+v", handled.Load(), g)
		}
	})
}

// Stop with the broker away returns all the same.
func TestStopBrokerAway(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.Publish("a", "1", "2", "3")
		h := newBlock()
		sub := r.Subscribe(r.Bus, h.handle, jetbus.SubscribeOptions{ShutdownTimeout: 5 * time.Second, Concurrency: 3})
		<-h.running
		r.OK(r.Broker.Kill(r.Context()))
		synctest.Wait()
		began := time.Now()
		r.OK(sub.Stop(r.Context()))
		if took := time.Since(began); took > time.Minute {
			r.Errorf("it took %v", took)
		}
		r.OK(r.Broker.Restart(r.Context()))
		time.Sleep(time.Minute)
		r.Equal("delivered again", len(must(r.Bus.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{}))(r.T)), 3)
	})
}

func TestSubscribeRefused(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		before := r.NC.NumSubscriptions()
		for _, c := range []struct {
			topic, group string
			h            jetbus.Handler
			o            jetbus.SubscribeOptions
			want         error
		}{
			{"a", "g", nil, jetbus.SubscribeOptions{}, jetbus.ErrInvalidOption},
			{"a", "g", adaptertest.Ignore, jetbus.SubscribeOptions{Topics: []string{"a"}}, jetbus.ErrInvalidOption},
			{"a", "g", adaptertest.Ignore, jetbus.SubscribeOptions{Concurrency: -1}, jetbus.ErrInvalidOption},
			{"a", "", adaptertest.Ignore, jetbus.SubscribeOptions{}, jetbus.ErrInvalidGroup},
			{"A", "g", adaptertest.Ignore, jetbus.SubscribeOptions{}, jetbus.ErrInvalidTopic},
			{"none", "g", adaptertest.Ignore, jetbus.SubscribeOptions{}, jetbus.ErrNoTopic},
			{"a", "g", adaptertest.Ignore, jetbus.SubscribeOptions{Topics: []string{"none"}}, jetbus.ErrNoTopic},
			{"a", "g", adaptertest.Ignore, jetbus.SubscribeOptions{From: jetbus.AfterID("none")}, jetbus.ErrPositionUnknown},
		} {
			s, err := r.Bus.Subscribe(ctx, c.topic, c.group, c.h, c.o)
			r.WantErr(err, c.want)
			if s != nil {
				r.Errorf("%+v: got a subscription", c)
			}
		}
		canceled, cancel := context.WithCancel(ctx)
		cancel()
		_, err := r.Bus.Subscribe(canceled, "a", "g", adaptertest.Ignore, jetbus.SubscribeOptions{})
		r.WantErr(err, context.Canceled)
		r.Equal("groups", len(must(r.Bus.Groups(ctx, "a"))(r.T)), 0)
		synctest.Wait()
		r.Equal("subscriptions", r.NC.NumSubscriptions(), before)
	})
}

// A Subscribe that the end of the bus overtakes returns an error like others, and nothing else.
func TestSubscribeWhileClosing(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		b := r.OpenDistant(100 * time.Millisecond)
		var s jetbus.Subscription
		var err error
		var wg sync.WaitGroup
		wg.Go(func() { s, err = b.Subscribe(r.Context(), "a", "g", adaptertest.Ignore, jetbus.SubscribeOptions{}) })
		time.Sleep(50 * time.Millisecond) // its first request is on its way
		adaptertest.CloseBus(r.T, b)
		wg.Wait()
		r.WantErr(err, jetbus.ErrClosed)
		if s != nil || err == nil || !strings.HasPrefix(err.Error(), "subscribe a/g: ") {
			r.Errorf("got %v, %v", s, err)
		}
	})
}

// Nor is there one where Close waits for the handlers of another, and all that the new one asks
// for is answered.
func TestSubscribeBesideClose(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.Publish("a", "0")
		b := r.OpenDistant(100 * time.Millisecond)
		began, release := make(chan struct{}), make(chan struct{})
		r.Subscribe(b, func(context.Context, *jetbus.Delivery) error {
			close(began)
			<-release
			return nil
		}, jetbus.SubscribeOptions{})
		<-began
		var s jetbus.Subscription
		var err error
		var wg sync.WaitGroup
		wg.Go(func() { s, err = b.Subscribe(r.Context(), "a", "h", adaptertest.Ignore, jetbus.SubscribeOptions{}) })
		time.Sleep(50 * time.Millisecond)
		closed := make(chan error, 1)
		go func() { closed <- b.Close(r.Context()) }()
		wg.Wait()
		if s != nil || !errors.Is(err, jetbus.ErrClosed) || !strings.HasPrefix(err.Error(), "subscribe a/h: ") {
			r.Errorf("got %v, %v", s, err)
		}
		if len(closed) > 0 {
			r.Error("Close did not wait for the handler")
		}
		close(release)
		r.OK(<-closed)
	})
}

// A panic of the handler or of the filter is a failure of the event, not the
// end of the process.
func TestPanics(t *testing.T) {
	inBubble(t, func(r *rig) {
		var seen atomic.Int64
		_, b := r.Open(adapter.Config{Observer: func(o jetbus.Observation) {
			if _, ok := errors.AsType[*jetbus.PanicError](o.Err); ok && o.Kind == jetbus.Nacked {
				seen.Add(1)
			}
		}})
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.Publish("a", "filter", "handler", "fine")
		done := make(chan string, 10)
		var once sync.Map
		sub := r.Subscribe(b, func(_ context.Context, d *jetbus.Delivery) error {
			if _, again := once.LoadOrStore(d.Key, 1); d.Key == "handler" && !again {
				panic("handler")
			}
			done <- d.Key
			return nil
		}, jetbus.SubscribeOptions{FilterFunc: func(e *jetbus.Event) bool {
			if _, again := once.LoadOrStore("filter", 1); e.Key == "filter" && !again {
				panic("filter")
			}
			return true
		}})
		got := map[string]bool{<-done: true, <-done: true, <-done: true}
		r.Equal("handled", len(got), 3)
		r.Equal("panics seen", seen.Load(), 2)
		r.OK(sub.Stop(r.Context()))
		r.Equal("settled up to", r.Group("a", "g").AckedSeq, 3)
	})
}
