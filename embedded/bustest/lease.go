package bustest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// leaseBehaviors are about who owns an event, and for how long.
var leaseBehaviors = []Behavior{
	{Name: "a handler may take longer than the ack timeout and keeps the event to itself", Cases: []int{12}, play: slowHandler},
	{Name: "a handler may take almost MaxLease", Cases: []int{12}, Needs: NeedFakeTime, play: verySlowHandler},
	{Name: "a handler that overruns its lease is canceled, its word is refused, and another has the event", Cases: []int{13, 14}, play: overrun},
	{Name: "extension ends with MaxLease", Cases: []int{18}, play: maxLease},
	{Name: "events that wait for a slow handler are not delivered twice", Cases: []int{15}, Needs: NeedPower, play: prefetched},
	{Name: "Extend keeps a lease that nobody else extends", Cases: []int{14}, Needs: NeedReceive, play: extend},
	{Name: "received events are kept until they are settled, or for MaxLease", Cases: []int{14, 18}, Needs: NeedReceive | NeedFakeTime, play: receivedKept},
	{Name: "a member that dies without a word loses its event to another after the ack timeout", Cases: []int{16}, Needs: NeedOpen, play: memberDies},
	{Name: "a cut of the connection longer than the ack timeout settles nothing twice", Cases: []int{17}, Needs: NeedPipe | NeedOpen, play: cutConnection},
}

func slowHandler(r *run) {
	topic := r.topic("t")
	ackTimeout, took := 500*time.Millisecond, 2*time.Second
	if !r.fake { // what is left of a lease when it is extended outlasts most elections
		ackTimeout, took = 12*time.Second, 18*time.Second
	}
	got := r.newRecord()
	var mu sync.Mutex
	var over <-chan struct{} // the end of the handler that has it, or had it
	slow := func(ctx context.Context, d *jetbus.Delivery) error {
		if d.Key != "k" {
			return nil
		}
		mu.Lock()
		if over != nil {
			select {
			case <-over:
			default:
				r.Error("two handlers have the event at once")
			}
		}
		over = ctx.Done()
		mu.Unlock()
		linger(ctx, took)
		return ctx.Err()
	}
	o := jetbus.SubscribeOptions{AckTimeout: ackTimeout}
	a := r.subscribe(r.A, topic, "g", got.then(slow), o)
	b := r.subscribe(r.B, topic, "g", got.then(slow), o)
	if r.inbox != nil {
		r.bothSettle(topic, a, b)
	}
	e := r.publish(topic, "k")[0]
	r.settled(topic, "g", e.Seq)
	if r.inbox == nil { // else a lease is lost where nobody could be found in time who extends it
		got.exactly(r.T, "k")
	}
}

// bothSettle publishes until each of two members has settled something: until then their
// extensions count by the word of a leader, which may be gone with it.
func (r *run) bothSettle(topic string, a, b jetbus.Subscription) {
	r.Helper()
	r.eventually("both members settle something", func() error {
		one, other := a.Stats().Acked, b.Stats().Acked
		if one > 0 && other > 0 {
			return nil
		}
		r.publish(topic, "quick", "quick")
		return fmt.Errorf("one has settled %d events, the other %d", one, other)
	})
}

func verySlowHandler(r *run) {
	topic := r.topic("t")
	got := r.newRecord()
	slow := func(ctx context.Context, _ *jetbus.Delivery) error {
		linger(ctx, jetbus.DefaultMaxLease-time.Minute)
		return ctx.Err()
	}
	r.subscribe(r.A, topic, "g", got.then(slow), jetbus.SubscribeOptions{})
	r.subscribe(r.B, topic, "g", got.then(slow), jetbus.SubscribeOptions{})
	e := r.publish(topic, "k")[0]
	r.pause(jetbus.DefaultMaxLease)
	r.settled(topic, "g", e.Seq)
	got.exactly(r.T, "k")
}

// stubborn is a handler that ignores the end of its context and then tries to
// settle the event all the same.
func (r *run) stubborn(ended chan<- error) jetbus.Handler {
	return func(ctx context.Context, d *jetbus.Delivery) error {
		<-ctx.Done()
		ended <- context.Cause(ctx)
		background := context.WithoutCancel(ctx)
		for what, err := range map[string]error{
			"ack": d.Ack(background), "nack": d.Nack(background, jetbus.NackOptions{AtOnce: true}),
			"extend": d.Extend(background, 0), "give back": d.GiveBack(background),
		} {
			wantErr(r.T, what+" after the lease", err, jetbus.ErrLeaseExpired)
		}
		return nil
	}
}

func overrun(r *run) {
	topic := r.topic("t")
	ackTimeout := r.lease(time.Second)
	ended := make(chan error, 10)
	o := jetbus.SubscribeOptions{AckTimeout: ackTimeout, MaxLease: -1}
	first := r.subscribe(r.A, topic, "g", r.stubborn(ended), o)
	e := r.publish(topic, "k")[0]
	r.eventually("the first member runs", func() error {
		if first.Stats().Running == 0 {
			return errors.New("it does not")
		}
		return nil
	})
	first.Pause() // so that it does not get the event again
	second := r.newGate()
	r.subscribe(r.B, topic, "g", second.handle, o)
	wantErr(r.T, "cause of the handler's end", receive(r.T, "the handler's end", ended), jetbus.ErrLeaseExpired)
	d := receive(r.T, "the second delivery", second.entered)
	r.numbered("the second delivery", d.Attempt, 1, 2)
	r.has(topic, func(g jetbus.GroupInfo) bool { return g.Held == 1 }, "1 held, which the first member's word has not settled")
	close(second.leave)
	r.settled(topic, "g", e.Seq)
	r.noMore(second)
	if st := first.Stats(); st.LeasesLost < 1 || st.LeasesLost > 1 && r.inbox == nil || st.Acked != 0 {
		r.Errorf("the first member's stats: %+v", st)
	}
}

func maxLease(r *run) {
	topic := r.topic("t")
	const ackTimeout, lease = 300 * time.Millisecond, 900 * time.Millisecond
	ended := make(chan error, 10)
	var calls atomic.Int32
	stubborn := r.stubborn(ended)
	began := make(chan time.Time, 1)
	r.subscribe(r.A, topic, "g", func(ctx context.Context, d *jetbus.Delivery) error {
		if calls.Add(1) > 1 {
			return nil
		}
		began <- time.Now()
		return stubborn(ctx, d)
	}, jetbus.SubscribeOptions{AckTimeout: ackTimeout, MaxLease: lease})
	e := r.publish(topic, "k")[0]
	wantErr(r.T, "cause", receive(r.T, "the handler's end", ended), jetbus.ErrLeaseExpired)
	held := time.Since(<-began)
	if r.fake && (held < lease-ackTimeout/2 || held > lease+2*ackTimeout) {
		r.Errorf("the handler was let run for %v, want about %v", held, lease)
	}
	r.settled(topic, "g", e.Seq)
}

func prefetched(r *run) {
	topic := r.topic("t")
	ackTimeout := r.lease(400 * time.Millisecond)
	events := r.publish(topic, keys(10)...)
	got := r.newRecord()
	slow := func(ctx context.Context, _ *jetbus.Delivery) error {
		linger(ctx, ackTimeout/2)
		return ctx.Err()
	}
	r.subscribe(r.A, topic, "g", got.then(slow), jetbus.SubscribeOptions{From: jetbus.Earliest(), AckTimeout: ackTimeout})
	r.settled(topic, "g", events[9].Seq)
	got.exactly(r.T, keys(10)...)
}

func extend(r *run) {
	topic := r.topic("t")
	ackTimeout := r.lease(time.Second)
	bus := r.A.(jetbus.Receiver)
	o := jetbus.ReceiveOptions{From: jetbus.Earliest(), AckTimeout: ackTimeout}
	e := r.publish(topic, "k")[0]
	ds, err := bus.Receive(r.ctx, topic, "g", o)
	r.must(err)
	if len(ds) != 1 {
		r.Fatalf("received %d", len(ds))
	}
	for range 4 {
		r.pause(ackTimeout / 2)
		r.must(ds[0].Extend(r.ctx, 0))
	}
	if left := time.Until(ds[0].Deadline()); left < ackTimeout/2 || left > ackTimeout {
		r.Errorf("the lease has %v left", left)
	}
	if g := r.group(topic, "g"); g.Held != 1 || g.Retrying != 0 {
		r.Errorf("the server has %+v", g)
	}
	r.must(ds[0].Ack(r.ctx))
	r.settled(topic, "g", e.Seq)
}

func receivedKept(r *run) {
	topic := r.topic("t")
	ackTimeout := r.lease(time.Second)
	bus := r.A.(jetbus.Receiver)
	o := jetbus.ReceiveOptions{From: jetbus.Earliest(), AckTimeout: ackTimeout, MaxLease: 4 * ackTimeout}
	e := r.publish(topic, "settled", "left")[1]
	ds, err := bus.Receive(r.ctx, topic, "g", o)
	r.must(err)
	if len(ds) != 2 {
		r.Fatalf("received %d", len(ds))
	}
	r.pause(3 * ackTimeout)
	if g := r.group(topic, "g"); g.Held != 2 || g.Retrying != 0 {
		r.Errorf("the server has %+v", g)
	}
	r.must(ds[0].Ack(r.ctx))
	r.pause(3 * ackTimeout) // an extension just before MaxLease lasts for as long as each does
	wantErr(r.T, "ack after MaxLease", ds[1].Ack(r.ctx), jetbus.ErrLeaseExpired)
	again, err := bus.Receive(r.ctx, topic, "g", o)
	r.must(err)
	if len(again) != 1 || again[0].Key != "left" || again[0].Attempt != 2 {
		r.Fatalf("received %d: %+v", len(again), again)
	}
	r.must(again[0].Ack(r.ctx))
	r.settled(topic, "g", e.Seq)
}

func memberDies(r *run) {
	topic := r.topic("t")
	const ackTimeout = 2 * time.Second
	nc, err := r.Broker.Connect()
	r.must(err)
	defer nc.Close()
	bus, err := r.Open(r.ctx, nc)
	r.must(err)
	defer func() { _ = bus.Close(context.Background()) }() // its connection is gone
	dead := r.newGate()
	o := jetbus.SubscribeOptions{AckTimeout: ackTimeout}
	_, err = bus.Subscribe(r.ctx, topic, "g", dead.handle, o)
	r.must(err)
	e := r.publish(topic, "k")[0]
	receive(r.T, "the first delivery", dead.entered)
	nc.Close()
	died := time.Now()
	got := r.newRecord()
	r.subscribe(r.B, topic, "g", got.handle, o)
	again := got.wait(r.T, 1)[0]
	if again.Attempt != 1 || !again.Redelivered { // it may be innocent of its member's death
		r.Errorf("attempt %d, redelivered %v", again.Attempt, again.Redelivered)
	}
	if d := again.at.Sub(died); r.fake && d > ackTimeout+100*time.Millisecond {
		r.Errorf("the other member waited %v", d)
	}
	r.settled(topic, "g", e.Seq)
}

func cutConnection(r *run) {
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
	o := jetbus.SubscribeOptions{AckTimeout: ackTimeout}
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
	cut := time.Now()
	got := r.newGate()
	r.subscribe(r.B, topic, "g", got.handle, o)
	wantErr(r.T, "cause", receive(r.T, "the handler's end", ended), jetbus.ErrLeaseExpired)
	if took := time.Since(cut); r.fake && (took > ackTimeout || len(got.entered) > 0) {
		r.Errorf("the first handler was canceled %v after the cut, when %d others had started", took, len(got.entered))
	}
	if d := receive(r.T, "the second delivery", got.entered); d.Attempt != 1 || !d.Redelivered { // the connection failed, not the handler
		r.Errorf("attempt %d, redelivered %v", d.Attempt, d.Redelivered)
	}
	p.release()
	r.pause(ackTimeout / 2)
	if g := r.group(topic, "g"); g.Held != 1 {
		r.Errorf("the second member's lease was settled by the first: %+v", g)
	}
	got.leave <- nil
	r.settled(topic, "g", e.Seq)
}
