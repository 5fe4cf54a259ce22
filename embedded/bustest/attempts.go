package bustest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
)

// attemptBehaviors are about what counts as an attempt, and when the next one is due.
var attemptBehaviors = []Behavior{
	{Name: "an event that is snoozed thirty times has had no attempt", Cases: []int{25}, play: snoozed},
	{Name: "snoozed events do not take the room of a group, however many they are", Cases: []int{25, 48}, Needs: NeedFakeTime | NeedBatch | NeedPower, play: snoozedMany},
	{Name: "waits of hours between attempts keep count, and hold nothing up", Cases: []int{5, 24, 48}, Needs: NeedFakeTime | NeedPower, play: longWaits},
	{Name: "a failed event keeps its count through stops, hand-overs and restarts of members", Cases: []int{20, 25, 57}, play: countsKept},
	{Name: "an attempt that overran its lease counts, also the last one", Cases: []int{13, 20}, Needs: NeedPower, play: overrunCounts},
	{Name: "a hole in the connection is no attempt", Cases: []int{17, 25}, Needs: NeedPipe | NeedOpen, play: holeIsNone},
	{Name: "members that die with events that wait take no attempt from them", Cases: []int{16, 25}, Needs: NeedOpen, play: deathsAreNone},
	{Name: "an event that kills its process is found, and its neighbors lose no attempt", Cases: []int{23}, Needs: NeedOpen, play: crashLoop},
	{Name: "suspects run one at a time, and a stop does not wait for those in line", Cases: []int{23, 54}, Needs: NeedOpen, play: suspectsInLine},
	{Name: "a slow member does not hold what a fast one could do", Cases: []int{49}, play: hotMember},
	{Name: "a group that is deleted and made anew begins with the first attempt", Cases: []int{20, 59}, Needs: NeedOpen, play: countsForgotten},
	{Name: "a topic that is deleted and made anew begins with the first attempt", Cases: []int{20, 59}, Needs: NeedOpen, play: topicForgotten},
}

func snoozed(r *run) {
	topic := r.topic("t")
	got := r.newRecord()
	s := r.subscribe(r.A, topic, "g", got.then(func(_ context.Context, d *jetbus.Delivery) error {
		if n := len(got.list()); n <= 30 {
			return jetbus.Snooze(20 * time.Millisecond)
		}
		return nil
	}), jetbus.SubscribeOptions{MaxAttempts: 1})
	e := r.publish(topic, "k")[0]
	all := got.wait(r.T, 31)
	r.settled(topic, "g", e.Seq)
	for i, d := range all {
		// Over connections that break, in real time, the first delivery may be one that never came here.
		if d.Attempt != 1 || i > 0 && !d.Redelivered || i == 0 && d.Redelivered && r.fake {
			r.Errorf("call %d is attempt %d, redelivered %v", i, d.Attempt, d.Redelivered)
		}
		if i > 0 {
			r.waited(all[i-1].at, d.at, 20*time.Millisecond)
		}
	}
	if st := s.Stats(); st.Snoozed != 30 || st.Acked != 1 || st.Nacked != 0 {
		r.Errorf("stats %+v", st)
	}
}

func snoozedMany(r *run) {
	topic := r.topic("t")
	const room = 10
	n := int32(r.sized(30*room, 100*room))
	var first, second atomic.Int32
	began := time.Now()
	const wait = 10 * time.Minute // more than all of them may take to be snoozed
	r.subscribe(r.A, topic, "g", func(_ context.Context, d *jetbus.Delivery) error {
		switch {
		case d.Key == "live":
		case time.Since(began) < wait:
			first.Add(1)
			return jetbus.Snooze(wait)
		default:
			second.Add(1)
			if d.Attempt != 1 {
				r.Errorf("event %s is attempt %d", d.Key, d.Attempt)
			}
		}
		return nil
	}, jetbus.SubscribeOptions{GroupMaxInFlight: room, Concurrency: room, AckTimeout: time.Minute})
	_, err := r.A.(jetbus.Batcher).PublishBatch(r.ctx, batch(topic, keys(int(n))...), jetbus.BatchOptions{})
	r.must(err)
	r.eventually("all are snoozed", func() error { return counted(&first, n) })
	live := r.publish(topic, "live")[0]
	r.settled(topic, "g", live.Seq) // nothing is held
	if took := time.Since(began); took > time.Minute {
		r.Errorf("the group stood still for %v", took)
	}
	r.pause(wait)
	r.eventually("all come back", func() error { return counted(&second, n) })
	r.pause(time.Minute)
	r.must(counted(&second, n))
}

func counted(n *atomic.Int32, want int32) error {
	if got := n.Load(); got != want {
		return fmt.Errorf("%d of %d", got, want)
	}
	return nil
}

func longWaits(r *run) {
	topic := r.topic("t")
	got := r.newRecord()
	o := jetbus.SubscribeOptions{MaxAttempts: 3, GroupMaxInFlight: 1, Backoff: jetbus.Backoff{Min: time.Hour, Max: 3 * time.Hour, NoJitter: true}}
	r.subscribe(r.A, topic, "g", got.then(deadly), o)
	e := r.publish(topic, "bad", "good")
	all := got.wait(r.T, 2)
	r.settled(topic, "g", e[1].Seq)
	r.pause(3*time.Hour + time.Minute) // an hour and two
	d := r.dead(topic, 1)[0]
	var attempts []int
	for _, d := range got.list() {
		if d.Key == "bad" {
			attempts = append(attempts, d.Attempt)
			if d.Seq != e[0].Seq || d.ID != e[0].ID || d.Topic != topic || d.ReplayOf != 0 {
				r.Errorf("came back as %+v", d.Delivery)
			}
		}
	}
	if !slices.Equal(attempts, []int{1, 2, 3}) || d.Attempts != 3 || d.Replays != 0 || d.Event.Seq != e[0].Seq {
		r.Errorf("attempts %v, dead letter %+v", attempts, d)
	}
	if span := d.LastFailed.Sub(d.FirstFailed); span < 3*time.Hour || span > 3*time.Hour+time.Minute || d.FirstFailed.Sub(all[0].at) > time.Minute {
		r.Errorf("failed from %v to %v, first run %v", d.FirstFailed, d.LastFailed, all[0].at)
	}
}

func countsKept(r *run) {
	topic := r.topic("t")
	backoff := jetbus.Backoff{Min: 100 * time.Millisecond, Max: 100 * time.Millisecond, NoJitter: true}
	rounds, least := 4, 1
	if !r.fake { // a failure may not count: see numbered
		rounds = 8
	}
	next := func(what string, n int, g *gate) *jetbus.Delivery {
		if n <= 4 {
			return receive(r.T, what, g.entered)
		}
		return r.comesOrDies(what, topic, g)
	}
	for n := 1; n <= rounds; n++ {
		bus := []jetbus.Bus{r.A, r.B}[n%2]
		g := r.newGate()
		s, err := bus.Subscribe(r.ctx, topic, "g", g.handle, jetbus.SubscribeOptions{ShutdownTimeout: 100 * time.Millisecond, Backoff: backoff, MaxAttempts: 4})
		r.must(err)
		if n == 1 {
			r.publish(topic, "k")
		}
		canceled := next("the delivery", n, g)
		r.stop(s) // cancels the handler, which is no attempt
		if canceled == nil {
			break
		}
		s, err = bus.Subscribe(r.ctx, topic, "g", g.handle, jetbus.SubscribeOptions{Backoff: backoff, MaxAttempts: 4})
		r.must(err)
		failed := next("the delivery after it was given back", n, g)
		if failed == nil {
			r.stop(s)
			break
		}
		r.numbered(fmt.Sprint("canceled call ", n), canceled.Attempt, least, min(n, 4))
		r.numbered(fmt.Sprint("failed call ", n), failed.Attempt, canceled.Attempt, min(n, 4))
		least = failed.Attempt
		g.leave <- errHandler
		r.stop(s)
		if n >= 4 && !r.fake && r.findDead(topic) > 0 {
			break
		}
	}
	if r.inbox != nil { // else a failure may be lost behind the last round, or the end of the event
		r.subscribe(r.B, topic, "g", func(context.Context, *jetbus.Delivery) error { return errHandler }, jetbus.SubscribeOptions{Backoff: backoff, MaxAttempts: 4})
	}
	if d := r.dead(topic, 1)[0]; d.Attempts != 4 {
		r.Errorf("dead letter %+v", d)
	}
	r.settled(topic, "g", 1)
}

// comesOrDies is the next delivery, or nil where the topic has a dead letter instead.
func (r *run) comesOrDies(what, topic string, g *gate) (d *jetbus.Delivery) {
	r.Helper()
	r.eventually(what, func() error {
		select {
		case d = <-g.entered:
			return nil
		default:
		}
		if r.findDead(topic) == 0 {
			return errors.New("it does not come")
		}
		return nil
	})
	return d
}

func overrunCounts(r *run) {
	topic := r.topic("t")
	ackTimeout := r.lease(500 * time.Millisecond)
	if r.inbox != nil { // one that is over before its handler starts is no attempt
		ackTimeout = 6 * time.Second
	}
	got := r.newRecord()
	s := r.subscribe(r.A, topic, "g", got.then(func(ctx context.Context, _ *jetbus.Delivery) error {
		<-ctx.Done()
		return nil // too late
	}), jetbus.SubscribeOptions{AckTimeout: ackTimeout, MaxLease: ackTimeout, MaxAttempts: 3})
	e := r.publish(topic, "k")[0]
	d := r.dead(topic, 1)[0]
	r.settled(topic, "g", e.Seq)
	least, calls := 1, got.list()
	for i, d := range calls {
		r.numbered(fmt.Sprint("call ", i+1), d.Attempt, least, i+1)
		if least = d.Attempt; i >= 3 && r.fake { // in real time one whose end could not be recorded comes again
			r.Errorf("call %d is one too many", i+1)
		}
	}
	most := 3
	if r.inbox != nil { // one of which it could not be read how often it had been tried is tried once more, and counted
		most = len(calls)
	}
	if d.Reason != jetbus.DeadMaxAttempts || d.Attempts < 3 || d.Attempts > most || d.Error != jetbus.ErrLeaseExpired.Error() {
		r.Errorf("dead letter %+v", d)
	}
	// In real time the lease can also run out before the handler starts.
	if lost := s.Stats().LeasesLost; lost < 3 || r.fake && lost > 3 {
		r.Errorf("%d leases were lost", lost)
	}
}

func holeIsNone(r *run) {
	topic := r.topic("t")
	const ackTimeout = time.Second
	p := newPipe(r.Broker)
	nc, err := r.Broker.Connect(p.option())
	r.must(err)
	defer nc.Close()
	bus, err := r.Open(r.ctx, nc)
	r.must(err)
	defer func() { r.wantNil(bus.Close(context.Background())) }()
	ended := make(chan error, 10)
	o := jetbus.SubscribeOptions{AckTimeout: ackTimeout, MaxAttempts: 1}
	s, err := bus.Subscribe(r.ctx, topic, "g", r.stubborn(ended), o)
	r.must(err)
	e := r.publish(topic, "k")[0]
	r.eventually("the first member runs", func() error {
		if s.Stats().Running == 0 {
			return errors.New("it does not")
		}
		return nil
	})
	s.Pause()
	p.hold()
	got := r.newRecord()
	r.subscribe(r.B, topic, "g", got.then(func(context.Context, *jetbus.Delivery) error {
		p.release() // what the first member has to say arrives while the second has the event
		linger(r.ctx, ackTimeout)
		return nil
	}), o)
	if d := got.wait(r.T, 1)[0]; d.Attempt != 1 {
		r.Errorf("attempt %d", d.Attempt)
	}
	r.settled(topic, "g", e.Seq)
	got.exactly(r.T, "k")
	if all := r.dead(topic, 0); len(all) != 0 {
		r.Errorf("dead letters %+v", all)
	}
}

// dies opens an instance that ends without a word when the function is called.
func (r *run) dies() (ClosingBus, func()) {
	r.Helper()
	bus, nc := r.process()
	return bus, func() { kill(nc) }
}

// kill cuts a connection without anything more being sent.
func kill(nc *nats.Conn) { nc.Close() }

func deathsAreNone(r *run) {
	topic := r.topic("t")
	o := jetbus.SubscribeOptions{From: jetbus.Earliest(), AckTimeout: time.Second, MaxAttempts: 2, Concurrency: 4, ManualAck: true}
	last := r.publish(topic, keys(8)...)[7]
	for range 5 { // more often than MaxAttempts
		bus, die := r.dies()
		got := byHand()
		_, err := bus.Subscribe(r.ctx, topic, "g", got.handle, o)
		r.must(err)
		for _, d := range got.wait(r.T, 8) {
			if d.Attempt != 1 {
				r.Errorf("event %s is attempt %d", d.Key, d.Attempt)
			}
		}
		r.pause(100 * time.Millisecond) // the last handler has returned
		die()
		if r.group(topic, "g").Held != 8 {
			r.Errorf("held %d", r.group(topic, "g").Held)
		}
		r.pause(2 * time.Second)
		o.Concurrency++
	}
	got := r.newRecord()
	o.ManualAck = false
	r.subscribe(r.B, topic, "g", got.handle, o)
	r.settled(topic, "g", last.Seq)
	got.exactly(r.T, keys(8)...)
}

func crashLoop(r *run) {
	topic := r.topic("t")
	const attempts = 3
	o := jetbus.SubscribeOptions{From: jetbus.Earliest(), AckTimeout: time.Second, MaxAttempts: attempts, Concurrency: 8}
	names := append(keys(12), "poison")
	slices.Sort(names)
	names[3], names[12] = names[12], names[3] // among the first eight
	last := r.publish(topic, names...)[12]
	starts := 0
	for r.findDead(topic) == 0 {
		if starts++; starts > attempts+5 {
			r.Fatalf("the poison is not found after %d deaths", starts)
		}
		bus, die := r.dies()
		dead := make(chan struct{})
		var once sync.Once
		s, err := bus.Subscribe(r.ctx, topic, "g", func(ctx context.Context, d *jetbus.Delivery) error {
			if d.Attempt != 1 && d.Key != "poison" {
				r.Errorf("neighbor %s is attempt %d", d.Key, d.Attempt)
			}
			if d.Key == "poison" {
				linger(ctx, 50*time.Millisecond)
				once.Do(func() { die(); close(dead) })
			} else {
				linger(ctx, 200*time.Millisecond)
			}
			return ctx.Err()
		}, o)
		r.must(err)
		select {
		case <-dead:
		case <-time.After(10 * time.Second): // it was found
			r.stop(s)
		}
		r.pause(2 * time.Second)
	}
	got := r.newRecord()
	r.subscribe(r.B, topic, "g", got.handle, o)
	r.settled(topic, "g", last.Seq)
	all := r.dead(topic, 1)
	if d := all[0]; len(all) != 1 || d.Event.Key != "poison" || d.Reason != jetbus.DeadCrashLoop || d.Attempts != attempts {
		r.Errorf("dead letters %+v", all)
	}
	if starts > attempts+2 { // once with the others, then alone
		r.Errorf("the process died %d times", starts)
	}
}

// findDead is how many dead letters a topic has now.
func (r *run) findDead(topic string) int {
	r.Helper()
	return len(r.dead(topic, 0))
}

func suspectsInLine(r *run) {
	topic := r.topic("t")
	o := jetbus.SubscribeOptions{From: jetbus.Earliest(), AckTimeout: time.Second, Concurrency: 4}
	last := r.publish(topic, keys(4)...)[3]
	bus, die := r.dies()
	first := r.newGate()
	_, err := bus.Subscribe(r.ctx, topic, "g", first.handle, o)
	r.must(err)
	for range 4 {
		receive(r.T, "a handler's start", first.entered)
	}
	die()
	r.pause(2 * time.Second)
	g := r.newGate()
	s := r.subscribe(r.A, topic, "g", g.handle, o)
	receive(r.T, "a suspect's start", g.entered)
	r.pause(3 * time.Second)
	if n := len(g.entered); n != 0 || s.Stats().Running != 1 || s.Stats().Held != 4 {
		r.Errorf("%d more suspects run; stats %+v", n, s.Stats())
	}
	fresh := r.publish(topic, "fresh")[0]
	got := r.newRecord()
	stopped := make(chan error, 1)
	began := time.Now()
	go func() { stopped <- s.Stop(r.ctx) }()
	r.subscribe(r.B, topic, "g", got.handle, o)
	all := got.wait(r.T, 4)
	r.waited(began, all[3].at, 0)
	g.leave <- nil
	r.must(receive(r.T, "the end of Stop", stopped))
	r.settled(topic, "g", max(last.Seq, fresh.Seq))
	for _, d := range all {
		if d.Attempt != 1 {
			r.Errorf("event %s is attempt %d", d.Key, d.Attempt)
		}
	}
}

func hotMember(r *run) {
	topic := r.topic("t")
	const slowness = 500 * time.Millisecond
	slow, fast := r.newRecord(), r.newRecord()
	o := jetbus.SubscribeOptions{From: jetbus.Earliest()}
	r.subscribe(r.A, topic, "g", slow.then(func(ctx context.Context, _ *jetbus.Delivery) error {
		linger(ctx, slowness)
		return nil
	}), o)
	r.subscribe(r.B, topic, "g", fast.then(func(ctx context.Context, _ *jetbus.Delivery) error {
		linger(ctx, 5*time.Millisecond)
		return nil
	}), o)
	last := r.publish(topic, keys(200)...)[199]
	began := time.Now()
	r.settled(topic, "g", last.Seq)
	if took := time.Since(began); r.fake && took > 200*5*time.Millisecond+4*slowness || len(fast.list()) < 100 {
		r.Errorf("it took %v; the slow member had %d events, the fast one %d", took, len(slow.list()), len(fast.list()))
	}
}

func countsForgotten(r *run) {
	topic := r.topic("t")
	r.publish(topic, "bad")
	r.countsAnew(topic, func() { r.must(r.Admin.DeleteGroup(r.ctx, topic, "g")) })
}

func topicForgotten(r *run) {
	topic := r.topic("t")
	r.publish(topic, "bad")
	r.countsAnew(topic, func() {
		r.must(r.Admin.DeleteTopic(r.ctx, topic))
		r.topic("t")
		r.publish(topic, "bad")
	})
}

// countsAnew fails an event, makes everything anew, and lets a member die with
// the event, so that what is known of its attempts is asked for.
func (r *run) countsAnew(topic string, anew func()) {
	r.Helper()
	o := jetbus.SubscribeOptions{From: jetbus.Earliest(), AckTimeout: time.Second, Backoff: jetbus.Backoff{Min: time.Minute, NoJitter: true}}
	got := r.newRecord()
	s := r.subscribe(r.A, topic, "g", got.then(deadly), o)
	got.wait(r.T, 1)
	r.stop(s)
	anew()
	bus, die := r.dies()
	g := r.newGate()
	_, err := bus.Subscribe(r.ctx, topic, "g", g.handle, o)
	r.must(err)
	receive(r.T, "the first delivery", g.entered)
	die()
	again := r.newRecord()
	r.subscribe(r.B, topic, "g", again.handle, o)
	if d := again.wait(r.T, 1)[0]; d.Attempt != 1 {
		r.Errorf("attempt %d", d.Attempt)
	}
}
