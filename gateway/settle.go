package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// maxReason is how much of a reason is kept.
const maxReason = 4 << 10

// verdict is what a client says of an event that it holds.
type verdict struct {
	op           string // ACK, NACK or MODACK
	by           time.Duration
	reason       string
	stack        string // of the failure, for the dead letter
	as           string // with dead: the dead letter's reason, of which reason is the text
	dead, snooze bool
	back         bool
}

// errVerdict is the refusal of a duration that is none.
var errVerdict = refuse(CodeBadRequest, "delay_ms and extend_ms are 0 or more, or -1 for at once, and at most %d", jetbus.MaxRetryDelay.Milliseconds())

// maxDeadReason is how long the reason of a dead letter may be, which keeps no more of it.
const maxDeadReason = 100

// check refuses a verdict that makes no sense, and sets its time.
func (v *verdict) check(ms int64) error {
	if v.as != "" && !v.dead || len(v.as) > maxDeadReason {
		return refuse(CodeBadRequest, "dead_reason is for dead, and has at most %d bytes", maxDeadReason)
	}
	if ms < -1 || ms > jetbus.MaxRetryDelay.Milliseconds() {
		return errVerdict
	}
	v.by = time.Duration(ms) * time.Millisecond
	if ms == -1 {
		v.by = -1
	}
	return nil
}

// settle handles ACK, NACK and MODACK frames.
func (c *conn) settle(req frame.Request) {
	v := verdict{op: req.Op, reason: cut(req.Reason, maxReason), stack: cut(req.Stack, jetbus.MaxStackBytes), dead: req.Dead, as: req.DeadAs, snooze: req.Snooze, back: req.GiveBack}
	ms := req.DelayMs
	if req.Op == frame.ModAck {
		ms = req.ExtendMs
	}
	// What is taken out of the client's hands is under way: who waits for both sees no moment
	// between them.
	c.tasks <- struct{}{}
	taken := false
	defer func() {
		if !taken {
			<-c.tasks
		}
	}()
	err := v.check(ms)
	var h *hold
	var why string
	var under <-chan struct{}
	if err == nil {
		h, why, under, err = c.ses.resolve(&req, v)
	}
	answer := func(r frame.Result, left time.Duration, err error) { c.settledOne(&req, r, left, err) }
	switch {
	case err != nil:
		c.refuse(req.Corr, err)
	case under != nil:
		taken = true
		ses := c.ses
		c.task(func() { answer(ses.applyBehind(c, under, req.AckID, v), 0, nil) })
	case h == nil:
		no := false
		answer(frame.Result{AckID: req.AckID, ID: req.ID, Applied: &no, Reason: why}, 0, nil)
	case v.op == frame.ModAck:
		answer(c.ses.extend(h, v.by))
	default:
		taken = true
		ses := c.ses // the reader's; AUTH may put another in its place meanwhile
		c.task(func() { answer(ses.apply(h, v), 0, nil) })
	}
}

// task runs what waits for the broker beside the reading of frames, at most maxTasks at a
// time: the caller has put one into tasks.
func (c *conn) task(f func()) {
	c.work.Go(func() {
		defer func() { <-c.tasks }()
		f()
	})
}

// settledOne answers, where the client asked for it or has to know.
func (c *conn) settledOne(req *frame.Request, r frame.Result, left time.Duration, err error) {
	switch {
	case err != nil:
		c.refuse(req.Corr, err)
	case r.Code != "":
		c.refuse(req.Corr, refuse(Code(r.Code), "%s", r.Msg))
	case c.sketch && !*r.Applied && req.Op == frame.ModAck:
		c.refuse(req.Corr, refuse(CodeUnknownID, "no inflight to extend"))
	case req.Corr != "" || req.Confirm || c.sketch || !*r.Applied:
		m := frame.Message{Corr: req.Corr, Applied: r.Applied, Reason: r.Reason, DeadlineMs: left.Milliseconds()}
		if !*r.Applied {
			m.AckID = r.AckID
		}
		c.ok(m)
	}
}

// settleAll handles an ACKS frame. Only what was not applied is named in the answer.
func (c *conn) settleAll(req frame.Request) {
	n := len(req.Ack) + len(req.Nack) + len(req.Mod)
	most := c.g.c.Limits.InFlight
	if n > most {
		c.refuse(req.Corr, refuse(CodeTooLarge, "%d ids in one frame, at most %d are allowed", n, most))
		return
	}
	c.tasks <- struct{}{}
	var failed []frame.Result
	var todo, behind []func() frame.Result // what waits for another frame comes last: that may wait for this one
	ses := c.ses
	one := func(ackID string, ms int64, v verdict) {
		err := v.check(ms)
		var h *hold
		var why string
		var under <-chan struct{}
		if err == nil {
			h, why, under, err = ses.resolve(&frame.Request{AckID: ackID}, v)
		}
		no := false
		switch {
		case err != nil:
			f := explain(err)
			failed = append(failed, frame.Result{AckID: ackID, Applied: &no, Code: string(f.Code), Msg: f.Msg})
		case under != nil:
			behind = append(behind, func() frame.Result { return ses.applyBehind(c, under, ackID, v) })
		case h == nil:
			failed = append(failed, frame.Result{AckID: ackID, Applied: &no, Reason: why})
		case v.op == frame.ModAck:
			if r, _, _ := ses.extend(h, v.by); !*r.Applied {
				failed = append(failed, r)
			}
		default:
			todo = append(todo, func() frame.Result { return ses.apply(h, v) })
		}
	}
	for _, id := range req.Ack {
		one(id, 0, verdict{op: frame.Ack})
	}
	for _, r := range req.Nack {
		one(r.AckID, r.DelayMs, verdict{op: frame.Nack, reason: cut(r.Reason, maxReason), stack: cut(r.Stack, jetbus.MaxStackBytes), dead: r.Dead, as: r.DeadAs, snooze: r.Snooze, back: r.GiveBack})
	}
	for _, m := range req.Mod {
		one(m.AckID, m.ExtendMs, verdict{op: frame.ModAck})
	}
	c.task(func() {
		for _, f := range append(todo, behind...) {
			if r := f(); r.Code != "" || !*r.Applied {
				failed = append(failed, r)
			}
		}
		if req.Corr != "" || len(failed) > 0 {
			c.ok(frame.Message{Corr: req.Corr, Results: failed})
		}
	})
}

// resolve finds what a frame speaks of, and takes it out of the client's hands unless it is
// to stay there for longer. Nil without an error: it is not there, for the reason returned; or it
// is being settled, as an earlier frame said, until under is closed.
func (s *session) resolve(req *frame.Request, v verdict) (h *hold, why string, under <-chan struct{}, err error) {
	if req.AckID == "" {
		one, err := s.find(req)
		if err != nil {
			return nil, "", nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, held := range one.held {
			if held.d.ID != req.ID || held.d.Topic != req.Topic && req.Topic != "" {
				continue
			}
			if h != nil {
				return nil, "", nil, refuse(CodeConflict, "several events of the id %.80q are held; settle each by its ack_id", req.ID)
			}
			h = held
		}
		if h == nil {
			return nil, "unknown", nil, nil
		}
	} else {
		s.mu.Lock()
		defer s.mu.Unlock()
		if h = s.holds[req.AckID]; h == nil {
			if over, ok := s.settling[req.AckID]; ok && v.op != frame.ModAck {
				return nil, "", over, nil
			}
			return nil, s.unknownLocked(req.AckID), nil, nil
		}
	}
	if v.op != frame.ModAck {
		h.takeLocked()
		s.settling[h.id] = make(chan struct{})
	}
	return h, "", nil, nil
}

// extend moves a deadline.
func (s *session) extend(h *hold, by time.Duration) (frame.Result, time.Duration, error) {
	if by <= 0 {
		by = h.s.lease
	}
	if s.sketch {
		by = max(by, minLease)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	yes, no := true, false
	r := frame.Result{AckID: h.id, Applied: &yes}
	if s.holds[h.id] != h {
		r.Applied, r.Reason = &no, s.unknownLocked(h.id)
		return r, 0, nil
	}
	if !time.Now().Before(h.d.Deadline()) { // the broker's lease is lost: the group was moved by force, or the broker was away
		s.expiredLocked(h.id)
		h.takeLocked()
		r.Applied, r.Reason = &no, "expired"
		return r, 0, nil
	}
	left := h.extendLocked(by)
	if left == 0 {
		r.Applied, r.Reason = &no, "limit"
	}
	return r, left, nil
}

// applyBehind settles an event that is being settled already: a client whose connection broke
// says again what it has no answer to, and is to learn what became of that. Where it came to
// nothing the client has the event again. It does not wait for longer than the connection lasts.
func (s *session) applyBehind(c *conn, under <-chan struct{}, ackID string, v verdict) frame.Result {
	for {
		select {
		case <-under:
		case <-c.ended:
			return failedResult(ackID)
		}
		h, why, again, _ := s.resolve(&frame.Request{AckID: ackID}, v) // by its ack id it does not fail
		switch {
		case h != nil:
			return s.apply(h, v)
		case again == nil:
			no := false
			return frame.Result{AckID: ackID, Applied: &no, Reason: why}
		}
		under = again
	}
}

// apply settles an event that was taken out of the client's hands.
func (s *session) apply(h *hold, v verdict) frame.Result {
	ctx, cancel := context.WithTimeout(context.Background(), taskTime)
	defer cancel()
	var err error
	switch {
	case v.op == frame.Ack:
		err = h.d.Ack(ctx)
	case v.back:
		err = h.d.GiveBack(ctx)
	case v.dead:
		err = h.d.RejectWith(ctx, jetbus.RejectOptions{As: jetbus.DeadReason(v.as), Reason: v.reason, Stack: v.stack})
	case v.snooze:
		err = h.d.Snooze(ctx, max(v.by, time.Millisecond))
	default:
		err = h.d.Nack(ctx, jetbus.NackOptions{Delay: max(v.by, 0), AtOnce: v.by < 0, Reason: v.reason, Stack: v.stack})
	}
	yes, no, expired, failed := true, false, false, false
	r := frame.Result{AckID: h.id, ID: h.d.ID, Applied: &yes}
	switch {
	case err == nil:
	case errors.Is(err, jetbus.ErrLeaseExpired):
		expired = true // and not settled, should the client ask again
		r.Applied, r.Reason = &no, "expired"
	case errors.Is(err, jetbus.ErrAlreadySettled), errors.Is(err, jetbus.ErrNotHeld):
		r.Applied, r.Reason = &no, "settled"
	default:
		failed = true
		r = failedResult(h.id)
		r.ID = h.d.ID
	}
	s.applied(h, expired, failed)
	return r
}

// failedResult says that the broker did not take what was said of an event, or that this is not
// known: to be said again.
func failedResult(ackID string) frame.Result {
	no := false
	return frame.Result{AckID: ackID, Applied: &no, Code: string(CodeAckFailed), Msg: plain[CodeAckFailed], Retryable: true}
}

// applied ends what apply did. An event that could not be settled goes back into the client's
// hands, who may try again, in the same step in which those go on who wait for what becomes of it.
func (s *session) applied(h *hold, expired, failed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case expired, failed && (s.ended || h.s.ended): // the broker's lease ends by itself
		s.expiredLocked(h.id)
	case failed:
		h.putLocked()
		h.timer.Reset(max(time.Until(h.deadline), 0))
	}
	close(s.settling[h.id])
	delete(s.settling, h.id)
}

// cut is the beginning of a text.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && s[most]&0xc0 == 0x80 { // not within a character
		most--
	}
	return s[:most]
}
