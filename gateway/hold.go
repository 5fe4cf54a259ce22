package gateway

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// hold is an event in a client's hands, until the deadline that the client was told.
type hold struct {
	id     string // the ack id
	number uint64 // in the order of delivery
	s      *sub
	d      *jetbus.Delivery
	size   int
	since  time.Time

	// Guarded by session.mu.
	deadline time.Time
	timer    *time.Timer
}

// maxHeldBytes is the most that the client of a connection holds, all subscriptions together: the gateway
// has it in memory until it is settled.
const maxHeldBytes = 4 << 20

// hold puts a delivery into the client's hands. It returns nil where the subscription has
// ended, or is paused; and where the client holds too much, with what is closed when that is
// less. A subscription that holds nothing may always have one event: others do not starve it.
func (s *sub) hold(d *jetbus.Delivery, size int) (h *hold, heavy <-chan struct{}) {
	ses := s.ses
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if ses.ended || s.ended || s.paused {
		return nil, nil
	}
	if len(s.held) > 0 && ses.bytes+size > maxHeldBytes {
		if ses.lighter == nil {
			ses.lighter = make(chan struct{})
		}
		return nil, ses.lighter
	}
	ses.issued++
	now := time.Now()
	h = &hold{size: size, id: ses.prefix + strconv.FormatUint(ses.issued, 36), number: ses.issued, s: s, d: d, since: now, deadline: now.Add(s.lease)}
	h.timer = time.AfterFunc(s.lease, h.expire)
	h.putLocked()
	return h, nil
}

// putLocked puts an event into the client's hands.
func (h *hold) putLocked() {
	h.s.ses.holds[h.id], h.s.held[h.id] = h, h
	h.s.ses.bytes += h.size
	h.s.bytes += h.size
}

// takeLocked takes an event out of the client's hands.
func (h *hold) takeLocked() {
	h.timer.Stop()
	delete(h.s.ses.holds, h.id)
	delete(h.s.held, h.id)
	ses := h.s.ses
	ses.bytes -= h.size
	h.s.bytes -= h.size
	h.s.discharge(h.size)
	ses.lightenLocked()
	signal(h.s.freed)
	if len(h.s.held) == 0 {
		close(h.s.empty)
		h.s.empty = make(chan struct{})
	}
}

// lightenLocked lets those look again who wait until less is held.
func (s *session) lightenLocked() {
	if s.lighter != nil {
		close(s.lighter)
		s.lighter = nil
	}
}

// expire takes the event away from a client whose time is over: a failed attempt, as it is
// anywhere in the bus.
func (h *hold) expire() {
	ses := h.s.ses
	ses.mu.Lock()
	if ses.holds[h.id] != h {
		ses.mu.Unlock()
		return
	}
	if left := time.Until(h.deadline); left > 0 { // extended this moment
		h.timer.Reset(left)
		ses.mu.Unlock()
		return
	}
	ses.expiredLocked(h.id)
	ses.work.Go(func() {
		ses.say(&frame.Message{Op: frame.LeaseExpired, Sub: h.s.id, AckID: h.id, ID: h.d.ID, Topic: h.d.Topic, Group: h.s.group})
		ctx, cancel := context.WithTimeout(context.Background(), taskTime)
		defer cancel()
		_ = h.d.Nack(ctx, jetbus.NackOptions{Reason: "lease expired"}) // else the broker's lease ends, too
	})
	h.takeLocked()
	ses.mu.Unlock()
}

// expiredLocked remembers that a lease ran out.
func (s *session) expiredLocked(id string) {
	s.expired = append(s.expired, id)
	if len(s.expired) > 2*keepExpired {
		s.expired = append([]string(nil), s.expired[keepExpired:]...)
	}
}

// extendLocked moves the deadline, at most as far as the limits allow. It returns how long
// the client has now, 0 where the limit of all extensions is reached.
func (h *hold) extendLocked(by time.Duration) time.Duration {
	l := h.s.ses.g.c.Limits
	now := time.Now()
	until := now.Add(min(by, l.LeaseMax))
	if last := h.since.Add(l.LeaseTotal); until.After(last) {
		until = last
	}
	if !until.After(now) {
		return 0
	}
	h.deadline = until
	h.timer.Reset(until.Sub(now))
	return until.Sub(now)
}

// text is the EVENT frame.
func (h *hold) text() []byte {
	s, d := h.s, h.d
	e := d.Event
	if s.headersOnly {
		e.Payload = nil
	}
	s.ses.mu.Lock()
	left := time.Until(h.deadline).Milliseconds()
	s.ses.mu.Unlock()
	if s.ses.sketch {
		return sketchEvent(s.group, &e, d.Attempt, left)
	}
	b := append(make([]byte, 0, 512+len(e.Payload)), `{"op":"EVENT","topic":`...)
	b = frame.AppendString(b, e.Topic)
	b = append(b, `,"group":`...)
	b = frame.AppendString(b, s.group)
	b = append(b, `,"sub":`...)
	b = frame.AppendString(b, s.id)
	b = append(b, `,"ack_id":`...)
	b = frame.AppendString(b, h.id)
	b = append(b, `,"ctx":{"attempt":`...)
	b = strconv.AppendInt(b, int64(d.Attempt), 10)
	b = append(b, `,"maxAttempts":`...)
	b = strconv.AppendInt(b, int64(d.MaxAttempts), 10)
	b = append(b, `,"ack_deadline_ms":`...)
	b = strconv.AppendInt(b, left, 10)
	if d.Redelivered {
		b = append(b, `,"redelivered":true`...)
	}
	if d.ReplayOf > 0 {
		b = strconv.AppendUint(append(b, `,"replay_of":`...), d.ReplayOf, 10)
	}
	if d.Epoch > 0 {
		b = strconv.AppendUint(append(b, `,"epoch":`...), d.Epoch, 10)
	}
	b = append(b, `},`...)
	b, err := frame.AppendEvent(b, &e, offsetOf(s.streams[e.Topic], &e).String())
	if err != nil { // a string of the event that is no UTF-8: no event has one
		return nil
	}
	return append(b, '}')
}

// textIfHeld is the EVENT frame; nil where the client has settled it, or was too late.
func (h *hold) textIfHeld() []byte {
	ses := h.s.ses
	ses.mu.Lock()
	held := ses.holds[h.id] == h
	ses.mu.Unlock()
	if !held {
		return nil
	}
	return h.text()
}

// giveBack returns what the subscription's client holds, at once.
func (s *sub) giveBack(ctx context.Context) {
	s.ses.mu.Lock()
	held := make([]*hold, 0, len(s.held))
	for _, h := range s.held {
		held = append(held, h)
	}
	slices.SortFunc(held, func(a, b *hold) int { return cmp.Compare(a.number, b.number) })
	for _, h := range held {
		h.takeLocked()
	}
	s.ses.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, taskTime)
	defer cancel()
	for _, h := range held {
		if h.d.GiveBack(ctx) != nil && ctx.Err() != nil {
			return // the broker is away: it delivers the rest again when the leases end
		}
	}
}
