package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// member is a [jetbus.Subscription]: one member of a group.
type member struct {
	c      *Client
	l      *link
	id     string
	topic  string
	group  string
	o      jetbus.SubscribeOptions
	lease  time.Duration // that the gateway is asked for
	h      jetbus.Handler
	ctx    context.Context //nolint:containedctx // of Subscribe, without its end: handlers get its values
	first  chan error      // the answer to the first SUBSCRIBE; capacity 1
	stop   chan struct{}   // closed when it is to end
	cut    chan struct{}   // closed when handlers are not waited for any longer
	done   chan struct{}   // closed when it has ended
	work   sync.WaitGroup  // handlers
	unhook func() bool     // of Subscribe's context

	turn sync.Mutex // of who says FLOW

	mu       sync.Mutex
	asked    bool // a SUBSCRIBE has no answer yet
	ready    bool // the first one had
	stopping bool
	hasty    bool
	paused   bool
	hush     bool  // it is paused, and the gateway is being told anew
	err      error // why it ended
	queue    []*held
	held     map[string]*held // by ack id
	running  map[*held]struct{}
	cutoff   time.Time      // there is no connection, and what is held lasts no longer than that; zero: there is one
	said     map[string]int // ack ids of which something final was said that has no answer yet
	changed  chan struct{}  // signaled when less is held or under way; capacity 1
	stats    jetbus.SubscriptionStats
}

const (
	leastLease = time.Second     // of a gateway
	fewHeld    = 100             // MaxInFlight, where it is left to the client: what waits here, others cannot have
	stopTime   = 5 * time.Second // for the gateway to take what is said at the end
)

// Subscribe implements [jetbus.Subscriber]. Where MaxInFlight is not set, at most 100 events
// or twice Concurrency are held.
func (c *Client) Subscribe(ctx context.Context, topic, group string, h jetbus.Handler, o jetbus.SubscribeOptions) (jetbus.Subscription, error) {
	m, err := c.newMember(ctx, topic, group, h, o)
	if err == nil {
		err = m.begin(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("subscribe %s %s: %w", topic, group, err)
	}
	return m, nil
}

func (c *Client) newMember(ctx context.Context, topic, group string, h jetbus.Handler, o jetbus.SubscribeOptions) (*member, error) {
	if err := jetbus.ValidTopic(topic); err != nil {
		return nil, err
	}
	if err := jetbus.ValidGroup(group); err != nil {
		return nil, err
	}
	unset := o.MaxInFlight == 0
	o, err := o.Normalize()
	o.AckTimeout = cmp.Or(o.AckTimeout, jetbus.DefaultAckTimeout) // the lease of this member, by the gateway; that of the group is another matter
	l, closed := c.main()
	switch {
	case err != nil:
		return nil, err
	case h == nil:
		return nil, fmt.Errorf("%w: no handler", jetbus.ErrInvalidOption)
	case slices.Contains(o.Topics, topic):
		return nil, fmt.Errorf("%w: Topics names %s, which is the subscription's first", jetbus.ErrInvalidOption, topic)
	case closed != nil:
		return nil, closed
	case ctx.Err() != nil:
		return nil, cause(ctx)
	}
	if o.Reserve != nil {
		return nil, fmt.Errorf("%w: Reserve: the gateway's limits bound what a member holds", jetbus.ErrUnsupported)
	}
	have := l.allowed()
	switch {
	case o.MaxLease < 0: // nothing extends what waits
		o.MaxInFlight = o.Concurrency
	case unset:
		o.MaxInFlight = max(fewHeld, 2*o.Concurrency)
	}
	if most := have.MaxInFlight; most > 0 && o.Concurrency > most {
		return nil, fmt.Errorf("%w: the gateway lets a subscription hold %d events (Limits.InFlight), Concurrency is %d: subscribe more than once", jetbus.ErrUnsupported, most, o.Concurrency)
	} else if most > 0 {
		o.MaxInFlight = min(o.MaxInFlight, most)
	}
	if most := time.Duration(have.MaxLeaseMs) * time.Millisecond; most > 0 && o.AckTimeout > most {
		return nil, fmt.Errorf("%w: the leases of the gateway last %v at most (Limits.LeaseMax), AckTimeout is %v: use MaxLease, for as long as it is extended", jetbus.ErrUnsupported, most, o.AckTimeout)
	}
	return &member{
		c: c, id: c.name(), topic: topic, group: group, o: o, lease: max(o.AckTimeout, leastLease), h: h, ctx: context.WithoutCancel(ctx),
		first: make(chan error, 1), stop: make(chan struct{}), cut: make(chan struct{}), done: make(chan struct{}),
		held: map[string]*held{}, running: map[*held]struct{}{}, said: map[string]int{}, changed: make(chan struct{}, 1),
	}, nil
}

// on implements endpoint.
func (m *member) on(l *link) { m.l = l }

// begin joins the group.
func (m *member) begin(ctx context.Context) error {
	within, cancel := m.c.bound(ctx)
	defer cancel()
	claims := []string{m.topic + " " + m.group}
	for _, topic := range m.o.Topics {
		claims = append(claims, topic+" "+m.group)
	}
	l, err := m.c.place(within, m.id, m, claims)
	if err != nil {
		return err
	}
	for wait := retryWait; ; wait = min(2*wait, maxRetryWait) {
		l.subscribe(m.id, m)
		select {
		case err = <-m.first:
		case <-within.Done():
			err = cause(within)
		}
		if err == nil || !passes(err) && !isTaken(err) || sleep(within, max(wait, retryAfter(err))) != nil {
			break
		}
	}
	c := m.c
	if err == nil {
		c.mu.Lock()
		if c.closing {
			err = jetbus.ErrClosed
		} else {
			c.members[m] = struct{}{}
			c.work.Go(m.live)
		}
		c.mu.Unlock()
	}
	if err != nil {
		m.mu.Lock()
		m.stopping = true
		m.mu.Unlock()
		l.unsubscribe(m.id, nil) // it may have come to the gateway
		c.leave(l, m.id)
		return err
	}
	m.mu.Lock()
	m.unhook = context.AfterFunc(ctx, m.end)
	m.mu.Unlock()
	return nil
}

// isTaken reports whether the gateway has a subscription of the same group, which can only be
// one of this client that ended over a connection that broke: it is about to go.
func isTaken(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Code == "already_subscribed"
}

// request implements endpoint.
func (m *member) request() *frame.Request {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asked || m.stopping {
		return nil
	}
	m.asked = true
	o := frame.SubscribeOptions{SubscribeOptions: m.o}
	o.AckTimeout = m.lease
	o.Concurrency, o.MaxLease, o.ShutdownTimeout, o.ManualAck, o.FilterFunc = 0, 0, 0, false, nil
	o.Gateway.ResumeGraceMs, o.Gateway.Assign = m.l.grace().Milliseconds(), m.o.Order != jetbus.NoOrder
	text, err := plainText(o)
	if err != nil { // of a Backoff, which was normalized
		return nil
	}
	return &frame.Request{Topic: m.topic, Group: m.group, Opts: text}
}

// grace is how long the gateway is to keep what is held over a connection that broke.
func (l *link) grace() time.Duration {
	return max(min(l.c.c.ResumeGrace, time.Duration(l.allowed().ResumeGraceMs)*time.Millisecond), 0)
}

// subscribed implements endpoint.
func (m *member) subscribed(_ *frame.Message, err error) {
	if isTaken(err) && strings.Contains(err.Error(), `"`+m.id+`"`) {
		err = nil // it was asked twice, over a connection that broke meanwhile
	}
	m.mu.Lock()
	m.asked = false
	first := !m.ready
	m.ready = m.ready || err == nil
	paused := m.paused && err == nil
	m.mu.Unlock()
	switch {
	case first:
		select {
		case m.first <- err:
		default:
		}
	case err == nil:
	case passes(err), isTaken(err):
		m.askLater(max(retryAfter(err), retryWait))
	default:
		m.failed(err)
	}
	if paused {
		m.flow()
	}
}

// askLater subscribes again in a while.
func (m *member) askLater(wait time.Duration) {
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	if m.c.closing {
		return
	}
	m.c.work.Go(func() {
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-t.C:
			m.l.subscribe(m.id, m)
		case <-m.stop:
		}
	})
}

// down implements endpoint.
func (m *member) down(grace time.Duration) {
	m.mu.Lock()
	m.cutoff = time.Now().Add(grace - margin(grace))
	for _, h := range m.held {
		h.timer.Reset(max(time.Until(h.endsLocked()), 0))
	}
	m.mu.Unlock()
}

// restored implements endpoint.
func (m *member) restored(kept bool) {
	m.mu.Lock()
	m.cutoff = time.Time{}
	asked := m.asked
	m.asked, m.hush, m.stats.Active = false, m.paused, false
	var lost []*held
	if !kept {
		for _, h := range m.held {
			lost = append(lost, h)
		}
	}
	m.mu.Unlock()
	for _, h := range lost {
		h.lose(false)
	}
	if !kept {
		return
	}
	if asked {
		m.subscribed(nil, nil)
	}
	m.flow() // what was said of it may not have been heard
	m.extend()
}

// failed implements endpoint.
func (m *member) failed(err error) {
	m.mu.Lock()
	if m.err == nil && !m.stopping {
		m.err = err
	}
	var lost []*held
	for _, h := range m.held {
		lost = append(lost, h)
	}
	m.mu.Unlock()
	select {
	case m.first <- err:
	default:
	}
	for _, h := range lost {
		h.lose(false)
	}
	m.end()
}

// message implements endpoint.
func (m *member) message(f *frame.Message) {
	switch f.Op {
	case frame.Event:
		if f.Event != nil && f.Ctx != nil {
			m.deliver(f)
		}
	case frame.LeaseExpired:
		m.mu.Lock()
		h := m.held[f.AckID]
		m.mu.Unlock()
		if h != nil {
			h.lose(false)
		}
	case frame.Assign, frame.Revoke:
		m.mu.Lock()
		m.stats.Active = f.Op == frame.Assign
		m.mu.Unlock()
	case frame.SubClosed:
		err := refusal(f)
		if !passes(err) {
			m.failed(err)
			return
		}
		m.restored(false)
		m.askLater(retryWait)
	}
}

// flow tells the gateway to send no more, or to go on, as it is now: the last frame of several
// calls says how it is. Where there is no connection, restored or subscribed does.
func (m *member) flow() {
	m.turn.Lock()
	defer m.turn.Unlock()
	pause := m.halted()
	m.l.send(&frame.Request{Op: frame.Flow, Sub: m.id, Pause: &pause}, true, func(_ *frame.Message, err error) {
		m.mu.Lock()
		m.hush = m.hush && err != nil && m.paused
		m.mu.Unlock()
		m.l.refused(err, m.flow)
	})
}

// halted reports whether no more events are to come.
func (m *member) halted() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.paused || m.stopping
}

// Pause implements [jetbus.Subscription].
func (m *member) Pause() { m.setPaused(true) }

// Resume implements [jetbus.Subscription].
func (m *member) Resume() { m.setPaused(false) }

func (m *member) setPaused(to bool) {
	m.mu.Lock()
	was := m.paused || m.stopping
	m.paused = to && !m.stopping
	now := m.paused
	m.mu.Unlock()
	if was != now {
		m.flow()
	}
}

// Done implements [jetbus.Subscription].
func (m *member) Done() <-chan struct{} { return m.done }

// Err implements [jetbus.Subscription].
func (m *member) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.done:
		return m.err
	default:
		return nil
	}
}

// Stats implements [jetbus.Subscription]. Filtered counts what FilterFunc left out; what the
// gateway filtered is not known here, nor are Retrying, BlockedKey and Blocked. Active is a second late.
func (m *member) Stats() jetbus.SubscriptionStats {
	up := m.l.isUp()
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stats
	s.Held, s.Paused, s.Active = len(m.held), m.paused, s.Active && up && !m.stopping
	return s
}
