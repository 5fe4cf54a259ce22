package adapter

import (
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
	c = &confirmer{}
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

// While a confirmation is under way what is extended waits for the next one, and for another
// extension where the first is lost, with its connection or with who led.
func TestConfirmationIsLost(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]func(h *leaseSet, c *confirmer){
		"unanswered":      func(_ *leaseSet, c *confirmer) { c.flight.sent = c.flight.sent.Add(-confirmWithin) },
		"with connection": func(h *leaseSet, _ *confirmer) { h.b.connections.Add(1) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, c, _ := confirmable(t)
			h := l.h
			h.mu.Lock()
			inFlight := &confirmation{sent: time.Now(), on: h.b.connections.Load(), forget: func() {}}
			c.flight = inFlight // it is not answered
			h.mu.Unlock()
			h.askAll([]*lease{l})
			confirmed := make(chan bool, 1)
			go func() { confirmed <- l.isConfirmed(t.Context(), time.Now()) }()
			for waiting := 0; waiting < 2; {
				h.mu.Lock()
				waiting = len(c.waiting)
				h.mu.Unlock()
			}
			h.mu.Lock()
			deadline := l.deadline
			h.overdueLocked(time.Now())
			if c.flight != inFlight || h.cutOff(l) {
				t.Error("a confirmation that is under way was given up")
			}
			lost(h, c)
			h.overdueLocked(time.Now())
			if c.flight != nil || len(c.waiting) != 0 || !h.cutOff(l) || l.known {
				t.Errorf("under way: %v, %d wait; the lease is known: %t, to be extended at once: %t", c.flight, len(c.waiting), l.known, h.cutOff(l))
			}
			h.mu.Unlock()
			if <-confirmed {
				t.Error("what was given up is confirmed")
			}
			h.confirmed(c, inFlight, &nats.Msg{}) // late
			if !l.Deadline().Equal(deadline) {
				t.Error("a late answer extends a lease")
			}
			h.askAll([]*lease{l})
			if !l.isConfirmed(t.Context(), time.Now()) || !l.Deadline().After(deadline) {
				t.Error("another extension does not help")
			}
		})
	}
}

// What was extended on a connection that is no more is not confirmed on the next one; and "no
// responders" is no answer.
func TestNotConfirmed(t *testing.T) {
	t.Parallel()
	l, c, _ := confirmable(t)
	h := l.h
	h.mu.Lock()
	told := make(chan bool, 1)
	c.waiting = []sentExtension{{l: l, at: time.Now(), on: h.b.connections.Load() - 1, told: told}}
	h.mu.Unlock()
	h.confirm(c)
	select {
	case confirmed := <-told:
		if confirmed || c.flight != nil {
			t.Error("what was sent on another connection is confirmed")
		}
	default:
		t.Error("what was sent on another connection waits")
	}
	f := &confirmation{on: h.b.connections.Load(), extensions: []sentExtension{{l: l, at: time.Now()}}}
	h.mu.Lock()
	c.flight = f
	before := l.deadline
	h.mu.Unlock()
	h.confirmed(c, f, &nats.Msg{Header: nats.Header{"Status": {"503"}}})
	if !l.Deadline().Equal(before) || c.flight != f {
		t.Error("an extension counts that nobody has confirmed")
	}
	h.confirmed(c, f, &nats.Msg{})
	if !l.Deadline().After(before) {
		t.Error("an extension that was confirmed does not count")
	}
}

// A durable that was made anew has settled what its own floor says, and nothing that another one
// of its name had; on one server nothing is to be confirmed.
func TestSettledByDurable(t *testing.T) {
	t.Parallel()
	h := &leaseSet{}
	h.init()
	info := func(created, floor int64, replicas int) *jetstream.ConsumerInfo {
		return &jetstream.ConsumerInfo{
			Name: "d", Created: time.Unix(created, 0), AckFloor: jetstream.SequenceInfo{Stream: uint64(floor)}, //nolint:gosec // small
			Cluster: &jetstream.ClusterInfo{Replicas: make([]*jetstream.PeerInfo, replicas)},
		}
	}
	for i, c := range []struct {
		info *jetstream.ConsumerInfo
		want uint64 // 0: no confirmations
	}{
		{&jetstream.ConsumerInfo{Name: "d"}, 0},
		{info(1, 7, 0), 0},
		{info(1, 0, 2), 0},
		{info(1, 7, 2), 7},
		{info(1, 3, 2), 7},
		{info(2, 3, 2), 3},
		{info(3, 0, 2), 0},
	} {
		h.adoptedLocked(c.info)
		l := &lease{consumer: "d"}
		switch got := h.confirmerLocked(l); {
		case c.want == 0 && got != nil, c.want > 0 && (got == nil || got.settled != c.want):
			t.Errorf("%d: %+v, want %d", i, got, c.want)
		}
	}
	h.ackedLocked(&lease{consumer: "d", seq: 9})
	h.ackedLocked(&lease{consumer: "other", seq: 9})
	if got := h.confirmerLocked(&lease{consumer: "d"}); got == nil || got.settled != 9 || h.confirmerLocked(&lease{consumer: "d", slot: &slot{}}) != nil {
		t.Errorf("after an acknowledgement: %+v", got)
	}
}
