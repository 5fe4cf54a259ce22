package groups_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// diary notes what the handlers of all members do with events named <key>-<n>.
type diary struct {
	mu      sync.Mutex
	runs    []string       // all, in the order of their beginning
	done    []string       // first successes, in their order
	running map[string]int // handlers by key
	overlap []string       // events that were handled while another of their key was
}

// handle runs a handler, or none, and notes it.
func (d *diary) handle(e *jetbus.Delivery, f func() error) error {
	name := string(e.Payload)
	d.mu.Lock()
	if d.running == nil {
		d.running = map[string]int{}
	}
	d.runs = append(d.runs, name)
	if d.running[e.Key]++; d.running[e.Key] > 1 {
		d.overlap = append(d.overlap, name)
	}
	d.mu.Unlock()
	var err error
	if f != nil {
		err = f()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.running[e.Key]--
	if err == nil && !slices.Contains(d.done, name) {
		d.done = append(d.done, name)
	}
	return err
}

func (d *diary) read() (runs, done string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.runs, " "), strings.Join(d.done, " ")
}

// check checks that each key's events, 0 to n-1, succeeded in this order, one at a time.
func (d *diary) check(t *testing.T, keys, n int) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	next := map[string]int{}
	for _, name := range d.done {
		key, number, _ := strings.Cut(name, "-")
		if number != strconv.Itoa(next[key]) {
			t.Errorf("event %s of key %s succeeded when %d was due", number, key, next[key])
		}
		next[key]++
	}
	for k := range keys {
		if key := "k" + strconv.Itoa(k); next[key] != n {
			t.Errorf("%d of %d events of key %s succeeded", next[key], n, key)
		}
	}
	if len(d.overlap) > 0 {
		t.Errorf("handled beside another of their key: %v", d.overlap)
	}
}

// noDuplicates checks that no handler succeeded twice.
func (d *diary) noDuplicates(t *testing.T) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	runs := slices.Sorted(slices.Values(d.runs))
	if got := len(slices.Compact(slices.Clone(runs))); got != len(runs) {
		t.Errorf("%d runs of %d events: %v", len(runs), got, d.runs)
	}
}

var quick = jetbus.Backoff{Min: 10 * time.Millisecond, Max: 50 * time.Millisecond}

// publishKeys stores n events of each key, by turns.
func (r *rig) publishKeys(topic string, keys, from, n int) {
	r.Helper()
	for i := from; i < from+n; i++ {
		for k := range keys {
			key := "k" + strconv.Itoa(k)
			must(r.Bus.Publish(r.Context(), jetbus.Event{Topic: topic, Key: key, Payload: []byte(key + "-" + strconv.Itoa(i))}))(r.T)
		}
	}
}

// orderly joins group g of topic a.
func (r *rig) orderly(b *adapter.Bus, order jetbus.Order, h jetbus.Handler, o jetbus.SubscribeOptions) jetbus.Subscription {
	r.Helper()
	o.From, o.Order = jetbus.Earliest(), order
	if o.Backoff == (jetbus.Backoff{}) {
		o.Backoff = quick
	}
	return must(b.Subscribe(r.Context(), "a", "g", h, o))(r.T)
}

func isActive(s jetbus.Subscription) func() bool { return func() bool { return s.Stats().Active } }

// settled waits until the group has nothing left. The server tells a group of an event
// after it has acknowledged the publish: that nothing waits says nothing yet.
func (r *rig) settled(limit time.Duration) {
	r.Helper()
	last := must(r.Bus.TopicInfo(r.Context(), "a"))(r.T).LastSeq
	r.Within(limit, "the group is settled", func() bool {
		g := r.Group("a", "g")
		return g.Pending == 0 && g.Held == 0 && g.AckedSeq >= last
	})
}

func TestOrderPerKey(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.publishKeys("a", 20, 0, 10)
		var d diary
		s := r.orderly(r.Bus, jetbus.PerKey, func(_ context.Context, e *jetbus.Delivery) error {
			return d.handle(e, func() error {
				time.Sleep(time.Duration(rand.IntN(5)) * time.Millisecond)
				if rand.IntN(5) == 0 {
					return errors.New("bad luck")
				}
				return nil
			})
		}, jetbus.SubscribeOptions{Concurrency: 8, MaxAttempts: -1})
		r.publishKeys("a", 20, 10, 10)
		r.settled(time.Minute)
		d.check(t, 20, 20)
		stats := s.Stats()
		if !stats.Active || stats.Acked != 400 || stats.Nacked == 0 || stats.Delivered != stats.Acked+stats.Nacked || stats.LeasesLost > 0 {
			t.Errorf("stats: %+v", stats)
		}
		r.OK(s.Stop(r.Context()))
		r.Equal("waiting after Stop", r.Group("a", "g").Waiting, 0)
	})
}

// One key waits for its poisoned event, and nothing else does.
func TestOrderPoison(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.publishKeys("a", 3, 0, 5)
		var d diary
		s := r.orderly(r.Bus, jetbus.PerKey, func(_ context.Context, e *jetbus.Delivery) error {
			return d.handle(e, func() error {
				if string(e.Payload) == "k1-1" {
					return jetbus.RetryIn(time.Minute, errors.New("poison"))
				}
				return nil
			})
		}, jetbus.SubscribeOptions{Concurrency: 2, MaxAttempts: 3})
		time.Sleep(time.Second)
		synctest.Wait()
		stats := s.Stats()
		r.Equal("acked", stats.Acked, 11)
		r.Equal("retrying, blocked key, blocked", []any{stats.Retrying, stats.BlockedKey, stats.Blocked}, "[1 k1 3]")
		r.Equal("held at the server", r.Group("a", "g").Held, 4)
		time.Sleep(3 * time.Minute)
		r.settled(time.Second)
		r.Equal("dead letters", len(r.deadOf("a")), 1)
		d.mu.Lock()
		poisoned := 0
		for _, name := range d.runs {
			if name == "k1-1" {
				poisoned++
			}
		}
		r.Equal("attempts", poisoned, 3)
		d.done = append(d.done, "")
		r.Equal("the end", strings.Join(d.done[len(d.done)-4:], " "), "k1-2 k1-3 k1-4 ")
		d.mu.Unlock()
		stats = s.Stats()
		r.Equal("dead letters, retrying, blocked", []any{stats.DeadLetters, stats.Retrying, stats.Blocked, stats.LeasesLost}, "[1 0 0 0]")
	})
}

func (r *rig) deadOf(topic string) []jetbus.Event {
	r.Helper()
	var out []jetbus.Event
	for e, err := range r.Bus.Scan(r.Context(), jetbus.DeadLetterTopic(topic), jetbus.ScanQuery{}) {
		r.OK(err)
		out = append(out, e)
	}
	return out
}

func TestOrderTotal(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.publishKeys("a", 4, 0, 10)
		var d diary
		r.orderly(r.Bus, jetbus.Total, func(_ context.Context, e *jetbus.Delivery) error {
			return d.handle(e, func() error {
				switch {
				case e.Attempt == 1 && e.Seq%5 == 0:
					return errors.New("bad luck")
				case !e.Redelivered && e.Seq%7 == 0:
					return jetbus.Snooze(time.Second)
				}
				return nil
			})
		}, jetbus.SubscribeOptions{})
		r.settled(time.Minute)
		d.check(t, 4, 10)
		var want []string
		for i := range 10 {
			for k := range 4 {
				want = append(want, fmt.Sprintf("k%d-%d", k, i))
			}
		}
		_, done := d.read()
		r.Equal("order", done, strings.Join(want, " "))
	})
}

// A member that stops in order loses nothing, repeats nothing, and is replaced at once.
func TestOrderHandOver(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.publishKeys("a", 4, 0, 25)
		_, other := r.Open(adapter.Config{})
		var d diary
		slow := func(_ context.Context, e *jetbus.Delivery) error {
			return d.handle(e, func() error { time.Sleep(50 * time.Millisecond); return nil })
		}
		o := jetbus.SubscribeOptions{Concurrency: 3}
		first := r.orderly(r.Bus, jetbus.PerKey, slow, o)
		r.Within(time.Second, "active", isActive(first))
		second := r.orderly(other, jetbus.PerKey, slow, o)
		time.Sleep(120 * time.Millisecond)
		r.Equal("active", []bool{first.Stats().Active, second.Stats().Active}, "[true false]")
		r.Equal("the other's", second.Stats().Delivered, 0)
		r.OK(first.Stop(r.Context()))
		took := r.Within(time.Second, "the other takes over", func() bool { return second.Stats().Delivered > 0 })
		if took > 100*time.Millisecond {
			t.Errorf("the other took over after %v", took)
		}
		r.settled(time.Minute)
		d.check(t, 4, 25)
		d.noDuplicates(t)
		if first.Stats().GivenBack == 0 {
			t.Error("nothing was given back: the test shows nothing")
		}
	})
}

// durable is the name of the group's present durable.
func (r *rig) durable() string {
	r.Helper()
	var names []string
	s := must(r.JS.Stream(r.Context(), "EV_A"))(r.T)
	for info := range s.ListConsumers(r.Context()).Info() {
		names = append(names, info.Name)
	}
	if len(names) != 1 {
		r.Fatalf("durables: %v", names)
	}
	return names[0]
}

// What a member that died held comes to the next one in its order, after the lock's time.
func TestOrderTakeOver(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.publishKeys("a", 4, 0, 25)
		nc, dying := r.Open(adapter.Config{})
		var d diary
		block := make(chan struct{})
		first := r.orderly(dying, jetbus.PerKey, func(ctx context.Context, e *jetbus.Delivery) error {
			return d.handle(e, func() error {
				if e.Seq < 20 {
					return nil
				}
				select {
				case <-ctx.Done():
				case <-block:
				}
				return errors.New("dead")
			})
		}, jetbus.SubscribeOptions{Concurrency: 3})
		r.Within(time.Second, "three are held", func() bool { return first.Stats().Running == 3 })
		second := r.orderly(r.Bus, jetbus.PerKey, func(_ context.Context, e *jetbus.Delivery) error {
			return d.handle(e, nil)
		}, jetbus.SubscribeOptions{Concurrency: 3})
		nc.Close()
		close(block)
		<-first.Done()
		adaptertest.WantErr(t, first.Err(), jetbus.ErrClosed)
		took := r.Within(time.Minute, "the other takes over", func() bool { return second.Stats().Delivered > 0 })
		if took < 10*time.Second || took > 17*time.Second {
			t.Errorf("the other took over after %v", took)
		}
		r.settled(time.Minute)
		d.check(t, 4, 25)
		r.Equal("durable", strings.HasSuffix(r.durable(), "__e1"), true)
	})
}

// A member that dies while it replaces the durable holds up the group as long as a lock
// lives without its holder, however patient its calls are.
func TestOrderDeadReplacer(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.publishKeys("a", 4, 0, 5)
		nc, dying := r.Open(adapter.Config{})
		first := r.orderly(dying, jetbus.PerKey, func(ctx context.Context, _ *jetbus.Delivery) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}, jetbus.SubscribeOptions{Concurrency: 4})
		r.Within(time.Second, "four are held", func() bool { return first.Stats().Running == 4 })

		ncNext, next := r.Open(adapter.Config{Timeout: 10 * time.Minute})
		second := r.orderly(next, jetbus.PerKey, func(context.Context, *jetbus.Delivery) error { return nil }, jetbus.SubscribeOptions{})
		must(r.NC.Subscribe("$JS.API.CONSUMER.CREATE.*.a__g__e1.>", func(*nats.Msg) { ncNext.Close() }))(t)
		nc.Close()
		r.Within(time.Minute, "the next one dies as it replaces the durable", ncNext.IsClosed)

		var d diary
		r.orderly(r.Bus, jetbus.PerKey, func(_ context.Context, e *jetbus.Delivery) error { return d.handle(e, nil) }, jetbus.SubscribeOptions{})
		r.settled(time.Minute)
		d.check(t, 4, 5)
		r.Equal("handled by the one that died", second.Stats().Delivered, 0)
	})
}

// A handler that does not return holds up its key and nothing else.
func TestOrderStuckHandler(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.publishKeys("a", 3, 0, 4)
		var d diary
		release := make(chan struct{})
		causes := make(chan error, 1)
		s := r.orderly(r.Bus, jetbus.PerKey, func(ctx context.Context, e *jetbus.Delivery) error {
			return d.handle(e, func() error {
				if string(e.Payload) == "k1-1" && e.Attempt == 1 {
					<-ctx.Done()
					causes <- context.Cause(ctx)
					adaptertest.WantErr(t, e.Ack(context.Background()), jetbus.ErrLeaseExpired)
					<-release
				}
				return nil
			})
		}, jetbus.SubscribeOptions{Concurrency: 2, AckTimeout: 5 * time.Second, MaxLease: 30 * time.Second})
		time.Sleep(29 * time.Second)
		r.Equal("acked", s.Stats().Acked, 9)
		time.Sleep(5 * time.Second)
		adaptertest.WantErr(t, <-causes, jetbus.ErrLeaseExpired)
		time.Sleep(time.Minute)
		stats := s.Stats()
		r.Equal("acked, nacked, lost, running", []any{stats.Acked, stats.Nacked, stats.LeasesLost, stats.Running}, "[9 1 1 1]")
		close(release)
		r.settled(time.Minute)
		runs, _ := d.read()
		r.Equal("the end", runs[len(runs)-len("k1-1 k1-2 k1-3"):], "k1-1 k1-2 k1-3")
		r.Equal("acked", s.Stats().Acked, 12)
	})
}

// A connection that breaks and comes back costs no duplicate and no order, and
// the handlers that run do not notice.
func TestOrderReconnect(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.publishKeys("a", 5, 0, 40)
		w, b := r.OpenCabled(adapter.Config{})
		var d diary
		s := r.orderly(b, jetbus.PerKey, func(ctx context.Context, e *jetbus.Delivery) error {
			return d.handle(e, func() error {
				time.Sleep(10 * time.Millisecond)
				return context.Cause(ctx)
			})
		}, jetbus.SubscribeOptions{Concurrency: 4, MaxInFlight: 50})
		for range 3 {
			time.Sleep(53 * time.Millisecond)
			w.Cut()
			time.Sleep(2500 * time.Millisecond)
		}
		r.settled(time.Minute)
		d.check(t, 5, 40)
		d.noDuplicates(t)
		stats := s.Stats()
		r.Equal("nacked, lost", []any{stats.Nacked, stats.LeasesLost}, "[0 0]")
	})
}

// A member that hears nothing any more cancels its handlers before another has the topic.
func TestOrderSilence(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		w, b := r.OpenCabled(adapter.Config{})
		canceled := make(chan time.Time, 1)
		var d diary
		first := r.orderly(b, jetbus.PerKey, func(ctx context.Context, e *jetbus.Delivery) error {
			return d.handle(e, func() error {
				<-ctx.Done()
				adaptertest.WantErr(t, context.Cause(ctx), jetbus.ErrLeaseExpired)
				adaptertest.WantErr(t, e.Ack(context.Background()), jetbus.ErrLeaseExpired)
				canceled <- time.Now()
				return nil
			})
		}, jetbus.SubscribeOptions{})
		r.Within(time.Second, "active", isActive(first))
		r.publishKeys("a", 1, 0, 3)
		r.Within(time.Second, "running", func() bool { return first.Stats().Running == 1 })
		started := make(chan time.Time, 3)
		second := r.orderly(r.Bus, jetbus.PerKey, func(_ context.Context, e *jetbus.Delivery) error {
			started <- time.Now()
			return nil
		}, jetbus.SubscribeOptions{})
		w.Deaf.Store(true)
		a, b2 := <-canceled, <-started
		if b2.Sub(a) < time.Second {
			t.Errorf("the next handler began %v after the old one was canceled", b2.Sub(a))
		}
		w.Cut()
		r.settled(time.Minute)
		r.Equal("acked", []uint64{first.Stats().Acked, second.Stats().Acked}, "[0 3]")
		r.OK(second.Stop(r.Context()))
		r.Within(time.Minute, "the first is active again", isActive(first))
	})
}

func TestOrderConflicts(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.Ensure(jetbus.TopicConfig{Name: "b"})
		nothing := func(context.Context, *jetbus.Delivery) error { return nil }
		_, err := r.Bus.Subscribe(r.Context(), "a", "g", nothing, jetbus.SubscribeOptions{Order: jetbus.Total, Topics: []string{"b"}})
		adaptertest.WantErr(t, err, jetbus.ErrInvalidOption)
		s := r.orderly(r.Bus, jetbus.PerKey, nothing, jetbus.SubscribeOptions{})
		r.Within(time.Second, "active", isActive(s))
		_, other := r.Open(adapter.Config{})
		for _, order := range []jetbus.Order{jetbus.NoOrder, jetbus.Total} {
			_, err := other.Subscribe(r.Context(), "a", "g", nothing, jetbus.SubscribeOptions{Order: order})
			adaptertest.WantErr(t, err, jetbus.ErrConflict)
			if c, ok := errors.AsType[*jetbus.ConflictError](err); !ok || len(c.Differences) != 1 || c.Differences[0].Field != "Order" {
				t.Errorf("order %q: %v", order, err)
			}
		}
		_, err = other.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{Wait: -1})
		adaptertest.WantErr(t, err, jetbus.ErrConflict)
		r.OK(s.Stop(r.Context()))
		_, err = other.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{Wait: -1})
		adaptertest.WantErr(t, err, jetbus.ErrConflict)
		r.publishKeys("a", 1, 0, 2)
		s = r.orderly(r.Bus, jetbus.Total, func(context.Context, *jetbus.Delivery) error { return jetbus.Snooze(time.Hour) }, jetbus.SubscribeOptions{})
		r.Within(time.Second, "snoozed", func() bool { return s.Stats().Snoozed == 1 })
		r.OK(s.Stop(r.Context()))
		r.Equal("given back", []any{s.Stats().GivenBack, r.Group("a", "g").Held}, "[2 0]")
		s = must(other.Subscribe(r.Context(), "a", "g", nothing, jetbus.SubscribeOptions{}))(t)
		r.settled(time.Minute)
		r.Within(time.Second, "it waits", func() bool { return r.Group("a", "g").Waiting > 0 })
		_, err = r.Bus.Subscribe(r.Context(), "a", "g", nothing, jetbus.SubscribeOptions{Order: jetbus.PerKey})
		adaptertest.WantErr(t, err, jetbus.ErrConflict)
		r.OK(s.Stop(r.Context()))
		s = r.orderly(r.Bus, jetbus.Total, nothing, jetbus.SubscribeOptions{})
		r.Within(time.Second, "active", isActive(s))
	})
}

// A member without an order that stood by while its group was given one ends, and takes no
// events beside those who keep the order.
func TestOrderBesidePausedMember(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		_, other := r.Open(adapter.Config{})
		var without atomic.Int32
		paused := must(other.Subscribe(r.Context(), "a", "g", func(context.Context, *jetbus.Delivery) error {
			without.Add(1)
			return nil
		}, jetbus.SubscribeOptions{}))(t)
		paused.Pause()
		time.Sleep(time.Minute) // its requests are over
		s := r.orderly(r.Bus, jetbus.PerKey, adaptertest.Ignore, jetbus.SubscribeOptions{})
		r.Within(time.Second, "active", isActive(s))
		paused.Resume()
		r.publishKeys("a", 1, 0, 20)
		select {
		case <-paused.Done():
		case <-time.After(time.Minute):
			r.Fatal("it goes on")
		}
		r.WantErr(paused.Err(), jetbus.ErrConflict)
		r.settled(time.Minute)
		r.Equal("handled by the member without an order", without.Load(), int32(0))
	})
}

// What is settled by hand is settled once; the event stays in its place.
func TestOrderManualAck(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.publishKeys("a", 2, 0, 3)
		got := make(chan *jetbus.Delivery, 10)
		s := r.orderly(r.Bus, jetbus.PerKey, func(_ context.Context, e *jetbus.Delivery) error {
			got <- e
			return nil
		}, jetbus.SubscribeOptions{Concurrency: 4, ManualAck: true, MaxAttempts: 3, AckTimeout: time.Second, MaxLease: 10 * time.Second})
		next := func(want string, attempt int) *jetbus.Delivery {
			t.Helper()
			select {
			case d := <-got:
				r.Equal("delivered", fmt.Sprint(string(d.Payload), " ", d.Attempt), fmt.Sprint(want, " ", attempt))
				return d
			case <-time.After(30 * time.Second):
				t.Fatalf("%s does not come", want)
				return nil
			}
		}
		none := func() {
			t.Helper()
			time.Sleep(time.Second)
			select {
			case d := <-got:
				t.Errorf("%s came", d.Payload)
			default:
			}
		}
		ctx := r.Context()
		a, b := <-got, <-got
		if a.Key > b.Key {
			a, b = b, a
		}
		none()
		r.OK(a.Nack(ctx, jetbus.NackOptions{Delay: 5 * time.Second}))
		adaptertest.WantErr(t, a.Ack(ctx), jetbus.ErrAlreadySettled)
		adaptertest.WantErr(t, r.Bus.Ack(ctx, "a", "g", a.ID), jetbus.ErrNotHeld)
		r.OK(r.Bus.Ack(ctx, "a", "g", b.ID))
		adaptertest.WantErr(t, b.Ack(ctx), jetbus.ErrAlreadySettled)
		b = next("k1-1", 1)
		none()
		again := next("k0-0", 2)
		adaptertest.WantErr(t, a.Ack(ctx), jetbus.ErrAlreadySettled)
		r.OK(again.Snooze(ctx, time.Second))
		again = next("k0-0", 2)
		r.OK(again.GiveBack(ctx))
		again = next("k0-0", 2)
		r.OK(again.Extend(ctx, time.Minute))
		r.OK(b.Reject(ctx, "no good"))
		b = next("k1-2", 1)
		time.Sleep(9 * time.Second)
		r.OK(b.Ack(ctx))
		time.Sleep(20 * time.Second)
		r.OK(again.Ack(ctx))
		last := next("k0-1", 1)
		time.Sleep(9 * time.Second)
		none()
		last2 := next("k0-1", 2) // nobody settled it in time
		adaptertest.WantErr(t, last.Ack(ctx), jetbus.ErrLeaseExpired)
		r.OK(last2.Ack(ctx))
		r.OK(next("k0-2", 1).Ack(ctx))
		r.settled(time.Minute)
		stats := s.Stats()
		r.Equal("acked, nacked, snoozed, given back, dead", []any{stats.Acked, stats.Nacked, stats.Snoozed, stats.GivenBack, stats.DeadLetters}, "[5 2 1 1 1]")
	})
}

// A group that is moved under its owner goes on where it was moved to.
func TestOrderSetCursor(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.publishKeys("a", 2, 0, 10)
		var d diary
		s := r.orderly(r.Bus, jetbus.PerKey, func(_ context.Context, e *jetbus.Delivery) error { return d.handle(e, nil) }, jetbus.SubscribeOptions{Concurrency: 4})
		r.settled(time.Minute)
		r.OK(r.Bus.SetCursor(r.Context(), "a", "g", jetbus.Cursor{LastSeq: 10}, jetbus.SeekOptions{}))
		r.Within(time.Minute, "ten again", func() bool { return s.Stats().Acked == 30 })
		r.settled(time.Minute)
		r.publishKeys("a", 2, 10, 5)
		r.settled(time.Minute)
		d.check(t, 2, 15)
		r.Equal("acked", s.Stats().Acked, 40)
		r.Equal("order kept", s.Err(), nil)
		_, other := r.Open(adapter.Config{})
		_, err := other.Subscribe(r.Context(), "a", "g", func(context.Context, *jetbus.Delivery) error { return nil }, jetbus.SubscribeOptions{})
		adaptertest.WantErr(t, err, jetbus.ErrConflict)
	})
}

// With Force a running handler's event is taken away from it, and comes again only
// when the handler has returned.
func TestOrderSetCursorForce(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.publishKeys("a", 1, 0, 3)
		var d diary
		slow := true
		s := r.orderly(r.Bus, jetbus.PerKey, func(ctx context.Context, e *jetbus.Delivery) error {
			return d.handle(e, func() error {
				if slow {
					slow = false
					<-ctx.Done()
					time.Sleep(3 * time.Second)
					return context.Cause(ctx)
				}
				return nil
			})
		}, jetbus.SubscribeOptions{Concurrency: 4})
		r.Within(time.Second, "running", func() bool { return s.Stats().Running == 1 })
		r.OK(r.Bus.SetCursor(r.Context(), "a", "g", jetbus.Cursor{}, jetbus.SeekOptions{Force: true}))
		r.settled(time.Minute)
		d.check(t, 1, 3)
		runs, _ := d.read()
		r.Equal("runs", runs, "k0-0 k0-0 k0-1 k0-2")
	})
}

// A member that pauses gives the topic to another, and takes it back when it may.
func TestOrderPause(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		var d diary
		h := func(_ context.Context, e *jetbus.Delivery) error {
			return d.handle(e, func() error { time.Sleep(20 * time.Millisecond); return nil })
		}
		first := r.orderly(r.Bus, jetbus.PerKey, h, jetbus.SubscribeOptions{})
		r.Within(time.Second, "active", isActive(first))
		r.publishKeys("a", 2, 0, 20)
		r.Within(time.Second, "some are handled", func() bool { return first.Stats().Acked > 1 })
		first.Pause()
		r.Within(time.Second, "given up", func() bool { return first.Stats().Held == 0 })
		time.Sleep(time.Minute)
		r.Equal("active", first.Stats().Active, false)
		runs, _ := d.read()
		if n := len(strings.Fields(runs)); n == 0 || n > 8 {
			t.Errorf("handled while paused: %v", runs)
		}
		_, b := r.Open(adapter.Config{})
		second := r.orderly(b, jetbus.PerKey, h, jetbus.SubscribeOptions{})
		r.Within(time.Second, "the other is active", isActive(second))
		first.Resume()
		time.Sleep(100 * time.Millisecond)
		second.Pause()
		r.Within(time.Second, "active again", isActive(first))
		r.settled(time.Minute)
		d.check(t, 2, 20)
		d.noDuplicates(t)
		first.Pause()
		r.OK(first.Stop(r.Context()))
		r.OK(second.Stop(r.Context()))
	})
}

// Stop lets a handler finish, cancels it, and leaves behind one that ignores that.
func TestOrderStop(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.publishKeys("a", 3, 0, 3)
		release := make(chan struct{})
		s := r.orderly(r.Bus, jetbus.PerKey, func(ctx context.Context, e *jetbus.Delivery) error {
			switch e.Key {
			case "k0":
				time.Sleep(3 * time.Second)
				return nil
			case "k1":
				<-ctx.Done()
				return context.Cause(ctx)
			default:
				<-release
				return nil
			}
		}, jetbus.SubscribeOptions{Concurrency: 3, ShutdownTimeout: 5 * time.Second})
		r.Within(time.Second, "running", func() bool { return s.Stats().Running == 3 })
		start := time.Now()
		if err := s.Stop(r.Context()); err == nil || time.Since(start) > 16*time.Second {
			t.Errorf("Stop with a stuck handler: %v after %v", err, time.Since(start))
		}
		close(release)
		synctest.Wait()
		r.Equal("acked", s.Stats().Acked, 1)
		var d diary
		next := r.orderly(r.Bus, jetbus.PerKey, func(_ context.Context, e *jetbus.Delivery) error {
			r.Equal("attempt", e.Attempt, 1)
			return d.handle(e, nil)
		}, jetbus.SubscribeOptions{})
		r.Within(time.Second, "taken over at once", isActive(next))
		r.settled(time.Minute)
		runs, _ := d.read()
		r.Equal("runs", len(strings.Fields(runs)), 8)
	})
}

// Without a broker Stop returns all the same, and nothing that is settled by then
// is lost on the member that begins when the broker is back.
func TestOrderStopWithoutBroker(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.publishKeys("a", 2, 0, 10)
		_, b := r.Open(adapter.Config{})
		var d diary
		h := func(_ context.Context, e *jetbus.Delivery) error {
			return d.handle(e, func() error { time.Sleep(100 * time.Millisecond); return nil })
		}
		s := r.orderly(b, jetbus.PerKey, h, jetbus.SubscribeOptions{})
		r.Within(time.Second, "some are handled", func() bool { return s.Stats().Acked > 1 })
		r.OK(r.Broker.Kill(r.Context()))
		start := time.Now()
		r.OK(s.Stop(r.Context()))
		if took := time.Since(start); took > 15*time.Second {
			t.Errorf("Stop took %v", took)
		}
		r.OK(r.Broker.Restart(r.Context()))
		r.orderly(r.Bus, jetbus.PerKey, h, jetbus.SubscribeOptions{})
		r.settled(2 * time.Minute)
		d.check(t, 2, 10)
	})
}

// A group that is deleted ends its members, those that stand by too.
func TestOrderDeleted(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		_, other := r.Open(adapter.Config{})
		nothing := func(context.Context, *jetbus.Delivery) error { return nil }
		first := r.orderly(r.Bus, jetbus.PerKey, nothing, jetbus.SubscribeOptions{})
		r.Within(time.Second, "active", isActive(first))
		second := r.orderly(other, jetbus.PerKey, nothing, jetbus.SubscribeOptions{})
		r.OK(r.Bus.DeleteGroup(r.Context(), "a", "g"))
		for _, s := range []jetbus.Subscription{first, second} {
			select {
			case <-s.Done():
			case <-time.After(time.Minute):
				t.Fatal("a member goes on")
			}
			adaptertest.WantErr(t, s.Err(), jetbus.ErrNoGroup)
		}
	})
}

// What an owner of a group that was deleted has left says nothing to another of the
// same name.
func TestOrderMadeAnew(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.publishKeys("a", 2, 0, 5)
		var d diary
		for range 2 {
			s := r.orderly(r.Bus, jetbus.PerKey, func(_ context.Context, e *jetbus.Delivery) error { return d.handle(e, nil) }, jetbus.SubscribeOptions{})
			r.settled(time.Minute)
			time.Sleep(10 * time.Second) // nobody's request is left to make it replace the durable
			r.OK(s.Stop(r.Context()))
			r.OK(r.Bus.DeleteGroup(r.Context(), "a", "g"))
		}
		runs, _ := d.read()
		r.Equal("runs", len(strings.Fields(runs)), 20)
	})
}

// Several topics have an owner each.
func TestOrderTopics(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.Ensure(jetbus.TopicConfig{Name: "b"})
		var d diary
		s := r.orderly(r.Bus, jetbus.PerKey, func(_ context.Context, e *jetbus.Delivery) error { return d.handle(e, nil) }, jetbus.SubscribeOptions{Topics: []string{"b"}})
		r.publishKeys("a", 2, 0, 10)
		r.publishKeys("b", 2, 10, 10)
		r.Within(time.Minute, "all", func() bool { return s.Stats().Acked == 40 })
		_, other := r.Open(adapter.Config{})
		second := must(other.Subscribe(r.Context(), "b", "g", func(context.Context, *jetbus.Delivery) error { return nil }, jetbus.SubscribeOptions{Order: jetbus.PerKey}))(t)
		time.Sleep(time.Minute)
		r.Equal("active", second.Stats().Active, false)
		r.OK(s.Stop(r.Context()))
		r.Within(time.Second, "active", isActive(second))
	})
}

// A replay comes to the group in the lane of its key.
func TestOrderReplay(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.publishKeys("a", 2, 0, 2)
		var d diary
		bad := true
		s := r.orderly(r.Bus, jetbus.PerKey, func(_ context.Context, e *jetbus.Delivery) error {
			return d.handle(e, func() error {
				if bad && string(e.Payload) == "k0-0" {
					return jetbus.Reject(errors.New("bad"))
				}
				return nil
			})
		}, jetbus.SubscribeOptions{Concurrency: 2})
		r.settled(time.Minute)
		bad = false
		event := must(r.Bus.Publish(r.Context(), jetbus.Event{Topic: "a", Key: "k0", Payload: []byte("k0-2")}))(t).Event
		event.Payload = []byte("k0-r")
		_, err := r.Bus.Retry(r.Context(), "g", event, jetbus.RetryOptions{Name: "r1", ReplayOf: 1})
		r.OK(err)
		r.Within(time.Minute, "replayed", func() bool { return s.Stats().Acked == 5 })
		if len(d.overlap) > 0 {
			t.Error(d.overlap)
		}
	})
}

// While a dead letter cannot be stored its event keeps its place, and is not
// handled again.
func TestOrderDeadLettersFull(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		_, b := r.Open(adapter.Config{DeadLetterBytes: 1})
		r.publishKeys("a", 2, 0, 3)
		var d diary
		s := r.orderly(b, jetbus.PerKey, func(_ context.Context, e *jetbus.Delivery) error {
			return d.handle(e, func() error {
				if string(e.Payload) == "k0-1" {
					return errors.New("bad")
				}
				return nil
			})
		}, jetbus.SubscribeOptions{MaxAttempts: 2})
		time.Sleep(5 * time.Second)
		runs, done := d.read()
		r.Equal("runs of the event", strings.Count(runs, "k0-1"), 2)
		r.Equal("successes", len(strings.Fields(done)), 4)
		r.Equal("behind it", strings.Contains(runs, "k0-2"), false)
		stream := must(r.JS.Stream(r.Context(), "EV_DLQ"))(t)
		config := stream.CachedInfo().Config
		config.MaxBytes = 1 << 20
		must(r.JS.UpdateStream(r.Context(), config))(t)
		r.settled(time.Minute)
		runs, _ = d.read()
		r.Equal("runs of the event", strings.Count(runs, "k0-1"), 2)
		r.Equal("dead letters, acked", []uint64{s.Stats().DeadLetters, s.Stats().Acked}, "[1 5]")
	})
}

// An event that kills its process again and again is found; its neighbors, which
// were in hand when that happened, are not blamed.
func TestOrderCrashLoop(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.publishKeys("a", 4, 0, 5)
		var d diary
		for range 4 {
			nc, b := r.Open(adapter.Config{})
			poisoned := make(chan struct{}, 1)
			end := make(chan struct{})
			s := r.orderly(b, jetbus.PerKey, func(_ context.Context, e *jetbus.Delivery) error {
				return d.handle(e, func() error {
					if string(e.Payload) == "k1-1" {
						poisoned <- struct{}{}
						<-end
						return errors.New("dead")
					}
					return nil
				})
			}, jetbus.SubscribeOptions{Concurrency: 3, MaxAttempts: 2})
			select {
			case <-poisoned:
			case <-time.After(time.Minute):
				close(end)
				r.settled(time.Second)
				continue
			}
			nc.Close()
			close(end)
			<-s.Done()
		}
		r.Equal("dead letters", len(r.deadOf("a")), 1)
		runs, _ := d.read()
		r.Equal("runs of the poison", strings.Count(runs, "k1-1"), 3) // as one of several, and twice alone
		if g := r.Group("a", "g"); g.Held+int(g.Pending) > 0 {
			t.Errorf("left: %+v", g)
		}
	})
}
