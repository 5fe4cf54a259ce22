package adapter

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
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
// is settled already, or of nothing, which makes no difference, and count when that is answered.
//
// One confirmation is under way for each durable and holder. What is extended meanwhile waits
// for the next one: the more there are, the more go with one.

// confirmWithin is how long a confirmation may take before what it was to confirm is sent
// again, for it may have been lost with a leader: this long at first, twice as long each
// time, as a quorum that is slow takes, and a third of what a lease lasts at most.
const confirmWithin = time.Second

// maxUnanswered is how many confirmations of a durable may be answered late.
const maxUnanswered = 4

// nothing is the sequence of no event. The server answers an acknowledgement of it like any other.
const nothing = 0

// doubtful stands for the connection of an extension that was not confirmed: it is none that
// there is, so that the next one is due at once, see leaseSet.cutOff.
const doubtful = math.MaxUint64

// confirmer has the extensions of one replicated durable confirmed. leaseSet.mu guards it.
type confirmer struct {
	created time.Time // the durable
	on      uint64    // the bus's connection on which the following was found out
	floor   uint64    // all sequences up to it are settled
	own     uint64    // the last one that this holder has acknowledged; nothing: none yet

	line    uint64          // the connection of what follows
	waiting []sentExtension // for the next confirmation
	sent    []*confirmation // what is not answered, oldest first: of that all but the last one are late
	within  time.Duration   // how long the last one may take; 0: the least

	confirmed []*lease // that are exposed, until it is known who leads the durable
	looking   bool     // lookWhoLeads runs
}

// sentExtension is one that waits to be confirmed.
type sentExtension struct {
	l    *lease
	at   time.Time
	on   uint64      // which of the bus's connections
	told chan<- bool // whether it was confirmed; nil: nobody asks, or was told
}

// confirmation is what is under way.
type confirmation struct {
	extensions []sentExtension // that were sent before it
	seq        uint64          // that is acknowledged
	at         time.Time
	on         uint64
	late       bool // what it was to confirm is sent again
	forget     func()
}

// adoptedLocked notes where a replicated durable is, as it was found out on a connection. What
// was noted of another one that had its name, or before it was set back, is of no use any more.
func (h *leaseSet) adoptedLocked(info *jetstream.ConsumerInfo, on uint64) {
	if info.Cluster == nil || len(info.Cluster.Replicas) == 0 || info.Config.Metadata[metaOrder] != "" {
		return
	}
	c := h.confirmers[info.Name]
	if c == nil {
		c = &confirmer{created: info.Created}
		h.dropConfirmers(firstName(info)) // the group was moved
		h.confirmers[info.Name] = c
	}
	if on < c.on {
		return
	}
	same := c.created.Equal(info.Created)
	if !same || c.on != on || info.Delivered.Stream < max(c.own, c.floor) {
		c.giveUp()
		c.created, c.on, c.floor = info.Created, on, 0
		if !same || c.own > info.AckFloor.Stream { // it may not be settled any more
			c.own = nothing
		}
	}
	c.floor = max(c.floor, info.AckFloor.Stream)
}

// dropConfirmers forgets those of a group by the name of its first durable.
func (h *leaseSet) dropConfirmers(first string) {
	for name := range h.confirmers {
		if _, ok := epochIn(name, first); ok {
			h.dropConfirmer(name)
		}
	}
}

func (h *leaseSet) dropConfirmer(durable string) {
	if c := h.confirmers[durable]; c != nil {
		c.giveUp()
		delete(h.confirmers, durable)
	}
}

// ackedLocked notes that a lease is acknowledged.
func (h *leaseSet) ackedLocked(l *lease) {
	if c := h.confirmers[l.consumer]; c != nil && c.on == h.b.connections.Load() {
		c.own = l.seq
	}
}

// confirmerLocked returns what confirms the extensions of a lease. It is nil where they count
// as soon as they are answered: on one server, and for an ordered group, whose owner has a
// lock, which a quorum confirms.
func (h *leaseSet) confirmerLocked(l *lease) *confirmer { return h.confirmers[l.consumer] }

// maxDraws is how often a sequence is drawn that no unanswered confirmation has, where there
// may be none.
const maxDraws = 10

// choose returns a sequence that is settled, or nothing, and if it can be one that no unanswered
// confirmation has: the server keeps one reply for each, so that two holders who choose the
// same one at the same time get each other's answers. The more there are to choose from, the rarer that is. In a
// stream of somebody else's, which may remove what has no other consumer, it takes no part in what others settle.
func (c *confirmer) choose(l *lease, on uint64) uint64 {
	if c.on != on { // it is not known any more whether what was settled is
		return nothing
	}
	taken := func(seq uint64) bool {
		return slices.ContainsFunc(c.sent, func(f *confirmation) bool { return f.seq == seq })
	}
	seq := c.own
	for draw := 0; draw < maxDraws && !l.t.adopted() && (seq == nothing || taken(seq)); draw++ {
		seq = rand.Uint64N(c.floor + 1)
	}
	return seq
}

// confirm has what waits confirmed, unless a confirmation is under way: that one is followed
// by the next.
func (h *leaseSet) confirm(c *confirmer) {
	h.mu.Lock()
	on := h.b.connections.Load()
	c.goOn(on)
	if c.isBusy() || len(c.waiting) == 0 || h.isOver() {
		h.mu.Unlock()
		return
	}
	l := c.waiting[0].l
	f := &confirmation{extensions: c.waiting, seq: c.choose(l, on), at: time.Now(), on: on}
	var reply string
	reply, f.forget = h.b.replies.expect(func(m *nats.Msg) { h.confirmed(c, f, m) })
	c.sent, c.waiting = append(c.sent, f), nil
	h.mu.Unlock()
	_ = h.b.nc.PublishRequest(ackSubjects(l.reply)+settledAck(f.seq), reply, nil) // where it cannot be sent it is not answered
}

// isBusy reports whether a confirmation is under way that is not late.
func (c *confirmer) isBusy() bool { return len(c.sent) > 0 && !c.sent[len(c.sent)-1].late }

// settledAck is the end of the subject at which a sequence is acknowledged. The server goes by
// the sequence alone.
func settledAck(seq uint64) string { return "1." + strconv.FormatUint(seq, 10) + ".1.1.0" }

// confirmed notes the answer to a confirmation. Of two of one sequence the reply of the later one
// is sent for the earlier one, and none for the later.
func (h *leaseSet) confirmed(c *confirmer, f *confirmation, m *nats.Msg) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.Contains(c.sent, f) || !extensionTaken(m) || f.on != h.b.connections.Load() {
		return // without an answer, as where nobody leads the durable, overdueLocked goes on
	}
	first := c.sent[slices.IndexFunc(c.sent, func(g *confirmation) bool { return g.seq == f.seq })]
	for _, e := range first.extensions {
		e.l.extendedLocked(e.at)
		e.tell(true)
	}
	if first != f {
		f.doubt()
		first.forget()
	}
	c.sent = slices.DeleteFunc(c.sent, func(g *confirmation) bool { return g == f || g == first })
	c.within = 0
	if len(c.waiting) > 0 && !c.isBusy() && !h.isOver() {
		h.wg.Go(func() { h.confirm(c) }) // it sends, and may block
	}
}

// overdueLocked has sent again what is not confirmed in time.
func (h *leaseSet) overdueLocked(now time.Time) {
	on := h.b.connections.Load()
	for _, c := range h.confirmers {
		c.overdue(now, on, h.pace()/3)
	}
}

func (c *confirmer) overdue(now time.Time, on uint64, most time.Duration) {
	if c.goOn(on); !c.isBusy() {
		return
	}
	last := c.sent[len(c.sent)-1]
	within := min(max(c.within, confirmWithin), most)
	if now.Sub(last.at) < within {
		return
	}
	c.within, last.late = 2*within, true
	last.doubt()
	c.dropWaiting() // another leader may have got that
	if len(c.sent) > maxUnanswered {
		c.sent[0].forget()
		c.sent = c.sent[1:]
	}
}

// goOn gives up what went out on another connection than the present one.
func (c *confirmer) goOn(on uint64) {
	if c.line != on {
		c.giveUp()
		c.line = on
	}
}

// awaitLocked has an extension that was sent confirmed, unless its connection is gone.
func (h *leaseSet) awaitLocked(c *confirmer, e sentExtension) {
	on := h.b.connections.Load()
	if c.goOn(on); e.on != on {
		e.doubt()
		return
	}
	c.waiting = append(c.waiting, e)
}

// giveUpLocked drops all that is not confirmed.
func (h *leaseSet) giveUpLocked() {
	for _, c := range h.confirmers {
		c.giveUp()
	}
}

// giveUp drops all that is not confirmed.
func (c *confirmer) giveUp() {
	for _, f := range c.sent {
		f.forget()
		f.doubt()
	}
	c.sent, c.within = nil, 0
	c.dropWaiting()
}

func (c *confirmer) dropWaiting() {
	for _, e := range c.waiting {
		e.doubt()
	}
	c.waiting = nil
}

// doubt has extensions that are not known to be there sent again. An answer may show later
// that they are.
func (f *confirmation) doubt() {
	for i := range f.extensions {
		f.extensions[i].doubt()
	}
}

func (e *sentExtension) doubt() {
	if e.l.asked.Equal(e.at) {
		e.l.askedOn = doubtful
	}
	e.tell(false)
}

func (e *sentExtension) tell(confirmed bool) {
	if e.told != nil {
		e.told <- confirmed // there is room
		e.told = nil
	}
}

// isConfirmed waits until an extension is confirmed that was sent on a connection, and answered.
func (l *lease) isConfirmed(ctx context.Context, sent time.Time, on uint64) bool {
	told := make(chan bool, 1)
	l.h.mu.Lock()
	c := l.h.confirmerLocked(l)
	if c == nil || l.over() {
		l.h.mu.Unlock()
		return true
	}
	l.h.awaitLocked(c, sentExtension{l: l, at: sent, on: on, told: told})
	l.h.mu.Unlock()
	l.h.confirm(c)
	select {
	case confirmed := <-told:
		return confirmed
	case <-ctx.Done():
		return false
	}
}
