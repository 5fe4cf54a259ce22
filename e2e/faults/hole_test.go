//go:build unix

package faults

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/e2e/internal/broker"
	"github.com/seed-63e9a637/jetbus/e2e/internal/proxy"
	"github.com/seed-63e9a637/jetbus/e2e/internal/rig"
)

// acks collects what a client says about the events it holds.
type acks struct {
	mu   sync.Mutex
	said []ack
}

// ack is a settlement: an acknowledgement, or a refusal.
type ack struct {
	seq        uint64
	deliveries int
	body       string
}

// see notes a frame if it settles an event. Extensions settle nothing.
func (a *acks) see(f proxy.Frame) {
	tokens := strings.Split(f.Subject, ".")
	if len(tokens) < 9 || tokens[0] != "$JS" || tokens[1] != "ACK" || f.Body == "+WPI" {
		return
	}
	numbers := tokens[len(tokens)-5:] // deliveries, stream and consumer sequence, time, pending
	if len(tokens) > 11 {
		numbers = tokens[6:11] // domain and account hash in front, something random behind
	}
	deliveries, _ := strconv.Atoi(numbers[0])
	seq, _ := strconv.ParseUint(numbers[1], 10, 64)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.said = append(a.said, ack{seq: seq, deliveries: deliveries, body: f.Body})
}

// of returns the settlements of one delivery of an event.
func (a *acks) of(seq uint64, deliveries int) []ack {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(a.said), func(k ack) bool { return k.seq != seq || k.deliveries != deliveries })
}

// TestSilence lets the connection of a member fall silent, or end and not come
// back, for longer than a lease while its handler runs.
func TestSilence(t *testing.T) {
	t.Parallel()
	b := broker.Start(t)
	for name, fault := range map[string]func(*proxy.Proxy){
		"both":    func(p *proxy.Proxy) { p.Hole(proxy.ToServer, proxy.ToClient) },
		"answers": func(p *proxy.Proxy) { p.Hole(proxy.ToClient) },
		"asks":    func(p *proxy.Proxy) { p.Hole(proxy.ToServer) },
		"cut":     func(p *proxy.Proxy) { p.Refuse() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			silence(t, b, name, fault)
		})
	}
}

func silence(t *testing.T, b *broker.Broker, topic string, fault func(*proxy.Proxy)) {
	t.Helper()
	const ackTimeout = 15 * time.Second // what is left of it when it is extended outlasts what stands still
	bus := rig.OpenBus(t, b.URL())
	rig.Declare(t, bus, jetbus.TopicConfig{Name: topic})
	p := b.Proxy(t)
	var settled acks
	p.Watch(settled.see)

	first := rig.Spawn(t, "consumer", consumerConfig{URL: p.URL(), Topic: topic, Group: "g", AckTimeout: ackTimeout, Hold: "held-0"})
	first.First(t, "ready")
	ids := rig.Publish(t, bus, topic, "held", 1)
	event := first.Of(t, "started", "held-0")
	second := rig.Spawn(t, "consumer", consumerConfig{URL: b.URL(), Topic: topic, Group: "g", AckTimeout: ackTimeout})
	second.First(t, "ready")

	// Longer than a lease, so that the bus has to have extended it.
	first.Await(t, "extended", func(r rig.Report) bool { return r.At.Sub(event.At) > ackTimeout })
	if r := second.Said("started"); len(r) > 0 {
		t.Fatalf("the second member got the event while the first held it and was heard: %+v", r)
	}
	fault(p)
	broke := time.Now()
	first.Order(t, "publish from-silence")
	first.Of(t, "publishing", "from-silence")

	canceled := first.Of(t, "canceled", "held-0")
	again := second.Of(t, "started", "held-0")
	if canceled.Is != "lease expired" {
		t.Errorf("the first handler was canceled because of %q, want ErrLeaseExpired", canceled.Err)
	}
	// By when it has to be canceled. When the handler wakes is up to the machine; in fake
	// time the contract of the bus has that, too.
	if !canceled.Until.Before(again.At) {
		t.Errorf("the second handler started %v before the first one's lease ended", canceled.Until.Sub(again.At))
	}
	if left := canceled.Until.Sub(broke); left > ackTimeout {
		t.Errorf("the first one's lease ended %v after the fault, it is %v", left, ackTimeout)
	}
	if again.Attempt != 1 || !again.Redelivered { // a process or a connection failed, no handler
		t.Errorf("the second handler has attempt %d, redelivered %v, want 1, true", again.Attempt, again.Redelivered)
	}
	if late := first.Of(t, "acked late", "held-0"); late.Is != "lease expired" {
		t.Errorf("the late ack gave %q, want ErrLeaseExpired", late.Err)
	}
	second.Of(t, "handled", "held-0")

	p.Restore()
	stored := first.Of(t, "published", "from-silence")
	if stored.Err != "" {
		t.Errorf("publish through the fault: %s", stored.Err)
	}
	ids = append(append(ids, "from-silence"), rig.Publish(t, bus, topic, "after", 20)...)
	rig.AwaitHandled(t, ids, first, second)
	rig.AwaitSettled(t, bus, topic, "g")
	checkLog(t, bus, topic, ids)
	if sent := settled.of(event.Seq, 1); len(sent) > 0 {
		t.Errorf("the first member settled an event whose lease it had lost: %+v", sent)
	}
	// The member is not worse for it: alone, it goes on.
	second.Kill()
	more := rig.Publish(t, bus, topic, "alone", 5)
	rig.AwaitHandled(t, more, first)
	rig.AwaitSettled(t, bus, topic, "g")
}

// cutter cuts the connections through a proxy at moments that it makes out from
// what the client says, and not by the clock: a busy machine takes as long as it
// takes to come back.
type cutter struct {
	*proxy.Proxy
	armed   atomic.Bool  // the next extension is cut off
	offs    atomic.Int64 // extensions that were
	subs    atomic.Int64 // what the client subscribed to: on each connection the first thing it says once it is taken
	settled acks
}

func (c *cutter) see(f proxy.Frame) {
	c.settled.see(f)
	switch {
	case strings.HasPrefix(string(f.Raw), "SUB "):
		c.subs.Add(1)
	case f.Body == "+WPI" && c.armed.CompareAndSwap(true, false):
		c.Cut() // it does not get through
		c.offs.Add(1)
	}
}

// cutBack cuts the connection, and returns when the client has come back.
func (c *cutter) cutBack(t *testing.T) {
	t.Helper()
	before := c.subs.Load()
	c.Cut()
	rig.Eventually(t, func() string {
		if c.subs.Load() == before {
			return "the client does not come back"
		}
		return ""
	})
}

// cutOff cuts the connection at the next extension of a lease.
func (c *cutter) cutOff(t *testing.T) {
	t.Helper()
	before := c.offs.Load()
	c.armed.Store(true)
	rig.Eventually(t, func() string {
		if c.offs.Load() == before {
			return "no extension is asked for"
		}
		return ""
	})
}

// TestShortCut cuts the connection of a member again and again while its handler
// runs, also at the extensions of its lease, of which only every other one gets
// through. It reconnects within the lease, and keeps it.
func TestShortCut(t *testing.T) {
	t.Parallel()
	const ackTimeout = 45 * time.Second // five connections in a row are made within its last two thirds, on a very busy machine, too
	b := broker.Start(t)
	bus := rig.OpenBus(t, b.URL())
	rig.Declare(t, bus, jetbus.TopicConfig{Name: "cut"})
	p := &cutter{Proxy: b.Proxy(t)}
	p.Watch(p.see)
	p.Slow(2 * time.Millisecond)
	holder := rig.Spawn(t, "consumer", consumerConfig{URL: p.URL(), Topic: "cut", Group: "g", AckTimeout: ackTimeout, Hold: "held-0"})
	holder.First(t, "ready")
	ids := rig.Publish(t, bus, "cut", "held", 1)
	event := holder.Of(t, "started", "held-0")
	other := rig.Spawn(t, "consumer", consumerConfig{URL: b.URL(), Topic: "cut", Group: "g", AckTimeout: ackTimeout})
	other.First(t, "ready")

	// The connections together last longer than two leases, and none as long as one.
	for rounds := 0; rounds < 5 || time.Since(event.At) <= 2*ackTimeout; rounds++ {
		for range 3 {
			p.cutBack(t)
		}
		extended := holder.Said("extended")
		p.cutOff(t)
		holder.Await(t, "extended", func(r rig.Report) bool { return len(extended) == 0 || r.Until.After(extended[len(extended)-1].Until) })
	}
	holder.Order(t, "publish across-cuts")
	p.Cut()
	if r := holder.Of(t, "published", "across-cuts"); r.Err != "" {
		t.Errorf("publish across cuts: %s", r.Err)
	}
	holder.Order(t, "release")
	holder.Of(t, "handled", "held-0")
	ids = append(append(ids, "across-cuts"), rig.Publish(t, bus, "cut", "after", 10)...)
	rig.AwaitHandled(t, ids, holder, other)
	rig.AwaitSettled(t, bus, "cut", "g")
	checkLog(t, bus, "cut", ids)
	if got := rig.Handled(other); got["held-0"] {
		t.Error("another member got the event of a handler that held its lease")
	}
	if r := holder.Said("canceled"); len(r) > 0 {
		t.Errorf("the handler was canceled: %+v", r)
	}
	if sent := p.settled.of(event.Seq, 1); len(sent) != 1 {
		t.Errorf("the holder settled the event %d times: %+v", len(sent), sent)
	}
}

// TestFrozen stops the clock of a process, as a suspended machine does, for longer
// than a lease while its handler runs. When it goes on, its handler finishes at
// once, and what it says about the event must not be sent any more.
func TestFrozen(t *testing.T) {
	t.Parallel()
	const ackTimeout = 15 * time.Second // the second member is there within it, on any machine
	b := broker.Start(t)
	bus := rig.OpenBus(t, b.URL())
	rig.Declare(t, bus, jetbus.TopicConfig{Name: "frozen"})
	p := b.Proxy(t)
	var settled acks
	p.Watch(settled.see)
	first := rig.Spawn(t, "consumer", consumerConfig{URL: p.URL(), Topic: "frozen", Group: "g", AckTimeout: ackTimeout, Hold: "held-0"})
	first.First(t, "ready")
	ids := rig.Publish(t, bus, "frozen", "held", 1)
	event := first.Of(t, "started", "held-0")
	second := rig.Spawn(t, "consumer", consumerConfig{URL: b.URL(), Topic: "frozen", Group: "g", AckTimeout: ackTimeout})
	second.First(t, "ready")

	first.Freeze(t)
	again := second.Of(t, "handled", "held-0")
	if again.Attempt != 1 || !again.Redelivered { // a process or a connection failed, no handler
		t.Errorf("the second handler has attempt %d, redelivered %v, want 1, true", again.Attempt, again.Redelivered)
	}
	first.Order(t, "release")
	first.Thaw(t)
	ids = append(ids, rig.Publish(t, bus, "frozen", "after", 10)...)
	rig.AwaitHandled(t, ids, first, second)
	rig.AwaitSettled(t, bus, "frozen", "g")
	second.Kill()
	rig.AwaitHandled(t, rig.Publish(t, bus, "frozen", "alone", 5), first)
	if sent := settled.of(event.Seq, 1); len(sent) > 0 {
		t.Errorf("a process that slept settled an event whose lease it had lost: %+v", sent)
	}
	canceled := first.Said("canceled")
	finished := first.Said("handled")
	if len(canceled) == 0 && !slices.ContainsFunc(finished, func(r rig.Report) bool { return r.ID == "held-0" }) {
		t.Error("the handler of the process that slept did not end")
	}
}
