package adapter

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// longDelay is the longest wait for which an event is kept among those that are
// delivered: they count for what the group may hold. What waits longer is stored
// among the group's retries, under a schedule.
const longDelay = time.Minute

// claim keeps others from settling a lease while a refusal is under way, which
// takes several requests.
func (l *lease) claim(verb string) error {
	l.h.mu.Lock()
	defer l.h.mu.Unlock()
	if err := l.check(); err != nil {
		return l.wrap(verb, err)
	}
	l.claimed = true
	return nil
}

func (l *lease) unclaim() {
	l.h.mu.Lock()
	l.claimed = false
	l.h.mu.Unlock()
}

// manualError is the failure of an event that its holder refused or rejected.
type manualError struct{ reason, stack string }

func (f *manualError) Error() string { return f.reason }

// StackTrace returns the stack that the holder gave, for jetbus.StackOf.
func (f *manualError) StackTrace() string { return f.stack }

// dispose does what a handler's error asks for. trace is the whole error: an error around d.Err may have a stack
// if d.Err has none.
func (h *leaseSet) dispose(ctx context.Context, l *lease, d jetbus.Disposition, trace error) error {
	switch d.Action {
	case jetbus.ActionAck:
		return h.drop(ctx, l, d.Err)
	case jetbus.ActionSnooze:
		return h.snooze(ctx, l, d.Delay)
	case jetbus.ActionReject:
		return h.reject(ctx, l, d.Reason, d.Err, trace)
	default:
		return h.refuse(ctx, l, d.Delay, d.Err, trace)
	}
}

// drop acknowledges an event on purpose.
func (h *leaseSet) drop(ctx context.Context, l *lease, why error) error {
	if err := l.settle(ctx, "ack", nil); err != nil {
		return err
	}
	h.b.done(l)
	h.note(l, jetbus.Acked, "dropped", why)
	return nil
}

// refuse counts a failed attempt; the event comes back after the delay, by
// default the backoff's, or becomes a dead letter with the stack of trace. A negative delay is none.
func (h *leaseSet) refuse(ctx context.Context, l *lease, delay time.Duration, cause, trace error) error {
	if err := l.claim("nack"); err != nil {
		return err
	}
	h.b.recall(ctx, l)
	l.record.fail(cause, time.Now())
	l.record.Known, l.record.Started = l.deliveries, 0
	if l.maxAttempts > 0 && l.record.Failed >= l.maxAttempts {
		return h.bury(ctx, l, jetbus.DeadMaxAttempts, cause, trace)
	}
	if delay == 0 {
		delay = h.backoff.Delay(l.record.Failed)
	}
	if err := h.comeBack(ctx, l, "nack", delay); err != nil {
		return err
	}
	h.note(l, jetbus.Nacked, "", cause)
	return nil
}

// snooze puts an event off without counting an attempt.
func (h *leaseSet) snooze(ctx context.Context, l *lease, delay time.Duration) error {
	if err := l.claim("snooze"); err != nil {
		return err
	}
	h.b.recall(ctx, l)
	l.record.Known, l.record.Started = l.deliveries, 0
	if err := h.comeBack(ctx, l, "snooze", delay); err != nil {
		return err
	}
	h.tell(l, jetbus.Observation{Kind: jetbus.Snoozed, Duration: delay})
	return nil
}

// reject makes an event a dead letter immediately, with the stack of trace.
func (h *leaseSet) reject(ctx context.Context, l *lease, reason jetbus.DeadReason, cause, trace error) error {
	if err := l.claim("reject"); err != nil {
		return err
	}
	h.b.recall(ctx, l)
	if reason != jetbus.DeadUndecodable { // which no handler has seen
		l.record.fail(cause, time.Now())
	}
	l.record.Known, l.record.Started = l.deliveries, 0
	return h.bury(ctx, l, reason, cause, trace)
}

// giveUp makes a dead letter of an event that has had its attempts. Where that is
// not possible, the event comes back.
func (h *leaseSet) giveUp(ctx context.Context, l *lease) {
	reason := l.record.Dead
	switch {
	case reason != "":
	case l.record.Error == errProcessDied.Error():
		reason = jetbus.DeadCrashLoop
	default:
		reason = jetbus.DeadMaxAttempts
	}
	if l.claim("reject") != nil {
		return
	}
	l.record.Known, l.record.Started = l.deliveries, 0
	_ = h.bury(ctx, l, reason, errors.New(l.record.Error), nil)
}

// comeBack makes the event of a claimed lease come back after a while.
func (h *leaseSet) comeBack(ctx context.Context, l *lease, verb string, delay time.Duration) error {
	if l.slot != nil { // it stays where it is
		if l.recorded || l.record.Failed > 0 {
			h.b.keepRecord(ctx, l, delay)
		}
		l.unclaim()
		return l.slot.putOff(verb, delay)
	}
	if delay > longDelay && h.b.level >= levelBatches && l.record.Dead == "" {
		err := h.b.schedule(ctx, l, delay)
		l.unclaim()
		if err == nil {
			if err = l.settle(ctx, verb, nil); err == nil {
				h.b.dropRecord(l) // a retry before this one has made room for it
			}
			return err
		}
		if err := l.claim(verb); err != nil {
			return err
		}
		h.b.cfg.Logger.WarnContext(ctx, "a retry cannot be scheduled; its event is held until then",
			slog.String("topic", l.t.name()), slog.String("group", h.group), slog.String("event", l.label()), slog.Any("error", err))
	}
	h.b.keepRecord(ctx, l, delay)
	l.unclaim()
	return l.settle(ctx, verb, nakPayload(delay))
}

// overran counts the attempts of handlers that did not end, or receivers that did
// not settle, while their leases could be extended.
func (h *leaseSet) overran(ctx context.Context, leases []*lease) {
	h.b.recallAll(ctx, leases)
	if len(leases) > 0 {
		h.b.keepLate(ctx, leases)
	}
}

// admit looks at an event that was delivered before: whether it is to be tried
// again at all, and whether it must wait until it can run alone. It reports
// whether its handler may run now.
func (s *subscription) admit(l *lease) bool {
	s.b.recall(s.life, l)
	if l.hopeless() {
		s.giveUp(s.ctx, l)
		return false
	}
	if !l.runsAlone() {
		return true
	}
	switch ran, parked := s.b.alone.enter(s, l); {
	case ran:
		s.b.startAlone(s.ctx, l)
		if l.hopeless() { // as far as it can be known
			s.leaveAlone(l)
			s.giveUp(s.ctx, l)
			return false
		}
		return true
	case !parked && l.slot == nil: // what is ordered is given back in its order
		s.giveBack(s.ctx, []*lease{l}, "stopping")
	}
	return false
}

// runsAlone reports whether the handler must run with no other suspect beside it.
// With MaxAttempts -1 nothing ever comes of the blame.
func (l *lease) runsAlone() bool { return l.suspect && l.maxAttempts > 0 }

// hopeless reports whether there is to be no other attempt.
func (l *lease) hopeless() bool {
	return l.record.Dead != "" || l.maxAttempts > 0 && l.record.Failed >= l.maxAttempts
}

// leaveAlone lets the next suspect run, if this lease's was.
func (h *leaseSet) leaveAlone(l *lease) {
	h.mu.Lock()
	was := l.alone
	l.alone = false
	h.mu.Unlock()
	if was {
		h.b.alone.leave()
	}
}

// ran is called when the handler of an event that was delivered before has ended.
// With ManualAck the event may be held longer, by somebody who does not kill the process.
func (s *subscription) ran(l *lease, r record) {
	if s.o.ManualAck && l.use() == nil {
		s.b.endAlone(l, r)
	}
	s.leaveAlone(l)
}

// alone lets one suspect at a time run in a process: had two been running when
// it died, neither could be blamed.
type alone struct {
	mu      sync.Mutex
	busy    bool
	waiting map[*subscription]struct{}
}

// enter reports whether a suspect may run. One that may not is parked with its
// subscription, until leave brings it back; not so when the subscription stops.
func (a *alone) enter(s *subscription, l *lease) (ran, parked bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !a.busy {
		a.busy, l.alone = true, true
		return true, false
	}
	if s.stopping {
		return false, false
	}
	s.parked = append(s.parked, l)
	if a.waiting == nil {
		a.waiting = map[*subscription]struct{}{}
	}
	a.waiting[s] = struct{}{}
	return false, true
}

// leave ends the run of a suspect. All that wait try again; one of them wins.
func (a *alone) leave() {
	a.mu.Lock()
	a.busy = false
	waiting := a.waiting
	a.waiting = nil
	a.mu.Unlock()
	for s := range waiting {
		s.unpark()
	}
}

// unpark puts the suspects that wait back into the queue.
func (s *subscription) unpark() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.parked {
		s.readyLocked(l)
	}
	s.parked = nil
}
