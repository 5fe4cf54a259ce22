package bustest

import (
	"fmt"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/seed-63e9a637/jetbus"
)

// modelBehaviors are properties, which hold for whatever is drawn.
var modelBehaviors = []Behavior{
	{Name: "any valid event comes back from its topic as it was", Cases: []int{36, 72}, play: roundTrip},
	{Name: "any interleaving of receive, ack, nack, extend, give-back and expiry agrees with a model", Cases: []int{7, 72}, Needs: NeedReceive | NeedFakeTime, play: anyInterleaving},
}

// modelChecks is how many scripts are drawn.
const modelChecks = 25

// check is rapid.Check for a bubble: it hides t.Deadline, and draws no more than
// modelChecks times.
func (r *run) check(property func(t *rapid.T)) {
	n := 0
	rapid.Check(struct{ rapid.TB }{r.T}, func(t *rapid.T) {
		if n++; n <= modelChecks {
			property(t)
		}
	})
}

// text draws strings that an event may hold.
func text(bytes int) *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		s := rapid.StringN(0, bytes/4, bytes).Draw(t, "text")
		if (&jetbus.Event{Topic: "t", ID: s, Key: s}).Validate() != nil {
			s = fmt.Sprintf("%q", rapid.StringMatching(`[ -~]{0,20}`).Draw(t, "plain"))
		}
		return s
	})
}

// anyEvent draws a valid event of a topic.
func anyEvent(t *rapid.T, topic string) jetbus.Event {
	items := rapid.SliceOfN(rapid.StringMatching(`[ -~\x{e9}\x{2603}]{1,20}`), 0, 4)
	e := jetbus.Event{
		Topic: topic, Key: text(100).Draw(t, "key"), ID: jetbus.NewID() + text(60).Draw(t, "id"), SID: text(60).Draw(t, "sid"),
		Time:    time.UnixMilli(rapid.Int64Range(-1e12, 1e13).Draw(t, "time")).UTC(),
		Payload: rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "payload"),
		Tags:    items.Draw(t, "tags"), CausedBy: items.Draw(t, "caused by"), Headers: map[string]string{},
	}
	for name, value := range rapid.MapOfN(rapid.StringMatching(`x-[a-z0-9_.-]{1,10}`), text(80), 0, 4).Draw(t, "headers") {
		if jetbus.ValidHeader(name, value) == nil {
			e.Headers[name] = value
		}
	}
	if e.Validate() != nil {
		e.ID = jetbus.NewID()
	}
	return e
}

func roundTrip(r *run) {
	topic := r.topic("t")
	got := newRecord()
	r.subscribe(r.B, topic, "g", got.handle, jetbus.SubscribeOptions{})
	n := 0
	r.check(func(t *rapid.T) {
		e := anyEvent(t, topic)
		receipt, err := r.A.Publish(r.ctx, e)
		if err != nil {
			t.Fatal(err)
		}
		if receipt.Duplicate { // the same event, drawn again to make it simpler
			return
		}
		want := e
		want.Seq, want.Partition = receipt.Event.Seq, jetbus.NoPartition
		if want.SID == "" {
			want.SID = receipt.Event.SID
		}
		n++
		if diff := cmp.Diff(want, got.wait(r.T, n)[n-1].Event, cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
	})
	r.settled(topic, "g", uint64(n))
}

// The times of the model: steps of modelStep never come near the end of a lease.
const (
	modelTimeout = 25 * time.Second
	modelDelay   = 15 * time.Second
	modelStep    = 10 * time.Second
)

// modelEvent is what the model knows of one event.
type modelEvent struct {
	acked    bool
	attempts int       // deliveries that were not given back
	free     time.Time // from when on it may be delivered
	touched  bool      // it was delivered
}

// modelLease is what the model knows of one delivery.
type modelLease struct {
	d       *jetbus.Delivery
	e       *modelEvent
	settled bool
	until   time.Time
}

// model drives a group by Receive and predicts what happens.
type model struct {
	r            *run
	t            *rapid.T
	topic, group string
	events       map[uint64]*modelEvent
	leases       []*modelLease
}

func anyInterleaving(r *run) {
	n := 0
	r.check(func(t *rapid.T) {
		n++
		m := &model{r: r, t: t, topic: r.topic(fmt.Sprint("t", n)), group: "g", events: map[uint64]*modelEvent{}}
		for _, e := range r.publish(m.topic, keys(rapid.IntRange(1, 4).Draw(t, "events"))...) {
			m.events[e.Seq] = &modelEvent{}
		}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			m.step()
			m.compare()
		}
		m.finish()
	})
}

// step does one thing that is drawn.
func (m *model) step() {
	what := rapid.SampledFrom([]string{"receive", "pass", "ack", "nack", "nack later", "extend", "give back"}).Draw(m.t, "step")
	switch what {
	case "receive":
		m.receive(rapid.IntRange(1, 4).Draw(m.t, "max"))
		return
	case "pass":
		m.r.pause(modelStep)
		return
	}
	if len(m.leases) == 0 {
		return
	}
	l := m.leases[rapid.IntRange(0, len(m.leases)-1).Draw(m.t, "lease")]
	now := time.Now()
	var want, err error
	switch {
	case l.settled:
		want = jetbus.ErrAlreadySettled
	case !now.Before(l.until):
		want = jetbus.ErrLeaseExpired
	}
	switch what {
	case "ack":
		err = l.d.Ack(m.r.ctx)
	case "nack":
		err = l.d.Nack(m.r.ctx, jetbus.NackOptions{Delay: -1})
	case "nack later":
		err = l.d.Nack(m.r.ctx, jetbus.NackOptions{Delay: modelDelay})
	case "extend":
		err = l.d.Extend(m.r.ctx, 0)
	case "give back":
		err = l.d.GiveBack(m.r.ctx)
	}
	wantErr(m.r.T, what+" of "+l.d.Key, err, want)
	if want == nil {
		l.done(what, now)
	}
}

// done is what a call that succeeded means.
func (l *modelLease) done(what string, now time.Time) {
	l.settled = what != "extend"
	switch what {
	case "ack":
		l.e.acked = true
	case "nack":
		l.e.free = now
	case "nack later":
		l.e.free = now.Add(modelDelay)
	case "extend":
		l.until = now.Add(modelTimeout)
		l.e.free = l.until
	case "give back":
		l.e.free = now
		l.e.attempts--
	}
}

// receive takes events, and checks that they may be delivered now.
func (m *model) receive(limit int) {
	m.r.pause(50 * time.Millisecond) // acknowledgements are not answered
	now := time.Now()
	free := 0
	for _, e := range m.events {
		if !e.acked && !now.Before(e.free) {
			free++
		}
	}
	ds, err := m.r.A.(jetbus.Receiver).Receive(m.r.ctx, m.topic, m.group, jetbus.ReceiveOptions{
		From: jetbus.Earliest(), Max: limit, Wait: -1, AckTimeout: modelTimeout,
	})
	if err != nil {
		m.t.Fatal(err)
	}
	if len(ds) > min(free, limit) || len(ds) == 0 && free > 0 {
		m.t.Fatalf("received %d of at most %d, %d are free", len(ds), limit, free)
	}
	for _, d := range ds {
		e := m.events[d.Seq]
		if e.acked || now.Before(e.free) {
			m.t.Fatalf("event %s was delivered while %+v", d.Key, e)
		}
		e.attempts++
		if d.Attempt != e.attempts {
			m.t.Fatalf("event %s is attempt %d, want %d", d.Key, d.Attempt, e.attempts)
		}
		e.touched, e.free = true, now.Add(modelTimeout)
		m.leases = append(m.leases, &modelLease{d: d, e: e, until: now.Add(modelTimeout)})
	}
}

// compare waits for the server to agree with the model.
func (m *model) compare() {
	held, pending := 0, 0
	for _, e := range m.events {
		switch {
		case !e.touched:
			pending++
		case !e.acked:
			held++
		}
	}
	if pending == len(m.events) { // there may be no group yet
		return
	}
	m.r.reaches(m.topic, m.group, func(g jetbus.GroupInfo) bool { return g.Held == held && int(g.Pending) == pending },
		fmt.Sprintf("%d held and %d pending", held, pending))
}

// finish settles everything.
func (m *model) finish() {
	for range 10 * len(m.events) {
		m.r.pause(modelTimeout + modelStep)
		m.receive(len(m.events))
		open := false
		for _, l := range m.leases {
			if !l.settled && time.Now().Before(l.until) {
				m.r.must(l.d.Ack(m.r.ctx))
				l.done("ack", time.Now())
			}
		}
		for _, e := range m.events {
			open = open || !e.acked
		}
		if !open {
			break
		}
	}
	m.r.settled(m.topic, m.group, uint64(len(m.events)))
}
