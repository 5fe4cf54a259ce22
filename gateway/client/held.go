package client

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// held is the lease on one event: a [jetbus.Lease].
type held struct {
	m     *member
	ackID string
	d     *jetbus.Delivery

	// Guarded by member.mu.
	state    state
	deadline time.Time
	timer    *time.Timer
	began    time.Time // its handler did; zero: it waits
	ended    bool      // its handler did
	cancel   context.CancelCauseFunc
}

type state int

const (
	open state = iota
	settled
	lost
)

// shorten cuts a reason and a stack to what the gateway keeps of them, or a frame has room for.
func (l *link) shorten(reason, stack string) (string, string) {
	mostReason, mostStack := maxReason, jetbus.MaxStackBytes
	if frame := l.allowed().MaxMessage; frame > 0 { // a byte is 6 as \u0000
		mostReason, mostStack = min(mostReason, frame/12), min(mostStack, frame/24)
	}
	return cut(reason, mostReason), cut(stack, mostStack)
}

// cut returns the beginning of a text.
func cut(s string, most int) string {
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "")
	}
	return s
}

// maxReason is how much of a reason a gateway keeps, in bytes.
const maxReason = 4 << 10

// margin is how much earlier than the gateway a lease ends here: what the gateway says takes
// its time.
func margin(lease time.Duration) time.Duration { return min(lease/10, time.Second) }

// deliver takes an event in.
func (m *member) deliver(f *frame.Message) {
	m.mu.Lock()
	_, again := m.held[f.AckID]
	if again || m.said[f.AckID] > 0 { // the connection broke, and the gateway is not sure that it came
		m.mu.Unlock()
		return
	}
	h := &held{m: m, ackID: f.AckID}
	if m.stopping || m.hush {
		m.said[f.AckID]++
		m.mu.Unlock()
		m.say(f.AckID, frame.Nack, frame.Refuse{GiveBack: true}, nil)
		return
	}
	h.d = jetbus.NewDelivery(*f.Event, m.group, f.Ctx.Attempt, f.Ctx.MaxAttempts, h)
	h.d.Redelivered, h.d.Epoch, h.d.ReplayOf = f.Ctx.Redelivered, f.Ctx.Epoch, f.Ctx.ReplayOf
	left := time.Duration(f.Ctx.AckDeadlineMs) * time.Millisecond
	left = min(left-margin(m.lease), m.o.AckTimeout)
	h.deadline = time.Now().Add(left)
	h.timer = time.AfterFunc(left, h.expire)
	m.held[f.AckID] = h
	m.queue = append(m.queue, h)
	m.c.holdLease(h.key(), h)
	m.hireLocked()
	m.mu.Unlock()
}

func (h *held) key() heldKey { return heldKey{h.d.Topic, h.m.group, h.d.ID} }

// holdLease lets others settle an event by its id.
func (c *Client) holdLease(key heldKey, l jetbus.Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held[key] = append(c.held[key], l)
}

// leases are those that are held of an event.
func (c *Client) leases(key heldKey) []jetbus.Lease {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.held[key])
}

func (c *Client) dropLease(key heldKey, l jetbus.Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	rest := c.held[key][:0:0]
	for _, other := range c.held[key] {
		if other != l {
			rest = append(rest, other)
		}
	}
	if c.held[key] = rest; len(rest) == 0 {
		delete(c.held, key)
	}
}

// endsLocked is when the lease ends.
func (h *held) endsLocked() time.Time {
	if at := h.m.cutoff; !at.IsZero() && at.Before(h.deadline) {
		return at
	}
	return h.deadline
}

// expire is the end of a lease that nobody extended.
func (h *held) expire() {
	m := h.m
	m.mu.Lock()
	left := time.Until(h.endsLocked())
	if h.state == open && left > 0 { // extended this moment
		h.timer.Reset(left)
		m.mu.Unlock()
		return
	}
	m.mu.Unlock()
	h.lose(true)
}

// lose takes the event away from its handler. tell: the gateway does not know yet.
func (h *held) lose(tell bool) {
	m := h.m
	m.mu.Lock()
	if h.state != open {
		m.mu.Unlock()
		return
	}
	h.state = lost
	if tell {
		m.said[h.ackID]++
	}
	h.dropLocked()
	m.stats.LeasesLost++
	cancel := h.cancel
	m.mu.Unlock()
	if cancel != nil {
		cancel(jetbus.ErrLeaseExpired)
	}
	m.observe(h, jetbus.Observation{Kind: jetbus.LeaseLost})
	if tell {
		m.say(h.ackID, frame.Nack, frame.Refuse{Reason: jetbus.ErrLeaseExpired.Error()}, nil)
	}
	m.signal()
}

// dropLocked takes the event out of what is held.
func (h *held) dropLocked() {
	h.timer.Stop()
	delete(h.m.held, h.ackID)
	for i, other := range h.m.queue {
		if other == h {
			h.m.queue = append(h.m.queue[:i:i], h.m.queue[i+1:]...)
			break
		}
	}
	h.m.c.dropLease(h.key(), h)
}

func (m *member) signal() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// verdict is what is said of an event.
type verdict struct {
	op     string
	nack   frame.Refuse
	count  *uint64 // in the stats
	kind   jetbus.ObservationKind
	err    error
	reason string
	wait   time.Duration // of a snooze, for observers
	took   time.Duration // by the handler
}

// settle says it, once. answer is told what the gateway made of it.
func (h *held) settle(v verdict, answer func(error)) error {
	m := h.m
	m.mu.Lock()
	switch h.state {
	case settled:
		m.mu.Unlock()
		return jetbus.ErrAlreadySettled
	case lost:
		m.mu.Unlock()
		return jetbus.ErrLeaseExpired
	case open:
	}
	if !time.Now().Before(h.endsLocked()) {
		m.mu.Unlock()
		h.lose(true)
		return jetbus.ErrLeaseExpired
	}
	h.state = settled
	m.said[h.ackID]++
	h.dropLocked()
	*v.count++
	m.mu.Unlock()
	what := jetbus.Observation{Kind: v.kind, Err: v.err, Reason: v.reason, Duration: v.took}
	if v.kind == jetbus.Snoozed {
		what.Duration = v.wait
	}
	m.observe(h, what)
	m.say(h.ackID, v.op, v.nack, func(applied bool, reason string, err error) {
		if !applied && err == nil {
			err = jetbus.ErrLeaseExpired
			if reason == "settled" {
				err = jetbus.ErrAlreadySettled
			}
		}
		if err != nil {
			m.mu.Lock()
			*v.count--
			m.stats.LeasesLost++
			m.mu.Unlock()
			m.observe(h, jetbus.Observation{Kind: jetbus.LeaseLost, Err: err})
		}
		if answer != nil {
			answer(err)
		}
	})
	return nil
}

// say tells the gateway what becomes of an event, which the caller has counted in said. Until
// the gateway has answered, the event may come again over another connection, and is known.
func (m *member) say(ackID, op string, nack frame.Refuse, answer func(applied bool, reason string, err error)) {
	nack.Reason, nack.Stack = m.l.shorten(nack.Reason, nack.Stack)
	m.l.mark(&mark{ackID: ackID, op: op, nack: nack, answer: func(applied bool, reason string, err error) {
		if answer != nil {
			answer(applied, reason, err)
		}
		m.mu.Lock()
		if m.said[ackID]--; m.said[ackID] == 0 {
			delete(m.said, ackID)
		}
		m.mu.Unlock()
		m.signal()
	}})
}

// say settles and waits for the gateway's answer.
func (h *held) say(ctx context.Context, v verdict) error {
	if err := ctx.Err(); err != nil {
		return cause(ctx)
	}
	ctx, cancel := h.m.c.bound(ctx)
	defer cancel()
	answered := make(chan error, 1)
	if err := h.settle(v, func(err error) { answered <- err }); err != nil {
		return err
	}
	select {
	case err := <-answered:
		return err
	case <-ctx.Done():
		return cause(ctx)
	}
}

func (h *held) wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s %s: %w", what, h.d.Topic, h.d.ID, err)
}

// Ack implements [jetbus.Lease].
func (h *held) Ack(ctx context.Context) error {
	return h.wrap("ack", h.say(ctx, h.ack(nil)))
}

func (h *held) ack(dropped error) verdict {
	return verdict{op: frame.Ack, count: &h.m.stats.Acked, kind: jetbus.Acked, err: dropped}
}

// Nack implements [jetbus.Lease].
func (h *held) Nack(ctx context.Context, o jetbus.NackOptions) error {
	if err := o.Validate(); err != nil {
		return h.wrap("nack", err)
	}
	return h.wrap("nack", h.say(ctx, h.nack(nackDelay(o), o.Reason, o.Stack, nil)))
}

// nackDelay is the delay of a refusal as frames have it: 0 the backoff, -1 none.
func nackDelay(o jetbus.NackOptions) time.Duration {
	if o.AtOnce {
		return -1
	}
	return min(o.Delay, jetbus.MaxRetryDelay)
}

// isLast reports whether this is the last attempt.
func (h *held) isLast() bool { return h.d.MaxAttempts > 0 && h.d.Attempt >= h.d.MaxAttempts }

// lastStack returns the stack of a failure of the last attempt. No other needs it.
func (h *held) lastStack(err error) string {
	if !h.isLast() {
		return ""
	}
	return jetbus.StackOf(err)
}

// nack refuses the event. The gateway gets the stack with the last attempt only.
func (h *held) nack(delay time.Duration, reason, stack string, err error) verdict {
	if h.isLast() {
		v := h.reject(jetbus.RejectOptions{Reason: reason, Stack: stack})
		v.nack.Dead, v.err = false, err
		return v
	}
	return verdict{
		op: frame.Nack, nack: frame.Refuse{DelayMs: milliseconds(delay), Reason: reason},
		count: &h.m.stats.Nacked, kind: jetbus.Nacked, reason: reason, err: err,
	}
}

// milliseconds rounds up, so that a wait stays one; -1 stays -1.
func milliseconds(d time.Duration) int64 {
	if d < 0 {
		return -1
	}
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// GiveBack implements [jetbus.Lease].
func (h *held) GiveBack(ctx context.Context) error {
	return h.wrap("give back", h.say(ctx, h.giveBack("")))
}

func (h *held) giveBack(reason string) verdict {
	return verdict{op: frame.Nack, nack: frame.Refuse{GiveBack: true}, count: &h.m.stats.GivenBack, kind: jetbus.GivenBack, reason: reason}
}

// Snooze implements [jetbus.Lease].
func (h *held) Snooze(ctx context.Context, d time.Duration) error {
	return h.wrap("snooze", h.say(ctx, h.snooze(d)))
}

func (h *held) snooze(d time.Duration) verdict {
	d = min(max(d, time.Millisecond), jetbus.MaxRetryDelay)
	return verdict{op: frame.Nack, nack: frame.Refuse{Snooze: true, DelayMs: milliseconds(d)}, count: &h.m.stats.Snoozed, kind: jetbus.Snoozed, wait: d}
}

// Reject implements [jetbus.Lease].
func (h *held) Reject(ctx context.Context, o jetbus.RejectOptions) error {
	return h.wrap("reject", h.say(ctx, h.reject(o)))
}

func (h *held) reject(o jetbus.RejectOptions) verdict {
	refuse := frame.Refuse{Dead: true, DeadAs: deadAs(o.As), Reason: o.Reason, Stack: o.Stack}
	return verdict{op: frame.Nack, nack: refuse, count: &h.m.stats.DeadLetters, kind: jetbus.DeadLettered, reason: o.Reason}
}

// deadAs cuts the reason of a dead letter to what is kept of it.
func deadAs(as jetbus.DeadReason) string {
	return strings.ToValidUTF8(string(as[:min(len(as), maxDeadReason)]), "")
}

// maxDeadReason is how much of such a reason is kept, in bytes.
const maxDeadReason = 100

// Deadline implements [jetbus.Lease].
func (h *held) Deadline() time.Time {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	return h.endsLocked()
}

// Extend implements [jetbus.Lease].
func (h *held) Extend(ctx context.Context, by time.Duration) error {
	m := h.m
	ctx, cancel := m.c.bound(ctx)
	defer cancel()
	m.mu.Lock()
	was := h.state
	m.mu.Unlock()
	switch was {
	case settled:
		return h.wrap("extend", jetbus.ErrAlreadySettled)
	case lost:
		return h.wrap("extend", jetbus.ErrLeaseExpired)
	case open:
	}
	if most := time.Duration(m.l.allowed().MaxLeaseMs) * time.Millisecond; most > 0 {
		by = min(by, most)
	}
	answered := make(chan error, 1)
	h.prolong(max(by, m.o.AckTimeout), func(err error) { answered <- err })
	select {
	case err := <-answered:
		if err == nil {
			m.observe(h, jetbus.Observation{Kind: jetbus.Extended, Reason: "extended by its holder"})
		}
		return h.wrap("extend", err)
	case <-ctx.Done():
		return h.wrap("extend", cause(ctx))
	}
}

// prolong asks the gateway to extend the lease.
func (h *held) prolong(by time.Duration, answer func(error)) {
	m := h.m
	asked := time.Now()
	at := max(by, m.lease)
	m.l.mark(&mark{ackID: h.ackID, op: frame.ModAck, extend: at, answer: func(applied bool, reason string, err error) {
		m.mu.Lock()
		if applied && h.state == open {
			if until := asked.Add(min(by, at-margin(at))); until.After(h.deadline) {
				h.deadline = until
				h.timer.Reset(time.Until(until))
			}
		}
		was := h.state
		m.mu.Unlock()
		switch {
		case err != nil || applied:
		case was == settled:
			err = jetbus.ErrAlreadySettled
		case reason == "limit": // it lasts as long as it does
			err = fmt.Errorf("%w: the gateway extends a lease no further (Limits.LeaseTotal)", jetbus.ErrUnsupported)
		default:
			err = jetbus.ErrLeaseExpired
			h.lose(false)
		}
		if answer != nil {
			answer(err)
		}
	}})
}

// extend keeps the leases of what waits and runs.
func (m *member) extend() {
	now := time.Now()
	m.mu.Lock()
	var list []*held
	var by []time.Duration
	for _, h := range m.held {
		left := m.o.AckTimeout
		switch {
		case m.o.MaxLease < 0, h.ended: // ManualAck: whoever has it extends it
			continue
		case !h.began.IsZero():
			left = min(left, time.Until(h.began.Add(m.o.MaxLease)))
		}
		if left > 0 && now.Add(left).After(h.deadline) {
			list, by = append(list, h), append(by, left)
		}
	}
	m.mu.Unlock()
	for i, h := range list {
		h.prolong(by[i], nil)
		m.observe(h, jetbus.Observation{Kind: jetbus.Extended})
	}
}

// Ack implements [jetbus.Settler].
func (c *Client) Ack(ctx context.Context, topic, group, id string) error {
	h, err := c.find(topic, group, id)
	if err != nil {
		return fmt.Errorf("ack %s %s: %w", topic, id, err)
	}
	return h.Ack(ctx)
}

// Nack implements [jetbus.Settler].
func (c *Client) Nack(ctx context.Context, topic, group, id, reason string) error {
	h, err := c.find(topic, group, id)
	if err != nil {
		return fmt.Errorf("nack %s %s: %w", topic, id, err)
	}
	return h.Nack(ctx, jetbus.NackOptions{Reason: reason})
}

func (c *Client) find(topic, group, id string) (jetbus.Lease, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.held[heldKey{topic, group, id}]
	switch {
	case len(list) == 1:
		return list[0], nil
	case len(list) > 1:
		return nil, fmt.Errorf("%w: %d events of this ID are held; settle each by its delivery", jetbus.ErrConflict, len(list))
	case c.closing:
		return nil, jetbus.ErrClosed
	}
	return nil, jetbus.ErrNotHeld
}
