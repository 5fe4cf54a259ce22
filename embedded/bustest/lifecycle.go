package bustest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// lifecycleBehaviors are about members that come and go.
var lifecycleBehaviors = []Behavior{
	{Name: "a group without members is still there after more than a day", Cases: []int{52}, Needs: NeedFakeTime | NeedPower, play: idleGroup},
	{Name: "Stop lets a running handler finish with a live context, and its ack reaches the server", Cases: []int{53}, play: stopWaits},
	{Name: "Stop with a context that was canceled before lets a running handler finish as well", Cases: []int{53}, play: stopLate},
	{Name: "Stop cancels a handler at ShutdownTimeout, and its event comes back as the same attempt", Cases: []int{25, 53}, play: stopCancels},
	{Name: "Stop cancels handlers when its own context ends", Cases: []int{53}, play: stopContext},
	{Name: "the end of Subscribe's context is a graceful Stop", Cases: []int{53, 57}, play: contextStops},
	{Name: "Stop gives events that wait to another member at once", Cases: []int{54}, play: stopHandsOver},
	{Name: "Stop may be called twice, at once, and from inside a handler", Cases: []int{55}, play: stopTwice},
	{Name: "subscriptions that end before their first event leave nothing behind", Cases: []int{56}, play: subscribeCancel},
	{Name: "a group goes on where it was when a member comes back", Cases: []int{57}, play: resubscribe},
	{Name: "an event after a long silence is delivered within a second", Cases: []int{63}, Needs: NeedFakeTime | NeedPower, play: longSilence},
	{Name: "a member that holds one event at a time never stalls", Cases: []int{63}, Needs: NeedPower, play: oneAtATime},
}

func idleGroup(r *run) {
	topic := r.topic("t")
	r.stop(r.subscribe(r.A, topic, "g", r.newRecord().handle, jetbus.SubscribeOptions{}))
	e := r.publish(topic, "k")[0]
	r.pause(time.Duration(r.sized(25, 48)) * time.Hour) // no record of attempts lasts longer than a day
	r.has(topic, func(g jetbus.GroupInfo) bool { return g.Pending == 1 }, "1 pending after a day")
	got := r.newRecord()
	r.subscribe(r.B, topic, "g", got.handle, jetbus.SubscribeOptions{})
	got.wait(r.T, 1)
	r.settled(topic, "g", e.Seq)
}

func stopWaits(r *run) { r.stopWaits(r.ctx) }

// stopLate stops as programs do whose context has ended because they are to stop.
func stopLate(r *run) {
	ctx, end := context.WithCancel(r.ctx)
	end()
	r.stopWaits(ctx)
}

func (r *run) stopWaits(ctx context.Context) {
	r.Helper()
	topic := r.topic("t")
	g := r.newGate()
	s := r.subscribe(r.A, topic, "g", g.handle, jetbus.SubscribeOptions{})
	e := r.publish(topic, "k")[0]
	receive(r.T, "the handler's start", g.entered)
	stopped := make(chan error, 1)
	go func() { stopped <- s.Stop(ctx) }()
	r.pause(300 * time.Millisecond)
	select {
	case err := <-stopped:
		r.Fatalf("Stop did not wait for the handler: %v", err)
	case cause := <-g.ended:
		r.Fatalf("Stop ended the handler's context: %v", cause)
	case <-s.Done():
		r.Fatal("Done with a handler running")
	default:
	}
	g.leave <- nil
	r.must(receive(r.T, "the end of Stop", stopped))
	<-s.Done()
	r.successor(topic)
	r.settled(topic, "g", e.Seq)
	if s.Err() != nil || s.Stats().Acked != 1 {
		r.Errorf("error %v, stats %+v", s.Err(), s.Stats())
	}
}

func stopCancels(r *run) {
	topic := r.topic("t")
	g := r.newGate()
	const timeout = 500 * time.Millisecond
	s := r.subscribe(r.A, topic, "g", g.handle, jetbus.SubscribeOptions{ShutdownTimeout: timeout})
	e := r.publish(topic, "k")[0]
	receive(r.T, "the handler's start", g.entered)
	began := time.Now()
	r.stop(s)
	r.waited(began, time.Now(), timeout)
	wantErr(r.T, "cause", receive(r.T, "the handler's end", g.ended), jetbus.ErrStopped)
	r.comesBack(topic, "g", e, 1)
}

// comesBack checks that B gets an event of the group at once, as that attempt.
func (r *run) comesBack(topic, group string, e jetbus.Event, attempt int) {
	r.Helper()
	got := r.newRecord()
	began := time.Now()
	r.subscribe(r.B, topic, group, got.handle, jetbus.SubscribeOptions{})
	d := got.wait(r.T, 1)[0]
	r.waited(began, d.at, 0)
	if d.ID != e.ID || d.Attempt != attempt {
		r.Errorf("got %s as attempt %d, want %s as %d", d.ID, d.Attempt, e.ID, attempt)
	}
	r.settled(topic, group, e.Seq)
}

func stopContext(r *run) {
	topic := r.topic("t")
	g := r.newGate()
	s := r.subscribe(r.A, topic, "g", g.handle, jetbus.SubscribeOptions{})
	e := r.publish(topic, "k")[0]
	receive(r.T, "the handler's start", g.entered)
	ctx, cancel := context.WithTimeout(r.ctx, 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	_ = s.Stop(ctx) // whether it says that it was cut short is its own matter
	r.waited(began, time.Now(), 300*time.Millisecond)
	<-s.Done()
	wantErr(r.T, "cause", receive(r.T, "the handler's end", g.ended), jetbus.ErrStopped)
	r.comesBack(topic, "g", e, 1)
}

func contextStops(r *run) {
	topic := r.topic("t")
	g := r.newGate()
	type key struct{}
	ctx, cancel := context.WithCancel(context.WithValue(r.ctx, key{}, "value"))
	defer cancel()
	values := make(chan any, 1)
	s, err := r.A.Subscribe(ctx, topic, "g", func(ctx context.Context, d *jetbus.Delivery) error {
		values <- ctx.Value(key{})
		return g.handle(ctx, d)
	}, jetbus.SubscribeOptions{})
	r.must(err)
	e := r.publish(topic, "k")[0]
	receive(r.T, "the handler's start", g.entered)
	if v := <-values; v != "value" {
		r.Errorf("the handler's context has the value %v", v)
	}
	cancel()
	r.pause(300 * time.Millisecond)
	if len(g.ended) > 0 {
		r.Errorf("the handler was canceled with Subscribe's context: %v", <-g.ended)
	}
	g.leave <- nil
	receive(r.T, "Done", s.Done())
	r.successor(topic)
	r.settled(topic, "g", e.Seq)
	if s.Err() != nil {
		r.Error(s.Err())
	}
}

// slowBehindFast has a member whose handler is g be fast, and publishes events of which the first
// one that it gets is slow. It returns the last of them.
func (r *run) slowBehindFast(topic string, g *gate) jetbus.Event {
	r.Helper()
	// A member that has just been fast asks for many at once.
	for range 50 {
		g.leave <- nil
	}
	r.publish(topic, slices.Repeat([]string{"fast"}, 50)...)
	for range 50 {
		receive(r.T, "a handler's start", g.entered)
	}
	last := r.publish(topic, keys(20)...)[19]
	receive(r.T, "a slow handler's start", g.entered)
	r.pause(50 * time.Millisecond)
	return last
}

// soon reports whether wrong finds nothing wrong any more within some seconds.
func (r *run) soon(wrong func() error) bool {
	r.Helper()
	for began := time.Now(); wrong() != nil; r.pause(50 * time.Millisecond) {
		if time.Since(began) > 5*time.Second {
			return false
		}
	}
	return true
}

// letGo lets the handler g be done with all events up to seq, and closes it again.
func (r *run) letGo(topic string, g *gate, seq uint64) {
	r.Helper()
	r.settledBy(topic, "g", seq, func() {
		for len(g.leave) < 20 {
			g.leave <- nil
		}
	})
	for len(g.leave) > 0 {
		r.must(receive(r.T, "what a handler did not take", g.leave))
	}
	for len(g.entered) > 0 {
		<-g.entered
	}
}

func stopHandsOver(r *run) {
	topic := r.topic("t")
	g := r.newGate()
	s := r.subscribe(r.A, topic, "g", g.handle, jetbus.SubscribeOptions{})
	waits := func() error {
		if s.Stats().Held < 2 {
			return fmt.Errorf("nothing waits: %+v", s.Stats())
		}
		return nil
	}
	last := r.slowBehindFast(topic, g)
	// Where its request for many is lost with a leader, the next one is that of a member which has
	// not been fast for a while: it asks for nothing more as long as the slow handler runs.
	for began := time.Now(); r.inbox != nil && !r.soon(waits) && time.Since(began) < awhile(); {
		r.letGo(topic, g, last.Seq)
		last = r.slowBehindFast(topic, g)
	}
	r.eventually("events are to wait", waits)
	got := r.newRecord()
	r.subscribe(r.B, topic, "g", got.handle, jetbus.SubscribeOptions{})
	stopped := make(chan error, 1)
	began := time.Now()
	go func() { stopped <- s.Stop(r.ctx) }()
	all := got.wait(r.T, 19)
	r.waited(began, all[18].at, 0)
	for _, d := range all {
		if d.Attempt != 1 {
			r.Errorf("event %s was given back and is attempt %d", d.Key, d.Attempt)
		}
	}
	g.leave <- nil
	r.must(receive(r.T, "the end of Stop", stopped))
	r.settled(topic, "g", last.Seq)
	if r.inbox == nil { // else some that the first member handled may come again
		got.exactly(r.T, keys(20)[1:]...)
	}
}

func stopTwice(r *run) {
	topic := r.topic("t")
	var s jetbus.Subscription
	ready, inside := make(chan struct{}), make(chan error, 1)
	s = r.subscribe(r.A, topic, "g", func(ctx context.Context, _ *jetbus.Delivery) error {
		<-ready
		inside <- s.Stop(ctx)
		return nil
	}, jetbus.SubscribeOptions{})
	close(ready)
	e := r.publish(topic, "k")[0]
	r.must(receive(r.T, "Stop inside the handler", inside))
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() { r.wantNil(s.Stop(r.ctx)) })
	}
	wg.Wait()
	receive(r.T, "Done", s.Done())
	r.stop(s)
	r.successor(topic)
	r.settled(topic, "g", e.Seq)
}

func subscribeCancel(r *run) {
	topic := r.topic("t")
	var wg sync.WaitGroup
	for i := range 10 {
		bus := []jetbus.Bus{r.A, r.B}[i%2]
		wg.Go(func() {
			for j := range 5 {
				ctx, cancel := context.WithCancel(r.ctx)
				s, err := bus.Subscribe(ctx, topic, fmt.Sprint("g", i%3), r.newRecord().handle, jetbus.SubscribeOptions{})
				if err != nil {
					cancel()
					r.Error(err)
					return
				}
				if j%2 == 0 {
					r.wantNil(s.Stop(r.ctx))
				}
				cancel()
				<-s.Done()
				r.wantNil(s.Err())
			}
		})
	}
	wg.Wait()
	for i := range 3 {
		group := fmt.Sprint("g", i)
		r.reaches(topic, group, func(g jetbus.GroupInfo) bool { return g.Waiting == 0 && g.Held == 0 }, "no request of a member that is gone")
	}
	got := r.newRecord()
	r.subscribe(r.B, topic, "g0", got.handle, jetbus.SubscribeOptions{})
	e := r.publish(topic, "k")[0]
	got.wait(r.T, 1)
	r.settled(topic, "g0", e.Seq)
}

func resubscribe(r *run) {
	topic := r.topic("t")
	// Short, because in a cluster events may be on their way to the member that leaves:
	// another gets them when their lease is over.
	ackTimeout := 5 * time.Second
	if !r.fake { // but none may end while its event is handled, whatever stands still
		ackTimeout = 15 * time.Second
	}
	first, second := r.newRecord(), r.newRecord()
	events := r.publish(topic, keys(100)...)
	half := make(chan struct{})
	var once sync.Once
	s := r.subscribe(r.A, topic, "g", first.then(func(context.Context, *jetbus.Delivery) error {
		if len(first.list()) >= 50 {
			once.Do(func() { close(half) })
		}
		return nil
	}), jetbus.SubscribeOptions{From: jetbus.Earliest(), Concurrency: 4, AckTimeout: ackTimeout})
	receive(r.T, "half of the events", half)
	r.stop(s)
	r.subscribe(r.B, topic, "g", second.handle, jetbus.SubscribeOptions{AckTimeout: ackTimeout})
	r.settled(topic, "g", events[99].Seq)
	union := append(first.keys(), second.keys()...)
	slices.Sort(union)
	if !slices.Equal(union, slices.Sorted(slices.Values(keys(100)))) {
		r.Errorf("first %v, then %v", first.keys(), second.keys())
	}
}

func longSilence(r *run) {
	topic := r.topic("t")
	got := r.newRecord()
	r.subscribe(r.A, topic, "g", got.handle, jetbus.SubscribeOptions{})
	for i := range 2 {
		r.pause(time.Duration(r.sized(1, 2)) * time.Hour) // a request of a member lasts for seconds
		e := r.publish(topic, fmt.Sprint(i))[0]
		published := time.Now()
		d := got.wait(r.T, i+1)[i]
		if late := d.at.Sub(published); late > time.Second {
			r.Errorf("delivered after %v", late)
		}
		r.settled(topic, "g", e.Seq)
	}
}

func oneAtATime(r *run) {
	topic := r.topic("t")
	got := r.newRecord()
	r.subscribe(r.A, topic, "g", got.handle, jetbus.SubscribeOptions{MaxInFlight: 1, GroupMaxInFlight: 1})
	n := r.sized(300, 1000)
	var last jetbus.Event
	for i := range n {
		last = r.publish(topic, fmt.Sprint(i))[0]
	}
	all := got.within(r.T, n, time.Minute)
	r.settled(topic, "g", last.Seq)
	for i := 1; i < n; i++ {
		if gap := all[i].at.Sub(all[i-1].at); gap > 2*time.Second {
			r.Errorf("%v between events %d and %d", gap, i-1, i)
		}
		if all[i].Seq <= all[i-1].Seq {
			r.Errorf("event %d came after %d", all[i].Seq, all[i-1].Seq)
		}
	}
}
