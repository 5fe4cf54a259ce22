package gateway

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway/internal/budget"
)

// Limits of the events that clients hold over HTTP.
const (
	maxPulled  = 100_000         // events of all clients
	pullTick   = time.Second     // interval between checks of the leases
	pullGrace  = 5 * time.Second // for acknowledgements after Drain begins, which these clients are not told of
	pullAtOnce = 32              // leases that are extended or ended concurrently
	maxSaid    = 20_000          // settlements that are remembered, of all clients
	saidTime   = 5 * time.Minute // how long a settlement is remembered
)

// pulled is an event that a client received over HTTP and holds until the deadline.
type pulled struct {
	subject, topic, group string
	d                     *jetbus.Delivery
	since, deadline       time.Time
	kept                  time.Time     // until when the lease lasts, whatever an extension asks for
	lease                 time.Duration // of an extension that names none
	size                  int64         // bytes charged to the account
	busy                  bool          // it is being settled
}

// settlement is what a client said of an event that it held, and that was applied.
type settlement struct {
	subject, topic, group, id string
	v                         verdict // without its reason and stack
	at                        time.Time
}

// is reports whether v says the same.
func (s *settlement) is(v verdict) bool {
	v.reason, v.stack = "", ""
	return s.v == v
}

// pulls holds the events that clients received over HTTP, by opaque tokens. While there are any, their
// leases are extended at the broker.
type pulls struct {
	mu      sync.Mutex
	held    map[string]*pulled
	said    map[string]settlement      // settlements of held events, for clients that repeat a request after a lost response
	order   []string                   // the tokens of said, oldest first
	of      map[string]int             // events held or requested, by subject
	account map[string]*budget.Account // charged for the held events, by subject
	total   int
	running bool          // keepPulled is running
	ended   bool          // keepPulled has returned, and does not start again
	over    chan struct{} // closed when the gateway stops holding events
	once    sync.Once
}

func (p *pulls) init() {
	p.held, p.of, p.account, p.over = map[string]*pulled{}, map[string]int{}, map[string]*budget.Account{}, make(chan struct{})
	p.said = map[string]settlement{}
}

// reserve makes room for up to n events of a subject, which may hold most events. It returns for how
// many.
func (p *pulls) reserve(subject string, n, most int) (events int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n = min(n, most-p.of[subject], maxPulled-p.total)
	if n <= 0 {
		return 0, &failure{Code: CodeTooManyInFlight, Msg: fmt.Sprintf("%d events are held already; acknowledge some of them", p.of[subject]), After: budget.RetryAfter}
	}
	p.of[subject] += n
	p.total += n
	return n, nil
}

// putLocked adds an event for which reserve made room, and charges it to the account of its subject.
func (p *pulls) putLocked(token string, h *pulled, b *budget.Budget) {
	h.size = int64(sizeOf(&h.d.Event))
	p.held[token] = h
	a := p.account[h.subject]
	if a == nil {
		a = b.Account(h.subject)
		p.account[h.subject] = a
	}
	a.Add(budget.Bytes, h.size)
}

// removeLocked removes an event and releases its room and its bytes.
func (p *pulls) removeLocked(token string, h *pulled) {
	delete(p.held, token)
	p.account[h.subject].Release(budget.Bytes, h.size)
	p.unreserveLocked(h.subject, 1)
}

func (p *pulls) unreserveLocked(subject string, n int) {
	p.total -= n
	if p.of[subject] -= n; p.of[subject] == 0 {
		delete(p.of, subject)
		p.account[subject].Close()
		delete(p.account, subject)
	}
}

// unreserve gives room back that was not needed.
func (p *pulls) unreserve(subject string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unreserveLocked(subject, n)
}

// holdPulled puts an event, for which room was made, into a client's hands. Empty: the gateway
// stops.
func (g *Gateway) holdPulled(ctx context.Context, h *pulled) string {
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // it never fails
	token := base64.RawURLEncoding.EncodeToString(raw[:])
	p := &g.pulls
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return ""
	}
	if !p.running {
		if g.enter() != nil {
			return ""
		}
		p.running = true
		go g.keepPulled(context.WithoutCancel(ctx)) // ends when nothing is held, and Drain waits for it
	}
	p.putLocked(token, h, g.budget)
	return token
}

// take finds an event that a client holds. With settle it is the caller's from then on, to
// be given to drop or back. Nil: the token is of somebody else, or the time is over, or, busy, it
// is being settled.
func (p *pulls) take(token, subject, topic, group string, settle bool) (h *pulled, busy bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h = p.held[token]
	if h == nil || h.subject != subject || h.topic != topic || h.group != group || !h.busy && !time.Now().Before(h.deadline) {
		return nil, false
	}
	if h.busy {
		return nil, true
	}
	h.busy = settle
	return h, false
}

// drop forgets an event that was settled, or lost.
func (p *pulls) drop(token string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropLocked(token)
}

func (p *pulls) dropLocked(token string) {
	if h := p.held[token]; h != nil {
		p.removeLocked(token, h)
	}
}

// settled forgets an event, but for what its client said of it.
func (p *pulls) settled(token string, h *pulled, v verdict) {
	v.reason, v.stack = "", ""
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropLocked(token)
	for len(p.order) > 0 && (len(p.order) >= maxSaid || now.Sub(p.said[p.order[0]].at) >= saidTime) {
		delete(p.said, p.order[0])
		p.order = p.order[1:]
	}
	p.said[token] = settlement{h.subject, h.topic, h.group, strings.Clone(h.d.ID), v, now} // the ID may be a part of a large text
	p.order = append(p.order, token)
}

// saidOf is what a client said of an event that it held, if that is remembered.
func (p *pulls) saidOf(token, subject, topic, group string) (s settlement, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok = p.said[token]
	return s, ok && s.subject == subject && s.topic == topic && s.group == group && time.Since(s.at) < saidTime
}

// back leaves an event that could not be settled where it was.
func (p *pulls) back(h *pulled) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h.busy = false
}

// extend moves a deadline, as far as the limits allow, and returns how long the client has
// now; 0: the limit of all extensions is reached.
func (p *pulls) extend(h *pulled, by time.Duration, l Limits) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if by <= 0 {
		by = h.lease
	}
	now := time.Now()
	until := now.Add(min(by, l.LeaseMax))
	if last := h.since.Add(l.LeaseTotal); until.After(last) {
		until = last
	}
	if until.Before(h.kept) {
		until = h.kept
	}
	if !until.After(now) {
		return 0
	}
	h.deadline = until
	return until.Sub(now)
}

// end lets go of everything that is held, when the gateway's time is over.
func (p *pulls) end() { p.once.Do(func() { close(p.over) }) }

// keepPulled keeps the leases of what clients hold, and ends those whose deadline passed. It
// runs while there is anything, and for a grace after Drain has begun.
func (g *Gateway) keepPulled(ctx context.Context) {
	defer g.leave()
	tick := time.NewTicker(pullTick)
	defer tick.Stop()
	stopping, grace := g.stopping, (<-chan time.Time)(nil)
	for {
		select {
		case <-stopping:
			stopping, grace = nil, time.After(pullGrace)
		case <-grace:
			g.givePulledBack(ctx)
			return
		case <-tick.C:
			if g.lookPulled(ctx) {
				return
			}
		case <-g.pulls.over:
			g.givePulledBack(ctx)
			return
		}
	}
}

// lookPulled looks at all leases once. It reports whether nothing is held any more.
func (g *Gateway) lookPulled(ctx context.Context) bool {
	p := &g.pulls
	now := time.Now()
	var ended, short []*pulled
	p.mu.Lock()
	if len(p.held) == 0 {
		p.running = false
		p.mu.Unlock()
		return true
	}
	for token, h := range p.held {
		switch {
		case h.busy:
		case !now.Before(h.deadline):
			ended = append(ended, h)
			p.removeLocked(token, h)
		case h.deadline.After(h.d.Deadline()) && h.d.Deadline().Sub(now) < groupAckTimeout*2/3:
			short = append(short, h)
		}
	}
	p.mu.Unlock()
	settleEach(ctx, ended, func(ctx context.Context, d *jetbus.Delivery) error {
		return d.Nack(ctx, jetbus.NackOptions{Reason: "lease expired"}) // else the broker's lease ends, too
	})
	settleEach(ctx, short, func(ctx context.Context, d *jetbus.Delivery) error {
		return d.Extend(ctx, groupAckTimeout) // else the client's acknowledgement is not applied, and it is told so
	})
	return false
}

// givePulledBack returns everything at once, without an attempt.
func (g *Gateway) givePulledBack(ctx context.Context) {
	p := &g.pulls
	p.mu.Lock()
	p.ended = true
	var all []*pulled
	for token, h := range p.held {
		if !h.busy {
			all = append(all, h)
		}
		p.removeLocked(token, h)
	}
	p.mu.Unlock()
	giveBack(ctx, all)
}

// giveBack returns events at once, without an attempt.
func giveBack(ctx context.Context, list []*pulled) {
	settleEach(ctx, list, func(ctx context.Context, d *jetbus.Delivery) error { return d.GiveBack(ctx) })
}

// settleEach does the same to several events, some of them at once, also where ctx has ended.
func settleEach(ctx context.Context, list []*pulled, f func(context.Context, *jetbus.Delivery) error) {
	if len(list) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), taskTime)
	defer cancel()
	var work sync.WaitGroup
	next := make(chan *pulled)
	for range min(pullAtOnce, len(list)) {
		work.Go(func() {
			for h := range next {
				_ = f(ctx, h.d) // the broker's lease ends by itself
			}
		})
	}
	for _, h := range list {
		next <- h
	}
	close(next)
	work.Wait()
}

// settlePulled does to an event what a client says, and whether that was applied.
func settlePulled(ctx context.Context, d *jetbus.Delivery, v verdict) (reason string, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), taskTime) // also where the client has gone
	defer cancel()
	switch {
	case v.op == "ack":
		err = d.Ack(ctx)
	case v.back:
		err = d.GiveBack(ctx)
	case v.dead:
		err = d.RejectWith(ctx, jetbus.RejectOptions{As: jetbus.DeadReason(v.as), Reason: v.reason, Stack: v.stack})
	case v.snooze:
		err = d.Snooze(ctx, max(v.by, time.Millisecond))
	default:
		err = d.Nack(ctx, jetbus.NackOptions{Delay: max(v.by, 0), AtOnce: v.by < 0, Reason: v.reason, Stack: v.stack})
	}
	switch {
	case errors.Is(err, jetbus.ErrLeaseExpired):
		return "expired", nil
	case errors.Is(err, jetbus.ErrAlreadySettled), errors.Is(err, jetbus.ErrNotHeld):
		return "settled", nil
	}
	return "", err
}
