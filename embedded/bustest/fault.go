package bustest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// faultBehaviors are about what breaks between publisher and broker.
var faultBehaviors = []Behavior{
	{Name: "publishing goes on over restarts and crashes of the broker: nothing acknowledged is lost or stored twice, and the order stands", Cases: []int{32}, Needs: NeedRestart, play: publishOverRestarts},
	{Name: "a batch goes on over a crash of the broker", Cases: []int{32}, Needs: NeedRestart | NeedBatch, play: batchOverCrash},
	{Name: "a publish without an answer says that the event may be stored, and publishing it again is safe", Cases: []int{33, 34}, Needs: NeedPipe | NeedOpen, play: noAnswer},
	{Name: "positions, pending events and attempts survive a restart and a crash of the broker", Cases: []int{60}, Needs: NeedRestart, play: survives},
	{Name: "an old event stays with its handler over a restart and a crash of the broker", Cases: []int{13, 60}, Needs: NeedRestart, play: heldOverRestart},
	{Name: "subscriptions go on by themselves after a crash of the broker", Cases: []int{32, 60}, Needs: NeedRestart | NeedPower, play: subscriptionOverCrash},
}

// faults restarts and kills the broker in turn until the returned function is
// called.
func (r *run) faults() (stop func()) {
	ctx, cancel := context.WithCancel(r.ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			linger(ctx, 300*time.Millisecond)
			if i%2 == 0 {
				r.wantNil(r.Broker.Kill(r.ctx))
				linger(r.ctx, 200*time.Millisecond)
			}
			r.wantNil(r.Broker.Restart(r.ctx))
		}
	})
	return func() { cancel(); wg.Wait() }
}

func publishOverRestarts(r *run) {
	topic := r.topic("t")
	stop := r.faults()
	const publishers, each = 4, 100
	acked := make([]map[string]uint64, publishers)
	var wg sync.WaitGroup
	for p := range publishers {
		acked[p] = map[string]uint64{}
		wg.Go(func() {
			for i := range each {
				ctx, cancel := context.WithTimeout(r.ctx, awhile())
				receipt, err := r.A.Publish(ctx, jetbus.Event{Topic: topic, Key: fmt.Sprint(p), ID: fmt.Sprintf("%d-%d", p, i), Payload: fmt.Append(nil, i)})
				cancel()
				if err != nil {
					r.Errorf("event %d of publisher %d: %v", i, p, err)
					return
				}
				acked[p][receipt.Event.ID] = receipt.Event.Seq
				linger(r.ctx, 10*time.Millisecond)
			}
		})
	}
	wg.Wait()
	stop()
	stored := map[string]uint64{}
	next := map[string]int{}
	for _, e := range r.stored(topic) {
		if _, ok := stored[e.ID]; ok {
			r.Errorf("event %s is stored twice", e.ID)
		}
		stored[e.ID] = e.Seq
		if string(e.Payload) != fmt.Sprint(next[e.Key]) {
			r.Fatalf("publisher %s: event %s where %d should be", e.Key, e.Payload, next[e.Key])
		}
		next[e.Key]++
	}
	for p := range publishers {
		for id, seq := range acked[p] {
			if stored[id] != seq {
				r.Errorf("event %s was acknowledged at %d and is at %d", id, seq, stored[id])
			}
		}
	}
}

func batchOverCrash(r *run) {
	topic := r.topic("t")
	stop := r.faults()
	for i := range 10 {
		events := batch(topic, keys(200)...)
		for j := range events {
			events[j].ID = fmt.Sprintf("%d-%d", i, j)
		}
		receipts, err := r.A.(jetbus.Batcher).PublishBatch(r.ctx, events, jetbus.BatchOptions{})
		for err != nil { // what was not acknowledged may be published again, under its id
			be, ok := errors.AsType[*jetbus.BatchError](err)
			if !ok {
				r.Fatal(err)
			}
			events = events[:0]
			for _, f := range be.Failed {
				events = append(events, f.Event)
			}
			receipts, err = r.A.(jetbus.Batcher).PublishBatch(r.ctx, events, jetbus.BatchOptions{})
		}
		if len(receipts) != len(events) {
			r.Errorf("%d receipts for %d events", len(receipts), len(events))
		}
		r.pause(50 * time.Millisecond)
	}
	stop()
	seen := map[string]bool{}
	for _, e := range r.stored(topic) {
		if seen[e.ID] {
			r.Errorf("event %s is stored twice", e.ID)
		}
		seen[e.ID] = true
	}
	if len(seen) != 2000 {
		r.Errorf("%d events of 2000 are stored", len(seen))
	}
}

func noAnswer(r *run) {
	topic := r.topic("t")
	p := newPipe(r.Broker)
	nc, err := r.Broker.Connect(p.option())
	r.must(err)
	defer nc.Close()
	bus, err := r.Open(r.ctx, nc)
	r.must(err)
	defer func() { r.wantNil(bus.Close(context.Background())) }()
	_, err = bus.Publish(r.ctx, jetbus.Event{Topic: topic, ID: "first"})
	r.must(err)
	for id, over := range map[string]func() (context.Context, context.CancelFunc, error){
		"timeout": func() (context.Context, context.CancelFunc, error) {
			ctx, cancel := context.WithTimeout(r.ctx, time.Second)
			return ctx, cancel, context.DeadlineExceeded
		},
		"cancel": func() (context.Context, context.CancelFunc, error) {
			ctx, cancel := context.WithCancel(r.ctx)
			time.AfterFunc(time.Second, cancel)
			return ctx, cancel, context.Canceled
		},
	} {
		p.holdAnswers()
		ctx, cancel, want := over()
		_, err := bus.Publish(ctx, jetbus.Event{Topic: topic, ID: id})
		cancel()
		wantErr(r.T, id, err, want)
		if pe, ok := errors.AsType[*jetbus.PublishError](err); !ok || pe.Stored != jetbus.StoredUnknown || pe.Event.ID != id {
			r.Errorf("%s: error %#v does not say that the event may be stored", id, err)
		}
		p.release()
		again, err := bus.Publish(r.ctx, jetbus.Event{Topic: topic, ID: id})
		r.must(err)
		if !again.Duplicate {
			r.Errorf("%s: %+v, though the first was stored", id, again)
		}
	}
	if got := r.stored(topic); len(got) != 3 {
		r.Errorf("the topic holds %+v", got)
	}
}

func survives(r *run) {
	topic := r.topic("t")
	got := r.newRecord()
	o := jetbus.SubscribeOptions{From: jetbus.Earliest(), Backoff: jetbus.Backoff{Min: 10 * time.Second, NoJitter: true}}
	events := r.publish(topic, keys(4)...)
	s := r.subscribe(r.A, topic, "g", got.then(func(_ context.Context, d *jetbus.Delivery) error {
		if d.Key == "1" && d.Attempt < 3 {
			return errHandler
		}
		return nil
	}), o)
	got.wait(r.T, 4)
	r.pause(5 * time.Second) // the server writes positions behind
	r.stop(s)
	before := r.group(topic, "g")
	if !isBetween(before, events[:2]) || before.Held != 1 {
		r.Errorf("before: %+v", before)
	}
	for i, end := range []func(context.Context) error{r.Broker.Restart, r.Broker.Kill} {
		r.publish(topic, fmt.Sprint("more", i))
		r.must(end(r.ctx))
		r.must(r.Broker.Restart(r.ctx))
		r.reaches(topic, "g", func(g jetbus.GroupInfo) bool { return isBetween(g, events[:2]) && int(g.Pending) == i+1 }, "its position and pending events")
	}
	again := r.newRecord()
	r.subscribe(r.B, topic, "g", again.handle, o)
	all := again.within(r.T, 3, 2*time.Minute)
	r.settled(topic, "g", all[2].Seq)
	again.exactly(r.T, "1", "more0", "more1")
	for _, d := range all {
		if d.Key == "1" && d.Attempt < 2 {
			r.Errorf("the failed event came back as attempt %d", d.Attempt)
		}
	}
}

func heldOverRestart(r *run) {
	for i, end := range []func(context.Context) error{r.Broker.Restart, r.Broker.Kill} {
		topic := r.topic(fmt.Sprint("t", i))
		e := r.publish(topic, "k")[0]
		r.pause(2 * jetbus.DefaultAckTimeout)
		g, other := r.newGate(), r.newRecord()
		r.subscribe(r.A, topic, "g", g.handle, jetbus.SubscribeOptions{From: jetbus.Earliest()})
		receive(r.T, "the handler's start", g.entered)
		r.subscribe(r.B, topic, "g", other.handle, jetbus.SubscribeOptions{})
		r.pause(3 * time.Second) // before the first extension the server would not know
		r.must(end(r.ctx))
		r.must(r.Broker.Restart(r.ctx))
		r.pause(2 * jetbus.DefaultAckTimeout)
		other.exactly(r.T)
		if len(g.ended) > 0 {
			r.Errorf("the handler was canceled: %v", <-g.ended)
		}
		g.leave <- nil
		r.settled(topic, "g", e.Seq)
	}
}

func subscriptionOverCrash(r *run) {
	topic := r.topic("t")
	got := r.newRecord()
	s := r.subscribe(r.A, topic, "g", got.handle, jetbus.SubscribeOptions{})
	for i := range 3 {
		e := r.publish(topic, fmt.Sprint(i))[0]
		r.settled(topic, "g", e.Seq)
		r.pause(5 * time.Second)
		r.must(r.Broker.Kill(r.ctx))
		r.pause(time.Minute)
		r.must(r.Broker.Restart(r.ctx))
	}
	e := r.publish(topic, "last")[0]
	r.settled(topic, "g", e.Seq)
	got.exactly(r.T, "0", "1", "2", "last")
	if s.Err() != nil {
		r.Error(s.Err())
	}
}
