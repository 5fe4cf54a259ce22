package adapter

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
)

// outcome is how a lease ended.
type outcome int

const (
	open outcome = iota
	settled
	lost
)

// lease is one delivered message that this process holds. It implements jetbus.Lease.
//
// The server starts counting AckTimeout when it sends, and again at every
// extension it gets. This side counts from a moment that is never later: a time
// before which the server cannot have sent the event, see puller.sentSince, then
// the sending of the last extension that was answered. An answer shows that the
// server had the extension at some time before now; one that arrives after the
// deadline shows nothing, because the server answers extensions, and takes
// acknowledgements, of events it has long given to somebody else.
type lease struct {
	h          *holding
	p          *puller // that got it; nil: Receive did
	t          *topic
	msg        *nats.Msg // the message; nil once it is decoded
	reply      string    // where acknowledgements go
	deliveries int
	seq        uint64
	stored     int64 // nanoseconds since the epoch

	// Guarded by h.mu.
	prev, next *lease
	state      outcome
	id         string          // once decoded
	attempt    int             // once decoded
	started    time.Time       // when a handler got it
	deadline   time.Time       // until when it is ours
	asked      time.Time       // when the newest extension was sent
	keepUntil  time.Time       // Extend asked for more than one AckTimeout
	run        *handlerContext // of the handler, while there is one
	forget     func()          // drops the answer to the newest extension
}

// margin is the part of AckTimeout by which this side gives up early, for what
// the way to the server and the tick of the clock take.
const margin = 10

// safe is how long a lease counts as held after the server was told.
// It needs h.mu.
func (h *holding) safe() time.Duration { return h.ackTimeout - h.ackTimeout/margin }

// Deadline implements jetbus.Lease.
func (l *lease) Deadline() time.Time {
	l.h.mu.Lock()
	defer l.h.mu.Unlock()
	return l.deadline
}

// Ack implements jetbus.Lease.
func (l *lease) Ack(ctx context.Context) error {
	if err := l.settle(ctx, "ack", nil); err != nil {
		return err
	}
	l.h.note(l, jetbus.Acked, "", nil)
	return nil
}

// Nack implements jetbus.Lease.
func (l *lease) Nack(ctx context.Context, o jetbus.NackOptions) error {
	if err := o.Validate(); err != nil {
		return l.wrap("nack", err)
	}
	delay := o.Delay
	if delay == 0 {
		delay = l.h.backoff.Delay(l.attempt)
	}
	if err := l.settle(ctx, "nack", nakPayload(delay)); err != nil {
		return err
	}
	l.h.note(l, jetbus.Nacked, o.Reason, nil)
	return nil
}

// GiveBack implements jetbus.Lease.
func (l *lease) GiveBack(ctx context.Context) error {
	if err := l.use(); err != nil { // else the record would belie the next attempt
		return l.wrap("give back", err)
	}
	l.h.b.recordReturns(ctx, l)
	if err := l.settle(ctx, "give back", nakPayload(0)); err != nil {
		return err
	}
	l.h.note(l, jetbus.GivenBack, "given back by its holder", nil)
	return nil
}

// Extend implements jetbus.Lease.
func (l *lease) Extend(ctx context.Context, by time.Duration) error {
	answered := make(chan struct{})
	sent := time.Now()
	if err := l.use(); err != nil {
		return l.wrap("extend", err)
	}
	reply, forget := l.h.b.mux.expect(func(*nats.Msg) { close(answered) })
	defer forget()
	if err := l.send(ctx, reply, []byte("+WPI")); err != nil {
		return l.wrap("extend", err)
	}
	timeout := time.NewTimer(time.Until(l.Deadline()))
	defer timeout.Stop()
	select {
	case <-answered:
	case <-timeout.C:
		return l.wrap("extend", jetbus.ErrLeaseExpired)
	case <-ctx.Done():
		return l.wrap("extend", ctx.Err())
	}
	if !l.extended(sent) {
		return l.wrap("extend", l.use())
	}
	l.h.keep(l, sent.Add(by))
	return nil
}

// extended notes an answer to an extension sent at that time. It reports whether
// the lease is still held.
func (l *lease) extended(sent time.Time) bool {
	l.h.mu.Lock()
	defer l.h.mu.Unlock()
	if l.state != open || !time.Now().Before(l.deadline) {
		return false
	}
	if until := sent.Add(l.h.safe()); until.After(l.deadline) {
		l.deadline = until
	}
	l.asked = maxTime(l.asked, sent)
	return true
}

// use returns why the lease cannot be used any more.
func (l *lease) use() error {
	l.h.mu.Lock()
	defer l.h.mu.Unlock()
	return l.check()
}

// check needs h.mu.
func (l *lease) check() error { return l.checkAt(time.Now()) }

func (l *lease) checkAt(now time.Time) error {
	switch {
	case l.state == settled:
		return jetbus.ErrAlreadySettled
	case l.state == lost || !now.Before(l.deadline):
		return jetbus.ErrLeaseExpired
	}
	return nil
}

// settle ends the lease and tells the server. Of several calls one wins.
func (l *lease) settle(ctx context.Context, verb string, payload []byte) error {
	if !l.h.b.link.isUp() { // what is sent now would wait in a buffer past the lease
		if err := l.awaitLink(ctx); err != nil {
			return l.wrap(verb, err)
		}
	}
	if err := l.h.take(l); err != nil {
		return l.wrap(verb, err)
	}
	if err := l.h.b.nc.Publish(l.reply, payload); err != nil {
		return l.h.b.translate(verb+" "+l.t.name()+" "+l.id, "", err)
	}
	return nil
}

// send publishes to the lease's reply subject while the lease is held.
func (l *lease) send(ctx context.Context, reply string, payload []byte) error {
	if err := l.awaitLink(ctx); err != nil {
		return err
	}
	return l.h.b.nc.PublishRequest(l.reply, reply, payload)
}

// awaitLink waits for a connection until ctx or the lease ends.
func (l *lease) awaitLink(ctx context.Context) error {
	ctx, cancel := context.WithDeadlineCause(ctx, l.Deadline(), jetbus.ErrLeaseExpired)
	defer cancel()
	if _, err := l.h.b.link.wait(ctx); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	return nil
}

func (l *lease) wrap(verb string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s %s in group %s: %w", verb, l.t.name(), l.label(), l.h.group, err)
}

// label names the event for messages.
func (l *lease) label() string {
	if l.id != "" {
		return l.id
	}
	return "#" + strconv.FormatUint(l.seq, 10)
}

var nakNow = []byte("-NAK")

func nakPayload(delay time.Duration) []byte {
	if delay <= 0 {
		return nakNow
	}
	return append(strconv.AppendInt([]byte(`-NAK {"delay":`), int64(delay), 10), '}')
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
