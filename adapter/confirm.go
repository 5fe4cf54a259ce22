package adapter

import (
	"context"
	"math"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The leader of a replicated durable answers an extension before its peers have it. One that
// dies at once, steps down with it, or is cut off from its peers and not from its clients,
// has answered what the next leader knows nothing of. An acknowledgement that asks for a
// reply it answers when a quorum has it, and what it is told reaches its peers in that order.
// So extensions of a replicated durable are followed by an acknowledgement of a sequence that
// is settled already, to which it makes no difference, and count when that is answered.
//
// One confirmation is under way for each durable, because the server keeps one reply for each
// sequence. What is extended meanwhile waits for the next one: the more there are, the more
// go with one.

// confirmWithin is how long a confirmation may take. It is lost with the leader. What it was
// to confirm is then sent again, for nothing says which of two leaders got it.
const confirmWithin = time.Second

// doubtful stands for the connection of an extension that was not confirmed: it is none that
// there is, so that the next one is due at once, see leaseSet.cutOff.
const doubtful = math.MaxUint64

// confirmer has the extensions of one replicated durable confirmed. leaseSet.mu guards it.
type confirmer struct {
	created time.Time       // the durable
	settled uint64          // a sequence that is settled; 0: none is known
	waiting []sentExtension // for the next confirmation
	flight  *confirmation   // nil: none is under way
}

// sentExtension is one that waits to be confirmed.
type sentExtension struct {
	l    *lease
	at   time.Time
	on   uint64      // which of the bus's connections
	told chan<- bool // whether it was confirmed; of capacity 1; nil: nobody asks
}

// confirmation is what is under way.
type confirmation struct {
	extensions []sentExtension // that were sent before it
	sent       time.Time
	on         uint64
	forget     func()
}

// adoptedLocked notes that a durable is replicated, and up to where it is settled. What was noted
// of another one that had its name is of no use any more.
func (h *leaseSet) adoptedLocked(info *jetstream.ConsumerInfo) {
	if info.Cluster == nil || len(info.Cluster.Replicas) == 0 {
		return
	}
	c := h.confirmers[info.Name]
	if c == nil || !c.created.Equal(info.Created) {
		c = &confirmer{created: info.Created}
		h.confirmers[info.Name] = c
	}
	c.settled = max(c.settled, info.AckFloor.Stream)
}

// ackedLocked notes that a lease was acknowledged.
func (h *leaseSet) ackedLocked(l *lease) {
	if c := h.confirmers[l.consumer]; c != nil && l.slot == nil {
		c.settled = l.seq
	}
}

// confirmerLocked returns what confirms the extensions of a lease. It is nil where they count
// as soon as they are answered: on one server, as long as nothing is known to be settled, and
// for an ordered group, whose owner has a lock, which a quorum confirms.
func (h *leaseSet) confirmerLocked(l *lease) *confirmer {
	if c := h.confirmers[l.consumer]; c != nil && c.settled > 0 && l.slot == nil {
		return c
	}
	return nil
}

// confirm has what waits confirmed, unless a confirmation is under way: that one is followed
// by the next.
func (h *leaseSet) confirm(c *confirmer) {
	h.mu.Lock()
	on := h.b.connections.Load()
	c.forgetLost(on)
	if c.flight != nil || len(c.waiting) == 0 || h.isOver() {
		h.mu.Unlock()
		return
	}
	f := &confirmation{extensions: c.waiting, sent: time.Now(), on: on}
	subject := ackSubjects(f.extensions[0].l.reply) + settledAck(c.settled)
	var reply string
	reply, f.forget = h.b.replies.expect(func(m *nats.Msg) { h.confirmed(c, f, m) })
	c.flight, c.waiting = f, nil
	h.mu.Unlock()
	_ = h.b.nc.PublishRequest(subject, reply, nil) // where it cannot be sent it is not answered
}

// settledAck is the end of the subject at which a sequence is acknowledged. The server goes by
// the sequence alone.
func settledAck(seq uint64) string { return "1." + strconv.FormatUint(seq, 10) + ".1.1.0" }

// confirmed notes the answer to a confirmation.
func (h *leaseSet) confirmed(c *confirmer, f *confirmation, m *nats.Msg) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c.flight != f || !extensionTaken(m) || f.on != h.b.connections.Load() {
		return // without an answer, as where nobody leads the durable, overdueLocked goes on
	}
	c.flight = nil
	for _, e := range f.extensions {
		e.l.extendedLocked(e.at)
		e.tell(true)
	}
	if len(c.waiting) > 0 && !h.isOver() {
		h.wg.Go(func() { h.confirm(c) }) // it sends, and may block
	}
}

// overdueLocked gives up the confirmations that have taken too long.
func (h *leaseSet) overdueLocked(now time.Time) {
	on := h.b.connections.Load()
	for _, c := range h.confirmers {
		if c.flight != nil && (c.flight.on != on || now.Sub(c.flight.sent) >= confirmWithin) {
			c.giveUp()
		}
	}
}

// giveUp drops what is under way, and what waits behind it: another leader may have got that.
func (c *confirmer) giveUp() {
	waiting := c.waiting
	if c.flight != nil {
		c.flight.forget()
		waiting = append(c.flight.extensions, waiting...)
	}
	c.flight, c.waiting = nil, nil
	for _, e := range waiting {
		e.doubt()
	}
}

// forgetLost drops what waits and was sent on a connection that is no more.
func (c *confirmer) forgetLost(on uint64) {
	kept := c.waiting[:0]
	for _, e := range c.waiting {
		if e.on == on {
			kept = append(kept, e)
			continue
		}
		e.doubt()
	}
	c.waiting = kept
}

// doubt has an extension that is not known to be there sent again.
func (e *sentExtension) doubt() {
	if e.l.asked.Equal(e.at) {
		e.l.askedOn = doubtful
	}
	e.tell(false)
}

func (e *sentExtension) tell(confirmed bool) {
	if e.told != nil {
		e.told <- confirmed
	}
}

// isConfirmed waits until an extension that was sent, and answered, is confirmed.
func (l *lease) isConfirmed(ctx context.Context, sent time.Time) bool {
	told := make(chan bool, 1)
	l.h.mu.Lock()
	c := l.h.confirmerLocked(l)
	if c == nil || l.over() {
		l.h.mu.Unlock()
		return true
	}
	c.waiting = append(c.waiting, sentExtension{l: l, at: sent, on: l.h.b.connections.Load(), told: told})
	l.h.mu.Unlock()
	l.h.confirm(c)
	select {
	case confirmed := <-told:
		return confirmed
	case <-ctx.Done():
		return false
	}
}
