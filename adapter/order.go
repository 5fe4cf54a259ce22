package adapter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/deadline"
)

// slot is an event of an ordered group in this member's hands, from its arrival
// until the group is done with it. Unlike a delivery it outlasts its lease at the
// server: while this member owns the topic nobody else gets the event, and when
// the durable was replaced and the event comes again, its slot gets the new lease.
type slot struct {
	lease   *lease
	o       *owner
	tr      *track
	again   bool // something may be recorded of it
	suspect bool // a process that died may have handled it

	// Guarded by leaseSet.mu.
	lane    *lane // nil: in none any more
	behind  *slot
	running bool        // a worker has it
	called  bool        // and it is to run again
	turn    *turn       // the newest; nil before the first
	turns   int         // that handlers got
	timer   *time.Timer // ends the wait for the next turn; nil: it does not wait
	failed  bool        // it waits because of a failure
}

// turn is one run of a handler at the event of a slot: the right to settle it,
// which ends with the handler's time while the slot goes on. It implements jetbus.Lease.
type turn struct {
	l *lease

	// Guarded by leaseSet.mu.
	state    outcome   // settled: somebody has said what is to become of the event
	begun    bool      // a handler has got it
	deadline time.Time // of the handler, once begun
	decided  bool      // the event is to be tried again
	due      time.Time // when
}

// startLocked gives the slot to a worker. It reports false where it is not to run.
func (s *slot) startLocked() bool {
	if s.lane == nil || s.o.leaving || s.lease.over() {
		return false
	}
	if s.running { // a suspect that may run now, and whose worker is about to hear that it may not
		s.called = true
		return false
	}
	s.running, s.turn = true, &turn{l: s.lease}
	s.o.busy++
	return true
}

// beginLocked notes that a handler is about to get the event.
func (s *slot) beginLocked(now time.Time) {
	s.turns++
	s.turn.begun, s.turn.deadline = true, now.Add(s.lease.h.maxLease)
}

// fresh reports whether the event comes for the first time, as far as is known.
func (s *slot) fresh() bool {
	s.lease.h.mu.Lock()
	defer s.lease.h.mu.Unlock()
	return !s.again && s.turns <= 1
}

// delivery is what a handler gets of the slot.
func (s *slot) delivery(e *jetbus.Event, maxAttempts int) *jetbus.Delivery {
	l := s.lease
	d := jetbus.NewDelivery(*e, l.h.group, l.attemptNumber(), maxAttempts, s.turn)
	l.h.mu.Lock()
	d.Redelivered = s.again || s.turns > 0
	l.h.mu.Unlock()
	d.Epoch = s.o.epoch
	if l.retry != nil {
		d.Redelivered, d.ReplayOf = true, l.retry.ReplayOf
	}
	return d
}

// started reports whether a handler has the event, had it, or may get it at any moment.
func (s *slot) started() bool {
	return s.running || s.timer != nil || s.turn != nil && s.turn.begun
}

// inHand reports whether it is not known yet what becomes of an event that was
// handed to a handler.
func (s *slot) inHand() bool {
	return s.running || s.turn != nil && s.turn.begun && !s.turn.decided
}

// ranLocked takes the slot back from its worker.
func (s *slot) ranLocked() {
	s.running = false
	s.o.busy--
	if s.turn.begun {
		s.lease.suspect = false // it has survived
	}
	s.moveOnLocked()
	if s.called {
		s.called = false
		s.o.readyLocked(s)
	}
	notify(s.o.changed, struct{}{})
}

// moveOnLocked does what is due when a handler has returned, or when it is known
// what becomes of the event: of the two whichever is last.
func (s *slot) moveOnLocked() {
	switch {
	case s.running || s.lane == nil:
	case s.lease.over():
		if next := s.o.lanes.done(s); next != nil {
			s.o.readyLocked(next)
		}
	case s.turn != nil && s.turn.decided && s.timer == nil:
		if s.o.leaving {
			return // it is given back
		}
		s.timer = time.AfterFunc(max(time.Until(s.turn.due), 0), s.wake)
	}
}

// wake ends the wait for the next turn.
func (s *slot) wake() {
	h := s.lease.h
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.timer == nil || s.lane == nil || s.o.leaving {
		return
	}
	s.timer, s.failed = nil, false
	s.turn = nil
	s.o.readyLocked(s)
}

// putOff lets the event be tried again after a while, in its place.
func (s *slot) putOff(verb string, delay time.Duration) error {
	h := s.lease.h
	h.mu.Lock()
	err := s.lease.check()
	if err == nil {
		s.failed = verb == "nack"
		if s.turn.state == leaseOpen {
			s.turn.state = leaseSettled
		}
		s.turn.decided, s.turn.due = true, time.Now().Add(max(delay, 0))
		s.moveOnLocked()
	}
	h.mu.Unlock()
	notify(s.o.changed, struct{}{})
	return s.lease.wrap(verb, err)
}

// settle ends the event of a slot. Where the server cannot be told, it is told
// when it delivers the event again.
func (s *slot) settle(verb string, payload []byte) error {
	l, h := s.lease, s.lease.h
	h.mu.Lock()
	err := l.check()
	attached, reply, p := l.state == leaseOpen, l.reply, l.p
	if err == nil {
		if attached {
			p.settlesLocked(reply, time.Now())
		}
		h.removeLocked(l, leaseSettled)
		delete(s.tr.open, l.seq)
		s.moveOnLocked()
	}
	h.mu.Unlock()
	notify(s.o.changed, struct{}{})
	if err != nil {
		return l.wrap(verb, err)
	}
	if attached && h.b.link.IsUp() {
		err = h.b.nc.Publish(reply, payload)
	}
	h.changed(p)
	return h.b.translate(verb+" "+l.t.name()+" "+l.id, "", err)
}

// driftLocked notes that the server will deliver the event again.
func (s *slot) driftLocked() {
	l := s.lease
	if l.state != leaseOpen {
		return
	}
	l.state = leaseAdrift
	l.p.dropLocked(l)
	l.p = nil
	if l.forget != nil {
		l.forget()
		l.forget = nil
	}
}

// attachLocked gives the slot the newest delivery of its event.
func (s *slot) attachLocked(p *puller, reply string, sent time.Time) {
	l := s.lease
	s.driftLocked()
	l.state, l.p, l.reply = leaseOpen, p, reply
	l.deadline, l.asked, l.askedOn, l.known = sent.Add(l.h.safe()), sent, 0, false
	p.holdLocked(l)
}

// loseLocked ends the slot because the event is not this member's any more.
func (s *slot) loseLocked() {
	l := s.lease
	s.lane, s.behind = nil, nil
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	if l.over() {
		return
	}
	l.h.removeLocked(l, leaseLost)
	if s.inHand() {
		l.h.stats.LeasesLost++
	}
	if s.turn != nil && s.turn.state == leaseOpen {
		s.turn.state = leaseLost
	}
	if l.run != nil {
		l.run.cancel(jetbus.ErrLeaseExpired)
	}
}

// overdueLocked ends the turn of a handler whose time is over.
func (s *slot) overdueLocked(now time.Time) bool {
	n := s.turn
	if n == nil || !n.begun || n.state != leaseOpen || !deadline.Over(n.deadline, now) {
		return false
	}
	n.state = leaseLost
	s.lease.h.stats.LeasesLost++
	if s.lease.run != nil {
		s.lease.run.cancel(jetbus.ErrLeaseExpired)
	}
	return true
}

// overran counts the attempt of a handler whose time was over. The event stays
// where it is, and its lane waits for the handler to return.
func (s *slot) overran() {
	h := s.lease.h
	h.note(s.lease, jetbus.LeaseLost, "it was not settled in time", nil)
	h.leaveAlone(s.lease)                                            // its handler may never end
	_ = h.refuse(s.o.s.ctx, s.lease, 0, jetbus.ErrLeaseExpired, nil) // lost with the topic, if at all
}

// unmark takes back the note that a suspect was started.
func (s *slot) unmark(ctx context.Context) {
	if r := s.lease.record; r != nil && r.Started > 0 {
		r.Started = 0
		s.lease.h.b.keepRecord(ctx, s.lease, 0)
	}
}

// take ends the turn on behalf of whoever says what is to become of the event.
func (n *turn) take(verb string) error {
	n.l.h.mu.Lock()
	defer n.l.h.mu.Unlock()
	err := n.checkLocked()
	if err == nil {
		n.state = leaseSettled
	}
	return n.l.wrap(verb, err)
}

// checkLocked says why the turn's handler may not settle the event any more. A turn that is over
// stays over, though its event be delivered again and have another: the handler has no part in that.
func (n *turn) checkLocked() error {
	switch {
	case n.state == leaseSettled:
		return jetbus.ErrAlreadySettled
	case n.state == leaseLost || deadline.Over(n.deadline, time.Now()):
		return jetbus.ErrLeaseExpired
	}
	return n.l.check()
}

// Deadline implements jetbus.Lease.
func (n *turn) Deadline() time.Time {
	n.l.h.mu.Lock()
	defer n.l.h.mu.Unlock()
	return n.deadline
}

// Ack implements jetbus.Lease.
func (n *turn) Ack(ctx context.Context) error {
	if err := n.take("ack"); err != nil {
		return err
	}
	return n.l.Ack(ctx)
}

// Nack implements jetbus.Lease.
func (n *turn) Nack(ctx context.Context, o jetbus.NackOptions) error {
	if err := o.Validate(); err != nil {
		return n.l.wrap("nack", err)
	}
	if err := n.take("nack"); err != nil {
		return err
	}
	why := &manualError{cmp.Or(o.Reason, "refused"), o.Stack}
	return n.l.h.refuse(ctx, n.l, nackDelay(o), why, why)
}

// GiveBack implements jetbus.Lease. Nobody else may have the event, so that it
// comes back to this member.
func (n *turn) GiveBack(ctx context.Context) error {
	if err := n.take("give back"); err != nil {
		return err
	}
	return n.giveBack(ctx, "given back by its holder")
}

// giveBack lets the event of a turn that was taken be tried again, at once.
func (n *turn) giveBack(ctx context.Context, reason string) error {
	n.l.slot.unmark(ctx)
	if err := n.l.slot.putOff("give back", 0); err != nil {
		return err
	}
	n.l.h.note(n.l, jetbus.GivenBack, reason, nil)
	return nil
}

// Snooze implements jetbus.Lease.
func (n *turn) Snooze(ctx context.Context, d time.Duration) error {
	if d <= 0 || d > jetbus.MaxRetryDelay {
		return n.l.wrap("snooze", fmt.Errorf("%w: delay is %v, use more than 0 and at most %v", jetbus.ErrInvalidOption, d, jetbus.MaxRetryDelay))
	}
	if err := n.take("snooze"); err != nil {
		return err
	}
	return n.l.h.snooze(ctx, n.l, d)
}

// Reject implements jetbus.Lease.
func (n *turn) Reject(ctx context.Context, o jetbus.RejectOptions) error {
	if err := n.take("reject"); err != nil {
		return err
	}
	why := &manualError{cmp.Or(o.Reason, "rejected"), o.Stack}
	return n.l.h.reject(ctx, n.l, o.As, why, why)
}

// Extend implements jetbus.Lease. The bus extends the lease at the server by
// itself; what is extended here is the handler's time.
func (n *turn) Extend(_ context.Context, by time.Duration) error {
	n.l.h.mu.Lock()
	err := n.checkLocked()
	if err == nil {
		n.deadline = maxTime(n.deadline, time.Now().Add(max(by, n.l.h.ackTimeout)))
	}
	n.l.h.mu.Unlock()
	if err != nil {
		return n.l.wrap("extend", err)
	}
	n.l.h.note(n.l, jetbus.Extended, extendedByHolder, nil)
	return nil
}

// finishTurn does what a handler's result asks for, where nobody did by hand.
func (s *subscription) finishTurn(ctx *handlerContext, l *lease, now time.Time, err error) {
	n := l.slot.turn
	s.mu.Lock()
	l.run = nil
	s.rate.add(now)
	s.mu.Unlock()
	switch {
	case err == nil && s.o.ManualAck:
	case err == nil:
		_ = n.Ack(s.ctx) // refused where its time is over: the event is tried again
	case n.take("nack") != nil:
	case errors.Is(context.Cause(ctx), jetbus.ErrStopped) && jetbus.DispositionOf(err).Action == jetbus.ActionRetry:
		_ = n.giveBack(s.ctx, "its handler was canceled by Stop")
	default:
		s.failed(l, err)
	}
}
