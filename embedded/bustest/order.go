package bustest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
)

// orderBehaviors are about groups with an order.
var orderBehaviors = []Behavior{
	{Name: "with PerKey the first successes of a key are in the order of the log, over failures and over members that come and go", Cases: []int{42}, Needs: NeedPower, play: perKeyOverMembers},
	{Name: "with PerKey the order of a key stands over restarts and crashes of the broker", Cases: []int{42, 60}, Needs: NeedRestart | NeedPower, play: perKeyOverFaults},
	{Name: "an event that fails holds up its key and nothing else, and behind its dead letter the key goes on", Cases: []int{26}, play: poisonedKey},
	{Name: "with Total events are handled one after the other, failed ones in their place", Cases: []int{26}, play: totalOrder},
	{Name: "one member of an ordered group is active, and when it stops the next goes on at once, without a duplicate", Cases: []int{42, 54}, play: handedOver},
	{Name: "the events of an ordered group's member that died come to the next in their order", Cases: []int{16, 42}, Needs: NeedOpen | NeedFakeTime, play: takenOver},
	{Name: "the members of a group have one order", Cases: []int{70}, play: oneOrder},
}

// lineup watches over the order in which the events of each key succeed first.
type lineup struct {
	mu      sync.Mutex
	next    map[string]int // number of the event of each key that is due
	busy    map[string]bool
	wrong   []string
	runs    int
	success int // first ones
}

// handle is a handler of events whose payload is their number among those of
// their key. It fails in as many of 100 cases.
func (o *lineup) handle(failing int) jetbus.Handler {
	return func(_ context.Context, d *jetbus.Delivery) error {
		if err := o.begin(d); err != nil {
			return err
		}
		fail := rand.IntN(100) < failing
		o.end(d, !fail)
		if fail {
			return errors.New("bad luck")
		}
		return nil
	}
}

func (o *lineup) begin(d *jetbus.Delivery) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.next == nil {
		o.next, o.busy = map[string]int{}, map[string]bool{}
	}
	o.runs++
	if o.busy[d.Key] {
		o.wrong = append(o.wrong, fmt.Sprintf("event %s of key %s began beside another", d.Payload, d.Key))
	}
	o.busy[d.Key] = true
	return nil
}

func (o *lineup) end(d *jetbus.Delivery, success bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.busy[d.Key] = false
	var number int
	if _, err := fmt.Sscan(string(d.Payload), &number); err != nil {
		o.wrong = append(o.wrong, err.Error())
	}
	switch due := o.next[d.Key]; {
	case !success || number < due: // again
	case number > due:
		o.wrong = append(o.wrong, fmt.Sprintf("event %d of key %s succeeded before %d", number, d.Key, due))
		fallthrough
	default:
		o.next[d.Key] = number + 1
		o.success++
	}
}

func (o *lineup) counts() (runs, success int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.runs, o.success
}

// check ends the test where something was out of order.
func (o *lineup) check(r *run) {
	r.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.wrong) > 0 {
		r.Fatalf("%d out of order, the first: %v", len(o.wrong), o.wrong[:min(len(o.wrong), 5)])
	}
}

// number publishes the events from to to-1 of n keys.
func (r *run) number(topic string, n, from, to int) {
	r.Helper()
	for i := from; i < to; i++ {
		for k := range n {
			_, err := r.A.Publish(r.ctx, jetbus.Event{Topic: topic, Key: fmt.Sprint("k", k), Payload: fmt.Append(nil, i)})
			r.must(err)
		}
	}
}

// inOrder are the options of a member of an ordered group.
func inOrder(order jetbus.Order, concurrency int) jetbus.SubscribeOptions {
	return jetbus.SubscribeOptions{
		From: jetbus.Earliest(), Order: order, Concurrency: concurrency, MaxAttempts: -1,
		Backoff: jetbus.Backoff{Min: time.Millisecond, Max: 20 * time.Millisecond},
	}
}

func perKeyOverMembers(r *run) {
	topic := r.topic("t")
	const keys, each = 50, 12
	r.number(topic, keys, 0, each/2)
	var line lineup
	o := inOrder(jetbus.PerKey, 8)
	stay := r.subscribe(r.A, topic, "g", line.handle(20), o)
	for i := range 4 {
		s := r.subscribe(r.B, topic, "g", line.handle(20), o)
		r.pause(30 * time.Millisecond)
		if i%2 == 0 {
			r.stop(stay)
			stay = s
		} else {
			r.stop(s)
		}
		if i == 1 {
			r.number(topic, keys, each/2, each)
		}
	}
	r.eventually("all events succeed", func() error { return line.missing(keys * each) })
	r.settled(topic, "g", keys*each)
	line.check(r)
}

func (o *lineup) missing(want int) error {
	if _, got := o.counts(); got < want {
		return fmt.Errorf("%d of %d did", got, want)
	}
	return nil
}

func perKeyOverFaults(r *run) {
	topic := r.topic("t")
	const keys, each = 30, 30
	var line lineup
	r.subscribe(r.A, topic, "g", line.handle(20), inOrder(jetbus.PerKey, 8))
	r.subscribe(r.B, topic, "g", line.handle(20), inOrder(jetbus.PerKey, 8))
	stop := r.faults()
	r.number(topic, keys, 0, each)
	stop()
	r.eventually("all events succeed", func() error { return line.missing(keys * each) })
	r.settled(topic, "g", 1)
	line.check(r)
}

func poisonedKey(r *run) {
	topic := r.topic("t")
	const keys, each = 10, 5
	r.number(topic, keys, 0, each)
	var line lineup
	var fail sync.Map
	good := line.handle(0)
	release := make(chan struct{})
	s := r.subscribe(r.A, topic, "g", func(ctx context.Context, d *jetbus.Delivery) error {
		if d.Key == "k3" && string(d.Payload) == "1" {
			fail.Store(d.Attempt, true)
			select {
			case <-release:
				return errors.New("poison")
			default:
				return jetbus.Snooze(50 * time.Millisecond)
			}
		}
		return good(ctx, d)
	}, func() jetbus.SubscribeOptions {
		o := inOrder(jetbus.PerKey, 8)
		o.MaxAttempts = 3
		return o
	}())
	r.eventually("all others succeed", func() error { return line.missing(keys*each - each + 1) })
	r.pause(100 * time.Millisecond)
	if _, n := line.counts(); n != keys*each-each+1 {
		r.Errorf("%d events succeeded behind the one that waits", n-(keys*each-each+1))
	}
	line.mu.Lock()
	line.next["k3"] = 2 // the dead letter's turn is over
	line.mu.Unlock()
	close(release)
	r.eventually("the key goes on", func() error { return line.missing(keys*each - 1) })
	r.settled(topic, "g", keys*each)
	line.check(r)
	attempts := 0
	fail.Range(func(any, any) bool { attempts++; return true })
	if st := s.Stats(); st.DeadLetters != 1 || attempts != 3 || st.LeasesLost > 0 {
		r.Errorf("%d attempts, %+v", attempts, st)
	}
	dead := r.stored(jetbus.DeadLetterTopic(topic))
	if len(dead) != 1 || string(dead[0].Payload) != "1" {
		r.Errorf("dead letters: %v", dead)
	}
}

func totalOrder(r *run) {
	topic := r.topic("t")
	const keys, each = 6, 10
	r.number(topic, keys, 0, each)
	got := r.newRecord()
	var mu sync.Mutex
	var done []uint64
	r.subscribe(r.A, topic, "g", got.then(func(_ context.Context, d *jetbus.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		if d.Attempt == 1 && rand.IntN(3) == 0 {
			return errors.New("bad luck")
		}
		done = append(done, d.Seq)
		return nil
	}), inOrder(jetbus.Total, 1))
	r.settled(topic, "g", keys*each)
	mu.Lock()
	defer mu.Unlock()
	if len(done) != keys*each || !slices.IsSorted(done) {
		r.Errorf("events succeeded in the order %v", done)
	}
}

func handedOver(r *run) {
	topic := r.topic("t")
	const keys, each = 5, 20
	var line lineup
	enough, leave := make(chan struct{}, 3), make(chan struct{})
	until := func(busy bool) jetbus.Handler {
		return func(ctx context.Context, d *jetbus.Delivery) error {
			if err := line.begin(d); err != nil {
				return err
			}
			linger(ctx, 10*time.Millisecond)
			if busy && d.Seq > keys {
				select {
				case enough <- struct{}{}:
				default:
				}
				select {
				case <-leave:
				case <-ctx.Done():
				}
			}
			line.end(d, ctx.Err() == nil)
			return ctx.Err()
		}
	}
	first := r.subscribe(r.A, topic, "g", until(true), inOrder(jetbus.PerKey, 3))
	r.eventually("one member is active", func() error { return inactive(first) })
	second := r.subscribe(r.B, topic, "g", until(false), inOrder(jetbus.PerKey, 3))
	r.number(topic, keys, 0, each)
	r.eventually("all its handlers are busy, and events wait behind them", func() error {
		if st := first.Stats(); (len(enough) < cap(enough) || st.Held < 3*keys) && (r.inbox == nil || line.missing(keys*each) != nil) {
			return fmt.Errorf("%d are busy, %d events are held", len(enough), st.Held)
		}
		return nil
	})
	st := second.Stats() // in elections its turn may have come already
	if both := st.Active && inactive(first) == nil; both || r.inbox == nil && (st.Active || st.Delivered > 0 || st.Held > 0) {
		r.Errorf("of two members both are active: %+v", st)
	}
	go close(leave) // handlers that run may end, and are waited for
	r.stop(first)
	stopped := time.Now()
	r.eventually("the other member goes on", func() error {
		if second.Stats().Delivered == 0 {
			return errors.New("it does not")
		}
		return nil
	})
	if d := time.Since(stopped); r.fake && d > time.Second {
		r.Errorf("the other member went on after %v", d)
	}
	r.settled(topic, "g", keys*each)
	line.check(r)
	if runs, success := line.counts(); runs != success && r.inbox == nil || success != keys*each {
		r.Errorf("%d runs, %d successes of %d events", runs, success, keys*each)
	}
	if st := first.Stats(); r.inbox == nil && (st.GivenBack == 0 || st.LeasesLost > 0) {
		r.Errorf("the first member's end: %+v", st)
	}
}

func inactive(s jetbus.Subscription) error {
	if !s.Stats().Active {
		return errors.New("it is not")
	}
	return nil
}

func takenOver(r *run) {
	topic := r.topic("t")
	const keys, each = 5, 20
	nc, err := r.Broker.Connect(nats.NoReconnect())
	r.must(err)
	dying, err := r.Open(r.ctx, nc)
	r.must(err)
	defer func() { _ = dying.Close(r.ctx) }()
	var line lineup
	release := make(chan struct{})
	good := line.handle(0)
	first := r.subscribe(dying, topic, "g", func(ctx context.Context, d *jetbus.Delivery) error {
		if d.Seq > keys*each/2 {
			<-release
			return errors.New("dead")
		}
		return good(ctx, d)
	}, inOrder(jetbus.PerKey, 3))
	r.number(topic, keys, 0, each)
	r.eventually("handlers run", func() error {
		if n := first.Stats().Running; n < 3 {
			return fmt.Errorf("%d do", n)
		}
		return nil
	})
	r.subscribe(r.A, topic, "g", good, inOrder(jetbus.PerKey, 3))
	nc.Close()
	close(release)
	<-first.Done()
	r.pause(20 * time.Second)
	r.eventually("all events succeed", func() error { return line.missing(keys * each) })
	r.settled(topic, "g", keys*each)
	line.check(r)
}

func oneOrder(r *run) {
	topic := r.topic("t")
	got := r.newRecord()
	s := r.subscribe(r.A, topic, "g", got.handle, inOrder(jetbus.PerKey, 1))
	r.eventually("the member is active", func() error { return inactive(s) })
	_, err := r.B.Subscribe(r.ctx, topic, "g", got.handle, jetbus.SubscribeOptions{})
	if !errors.Is(err, jetbus.ErrConflict) || !strings.Contains(err.Error(), "Order") {
		r.Errorf("a member without order beside one with: %v", err)
	}
	r.stop(s)
	// A lock whose release is lost lasts until its time is over, and the group is its holder's until then.
	r.must(r.insist(jetbus.ErrConflict, func() error {
		s, err = r.B.Subscribe(r.ctx, topic, "g", got.handle, inOrder(jetbus.Total, 1))
		return err
	}))
	r.eventually("the member is active", func() error { return inactive(s) })
	r.number(topic, 3, 0, 1)
	r.settled(topic, "g", 3)
	if keys := strings.Join(got.keys(), " "); keys != "k0 k1 k2" {
		r.Errorf("events came in the order %s", keys)
	}
}
