package client

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/shutdown"
)

// insideKey finds, in the context of a handler, whose it is.
type insideKey struct{ m *member }

// hireLocked starts handlers for what waits, as many as there may be.
func (m *member) hireLocked() {
	for !m.stopping && m.stats.Running < m.o.Concurrency && len(m.queue) > 0 {
		m.stats.Running++
		h := m.nextLocked()
		m.work.Go(func() { m.handleAll(h) })
	}
}

// nextLocked takes the next event that waits; nil: there is none, or it is not to be handled.
func (m *member) nextLocked() *held {
	if m.stopping || len(m.queue) == 0 {
		return nil
	}
	h := m.queue[0]
	m.queue = m.queue[1:]
	h.began = time.Now()
	return h
}

// handleAll handles an event, and what waits behind it.
func (m *member) handleAll(h *held) {
	for h != nil {
		m.handle(h)
		m.mu.Lock()
		if h = m.nextLocked(); h == nil {
			m.stats.Running--
		}
		m.mu.Unlock()
	}
	m.signal()
}

// handle handles an event and says how that ended.
func (m *member) handle(h *held) {
	ctx, cancel := context.WithCancelCause(context.WithValue(m.ctx, insideKey{m}, true))
	defer cancel(nil)
	if f := m.o.FilterFunc; f != nil {
		matches, err := filter(f, &h.d.Event)
		if err != nil {
			_ = h.settle(h.nack(0, err.Error(), h.lastStack(err), err), nil) // too late is too late
			return
		}
		if !matches {
			v := h.ack(nil)
			v.kind = jetbus.Filtered
			if h.settle(v, nil) == nil {
				m.mu.Lock()
				m.stats.Filtered++
				m.mu.Unlock()
			}
			return
		}
	}
	m.mu.Lock()
	h.cancel = cancel
	gone, hasty := h.state != open, m.hasty
	if !gone {
		m.stats.Delivered++
		m.running[h] = struct{}{}
	}
	m.mu.Unlock()
	if gone {
		return
	}
	if hasty {
		cancel(jetbus.ErrStopped)
	}
	m.observe(h, jetbus.Observation{Kind: jetbus.Delivered, Duration: max(time.Since(h.d.Time), 0)})
	err := m.call(ctx, h.d)
	took := time.Since(h.began)
	m.mu.Lock()
	h.cancel, h.ended = nil, true
	delete(m.running, h)
	m.mu.Unlock()
	if err == nil && m.o.ManualAck {
		return
	}
	v := m.verdict(ctx, h, err)
	v.took = took
	_ = h.settle(v, nil) // it may be settled, or lost
}

// verdict is what a handler's result asks for.
func (m *member) verdict(ctx context.Context, h *held, err error) verdict {
	d := jetbus.DispositionOf(err)
	if d.Action == jetbus.ActionRetry && errors.Is(context.Cause(ctx), jetbus.ErrStopped) {
		return h.giveBack("its handler was canceled by Stop")
	}
	switch d.Action {
	case jetbus.ActionAck:
		return h.ack(d.Err)
	case jetbus.ActionSnooze:
		return h.snooze(d.Delay)
	case jetbus.ActionReject:
		v := h.reject(jetbus.RejectOptions{As: d.Reason, Reason: d.Err.Error(), Stack: jetbus.StackOf(err)})
		v.err = d.Err
		return v
	case jetbus.ActionRetry:
	}
	m.c.c.Logger.LogAttrs(ctx, slog.LevelDebug, "handler failed", slog.String("topic", h.d.Topic), slog.String("group", m.group),
		slog.String("id", h.d.ID), slog.Int("attempt", h.d.Attempt), slog.Any("err", d.Err))
	return h.nack(d.Delay, d.Err.Error(), h.lastStack(err), d.Err)
}

// call runs the handler. A panic is an error.
func (m *member) call(ctx context.Context, d *jetbus.Delivery) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &jetbus.PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return m.h(ctx, d)
}

func filter(f func(*jetbus.Event) bool, e *jetbus.Event) (matches bool, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &jetbus.PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return f(e), nil
}

func (m *member) observe(h *held, what jetbus.Observation) {
	if m.c.c.Observer == nil {
		return
	}
	what.Topic, what.Group, what.ID, what.Seq, what.Attempt = h.d.Topic, m.group, h.d.ID, h.d.Seq, h.d.Attempt
	what.Version = h.d.Headers[jetbus.HeaderSchemaVersion]
	m.c.c.Observer.Observe(what)
}

// Stop implements [jetbus.Subscription].
func (m *member) Stop(ctx context.Context) error {
	m.end()
	if ctx.Value(insideKey{m}) != nil { // the caller's own handler is one of those to wait for
		return nil
	}
	ctx, release := shutdown.Context(ctx, 0)
	defer release()
	unhook := context.AfterFunc(ctx, m.hurry)
	defer unhook()
	<-m.done
	return nil
}

// end lets the subscription end; live does it.
func (m *member) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.stopping {
		m.stopping = true
		close(m.stop)
	}
}

// hurry ends the contexts of handlers.
func (m *member) hurry() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.hasty {
		return
	}
	m.hasty = true
	close(m.cut)
	for h := range m.running { // settled or not
		h.cancel(jetbus.ErrStopped)
	}
}

// live keeps the leases while the subscription lives, and ends it.
func (m *member) live() {
	tick := time.NewTicker(m.o.AckTimeout / 3)
	defer tick.Stop()
	for stopped := false; !stopped; {
		select {
		case <-tick.C:
			m.extend()
		case <-m.stop:
			stopped = true
		}
	}
	left := m.shut(tick.C)
	m.mu.Lock()
	unhook := m.unhook
	m.mu.Unlock()
	if unhook != nil {
		unhook()
	}
	c := m.c
	c.leave(m.l, m.id)
	if !left { // a connection that came meanwhile has taken it for one that stays
		m.l.unsubscribe(m.id, nil)
	}
	c.mu.Lock()
	delete(c.members, m)
	c.mu.Unlock()
	close(m.done)
}

// cancelGrace is how long handlers whose contexts have ended are waited for.
const cancelGrace = 10 * time.Second

// shut gives back what waits, lets handlers end, and leaves the group. It reports whether
// no connection broke over that.
func (m *member) shut(tick <-chan time.Time) bool {
	m.flow()
	m.mu.Lock()
	waiting := append([]*held(nil), m.queue...)
	m.mu.Unlock()
	for _, h := range waiting {
		_ = h.settle(h.giveBack("stopping"), nil) // it may be lost
	}
	late := time.NewTimer(m.o.ShutdownTimeout)
	defer late.Stop()
	cut := m.cut
	var grace <-chan time.Time
	for left := false; !left && !m.quiet(); {
		select {
		case <-m.changed:
		case <-tick:
			m.extend()
		case <-late.C:
			m.hurry()
		case <-cut: // what no handler has any more nobody will settle
			cut = nil
			timer := time.NewTimer(cancelGrace)
			defer timer.Stop()
			grace = timer.C
		case <-grace:
			m.c.c.Logger.LogAttrs(m.ctx, slog.LevelError, "handlers ignore their context; left behind", slog.String("group", m.group), slog.Int("handlers", m.Stats().Running))
			left = true
		}
		if cut == nil {
			m.giveRestBack(false)
		}
	}
	if m.Stats().Running == 0 {
		m.work.Wait()
	}
	m.giveRestBack(true)
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	for m.underWay() > 0 {
		select {
		case <-m.changed:
			continue
		case <-ctx.Done():
		}
		break
	}
	left := make(chan error, 1)
	m.l.unsubscribe(m.id, func(err error) { left <- err }) // without a connection, the next one does it
	select {
	case err := <-left:
		return err != errBroken //nolint:errorlint // as it is
	case <-ctx.Done(): // it is said until it is heard
		return true
	}
}

// giveRestBack gives back what handlers have left to others, who did not settle it; with all,
// everything.
func (m *member) giveRestBack(all bool) {
	m.mu.Lock()
	var list []*held
	for _, h := range m.held {
		if all || h.ended {
			list = append(list, h)
		}
	}
	m.mu.Unlock()
	for _, h := range list {
		_ = h.settle(h.giveBack("stopping"), nil) // it may be lost
	}
}

// quiet reports whether no handler runs and nothing is held.
func (m *member) quiet() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stats.Running == 0 && len(m.held) == 0
}

func (m *member) underWay() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.said)
}
