package adapter

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/deadline"
)

// The leader of a replicated durable has its peers note that an event was sent before it sends
// it, as of when the event was stored (nats-server 2.15.2, consumer.deliverMsg). So a server that
// takes the lead before the first extension is replicated takes the lease of an old event to be over: it gives
// the event to another member, and extends its lease for both.
//
// Such a lease is exposed until it is known to be ours, and its event in no hands until then. It
// is ours when a quorum has its first extension, and who leads the durable behind that has led it since
// before the event can have been sent: then no other leader has had the event to give away, and
// each that comes has the extension.

// exposeLocked notes whether a lease that has just come is exposed.
func (h *leaseSet) exposeLocked(l *lease) {
	if l.slot == nil && h.confirmers[l.consumer] != nil && h.isUnsafe(l) { // ordered groups stand on locks
		l.exposed = make(chan struct{})
	}
}

// isUnsafe reports whether a server that takes the lead of the durable may take a lease to be
// over that was not extended yet.
func (h *leaseSet) isUnsafe(l *lease) bool {
	return l.isReplicated() && (l.deliveries > 1 || h.isOld(l))
}

// isOld reports whether an event was stored long before it was delivered, for the time
// that a lease has.
func (h *leaseSet) isOld(l *lease) bool {
	return l.asked.UnixNano()-l.stored > int64(h.pace()/3)
}

// isExposed may be called with and without the lock.
func (l *lease) isExposed() bool {
	if l.exposed == nil {
		return false
	}
	select {
	case <-l.exposed:
		return false
	default:
		return true
	}
}

// secure extends a lease that has just come, where it is unsafe until then. So it does with
// leases that nothing extends later: they count from here, whatever the age of their events. On one
// server it waits, so that a backlog that is handled quickly costs no extensions: see rest.
func (h *leaseSet) secure(l *lease) {
	h.mu.Lock()
	due := l.state == leaseOpen && (h.isUnsafe(l) || l.isReplicated() && h.maxLease < 0)
	if due {
		l.asked, l.askedOn = time.Now(), h.b.connections.Load()
	}
	h.mu.Unlock()
	if due {
		h.askAll([]*lease{l})
	}
}

// quorumHasLocked goes on with an exposed lease when its first extension is confirmed.
func (h *leaseSet) quorumHasLocked(l *lease) {
	if !l.isExposed() {
		return
	}
	c := h.confirmers[l.consumer]
	if c == nil { // the group was moved
		h.forgoLocked([]*lease{l})
		return
	}
	if c.confirmed = append(c.confirmed, l); !c.looking {
		c.looking = true
		h.wg.Go(func() { h.lookWhoLeads(c, l.t, l.consumer) })
	}
}

// lookWhoLeads finds out which of the leases whose extension is confirmed are ours, until there
// are none. Those that are not are left to their time: they may be somebody else's. It asks once
// for all that were confirmed meanwhile.
func (h *leaseSet) lookWhoLeads(c *confirmer, t *topic, durable string) {
	for {
		h.mu.Lock()
		asked := c.confirmed
		c.confirmed = nil
		if c.looking = len(asked) > 0; !c.looking {
			h.mu.Unlock()
			return
		}
		h.mu.Unlock()
		led, at, err := h.b.ledFor(h.duty, t, durable)
		h.mu.Lock()
		for _, l := range asked {
			if err == nil && !deadline.Over(l.sent.Add(led), at) {
				l.coverLocked()
			}
		}
		h.forgoLocked(asked)
		if errors.Is(err, errAlone) {
			h.dropConfirmer(durable)
		}
		h.mu.Unlock()
	}
}

// errAlone: a durable has no replicas any more.
var errAlone = errors.New("the durable has no replicas")

// maxNameless is how often who leads is asked since when: a server that has just taken the lead
// says so a moment later, and one before 2.12 never does.
const maxNameless = 5

// ledFor returns for how long the server that leads a durable has led it, as of a time that is not
// earlier: servers and clients need not agree on what time it is. Where nobody leads the
// durable it waits. Of servers before 2.12 it says forever.
func (srv *server) ledFor(ctx context.Context, t *topic, durable string) (led time.Duration, at time.Time, err error) {
	nameless := 0
	for wait := publishRetry; ; wait = min(2*wait, publishRetryMax) {
		c, err := srv.consumer(ctx, t, durable)
		if err != nil {
			return 0, at, err
		}
		at = time.Now()
		info := c.CachedInfo()
		switch l := info.Cluster; {
		case l == nil, l.Leader == "":
		case len(l.Replicas) == 0:
			return 0, at, errAlone
		case l.LeaderSince == nil:
			if nameless++; nameless == maxNameless {
				return math.MaxInt64 / 2, at, nil
			}
		case hearsMost(l):
			return info.TimeStamp.Sub(*l.LeaderSince), at, nil
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return 0, at, context.Cause(ctx)
		}
	}
}

// silentLeader is how long the others hear nothing of their leader before they elect another one,
// at least (nats-server 2.15.2, raft.go minElectionTimeoutDefault).
const silentLeader = 4 * time.Second

// hearsMost reports whether a leader has heard of most of the others just now. One that was cut
// off or stood still while they have elected another says that it leads, until it hears of that.
func hearsMost(c *jetstream.ClusterInfo) bool {
	heard := 1
	for _, r := range c.Replicas {
		if r.Active > 0 && r.Active < silentLeader/2 { // 0: never
			heard++
		}
	}
	return 2*heard > len(c.Replicas)+1
}

// coverLocked ends the exposure of a lease. If it is held, its event may be handled now.
func (l *lease) coverLocked() {
	if !l.isExposed() {
		return
	}
	close(l.exposed)
	if l.state == leaseOpen && l.p != nil {
		l.p.s.readyLocked(l)
	}
}

// forgo gives up leases that are exposed, without a word to the server.
func (h *leaseSet) forgo(leases []*lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forgoLocked(leases)
}

func (h *leaseSet) forgoLocked(leases []*lease) {
	leases = slices.DeleteFunc(leases, func(l *lease) bool { return l.state != leaseOpen || !l.isExposed() })
	if len(leases) == 0 {
		return
	}
	for _, l := range leases {
		h.removeLocked(l, leaseLost)
		h.stats.LeasesLost++
	}
	h.wg.Go(func() { // who has the lock cannot tell anybody
		for _, l := range leases {
			h.b.survived.note(l)
			h.note(l, jetbus.LeaseLost, "it could not be known that nobody else has the event", nil)
		}
		if h.changed != nil {
			h.changed(nil)
		}
	})
}

// cover waits until none of the leases is exposed, for so long at most, and returns those that
// are held by then, and those that are exposed still.
func (h *leaseSet) cover(ctx context.Context, within time.Duration, leases []*lease) (held, exposed []*lease) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for _, l := range leases {
		if l.isExposed() {
			select {
			case <-l.exposed:
			case <-ctx.Done():
			}
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range leases {
		switch {
		case l.state != leaseOpen:
		case l.isExposed():
			exposed = append(exposed, l)
		default:
			held = append(held, l)
		}
	}
	return held, exposed
}
