package adapter

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
)

// holding is the leases of one holder: a subscription, or what Receive handed
// out for a group. It extends them, and takes them away when their time is over.
type holding struct {
	b          *Bus
	group      string
	ackTimeout time.Duration
	maxLease   time.Duration // -1: only as far as Extend asked
	backoff    jetbus.Backoff
	changed    func() // called without the lock when leases ended; may be nil

	wg   sync.WaitGroup // keeper and extensions; end waits for them
	over chan struct{}  // closed by end

	mu      sync.Mutex
	first   lease // sentinel of the ring of leases
	count   int
	keeping bool // keeper runs
	sending bool // extensions are being sent
	stuck   int  // handlers that run on although they lost their lease
	stats   jetbus.SubscriptionStats
}

func (h *holding) init() {
	h.first.prev, h.first.next = &h.first, &h.first
	h.over = make(chan struct{})
}

// end returns when nothing of the holding runs any more. It is called once, when
// no lease is left and none will come.
func (h *holding) end() {
	close(h.over) // else the keeper would notice at its next tick
	h.wg.Wait()
}

// add takes charge of a lease whose message was sent at that time at the earliest.
func (h *holding) add(l *lease, sent time.Time) {
	l.h = h
	h.mu.Lock()
	defer h.mu.Unlock()
	h.addLocked(l, sent)
}

func (h *holding) addLocked(l *lease, sent time.Time) {
	l.deadline, l.asked = sent.Add(h.safe()), sent
	l.prev, l.next = h.first.prev, &h.first
	l.prev.next, h.first.prev = l, l
	h.count++
	if !h.keeping {
		h.keeping = true
		h.wg.Go(h.keeper)
	}
}

func (h *holding) removeLocked(l *lease, how outcome) {
	l.state = how
	l.prev.next, l.next.prev = l.next, l.prev
	h.count--
	if l.p != nil {
		l.p.held--
	}
	if l.forget != nil {
		l.forget()
		l.forget = nil
	}
}

// take ends a lease on behalf of whoever settles it. Its error says why it
// cannot be settled.
func (h *holding) take(l *lease) error {
	h.mu.Lock()
	err := h.takeLocked(l, time.Now())
	h.mu.Unlock()
	if h.changed != nil {
		h.changed()
	}
	return err
}

func (h *holding) takeLocked(l *lease, now time.Time) error {
	err := l.checkAt(now)
	switch {
	case err == nil:
		h.removeLocked(l, settled)
	case l.state == open: // overdue, and the keeper has not come by yet
		h.loseLocked(l)
	}
	return err
}

// loseLocked ends a lease whose time is over.
func (h *holding) loseLocked(l *lease) {
	h.removeLocked(l, lost)
	h.stats.LeasesLost++
	if l.run != nil {
		h.stuck++
		l.run.cancel(jetbus.ErrLeaseExpired)
	}
}

// keep lets the keeper extend the lease until then.
func (h *holding) keep(l *lease, until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if until.Sub(l.asked) > h.ackTimeout { // else the extension itself lasts as long
		l.keepUntil = maxTime(l.keepUntil, until)
	}
}

// keeper watches over the leases while there are any. It must never block: a
// connection that hangs is what it is there for.
func (h *holding) keeper() {
	h.mu.Lock()
	tick := time.NewTicker(min(max(h.ackTimeout/30, time.Millisecond), time.Second))
	h.mu.Unlock()
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-h.over:
			return
		}
		expired, more := h.inspect(time.Now())
		for _, l := range expired {
			h.note(l, jetbus.LeaseLost, "no extension was answered in time", nil)
		}
		if len(expired) > 0 && h.changed != nil {
			h.wg.Go(h.changed) // it sends, and may block
		}
		if !more {
			return
		}
	}
}

// inspect takes away what is overdue and sends extensions for what is due. It
// reports false, and the keeper is off duty, when no lease is left.
func (h *holding) inspect(now time.Time) (expired []*lease, more bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var due []*lease
	canSend := !h.sending && h.b.link.isUp()
	for l := h.first.next; l != &h.first; {
		next := l.next
		switch {
		case !now.Before(l.deadline):
			h.loseLocked(l)
			expired = append(expired, l)
		case canSend && now.Sub(l.asked) >= h.ackTimeout/3 && h.extendable(l, now):
			l.asked = now
			due = append(due, l)
		}
		l = next
	}
	if len(due) > 0 {
		h.sending = true
		h.wg.Go(func() { h.extend(due) })
	}
	h.keeping = h.count > 0
	return expired, h.keeping
}

// extendable reports whether the bus is to keep a lease going by itself.
func (h *holding) extendable(l *lease, now time.Time) bool {
	switch {
	case now.Before(l.keepUntil):
		return true
	case h.maxLease < 0:
		return false
	}
	return l.started.IsZero() || now.Before(l.started.Add(h.maxLease))
}

// extend asks the server to extend leases. Sending may block on a connection
// that hangs, which is why it has a goroutine of its own.
func (h *holding) extend(due []*lease) {
	for _, l := range due {
		sent := time.Now()
		reply, forget := h.b.mux.expect(func(*nats.Msg) { l.extended(sent) })
		h.mu.Lock()
		if l.state != open {
			h.mu.Unlock()
			forget()
			continue
		}
		if l.forget != nil {
			l.forget()
		}
		l.forget = forget
		h.mu.Unlock()
		if err := h.b.nc.PublishRequest(l.reply, reply, []byte("+WPI")); err != nil {
			break // the connection is gone; the deadlines stand
		}
	}
	h.mu.Lock()
	h.sending = false
	h.mu.Unlock()
	h.b.cfg.Observer.Observe(jetbus.Observation{Kind: jetbus.Extended, Topic: due[0].t.name(), Group: h.group, Count: len(due)})
}

// find returns the held lease of an event that a handler has, or nil.
func (h *holding) find(t, id string) *lease {
	h.mu.Lock()
	defer h.mu.Unlock()
	for l := h.first.next; l != &h.first; l = l.next {
		if l.id == id && l.t.name() == t {
			return l
		}
	}
	return nil
}

// note counts what happened to a lease and tells the observer.
func (h *holding) note(l *lease, kind jetbus.ObservationKind, reason string, err error) {
	h.mu.Lock()
	switch kind {
	case jetbus.Acked:
		h.stats.Acked++
	case jetbus.Nacked:
		h.stats.Nacked++
	case jetbus.GivenBack:
		h.stats.GivenBack++
	case jetbus.Filtered:
		h.stats.Filtered++
		h.stats.Acked++
	default:
	}
	o := jetbus.Observation{Kind: kind, Topic: l.t.name(), Group: h.group, ID: l.id, Seq: l.seq, Attempt: l.attempt, Reason: reason, Err: err}
	started := l.started
	h.mu.Unlock()
	if h.b.cfg.Observer == nil {
		return
	}
	if !started.IsZero() {
		o.Duration = time.Since(started)
	}
	h.b.cfg.Observer(o)
}

// giveBack returns leases to the group without an attempt.
func (h *holding) giveBack(ctx context.Context, leases []*lease, reason string) {
	if len(leases) == 0 || !h.b.link.isUp() {
		return
	}
	h.b.recordReturns(ctx, leases...)
	for _, l := range leases {
		if l.settle(ctx, "give back", nakNow) == nil {
			h.note(l, jetbus.GivenBack, reason, nil)
		}
	}
}

// putOff puts a message that is no event off for as long as the backoff goes: it
// must not be lost, and it must not keep the group busy.
func (h *holding) putOff(ctx context.Context, l *lease, err error) {
	h.b.cfg.Logger.ErrorContext(ctx, "message is no event; it is delivered again after the longest backoff",
		slog.String("topic", l.t.name()), slog.String("group", h.group), slog.String("stream", l.t.stream), slog.Uint64("seq", l.seq), slog.Any("error", err))
	if l.settle(ctx, "nack", nakPayload(h.backoff.Max)) == nil {
		h.note(l, jetbus.Undecodable, "", err)
	}
}

// all returns the leases that are held.
func (h *holding) all() []*lease {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]*lease, 0, h.count)
	for l := h.first.next; l != &h.first; l = l.next {
		out = append(out, l)
	}
	return out
}
