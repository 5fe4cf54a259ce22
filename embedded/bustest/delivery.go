package bustest

import (
	"context"
	"fmt"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// deliveryBehaviors are about how an event is settled, and when it comes back.
var deliveryBehaviors = []Behavior{
	{Name: "a handler that returns nil settles the event at the server", Cases: []int{4}, play: handlerNil},
	{Name: "a handler that returns an error gets the event again after its backoff, as the next attempt", Cases: []int{5, 24}, play: handlerError},
	{Name: "the wait before a retry is within the jittered backoff", Cases: []int{5}, Needs: NeedFakeTime, play: jitter},
	{Name: "a refusal comes back after its own delay", Cases: []int{6}, play: nackDelay},
	{Name: "a delivery is settled once: the first call stands, and the server hears of no other", Cases: []int{7}, play: settledOnce},
	{Name: "a handler that refuses and returns nil has refused", Cases: []int{8}, play: nackThenNil},
	{Name: "a handler that settles and returns an error has settled", Cases: []int{8}, play: ackThenError},
	{Name: "a panic is a failed attempt, and the subscription lives on", Cases: []int{9}, play: handlerPanic},
	{Name: "an event given back goes to another member at once and is no attempt", Cases: []int{25}, play: givenBack},
	{Name: "with ManualAck an event is settled by whoever knows it, by id", Cases: []int{4, 7}, play: manualAck},
	{Name: "an id that two held events have settles neither", Cases: []int{4, 7}, Needs: NeedFakeTime, play: twoOfOneID},
	{Name: "handlers run at most Concurrency at once, and a member holds at most MaxInFlight", Cases: []int{48}, play: limits},
	{Name: "a group that stands still holds up no publisher and no other group", Cases: []int{48}, play: standsStill},
	{Name: "a paused member gets nothing until it resumes", Cases: []int{51}, play: paused},
	{Name: "a paused group gets nothing until it is resumed or its time is over", Cases: []int{51}, Needs: NeedTopics, play: pausedGroup},
	{Name: "received deliveries are settled by their receiver", Cases: []int{4, 7}, Needs: NeedReceive, play: received},
}

func handlerNil(r *run) {
	topic := r.topic("t")
	got := r.newRecord()
	s := r.subscribe(r.A, topic, "g", got.handle, jetbus.SubscribeOptions{})
	e := r.publish(topic, "k")[0]
	d := got.wait(r.T, 1)[0]
	r.settled(topic, "g", e.Seq)
	if d.Seq != e.Seq || d.ID != e.ID || d.Attempt != 1 || d.MaxAttempts != jetbus.DefaultMaxAttempts || d.Group != "g" || d.Topic != topic {
		r.Errorf("delivery %+v of event %+v", d.Delivery, e)
	}
	r.pause(100 * time.Millisecond)
	got.exactly(r.T, "k")
	if st := s.Stats(); r.inbox == nil && (st.Delivered != 1 || st.Acked != 1) || st.Nacked != 0 || st.Held != 0 || st.Running != 0 {
		r.Errorf("stats %+v", st)
	}
}

func handlerError(r *run) {
	topic := r.topic("t")
	backoff := jetbus.Backoff{Min: 200 * time.Millisecond, Max: 800 * time.Millisecond, NoJitter: true}
	got := r.newRecord()
	o := jetbus.SubscribeOptions{Backoff: backoff, MaxAttempts: -1}
	if r.inbox != nil { // each refusal or delivery that is lost costs a lease, and all calls are to be within the patience
		o.AckTimeout = 10 * time.Second
	}
	r.subscribe(r.A, topic, "g", got.then(failing(5)), o)
	e := r.publish(topic, "k")[0]
	all := got.wait(r.T, 6)
	least := 1
	for i, d := range all {
		r.numbered(fmt.Sprint("call ", i+1), d.Attempt, least, i+1)
		least = d.Attempt
		if i > 0 {
			r.waited(all[i-1].at, d.at, backoff.Delay(all[i-1].Attempt))
		}
	}
	r.settled(topic, "g", e.Seq)
}

// waited checks the time between two calls. In a bubble there is no load that
// could make it longer than it must be. In real time only a lease that ended by itself,
// after 30 seconds, can be told from a machine that is slow; and among replicas not even
// that: an election loses what a member says without an answer, and the event comes when
// its lease is over.
func (r *run) waited(from, to time.Time, want time.Duration) {
	r.Helper()
	tolerance := 100 * time.Millisecond
	if !r.fake {
		tolerance = 20 * time.Second
	}
	if d := to.Sub(from); d < want-time.Millisecond || d > want+tolerance && !r.replicated {
		r.Errorf("came back after %v, want %v", d, want)
	}
}

// numbered checks the number of an attempt. In real time it may be any from least on,
// which is that of the call before: a failure that is lost on its way to the server, or
// cannot be recorded there in an election, does not count. Where elections go on all the
// time the record may be out of reach when the event comes, and it is attempt 1 for its handler.
func (r *run) numbered(what string, got, least, want int) {
	r.Helper()
	switch {
	case r.fake:
		least = want
	case r.inbox != nil:
		least = 1
	}
	if got < least || got > want {
		r.Errorf("%s is attempt %d, want %d", what, got, want)
	}
}

func jitter(r *run) {
	topic := r.topic("t")
	got := r.newRecord()
	r.subscribe(r.A, topic, "g", got.then(failing(3)), jetbus.SubscribeOptions{Backoff: jetbus.Backoff{Min: time.Minute, Max: time.Hour}})
	e := r.publish(topic, "k")[0]
	all := got.within(r.T, 4, 10*time.Hour)
	for i := 1; i < len(all); i++ {
		if d := all[i].at.Sub(all[i-1].at); d > time.Minute<<(i-1)+time.Second {
			r.Errorf("wait %d is %v", i, d)
		}
	}
	r.settled(topic, "g", e.Seq)
}

func nackDelay(r *run) {
	topic := r.topic("t")
	const delay = 2 * time.Second
	got := byHand()
	r.subscribe(r.A, topic, "g", got.then(func(ctx context.Context, d *jetbus.Delivery) error {
		switch d.Attempt {
		case 1:
			return d.Nack(ctx, jetbus.NackOptions{AtOnce: true, Reason: "at once"})
		case 2:
			return d.Nack(ctx, jetbus.NackOptions{Delay: delay})
		case 3:
			return d.Nack(ctx, jetbus.NackOptions{})
		}
		return nil
	}), jetbus.SubscribeOptions{Backoff: jetbus.Backoff{Min: time.Second, NoJitter: true}})
	e := r.publish(topic, "k")[0]
	all := got.wait(r.T, 4)
	r.waited(all[0].at, all[1].at, 0)
	r.waited(all[1].at, all[2].at, delay)
	r.waited(all[2].at, all[3].at, 4*time.Second) // the backoff of the third attempt
	r.settled(topic, "g", e.Seq)
}

// hold subscribes A with ManualAck, publishes one event, and returns its delivery.
func (r *run) hold(topic, group string, o jetbus.SubscribeOptions) (*jetbus.Delivery, *record, jetbus.Subscription) {
	r.Helper()
	got := byHand()
	o.ManualAck = true
	s := r.subscribe(r.A, topic, group, got.handle, o)
	r.publish(topic, "k")
	return got.wait(r.T, 1)[0].Delivery, got, s
}

func settledOnce(r *run) {
	topic := r.topic("t")
	acked, _, _ := r.hold(topic, "acked", jetbus.SubscribeOptions{})
	r.must(acked.Ack(r.ctx))
	again := map[string]func(*jetbus.Delivery) error{
		"ack":       func(d *jetbus.Delivery) error { return d.Ack(r.ctx) },
		"nack":      func(d *jetbus.Delivery) error { return d.Nack(r.ctx, jetbus.NackOptions{AtOnce: true}) },
		"give back": func(d *jetbus.Delivery) error { return d.GiveBack(r.ctx) },
		"extend":    func(d *jetbus.Delivery) error { return d.Extend(r.ctx, 0) },
	}
	for name, call := range again {
		wantErr(r.T, name+" after ack", call(acked), jetbus.ErrAlreadySettled)
	}
	r.settled(topic, "acked", acked.Seq)

	topic = r.topic("other")
	nacked, got, _ := r.hold(topic, "nacked", jetbus.SubscribeOptions{})
	const delay = time.Second
	refused := time.Now()
	r.must(nacked.Nack(r.ctx, jetbus.NackOptions{Delay: delay}))
	for name, call := range again {
		wantErr(r.T, name+" after nack", call(nacked), jetbus.ErrAlreadySettled)
	}
	if g := r.group(topic, "nacked"); g.Held != 1 {
		r.Errorf("a call after the refusal reached the server: %+v", g)
	}
	all := got.wait(r.T, 2)
	r.waited(refused, all[1].at, delay)
	r.must(all[1].Ack(r.ctx))
	r.settled(topic, "nacked", nacked.Seq)
	r.pause(100 * time.Millisecond)
	if n := len(got.list()); n != 2 {
		r.Errorf("delivered %d times", n)
	}
}

func nackThenNil(r *run) {
	topic := r.topic("t")
	got := byHand()
	s := r.subscribe(r.A, topic, "g", got.then(func(ctx context.Context, d *jetbus.Delivery) error {
		if d.Attempt == 1 {
			r.wantNil(d.Nack(ctx, jetbus.NackOptions{AtOnce: true}))
		}
		return nil
	}), jetbus.SubscribeOptions{})
	e := r.publish(topic, "k")[0]
	if all := got.wait(r.T, 2); all[1].Attempt != 2 {
		r.Errorf("attempt %d", all[1].Attempt)
	}
	r.settled(topic, "g", e.Seq)
	if st := s.Stats(); st.Nacked != 1 || st.Acked != 1 {
		r.Errorf("stats %+v", st)
	}
}

// wantNil is must for handlers, which may not end the test.
func (r *run) wantNil(err error) {
	r.Helper()
	if err != nil {
		r.Error(err)
	}
}

func ackThenError(r *run) {
	topic := r.topic("t")
	got := r.newRecord()
	r.subscribe(r.A, topic, "g", got.then(func(ctx context.Context, d *jetbus.Delivery) error {
		r.wantNil(d.Ack(ctx))
		return errHandler
	}), jetbus.SubscribeOptions{Backoff: jetbus.Backoff{Max: time.Millisecond}})
	e := r.publish(topic, "k")[0]
	r.settled(topic, "g", e.Seq)
	r.pause(100 * time.Millisecond)
	got.exactly(r.T, "k")
}

func handlerPanic(r *run) {
	topic := r.topic("t")
	got := r.newRecord()
	s := r.subscribe(r.A, topic, "g", got.then(func(_ context.Context, d *jetbus.Delivery) error {
		if d.Key == "bad" && d.Attempt < 3 {
			panic("on purpose")
		}
		return nil
	}), jetbus.SubscribeOptions{Backoff: jetbus.Backoff{Max: 10 * time.Millisecond}})
	e := r.publish(topic, "bad", "good")[1]
	got.wait(r.T, 4)
	r.settled(topic, "g", e.Seq)
	got.exactly(r.T, "bad", "bad", "bad", "good")
	if st := s.Stats(); st.Nacked != 2 || st.Acked != 2 || s.Err() != nil {
		r.Errorf("stats %+v, error %v", st, s.Err())
	}
}

func givenBack(r *run) {
	topic := r.topic("t")
	d, first, s := r.hold(topic, "g", jetbus.SubscribeOptions{MaxInFlight: 1})
	s.Pause()
	got := r.newRecord()
	r.subscribe(r.B, topic, "g", got.handle, jetbus.SubscribeOptions{})
	at := time.Now()
	r.must(d.GiveBack(r.ctx))
	again := got.wait(r.T, 1)[0]
	r.waited(at, again.at, 0)
	if again.Attempt != 1 {
		r.Errorf("attempt %d after a give-back", again.Attempt)
	}
	r.settled(topic, "g", d.Seq)
	first.exactly(r.T, "k")
	if st := s.Stats(); st.GivenBack != 1 || st.Nacked != 0 {
		r.Errorf("stats %+v", st)
	}
}

func manualAck(r *run) {
	topic := r.topic("t")
	d, got, _ := r.hold(topic, "g", jetbus.SubscribeOptions{Backoff: jetbus.Backoff{Max: time.Millisecond}})
	r.pause(50 * time.Millisecond)
	r.has(topic, func(g jetbus.GroupInfo) bool { return g.Held == 1 }, "1 held, which a handler that returned nil has not settled")
	wantErr(r.T, "ack of an event nobody holds", r.A.Ack(r.ctx, topic, "g", "nobody"), jetbus.ErrNotHeld)
	wantErr(r.T, "ack by a process that does not hold it", r.B.Ack(r.ctx, topic, "g", d.ID), jetbus.ErrNotHeld)
	wantErr(r.T, "nack in another group", r.A.Nack(r.ctx, topic, "h", d.ID, "why"), jetbus.ErrNotHeld)
	if err := r.A.Nack(r.ctx, topic, "g", d.ID, "not yet"); r.twice(err) {
		all := got.list()
		_ = all[len(all)-1].Nack(r.ctx, jetbus.NackOptions{Reason: "not yet"}) // if not, it comes again all the same
	} else {
		r.must(err)
	}
	r.numbered("what was refused", got.wait(r.T, 2)[1].Attempt, d.Attempt, 2)
	ack := func() error {
		err := r.A.Ack(r.ctx, topic, "g", d.ID)
		if !r.twice(err) {
			return err
		}
		for _, each := range got.list() {
			_ = each.Ack(r.ctx) // that of one that is refused, or over, does nothing
		}
		return nil
	}
	r.mustSettle(ack())
	r.settledBy(topic, "g", d.Seq, func() { _ = ack() }) // it may not have come yet
	err := ack()
	for err == nil && r.inbox != nil { // of another delivery, which this member still had
		err = ack()
	}
	wantErr(r.T, "ack of what is settled", err, jetbus.ErrNotHeld)
}

// twoOfOneID publishes an ID again when its topic has forgotten it.
func twoOfOneID(r *run) {
	topic := r.declare("t", jetbus.TopicConfig{DuplicateWindow: time.Second})
	got := r.newRecord()
	r.subscribe(r.A, topic, "g", got.handle, jetbus.SubscribeOptions{ManualAck: true, From: jetbus.Earliest()})
	for range 2 {
		_, err := r.B.Publish(r.ctx, jetbus.Event{Topic: topic, ID: "same"})
		r.must(err)
		r.pause(5 * time.Second)
	}
	held := got.wait(r.T, 2)
	wantErr(r.T, "ack of two", r.A.Ack(r.ctx, topic, "g", "same"), jetbus.ErrConflict)
	wantErr(r.T, "nack of two", r.A.Nack(r.ctx, topic, "g", "same", "why"), jetbus.ErrConflict)
	r.must(held[0].Ack(r.ctx))
	r.must(r.A.Ack(r.ctx, topic, "g", "same"))
	r.settled(topic, "g", held[1].Seq)
}

func limits(r *run) {
	topic := r.topic("t")
	g := r.newGate()
	s := r.subscribe(r.A, topic, "g", g.handle, jetbus.SubscribeOptions{Concurrency: 3, MaxInFlight: 5})
	last := r.publish(topic, keys(20)...)[19]
	for range 3 {
		receive(r.T, "a handler's start", g.entered)
	}
	r.pause(200 * time.Millisecond)
	if st := s.Stats(); st.Running != 3 || st.Held < 3 || st.Held > 5 {
		r.Errorf("stats %+v", st)
	}
	if at := r.group(topic, "g"); at.Held > 5 {
		r.Errorf("the server has %+v", at)
	}
	r.has(topic, func(g jetbus.GroupInfo) bool { return g.Held <= 5 && g.Held+int(g.Pending) == 20 }, "20 held or pending")
	if n := len(g.entered); n != 0 {
		r.Errorf("%d handlers more than Concurrency", n)
	}
	for range 20 {
		g.leave <- nil
	}
	r.settled(topic, "g", last.Seq)
}

// standsStill has the group that does not get on, another one and the publisher share a
// process, and its connection.
func standsStill(r *run) {
	topic := r.topic("t")
	const n, most = 200, 5
	stuck, got := r.newGate(), r.newRecord()
	s := r.subscribe(r.A, topic, "stuck", stuck.handle, jetbus.SubscribeOptions{Concurrency: 2, MaxInFlight: most})
	r.subscribe(r.A, topic, "g", got.handle, jetbus.SubscribeOptions{})
	began := time.Now()
	last := r.publish(topic, keys(n)...)[n-1]
	r.settled(topic, "g", last.Seq)
	if took := time.Since(began); r.fake && took > time.Second {
		r.Errorf("it took %v", took)
	}
	got.exactly(r.T, keys(n)...)
	r.reaches(topic, "stuck", func(g jetbus.GroupInfo) bool { return g.Held > 0 && g.Held <= most && g.Held+int(g.Pending) == n }, "as many as it may hold, and the rest pending")
	if st := s.Stats(); st.Running != 2 || st.Held > most {
		r.Errorf("stats %+v", st)
	}
	for range n {
		stuck.leave <- nil
	}
	r.settled(topic, "stuck", last.Seq)
}

func paused(r *run) {
	topic := r.topic("t")
	got := r.newRecord()
	s := r.subscribe(r.A, topic, "g", got.handle, jetbus.SubscribeOptions{})
	r.publish(topic, "before")
	got.wait(r.T, 1)
	s.Pause()
	// What was asked for before the pause may still come.
	r.publish(topic, keys(10)...)
	r.pause(200 * time.Millisecond)
	held := len(got.list())
	if !s.Stats().Paused || held > 3 {
		r.Errorf("%d events while paused; stats %+v", held-1, s.Stats())
	}
	last := r.publish(topic, "after")[0]
	r.pause(200 * time.Millisecond)
	if n := len(got.list()); n != held {
		r.Errorf("a paused member got %d more events", n-held)
	}
	s.Resume()
	got.wait(r.T, 12)
	r.settled(topic, "g", last.Seq)
	got.exactly(r.T, append(keys(10), "before", "after")...)
}

func pausedGroup(r *run) {
	topic, topics := r.topic("t"), r.A.(jetbus.Topics)
	got, other := r.newRecord(), r.newRecord()
	r.subscribe(r.A, topic, "g", got.handle, jetbus.SubscribeOptions{})
	r.subscribe(r.B, topic, "g", got.handle, jetbus.SubscribeOptions{})
	r.subscribe(r.A, topic, "other", other.handle, jetbus.SubscribeOptions{})
	r.settled(topic, "g", r.publish(topic, "before")[0].Seq)
	r.must(topics.PauseGroup(r.ctx, topic, "g", time.Now().Add(time.Hour)))
	r.must(topics.PauseGroup(r.ctx, topic, "g", time.Now().Add(2*time.Hour)))
	last := r.publish(topic, keys(10)...)[9]
	later := r.subscribe(r.B, topic, "g", got.handle, jetbus.SubscribeOptions{}) // finds it paused
	r.settled(topic, "other", last.Seq)
	r.pause(200 * time.Millisecond)
	if n := len(got.list()); n != 1 {
		r.Errorf("a paused group got %d more events", n-1)
	}
	r.has(topic, func(g jetbus.GroupInfo) bool { return g.Paused && g.Pending == 10 && g.Held == 0 }, "10 pending, paused")
	r.stop(later)
	r.must(topics.ResumeGroup(r.ctx, topic, "g"))
	r.must(topics.ResumeGroup(r.ctx, topic, "g"))
	r.settled(topic, "g", last.Seq)
	r.has(topic, func(g jetbus.GroupInfo) bool { return !g.Paused }, "a group that is not paused")
	got.exactly(r.T, append(keys(10), "before")...)
	r.must(topics.PauseGroup(r.ctx, topic, "g", time.Now().Add(time.Minute)))
	after := r.publish(topic, "after")[0]
	r.has(topic, func(g jetbus.GroupInfo) bool { return g.Paused && g.Pending == 1 }, "1 pending, paused")
	r.pause(time.Minute)
	r.settled(topic, "g", after.Seq) // it goes on by itself
	for what, pause := range map[string]func(group string) error{
		"pause":  func(group string) error { return topics.PauseGroup(r.ctx, topic, group, time.Now().Add(time.Hour)) },
		"resume": func(group string) error { return topics.ResumeGroup(r.ctx, topic, group) },
	} {
		wantErr(r.T, what+" of no group", pause("nobody"), jetbus.ErrNoGroup)
	}
}

func received(r *run) {
	topic := r.topic("t")
	bus := r.A.(jetbus.Receiver)
	none, err := r.pull(bus, topic, jetbus.ReceiveOptions{Wait: 50 * time.Millisecond})
	if len(none) != 0 || err != nil {
		r.Errorf("receive from an empty topic: %v, %v", none, err)
	}
	events := r.publish(topic, keys(5)...)
	ds := r.receive(bus, topic, 3)
	r.has(topic, func(g jetbus.GroupInfo) bool {
		lost := g.Held > 3 && r.inbox != nil // what is lost on its way is held as well
		return (g.Held == 3 || lost) && g.Held+int(g.Pending) == 5
	}, "3 held and 2 pending")
	for _, d := range ds {
		r.mustSettle(d.Ack(r.ctx))
	}
	for _, d := range r.receive(bus, topic, 2) {
		r.mustSettle(r.A.Ack(r.ctx, topic, "g", d.ID))
	}
	r.settledBy(topic, "g", events[4].Seq, func() {
		again, err := r.pull(bus, topic, jetbus.ReceiveOptions{Wait: 50 * time.Millisecond})
		r.must(err)
		for _, d := range again {
			r.mustSettle(d.Ack(r.ctx))
		}
	})
}

// pull is Receive, which is called again where the request was lost with its leader.
func (r *run) pull(bus jetbus.Receiver, topic string, o jetbus.ReceiveOptions) (ds []*jetbus.Delivery, err error) {
	err = r.insist(jetbus.ErrUnavailable, func() error {
		ds, err = bus.Receive(r.ctx, topic, "g", o)
		return err
	})
	return ds, err
}

// receive collects n events of group g by as many calls as it takes: one may return
// with less than there is.
func (r *run) receive(bus jetbus.Receiver, topic string, n int) []*jetbus.Delivery {
	r.Helper()
	var all []*jetbus.Delivery
	r.eventually(fmt.Sprintf("%d events are received", n), func() error {
		left := n - len(all)
		ds, err := r.pull(bus, topic, jetbus.ReceiveOptions{Max: left})
		r.must(err)
		if len(ds) > left {
			r.Fatalf("received %d of at most %d", len(ds), left)
		}
		if all = append(all, ds...); len(all) < n {
			return fmt.Errorf("there are %d", len(all))
		}
		return nil
	})
	return all
}
