package adapter

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/deadline"
)

// leaseSet is the leases of one holder: a subscription, or what Receive handed
// out for a group. It extends them, and takes them away when their time is over.
type leaseSet struct {
	b          *Bus
	group      string
	own        time.Duration // AckTimeout that the holder asked for; 0: the group's
	ackTimeout time.Duration // of the group: how long a lease lasts; the shortest of its durables
	maxLease   time.Duration // -1: only as far as Extend asked
	backoff    jetbus.Backoff
	changed    func(p *puller) // called without the lock when a lease of p ended, or, with nil, several did; may be nil

	wg   sync.WaitGroup     // keeper, extensions and what is found out; end waits for them
	duty context.Context    //nolint:containedctx // canceled by end; for what the set asks by itself
	quit context.CancelFunc // of duty

	mu      sync.Mutex
	first   lease // sentinel of the ring of leases
	count   int
	named   map[eventName]*lease // of the ring, those whose events are decoded; of several of one name the newest, see lease.twin
	keeping bool                 // keeper runs
	sending bool                 // extensions are being sent
	stuck   int                  // handlers that run on although they lost their lease
	grip    grip                 // how many leases can be kept

	confirmers map[string]*confirmer // by durable
	stats      jetbus.SubscriptionStats
}

// eventName is how those who have no delivery name an event of the group.
type eventName struct{ topic, id string }

func (h *leaseSet) init() {
	h.first.prev, h.first.next = &h.first, &h.first
	h.named, h.confirmers = map[eventName]*lease{}, map[string]*confirmer{}
	h.duty, h.quit = context.WithCancel(context.Background())
}

// adoptLocked makes the leases last as long as a durable lets them, or as long as another
// one of the same holder does where that is less.
func (h *leaseSet) adoptLocked(info *jetstream.ConsumerInfo) {
	if wait := info.Config.AckWait; h.ackTimeout == 0 || wait < h.ackTimeout {
		h.ackTimeout = wait
	}
	if h.maxLease > 0 {
		h.maxLease = max(h.maxLease, h.ackTimeout)
	}
	h.adoptedLocked(info, h.b.connections.Load())
}

// pace is the AckTimeout by which leases are extended: the holder's own, where it asked
// for less than the group has.
func (h *leaseSet) pace() time.Duration {
	if h.own > 0 {
		return min(h.own, h.ackTimeout)
	}
	return h.ackTimeout
}

// end returns when nothing of the set runs any more. It is called once, when
// no lease is left and none will come.
func (h *leaseSet) end() {
	h.mu.Lock()
	h.closeLocked()
	h.mu.Unlock()
	h.wg.Wait()
}

// closeLocked has all that runs end; else the keeper would notice at its next tick.
func (h *leaseSet) closeLocked() {
	h.giveUpLocked()
	h.quit()
}

func (h *leaseSet) isOver() bool { return h.duty.Err() != nil }

// add takes charge of a lease whose message was sent at that time at the earliest.
func (h *leaseSet) add(l *lease, sent time.Time) {
	l.h = h
	h.mu.Lock()
	defer h.mu.Unlock()
	h.addLocked(l, sent)
}

// addLocked is add for who has the lock: the puller, which counts the event as its own in the
// same turn, so that nobody sees it held and not counted, or the other way around.
func (h *leaseSet) addLocked(l *lease, sent time.Time) {
	l.deadline, l.asked, l.sent = sent.Add(h.safe()), sent, sent
	if age := time.Duration(sent.UnixNano() - l.stored); l.isReplicated() && l.slot == nil && age > 0 && !h.isOld(l) {
		l.deadline = l.deadline.Add(-age) // a server that takes the lead counts from there, until it is extended
	}
	h.exposeLocked(l)
	l.prev, l.next = h.first.prev, &h.first
	l.prev.next, h.first.prev = l, l
	h.count++
	if !h.keeping {
		h.keeping = true
		h.wg.Go(h.keeper)
	}
}

// removeLocked ends a lease. Whoever comes later, with an answer or to settle it, finds out how
// it ended by its state: the lease itself is still in the hands of its handler.
func (h *leaseSet) removeLocked(l *lease, how outcome) {
	l.state = how
	l.prev.next, l.next.prev = l.next, l.prev
	h.count--
	h.unnameLocked(l)
	l.coverLocked()
	if l.p != nil {
		l.p.dropLocked(l)
	}
	if l.forget != nil {
		l.forget()
		l.forget = nil
	}
}

// noteEventLocked records the ID of a lease's event, by which it is found while it is held, and its schema version.
func (h *leaseSet) noteEventLocked(l *lease, e *jetbus.Event) {
	if l.id == e.ID {
		return
	}
	l.id, l.version = e.ID, e.Headers[jetbus.HeaderSchemaVersion]
	if l.over() {
		return
	}
	name := eventName{l.t.name(), l.id}
	l.twin, h.named[name] = h.named[name], l
}

// unnameLocked is called as the lease ends. It may have twins, in any order.
func (h *leaseSet) unnameLocked(l *lease) {
	if l.id == "" { // it was not decoded
		return
	}
	name := eventName{l.t.name(), l.id}
	switch first := h.named[name]; {
	case first == l && l.twin == nil:
		delete(h.named, name)
	case first == l:
		h.named[name] = l.twin
	default:
		for first.twin != l {
			first = first.twin
		}
		first.twin = l.twin
	}
	l.twin = nil
}

// take ends a lease on behalf of whoever settles it. Its error says why it
// cannot be settled.
func (h *leaseSet) take(l *lease) error {
	h.mu.Lock()
	err := h.takeLocked(l, time.Now())
	h.mu.Unlock()
	if h.changed != nil {
		h.changed(l.p)
	}
	return err
}

// takeLocked is take for who has the lock. Who is told nil is the only one ever: two who settle
// at once, a handler and the keeper that takes the lease away, say, meet here.
func (h *leaseSet) takeLocked(l *lease, now time.Time) error {
	err := l.checkAt(now)
	switch {
	case err == nil:
		if l.p != nil {
			l.p.settlesLocked(l.reply, now)
		}
		h.removeLocked(l, leaseSettled)
	case l.state == leaseOpen: // overdue, and the keeper has not come by yet
		h.loseLocked(l)
	}
	return err
}

// loseLocked ends a lease whose time is over.
func (h *leaseSet) loseLocked(l *lease) {
	if l.slot != nil { // it is over at the server only
		h.stats.LeasesLost++
		l.slot.driftLocked()
		l.slot.o.disturbLocked("a lease ran out")
		return
	}
	if !l.overran {
		h.grip.slipped(h.count, time.Now(), h.ackTimeout)
	}
	h.removeLocked(l, leaseLost)
	h.stats.LeasesLost++
	if l.run != nil {
		h.stuck++
		l.run.cancel(jetbus.ErrLeaseExpired)
	}
}

// keep lets the keeper extend the lease until then.
func (h *leaseSet) keep(l *lease, until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if until.Sub(l.asked) > h.ackTimeout { // else the extension itself lasts as long
		l.keepUntil = maxTime(l.keepUntil, until)
	}
}

// keeper watches over the leases while there are any. It must never block: a
// connection that hangs is what it is there for.
func (h *leaseSet) keeper() {
	h.mu.Lock()
	tick := time.NewTicker(min(max(h.pace()/30, time.Millisecond), time.Second))
	h.mu.Unlock()
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-h.duty.Done():
			return
		}
		expired, more := h.inspect(time.Now())
		if len(expired) > 0 {
			h.wg.Go(func() { h.lost(expired) }) // it sends, and may block
		}
		if !more {
			return
		}
	}
}

// lost does what is to be done when leases have run out.
func (h *leaseSet) lost(expired []*lease) {
	var over []*lease
	for _, l := range expired {
		reason := "no extension was answered in time"
		if l.overran {
			reason = "it was not settled in time"
			over = append(over, l)
		} else {
			h.b.survived.note(l)
		}
		h.note(l, jetbus.LeaseLost, reason, nil)
		h.leaveAlone(l) // its handler may never end
	}
	h.overran(context.Background(), over)
	if h.changed != nil {
		h.changed(nil)
	}
}

// inspect takes away what is overdue and sends extensions for what is due. It
// reports false, and the keeper is off duty, when no lease is left.
func (h *leaseSet) inspect(now time.Time) (expired []*lease, more bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.overdueLocked(now)
	var due []*lease
	canSend := !h.sending && h.b.link.IsUp()
	for l := h.first.next; l != &h.first; {
		next := l.next
		switch {
		case l.slot != nil && l.slot.overdueLocked(now):
			h.wg.Go(l.slot.overran)
		case l.state == leaseAdrift:
		case l.slot != nil && deadline.Over(l.deadline, now):
			h.loseLocked(l)
		case deadline.Over(l.deadline, now):
			l.overran = !l.started.IsZero() && !l.claimed && !h.extendable(l, now)
			h.loseLocked(l)
			expired = append(expired, l)
		case canSend && (now.Sub(l.asked) >= h.rest(l) || h.cutOff(l)) && h.extendable(l, now):
			l.asked, l.askedOn = now, h.b.connections.Load()
			due = append(due, l)
		}
		l = next
	}
	if len(due) > 0 {
		h.sending = true
		h.wg.Go(func() { h.extend(due) })
	}
	if h.keeping = h.count > 0; !h.keeping {
		h.giveUpLocked()
	}
	return expired, h.keeping
}

// soon is how long after its delivery the lease of an old event is extended for the
// first time.
const soon = time.Second

// rest is how long after the last one the next extension is due. Until a lease is
// extended the server, should it be restarted, knows of it when its event was
// stored and not when it was delivered, and takes that of an old event to be over.
func (h *leaseSet) rest(l *lease) time.Duration {
	every := h.pace() / 3
	if !l.known && h.isOld(l) {
		return min(every, soon)
	}
	return every
}

// cutOff reports whether the newest extension went out on a connection that is no
// more, and its answer with it. Then the next one is due at once: two that are lost
// would be all that a lease has.
func (h *leaseSet) cutOff(l *lease) bool {
	return l.askedOn != 0 && l.askedOn != h.b.connections.Load()
}

// extendable reports whether the bus is to keep a lease going by itself.
func (h *leaseSet) extendable(l *lease, now time.Time) bool {
	switch {
	case l.slot != nil, l.isExposed(), now.Before(l.keepUntil):
		return true
	case h.maxLease < 0:
		return !l.known && l.askedOn == doubtful // the only extension, of secure, was lost
	}
	return l.started.IsZero() || now.Before(l.started.Add(h.maxLease))
}

// extend asks for what is due. Sending may block on a connection that hangs, which is
// why it has a goroutine of its own.
func (h *leaseSet) extend(due []*lease) {
	h.askAll(due)
	h.mu.Lock()
	h.sending = false
	h.mu.Unlock()
}

// askAll asks the server to extend leases, and does not wait for the answers.
func (h *leaseSet) askAll(due []*lease) {
	var confirmers []*confirmer
	for _, l := range due {
		c, ok, err := h.askOne(l)
		if err != nil {
			break // the connection is gone; they are due on the next one
		}
		if ok {
			h.note(l, jetbus.Extended, "", nil)
		}
		if c != nil && !slices.Contains(confirmers, c) {
			confirmers = append(confirmers, c)
		}
	}
	for _, c := range confirmers {
		h.confirm(c)
	}
}

// askOne asks the server to extend a lease, unless that is over. What it returns is to confirm
// the extension; it may be nil.
func (h *leaseSet) askOne(l *lease) (c *confirmer, ok bool, err error) {
	sent := time.Now()
	h.mu.Lock()
	if l.state != leaseOpen {
		h.mu.Unlock()
		return nil, false, nil
	}
	if l.forget != nil {
		l.forget()
		l.forget = nil
	}
	var reply string
	if c = h.confirmerLocked(l); c == nil {
		reply, l.forget = h.b.replies.expect(func(m *nats.Msg) {
			if extensionTaken(m) {
				l.extended(sent)
			} else {
				l.notExtended(sent)
			}
		})
	}
	subject := l.reply
	if l.p != nil {
		l.p.settlesLocked(subject, sent)
	}
	on := make(chan struct{})
	l.extending = on
	e := sentExtension{l: l, at: sent, on: h.b.connections.Load()}
	l.asked, l.askedOn = sent, e.on
	h.mu.Unlock()
	// Sending may block on a connection that hangs, and the keeper needs the lock to take away what
	// runs out meanwhile. Who refuses the event in between waits for on (awaitExtension): behind a
	// refusal the extension would undo its delay.
	err = h.b.nc.PublishMsg(&nats.Msg{Subject: subject, Reply: reply, Data: extension})
	close(on)
	if err == nil && c != nil {
		h.mu.Lock()
		h.awaitLocked(c, e)
		h.mu.Unlock()
	}
	return c, err == nil, err
}

// find returns the held leases of the events of a topic that have this id and a
// handler: one, but where events were published under the same id.
func (h *leaseSet) find(t, id string) []*lease {
	h.mu.Lock()
	defer h.mu.Unlock()
	var found []*lease
	for l := h.named[eventName{t, id}]; l != nil; l = l.twin {
		if l.slot == nil || l.slot.inHand() {
			found = append(found, l)
		}
	}
	return found
}

// note counts what happened to a lease and tells the observer.
func (h *leaseSet) note(l *lease, kind jetbus.ObservationKind, reason string, err error) {
	h.noteCount(l, kind, reason, err, 0)
}

func (h *leaseSet) noteCount(l *lease, kind jetbus.ObservationKind, reason string, err error, count int) {
	h.tell(l, jetbus.Observation{Kind: kind, Count: count, Reason: reason, Err: err})
}

// tell is note for what needs more to be said. A Duration of zero becomes that of
// the handler.
func (h *leaseSet) tell(l *lease, o jetbus.Observation) {
	h.mu.Lock()
	switch o.Kind {
	case jetbus.Acked:
		h.stats.Acked++
	case jetbus.Nacked:
		h.stats.Nacked++
	case jetbus.Snoozed:
		h.stats.Snoozed++
	case jetbus.DeadLettered:
		h.stats.DeadLetters++
	case jetbus.GivenBack:
		h.stats.GivenBack++
	case jetbus.Filtered:
		h.stats.Filtered++
		h.stats.Acked++
	default:
	}
	o.Topic, o.Group, o.ID, o.Seq, o.Attempt, o.Version = l.t.name(), h.group, l.id, l.position(), l.attempt, l.version
	started := l.started
	h.mu.Unlock()
	if h.b.cfg.Observer == nil {
		return
	}
	if o.Duration == 0 && !started.IsZero() && o.Kind != jetbus.Extended {
		o.Duration = time.Since(started)
	}
	h.b.cfg.Observer(o)
}

// giveBack returns leases to the group without an attempt. Those that are exposed it gives back
// behind the others, if they are known to be ours in time. Without a connection it leaves all as they are.
func (h *leaseSet) giveBack(ctx context.Context, leases []*lease, reason string) {
	if !h.b.link.IsUp() {
		return
	}
	held, exposed := h.cover(ctx, 0, leases)
	h.giveBackHeld(ctx, held, reason)
	if len(exposed) > 0 {
		held, exposed = h.cover(ctx, drainTimeout, exposed)
		h.giveBackHeld(ctx, held, reason)
		h.forgo(exposed)
	}
}

func (h *leaseSet) giveBackHeld(ctx context.Context, leases []*lease, reason string) {
	var ours []*lease
	for _, l := range leases {
		if l.claim("give back") == nil {
			ours = append(ours, l)
		}
	}
	if len(ours) == 0 {
		return
	}
	h.b.recordReturns(ctx, ours...)
	for _, l := range ours {
		l.unclaim()
		if l.settle(ctx, "give back", nakNow) == nil {
			h.note(l, jetbus.GivenBack, reason, nil)
		}
	}
}

// giveBackOne is giveBack for a holder who wants to know.
func (h *leaseSet) giveBackOne(ctx context.Context, l *lease, reason string) error {
	if err := l.claim("give back"); err != nil {
		return err
	}
	h.b.recordReturns(ctx, l)
	l.unclaim()
	if err := l.settle(ctx, "give back", nakNow); err != nil {
		return err
	}
	h.note(l, jetbus.GivenBack, reason, nil)
	return nil
}

// all returns the leases that are held.
func (h *leaseSet) all() []*lease {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]*lease, 0, h.count)
	for l := h.first.next; l != &h.first; l = l.next {
		out = append(out, l)
	}
	return out
}
