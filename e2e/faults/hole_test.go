//go:build unix

package faults

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
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
func (a *acks) see(f frame) {
	tokens := strings.Split(f.subject, ".")
	if len(tokens) < 9 || tokens[0] != "$JS" || tokens[1] != "ACK" || f.body == "+WPI" {
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
	a.said = append(a.said, ack{seq: seq, deliveries: deliveries, body: f.body})
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
	b := startBroker(t)
	for name, fault := range map[string]func(*proxy){
		"both":    func(p *proxy) { p.hole(toServer, toClient) },
		"answers": func(p *proxy) { p.hole(toClient) },
		"asks":    func(p *proxy) { p.hole(toServer) },
		"cut":     func(p *proxy) { p.refuse() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			silence(t, b, name, fault)
		})
	}
}

func silence(t *testing.T, b *broker, topic string, fault func(*proxy)) {
	t.Helper()
	const ackTimeout = 1500 * time.Millisecond
	bus := openBus(t, b.url())
	declare(t, bus, jetbus.TopicConfig{Name: topic})
	p := b.through(t)
	var settled acks
	p.watch(settled.see)

	first := spawn(t, "consumer", consumerConfig{URL: p.url(), Topic: topic, Group: "g", AckTimeout: ackTimeout, Hold: "held-0"})
	first.first(t, "ready")
	ids := publish(t, bus, topic, "held", 1)
	event := first.of(t, "started", "held-0")
	second := spawn(t, "consumer", consumerConfig{URL: b.url(), Topic: topic, Group: "g", AckTimeout: ackTimeout})
	second.first(t, "ready")

	// Longer than a lease, so that the bus has to have extended it.
	time.Sleep(ackTimeout * 3 / 2)
	if r, _ := second.said("started"); len(r) > 0 {
		t.Fatalf("the second member got the event while the first held it and was heard: %+v", r)
	}
	fault(p)
	broke := time.Now()
	first.order(t, "publish from-silence")
	first.of(t, "publishing", "from-silence")

	canceled := first.of(t, "canceled", "held-0")
	again := second.of(t, "started", "held-0")
	if canceled.Is != "lease expired" {
		t.Errorf("the first handler was canceled because of %q, want ErrLeaseExpired", canceled.Err)
	}
	if !canceled.At.Before(again.At) {
		t.Errorf("the second handler started %v before the first was canceled", canceled.At.Sub(again.At))
	}
	if took := canceled.At.Sub(broke); took > ackTimeout+slack {
		t.Errorf("the first handler was canceled %v after the fault, its lease is %v", took, ackTimeout)
	}
	if again.Attempt != 2 {
		t.Errorf("the second handler has attempt %d, want 2", again.Attempt)
	}
	if late := first.of(t, "acked late", "held-0"); late.Is != "lease expired" {
		t.Errorf("the late ack gave %q, want ErrLeaseExpired", late.Err)
	}
	second.of(t, "handled", "held-0")

	p.restore()
	stored := first.of(t, "published", "from-silence")
	if stored.Err != "" {
		t.Errorf("publish through the fault: %s", stored.Err)
	}
	ids = append(append(ids, "from-silence"), publish(t, bus, topic, "after", 20)...)
	awaitHandled(t, ids, first, second)
	awaitSettled(t, bus, topic, "g")
	checkLog(t, bus, topic, ids)
	if sent := settled.of(event.Seq, 1); len(sent) > 0 {
		t.Errorf("the first member settled an event whose lease it had lost: %+v", sent)
	}
	// The member is not worse for it: alone, it goes on.
	second.kill()
	more := publish(t, bus, topic, "alone", 5)
	awaitHandled(t, more, first)
	awaitSettled(t, bus, topic, "g")
}

// TestShortCut cuts the connection of a member again and again while its handler
// runs. It reconnects within the lease, and keeps it.
func TestShortCut(t *testing.T) {
	t.Parallel()
	const ackTimeout = 2 * time.Second
	b := startBroker(t)
	bus := openBus(t, b.url())
	declare(t, bus, jetbus.TopicConfig{Name: "cut"})
	p := b.through(t)
	var settled acks
	p.watch(settled.see)
	p.slow(2 * time.Millisecond)
	holder := spawn(t, "consumer", consumerConfig{URL: p.url(), Topic: "cut", Group: "g", AckTimeout: ackTimeout, Hold: "held-0"})
	holder.first(t, "ready")
	ids := publish(t, bus, "cut", "held", 1)
	event := holder.of(t, "started", "held-0")
	other := spawn(t, "consumer", consumerConfig{URL: b.url(), Topic: "cut", Group: "g", AckTimeout: ackTimeout})
	other.first(t, "ready")

	for range 15 { // 4.5 s, more than two leases
		p.cut()
		time.Sleep(300 * time.Millisecond)
	}
	holder.order(t, "publish across-cuts")
	p.cut()
	if r := holder.of(t, "published", "across-cuts"); r.Err != "" {
		t.Errorf("publish across cuts: %s", r.Err)
	}
	holder.order(t, "release")
	holder.of(t, "handled", "held-0")
	ids = append(append(ids, "across-cuts"), publish(t, bus, "cut", "after", 10)...)
	awaitHandled(t, ids, holder, other)
	awaitSettled(t, bus, "cut", "g")
	checkLog(t, bus, "cut", ids)
	if got := handled(other); got["held-0"] {
		t.Error("another member got the event of a handler that held its lease")
	}
	if r, _ := holder.said("canceled"); len(r) > 0 {
		t.Errorf("the handler was canceled: %+v", r)
	}
	if sent := settled.of(event.Seq, 1); len(sent) != 1 {
		t.Errorf("the holder settled the event %d times: %+v", len(sent), sent)
	}
}

// TestFrozen stops the clock of a process, as a suspended machine does, for longer
// than a lease while its handler runs. When it goes on, its handler finishes at
// once, and what it says about the event must not be sent any more.
func TestFrozen(t *testing.T) {
	t.Parallel()
	const ackTimeout = time.Second
	b := startBroker(t)
	bus := openBus(t, b.url())
	declare(t, bus, jetbus.TopicConfig{Name: "frozen"})
	p := b.through(t)
	var settled acks
	p.watch(settled.see)
	first := spawn(t, "consumer", consumerConfig{URL: p.url(), Topic: "frozen", Group: "g", AckTimeout: ackTimeout, Hold: "held-0"})
	first.first(t, "ready")
	ids := publish(t, bus, "frozen", "held", 1)
	event := first.of(t, "started", "held-0")
	second := spawn(t, "consumer", consumerConfig{URL: b.url(), Topic: "frozen", Group: "g", AckTimeout: ackTimeout})
	second.first(t, "ready")

	first.signal(t, syscall.SIGSTOP)
	again := second.of(t, "handled", "held-0")
	if again.Attempt != 2 {
		t.Errorf("the second handler has attempt %d, want 2", again.Attempt)
	}
	first.order(t, "release")
	first.signal(t, syscall.SIGCONT)
	ids = append(ids, publish(t, bus, "frozen", "after", 10)...)
	awaitHandled(t, ids, first, second)
	awaitSettled(t, bus, "frozen", "g")
	second.kill()
	awaitHandled(t, publish(t, bus, "frozen", "alone", 5), first)
	if sent := settled.of(event.Seq, 1); len(sent) > 0 {
		t.Errorf("a process that slept settled an event whose lease it had lost: %+v", sent)
	}
	canceled, _ := first.said("canceled")
	finished, _ := first.said("handled")
	if len(canceled) == 0 && !slices.ContainsFunc(finished, func(r report) bool { return r.ID == "held-0" }) {
		t.Error("the handler of the process that slept did not end")
	}
}
