package adapter

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
)

// oneHeld receives an event.
func oneHeld(t *testing.T) (*jetbus.Delivery, *lease, *nats.Conn) {
	t.Helper()
	ctx := t.Context()
	_, nc, _ := directStream(t)
	b := openBus(t, nc, Config{Storage: jetbus.MemoryStorage})
	if _, err := b.EnsureTopic(ctx, jetbus.TopicConfig{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Publish(ctx, jetbus.Event{Topic: "a"}); err != nil {
		t.Fatal(err)
	}
	ds, err := b.Receive(ctx, "a", "g", jetbus.ReceiveOptions{From: jetbus.Earliest(), Wait: -1})
	if err != nil || len(ds) != 1 {
		t.Fatal(ds, err)
	}
	return ds[0], b.leaseSets("a", "g")[0].all()[0], nc
}

// awaitOver waits until somebody has ended a lease.
func awaitOver(l *lease) {
	for over := false; !over; runtime.Gosched() {
		l.h.mu.Lock()
		over = l.over()
		l.h.mu.Unlock()
	}
}

// A refusal is not sent before an extension that was on its way first: the server would take
// it for one of the lease that the refusal ended, and send the event again by that.
func TestRefusalBehindAnExtension(t *testing.T) {
	d, l, nc := oneHeld(t)
	l.h.askAll([]*lease{l})
	l.h.mu.Lock()
	sent := l.extending
	l.h.mu.Unlock()
	select {
	case <-sent:
	default:
		t.Error("an extension that was sent is not known, or still on its way")
	}
	heard, err := nc.SubscribeSync("$JS.ACK.>")
	if err != nil {
		t.Fatal(err)
	}
	onItsWay := make(chan struct{})
	l.h.mu.Lock()
	l.extending = onItsWay
	l.h.mu.Unlock()
	refused := make(chan error, 1)
	go func() { refused <- d.Snooze(t.Context(), 30*time.Second) }()
	awaitOver(l)                       // until it is about to say so
	if err := nc.Flush(); err != nil { // what it said already would come first
		t.Fatal(err)
	}
	if err := nc.Publish(l.reply, extension); err != nil {
		t.Fatal(err)
	}
	close(onItsWay)
	if err := <-refused; err != nil {
		t.Error(err)
	}
	for _, want := range []string{"+WPI", "-NAK"} {
		m, err := heard.NextMsg(time.Minute)
		if err != nil || !strings.HasPrefix(string(m.Data), want) {
			t.Errorf("heard %+v, %v; want %s", m, err, want)
		}
	}
}

// A refusal that waited for a connection that hung until the lease was over is not sent: the
// server would take it for one by the next holder.
func TestRefusalBehindItsLease(t *testing.T) {
	t.Parallel()
	d, l, nc := oneHeld(t)
	heard, err := nc.SubscribeSync("$JS.ACK.>")
	if err != nil {
		t.Fatal(err)
	}
	onItsWay := make(chan struct{})
	l.h.mu.Lock()
	l.extending = onItsWay
	l.h.mu.Unlock()
	refused := make(chan error, 1)
	go func() { refused <- d.Snooze(t.Context(), 30*time.Second) }()
	awaitOver(l)
	l.h.mu.Lock()
	l.deadline = time.Now().Add(-time.Second)
	l.h.mu.Unlock()
	close(onItsWay)
	if err := <-refused; !errors.Is(err, jetbus.ErrLeaseExpired) {
		t.Errorf("a refusal behind its lease: %v", err)
	}
	if err := nc.Publish("$JS.ACK.end", nil); err != nil {
		t.Fatal(err)
	}
	if m, err := heard.NextMsg(time.Minute); err != nil || m.Subject != "$JS.ACK.end" {
		t.Errorf("heard %+v, %v", m, err)
	}
}

// An extension that nobody took is sent again at once where that is since a durable has no
// leader. On a single server the durable is gone.
func TestExtensionNobodyTook(t *testing.T) {
	t.Parallel()
	for replicas, again := range map[int]bool{1: false, 3: true} {
		_, l, _ := oneHeld(t)
		h, place := l.h, *l.t
		place.config.Replicas = replicas
		h.mu.Lock()
		l.t, l.reply = &place, "nobody"
		h.mu.Unlock()
		h.askAll([]*lease{l})
		// Answers come in the order of what they answer.
		if _, err := h.b.exchange(t.Context(), &nats.Msg{Subject: "nobody"}, nil, time.Minute); !errors.Is(err, nats.ErrNoResponders) {
			t.Fatal(err)
		}
		h.mu.Lock()
		if h.cutOff(l) != again {
			t.Errorf("with %d replicas it is sent again at once: %v", replicas, !again)
		}
		h.mu.Unlock()
	}
}
