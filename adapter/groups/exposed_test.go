package groups_test

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// exposing is a topic with an event that is older than a lease of it, and a bus for which
// others may take the lead.
type exposing struct {
	*rig
	led  *adaptertest.Led
	bus  *adapter.Bus
	lost atomic.Int64 // leases
}

const exposedLease = 30 * time.Second

func inExposed(t *testing.T, f func(x *exposing)) {
	t.Helper()
	inExposedFar(t, 0, f)
}

// inExposedFar is inExposed so far from the broker.
func inExposedFar(t *testing.T, rtt time.Duration, f func(x *exposing)) {
	t.Helper()
	inBubble(t, func(r *rig) {
		x := &exposing{rig: r}
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		x.led, x.bus = r.OpenLed("EV_A", rtt, adapter.Config{Observer: func(o jetbus.Observation) {
			if o.Kind == jetbus.LeaseLost {
				x.lost.Add(1)
			}
		}})
		r.Publish("a", "k")
		time.Sleep(exposedLease)
		f(x)
	})
}

// handle subscribes, and tells when the event was handled.
func (x *exposing) handle(o jetbus.SubscribeOptions) (s jetbus.Subscription, handled *atomic.Pointer[time.Time]) {
	x.Helper()
	o.From, o.AckTimeout = jetbus.Earliest(), exposedLease
	handled = &atomic.Pointer[time.Time]{}
	s = x.Subscribe(x.bus, func(context.Context, *jetbus.Delivery) error {
		now := time.Now()
		handled.Store(&now)
		return nil
	}, o)
	return s, handled
}

func (x *exposing) receive(wait time.Duration) []*jetbus.Delivery {
	x.Helper()
	return must(x.bus.Receive(x.Context(), "a", "g", jetbus.ReceiveOptions{From: jetbus.Earliest(), AckTimeout: exposedLease, Wait: wait}))(x.T)
}

// pending is how many events the server takes to be in somebody's hands.
func (x *exposing) pending() int {
	x.Helper()
	c := must(x.JS.Consumer(x.Context(), "EV_A", "a__g"))(x.T)
	return c.CachedInfo().NumAckPending
}

// An event that is old is handled when it is known that who sent it leads the durable still.
func TestExposedEventIsOurs(t *testing.T) {
	inExposed(t, func(x *exposing) {
		_, handled := x.handle(jetbus.SubscribeOptions{})
		began := time.Now()
		x.Settle()
		x.Equal("handled at once", handled.Load() != nil, true)
		x.Equal("time that took", time.Since(began), time.Duration(0))
		x.Equal("left", x.pending(), 0)
	})
}

// Where another server has taken the lead since an old event was asked for, that one may have given it
// to another member: it is not handled, nor given back, and comes again when its time is over.
func TestExposedEventIsSomebodyElses(t *testing.T) {
	for name, o := range map[string]jetbus.SubscribeOptions{"extended": {}, "not extended": {MaxLease: -1}} {
		t.Run("subscribed, "+name, func(t *testing.T) {
			inExposed(t, func(x *exposing) {
				began := time.Now()
				x.led.Elect(began.Add(time.Hour))
				s, handled := x.handle(o)
				time.Sleep(exposedLease - time.Second)
				x.Settle()
				x.Equal("handled while it is perhaps somebody else's", handled.Load(), nil)
				x.Equal("leases lost, held, pending", [3]int64{x.lost.Load(), int64(s.Stats().Held), int64(x.pending())}, [3]int64{1, 0, 1})
				x.led.Elect(began.Add(-time.Millisecond))
				time.Sleep(2 * time.Second)
				x.Settle()
				x.Equal("handled, by now", handled.Load() != nil, true)
				x.Equal("leases lost, left", [2]int64{x.lost.Load(), int64(x.pending())}, [2]int64{1, 0})
			})
		})
	}
	t.Run("received", func(t *testing.T) {
		inExposed(t, func(x *exposing) {
			began := time.Now()
			x.led.Elect(began.Add(time.Hour))
			x.Equal("received", len(x.receive(-1)), 0)
			x.Equal("leases lost, pending", [2]int64{x.lost.Load(), int64(x.pending())}, [2]int64{1, 1})
			x.led.Elect(began.Add(-time.Millisecond))
			ds := x.receive(time.Minute)
			x.Equal("received, when its time is over", len(ds) == 1 && time.Since(began) >= exposedLease, true)
			x.OK(ds[0].Ack(x.Context()))
		})
	})
}

// While nobody leads the durable an old event waits, and goes on when somebody has led it for
// long enough. A new one needs nobody.
func TestExposedEventWaitsForALeader(t *testing.T) {
	for name, o := range map[string]jetbus.SubscribeOptions{"extended": {Concurrency: 2}, "not extended": {Concurrency: 2, MaxLease: -1}} {
		t.Run(name, func(t *testing.T) { waitForALeader(t, o) })
	}
}

func waitForALeader(t *testing.T, o jetbus.SubscribeOptions) {
	t.Helper()
	inExposed(t, func(x *exposing) {
		x.led.Elect(time.Time{})
		began := time.Now()
		_, handled := x.handle(o)
		time.Sleep(3 * exposedLease) // it is extended meanwhile
		x.Settle()
		x.Equal("handled without a leader", handled.Load(), nil)
		x.Publish("a", "k")
		x.Settle()
		x.Equal("a new event is handled", handled.Load() != nil, true)
		x.Equal("pending", x.pending(), 1)
		x.led.Elect(began.Add(-time.Millisecond))
		time.Sleep(time.Second)
		x.Settle()
		x.Equal("leases lost, pending", [2]int64{x.lost.Load(), int64(x.pending())}, [2]int64{0, 0})
	})
}

// What a leader says that others have not heard of just now does not count, one that does not say since
// when it leads is taken for one of before 2.12, and one that has nobody beside it may have been
// another one before.
func TestWhoLeadsAnExposedEvent(t *testing.T) {
	const since = `"leader_since":"1970-01-01T00:00:01Z",`
	for name, c := range map[string]struct {
		cluster string
		handled time.Duration // behind the join; negative: not within the lease
		stays   bool          // what is said
	}{
		"most hear of it":  {`{"leader":"n1",` + since + `"replicas":[{"name":"n2","active":1000000},{"name":"n3","active":9000000000}]}`, 0, false},
		"it never heard":   {`{"leader":"n1",` + since + `"replicas":[{"name":"n2","active":0},{"name":"n3","active":9000000000}]}`, -1, false},
		"nobody hears":     {`{"leader":"n1",` + since + `"replicas":[{"name":"n2","active":4000000000},{"name":"n3","active":9000000000}]}`, -1, false},
		"before 2.12":      {`{"leader":"n1","replicas":[{"name":"n2","active":1000000},{"name":"n3","active":1000000}]}`, time.Second, false},
		"no replicas left": {`{"leader":"n1"}`, -1, true},
	} {
		t.Run(name, func(t *testing.T) {
			inExposed(t, func(x *exposing) {
				x.led.Elect(time.Time{})
				_, handled := x.handle(jetbus.SubscribeOptions{})
				x.led.Say(c.cluster)
				time.Sleep(max(c.handled, 100*time.Millisecond))
				x.Settle()
				x.Equal("handled soon", handled.Load() != nil, c.handled >= 0)
				if !c.stays {
					x.led.Elect(time.Unix(1, 0))
				}
				time.Sleep(exposedLease + time.Second)
				x.Settle()
				x.Equal("handled", handled.Load() != nil, true)
			})
		})
	}
}

// Where all handlers are stuck, what waits for them is given back, and what is exposed is
// not: the next one that returns may handle it.
func TestStuckHandlersAndExposedEvents(t *testing.T) {
	inExposed(t, func(x *exposing) {
		const stuck = 2
		var running, most, handled atomic.Int64
		free := make(chan struct{})
		began := time.Now()
		x.led.Elect(time.Time{})
		x.Subscribe(x.bus, func(_ context.Context, d *jetbus.Delivery) error {
			switch d.Key {
			case "stuck":
				<-free
			case "k":
				most.Store(max(most.Load(), running.Add(1)))
				time.Sleep(5 * time.Second)
				running.Add(-1)
				handled.Add(1)
			}
			return nil
		}, jetbus.SubscribeOptions{From: jetbus.Earliest(), AckTimeout: exposedLease, MaxLease: exposedLease, Concurrency: stuck})
		for range 10 { // so that it holds more than it handles
			x.Publish("a", "quick")
			x.Settle()
		}
		x.Publish("a", "stuck", "stuck", "waits", "waits")
		for x.lost.Load() < stuck {
			time.Sleep(100 * time.Millisecond)
		}
		x.led.Elect(began.Add(-time.Millisecond))
		x.Settle()
		close(free)
		time.Sleep(3 * exposedLease)
		x.Settle()
		x.Equal("handled, at once at most, pending", [3]int64{handled.Load(), most.Load(), int64(x.pending())}, [3]int64{1, 1, 0})
	})
}

// A member that stops gives back what it knows to be its own, for which it waits a little, and
// leaves alone what may be somebody else's.
func TestStopWithExposedEvent(t *testing.T) {
	for name, c := range map[string]struct {
		elected time.Duration // after the stop began; negative: never
		again   bool          // is the event delivered again at once
	}{
		"nobody leads":             {elected: -1},
		"a leader comes meanwhile": {elected: drainTime / 2, again: true},
	} {
		t.Run(name, func(t *testing.T) {
			inExposed(t, func(x *exposing) {
				x.led.Elect(time.Time{})
				joined := time.Now()
				s, handled := x.handle(jetbus.SubscribeOptions{})
				time.Sleep(time.Second)
				if c.elected >= 0 {
					time.AfterFunc(c.elected, func() { x.led.Elect(joined.Add(-time.Millisecond)) })
				}
				began := time.Now()
				x.OK(s.Stop(x.Context()))
				x.Equal("stopped within the time to drain", time.Since(began) <= drainTime, true)
				x.Equal("handled", handled.Load(), nil)
				x.led.Elect(joined.Add(-time.Millisecond))
				ds := x.receive(time.Second)
				x.Equal("delivered again at once", len(ds) == 1, c.again)
				for _, d := range ds {
					x.OK(d.Ack(x.Context()))
				}
			})
		})
	}
}

// drainTime is how long a member that stops waits for the server.
const drainTime = 2 * time.Second

// A Receive that is over before it is known whose an old event is leaves that to be given back
// behind it.
func TestReceiveEndsBeforeItIsKnown(t *testing.T) {
	inExposed(t, func(x *exposing) {
		joined := time.Now()
		x.led.Elect(time.Time{})
		ctx, cancel := context.WithTimeout(x.Context(), time.Second)
		defer cancel()
		_, err := x.bus.Receive(ctx, "a", "g", jetbus.ReceiveOptions{From: jetbus.Earliest(), AckTimeout: exposedLease, Wait: -1})
		x.WantErr(err, context.DeadlineExceeded)
		x.Equal("ended after", time.Since(joined), time.Second)
		time.Sleep(drainTime / 2)
		x.Equal("pending", x.pending(), 1)
		x.led.Elect(joined.Add(-time.Millisecond))
		x.Equal("received", len(x.receive(time.Second)), 1)
		x.Equal("leases lost", x.lost.Load(), 0)
	})
}

// What comes when nobody waits for it any more is left alone where it may be somebody else's.
func TestReceiveLateEventIsSomebodyElses(t *testing.T) {
	const rtt = 50 * time.Millisecond
	inExposedFar(t, rtt, func(x *exposing) {
		x.OK(x.receive(-1)[0].GiveBack(x.Context()))
		x.led.Elect(time.Now().Add(24 * time.Hour))
		c := must(x.JS.Consumer(x.Context(), "EV_A", "a__g"))(x.T)
		held := must(c.Next())(x.T)
		ctx, cancel := context.WithTimeout(x.Context(), time.Second)
		defer cancel()
		_, err := x.bus.Receive(ctx, "a", "g", jetbus.ReceiveOptions{AckTimeout: exposedLease, Wait: time.Hour})
		x.WantErr(err, context.DeadlineExceeded)
		x.OK(held.Nak()) // before the server hears that the inbox is closed
		time.Sleep(10 * rtt)
		x.Equal("pending", x.pending(), 1)
		x.Equal("leases lost", x.lost.Load(), 1)
		x.Equal("received at once", len(x.receive(exposedLease/2)), 0)
	})
}

// What comes when nobody waits for it any more goes back as soon as it is known to be ours.
func TestReceiveLateExposedEvents(t *testing.T) {
	inExposed(t, func(x *exposing) {
		for range 20 {
			ctx, cancel := context.WithCancel(x.Context())
			done := make(chan []*jetbus.Delivery)
			go func() {
				ds, _ := x.bus.Receive(ctx, "a", "g", jetbus.ReceiveOptions{From: jetbus.Earliest(), AckTimeout: exposedLease, Wait: -1}) // canceled or not
				done <- ds
			}()
			for range rand.IntN(200) {
				runtime.Gosched()
			}
			cancel()
			ds := <-done
			if len(ds) == 0 {
				began := time.Now()
				ds = x.receive(time.Minute)
				x.Equal("the event came back at once", time.Since(began) <= time.Second, true)
			}
			x.Equal("received", len(ds), 1)
			x.OK(ds[0].Ack(x.Context()))
			x.Publish("a", "k")
			time.Sleep(exposedLease)
		}
		x.Equal("leases lost", x.lost.Load(), 0)
	})
}
