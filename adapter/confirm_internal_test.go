package adapter

import (
	"math"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// confirmable holds an event of a durable on which an earlier one is settled, as if others
// could take its lead.
func confirmable(t *testing.T) (l *lease, c *confirmer, heard *nats.Subscription) {
	t.Helper()
	ctx := t.Context()
	_, nc, _ := directStream(t)
	b := openBus(t, nc, Config{Storage: jetbus.MemoryStorage})
	if _, err := b.EnsureTopic(ctx, jetbus.TopicConfig{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := b.Publish(ctx, jetbus.Event{Topic: "a"}); err != nil {
			t.Fatal(err)
		}
	}
	ds, err := b.Receive(ctx, "a", "g", jetbus.ReceiveOptions{From: jetbus.Earliest(), Max: 2, Wait: -1, AckTimeout: time.Hour})
	if err != nil || len(ds) != 2 {
		t.Fatal(ds, err)
	}
	h := b.leaseSets("a", "g")[0]
	l = h.all()[1]
	h.mu.Lock()
	c = &confirmer{on: b.connections.Load()}
	h.confirmers[l.consumer] = c
	h.mu.Unlock()
	if err := ds[0].Ack(ctx); err != nil {
		t.Fatal(err)
	}
	if heard, err = nc.SubscribeSync("$JS.ACK.>"); err != nil {
		t.Fatal(err)
	}
	return l, c, heard
}

// An extension where others may take the lead counts when an acknowledgement behind it is
// answered, of an event that is settled.
func TestExtensionIsConfirmed(t *testing.T) {
	t.Parallel()
	l, _, heard := confirmable(t)
	before := l.Deadline()
	if err := l.Extend(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if !l.Deadline().After(before) {
		t.Errorf("the lease ends at %v, as before", before)
	}
	l.h.askAll([]*lease{l, l})
	extended := func(m *nats.Msg) bool { return string(m.Data) == "+WPI" }
	confirms := func(m *nats.Msg) bool {
		a, ok := parseAckReply(m.Subject)
		return ok && len(m.Data) == 0 && a.seq == 1 && a.consumer == l.consumer && m.Reply != ""
	}
	for i, is := range []func(*nats.Msg) bool{extended, confirms, extended, extended, confirms} {
		if m, err := heard.NextMsg(time.Minute); err != nil || !is(m) {
			t.Errorf("message %d is %+v, %v", i, m, err)
		}
	}
}

// underWay makes a confirmation that is not answered, of the sequence that is the next one's, too.
func (c *confirmer) underWay() *confirmation {
	f := &confirmation{seq: c.own, at: time.Now().Add(time.Hour), on: c.on, forget: func() {}} // it is not late by itself
	c.line = c.on
	c.sent = append(c.sent, f)
	return f
}

// While a confirmation is under way what is extended waits for the next one, and is extended
// again where the first is late, or its connection gone.
func TestConfirmationIsLate(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]func(h *leaseSet, f *confirmation){
		"unanswered":      func(_ *leaseSet, f *confirmation) { f.at = time.Now().Add(-confirmWithin) },
		"with connection": func(h *leaseSet, _ *confirmation) { h.b.connections.Add(1) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, c, _ := confirmable(t)
			h := l.h
			h.mu.Lock()
			f := c.underWay()
			deadline := l.deadline
			h.mu.Unlock()
			h.askAll([]*lease{l})
			confirmed := make(chan bool, 1)
			go func() { confirmed <- l.isConfirmed(t.Context(), time.Now(), c.on) }()
			for waiting := 0; waiting < 2; {
				h.mu.Lock()
				waiting = len(c.waiting)
				h.mu.Unlock()
			}
			h.mu.Lock()
			h.overdueLocked(time.Now())
			if !c.isBusy() || h.cutOff(l) || h.extendable(l, time.Now()) {
				t.Error("a confirmation that is under way is given up, or what nothing extends is extended again")
			}
			late(h, f)
			h.overdueLocked(time.Now())
			if c.isBusy() || len(c.waiting) != 0 || !h.cutOff(l) || !h.extendable(l, time.Now()) || l.known {
				t.Errorf("under way: %t, %d wait; the lease is known: %t, to be extended at once: %t", c.isBusy(), len(c.waiting), l.known, h.cutOff(l))
			}
			h.mu.Unlock()
			if <-confirmed || !l.Deadline().Equal(deadline) {
				t.Error("what was given up is confirmed")
			}
		})
	}
}

// What a quorum that is slow confirms late counts. Of two confirmations of one sequence the reply to the
// later one is sent when the earlier one is there.
func TestConfirmedLate(t *testing.T) {
	t.Parallel()
	l, c, _ := confirmable(t)
	h := l.h
	h.mu.Lock()
	first := c.underWay()
	at := time.Now()
	first.extensions = []sentExtension{{l: l, at: at, on: c.on}}
	h.overdueLocked(first.at.Add(confirmWithin))
	told := make(chan bool, 1)
	second := c.underWay()
	second.extensions = []sentExtension{{l: l, at: at.Add(time.Minute), on: c.on, told: told}}
	before := l.deadline
	h.overdueLocked(second.at.Add(confirmWithin))
	if !c.isBusy() {
		t.Error("the second one has no more time than the first")
	}
	h.mu.Unlock()
	h.confirmed(c, second, &nats.Msg{})
	if want := at.Add(h.safe()); !l.Deadline().Equal(want) || !l.Deadline().After(before) {
		t.Errorf("the lease ends %v before what was extended first says", want.Sub(l.Deadline()))
	}
	if <-told || len(c.sent) != 0 {
		t.Errorf("what was extended behind it is confirmed, or waits: %d", len(c.sent))
	}
	h.mu.Lock()
	for range maxUnanswered + 2 {
		f := c.underWay()
		h.overdueLocked(f.at.Add(time.Hour))
	}
	if len(c.sent) != maxUnanswered {
		t.Errorf("%d answers are awaited", len(c.sent))
	}
	h.mu.Unlock()
}

// What was extended on a connection that is no more is not confirmed on the next one; and "no
// responders" is no answer.
func TestNotConfirmed(t *testing.T) {
	t.Parallel()
	l, c, _ := confirmable(t)
	h := l.h
	if l.isConfirmed(t.Context(), time.Now(), c.on-1) || len(c.waiting) > 0 {
		t.Error("what was sent on another connection is confirmed, or waits")
	}
	h.mu.Lock()
	f := c.underWay()
	f.extensions = []sentExtension{{l: l, at: time.Now(), on: c.on}}
	before := l.deadline
	h.mu.Unlock()
	nobody := &nats.Msg{Header: nats.Header{"Status": {"503"}}}
	h.confirmed(c, f, nobody)
	if !l.Deadline().Equal(before) || !c.isBusy() {
		t.Error("an extension counts that nobody has confirmed")
	}
	h.confirmed(c, f, &nats.Msg{})
	if !l.Deadline().After(before) || c.isBusy() {
		t.Error("an extension that was confirmed does not count")
	}
	h.mu.Lock()
	c.waiting = []sentExtension{{l: l, at: time.Now(), on: c.on}}
	h.b.connections.Add(1)
	h.mu.Unlock()
	h.confirm(c)
	if len(c.waiting) > 0 || len(c.sent) > 0 || c.choose(l, h.b.connections.Load()) != nothing {
		t.Error("what was settled on another connection is taken to be")
	}
}

// What is settled on a durable is what its holder has acknowledged, or what its floor
// says. It is not known any more on another connection, nor where the durable was made anew or
// set back; then it is nothing that is acknowledged. And on one server nothing is to be confirmed.
func TestSettledByDurable(t *testing.T) {
	t.Parallel()
	l, _, _ := confirmable(t)
	h := l.h
	info := func(name string, created int64, floor, delivered uint64) *jetstream.ConsumerInfo {
		return &jetstream.ConsumerInfo{
			Name: name, Created: time.Unix(created, 0), Config: jetstream.ConsumerConfig{Metadata: map[string]string{}},
			AckFloor: jetstream.SequenceInfo{Stream: floor}, Delivered: jetstream.SequenceInfo{Stream: delivered},
			Cluster: &jetstream.ClusterInfo{Replicas: make([]*jetstream.PeerInfo, 2)},
		}
	}
	alone, ordered := info("d", 1, 5000, 5000), info("d", 1, 5000, 5000)
	alone.Cluster.Replicas, ordered.Config.Metadata[metaOrder] = nil, string(jetbus.PerKey)
	const unconfirmed, fromFloor = math.MaxUint64 - 1, math.MaxUint64
	for _, c := range []struct {
		what string
		do   func()
		want uint64
	}{
		{"one server", func() { h.adoptedLocked(alone, 1) }, unconfirmed},
		{"an ordered group", func() { h.adoptedLocked(ordered, 1) }, unconfirmed},
		{"an acknowledgement of what was not adopted", func() { h.ackedLocked(&lease{consumer: "d", seq: 9}) }, unconfirmed},
		{"no floor", func() { h.adoptedLocked(info("d", 1, 0, 5000), 1) }, nothing},
		{"a floor", func() { h.adoptedLocked(info("d", 1, 1000, 5000), 1) }, fromFloor},
		{"an acknowledgement", func() { h.ackedLocked(&lease{consumer: "d", seq: 4000}) }, 4000},
		{"what was asked on an earlier connection", func() { h.adoptedLocked(info("d", 2, 1, 1), 0) }, 4000},
		{"the floor again", func() { h.adoptedLocked(info("d", 1, 2000, 5000), 1) }, 4000},
		{"set back", func() { h.adoptedLocked(info("d", 1, 2, 3), 1) }, fromFloor},
		{"an acknowledgement behind that", func() { h.ackedLocked(&lease{consumer: "d", seq: 3}) }, 3},
		{"made anew", func() { h.adoptedLocked(info("d", 2, 1, 3), 1) }, fromFloor},
		{"an acknowledgement behind that, too", func() { h.ackedLocked(&lease{consumer: "d", seq: 2}) }, 2},
		{"another connection", func() { h.b.connections.Add(1) }, nothing},
		{"an acknowledgement on that", func() { h.ackedLocked(&lease{consumer: "d", seq: 2}) }, nothing},
		{"adopted on that, with a floor behind it", func() { h.adoptedLocked(info("d", 2, 1, 5000), 2) }, fromFloor},
		{"an acknowledgement again", func() { h.ackedLocked(&lease{consumer: "d", seq: 4}) }, 4},
		{"adopted on another one, with a floor above it", func() { h.b.connections.Add(1); h.adoptedLocked(info("d", 2, 4, 5000), 3) }, 4},
		{"made anew with a high floor", func() { h.adoptedLocked(info("d", 3, 5000, 5000), 3) }, fromFloor},
	} {
		h.mu.Lock()
		c.do()
		of := &lease{consumer: "d", t: l.t}
		got, on := h.confirmerLocked(of), h.b.connections.Load()
		switch {
		case (got == nil) != (c.want == unconfirmed):
			t.Errorf("%s: %+v, want %d", c.what, got, c.want)
		case got == nil:
		case c.want == fromFloor && (got.own > 0 || got.choose(of, on) > got.floor), c.want != fromFloor && got.choose(of, on) != c.want:
			t.Errorf("%s: %d is chosen of %+v, want %d", c.what, got.choose(of, on), got, c.want)
		}
		h.mu.Unlock()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.confirmers["d"]
	c.own = 4000
	c.underWay()
	on := h.b.connections.Load()
	if of := (&lease{t: l.t}); c.choose(of, on) == 4000 {
		t.Error("a sequence is chosen that an unanswered confirmation has")
	}
	foreign := &lease{consumer: "d", t: &topic{config: jetbus.TopicConfig{Subject: "x"}}}
	if c.choose(foreign, on) != 4000 {
		t.Error("in a stream of somebody else's more is acknowledged than what this holder has settled")
	}
	if c.own = nothing; c.choose(foreign, on) != nothing {
		t.Error("in a stream of somebody else's the floor is taken for settled")
	}
	h.adoptedLocked(info("d__e1", 3, 0, 0), 3)
	if len(h.confirmers) != 3 || h.confirmers["d"] == nil { // the third one is that of l
		t.Errorf("a durable that is no group's takes away another: %d", len(h.confirmers))
	}
	moved := info("d__e1", 3, 0, 0)
	moved.Config.Metadata[metaEpoch] = "1"
	delete(h.confirmers, "d__e1")
	if h.adoptedLocked(moved, 3); len(h.confirmers) != 2 || h.confirmers["d"] != nil {
		t.Errorf("the durable that a group has left is kept: %d", len(h.confirmers))
	}
}
