package partition

import (
	"context"
	"encoding/json"
	"errors"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

func (m *Membership) leaseKey(p int) string { return m.group + leasePrefix + strconv.Itoa(p) }

// take acquires the lease of a partition, and has the turn that follows.
func (m *Membership) take(p int, l seenLease, s *session) {
	t := m.acquire(p, l, s)
	if t == nil {
		m.mu.Lock()
		delete(m.taking, p)
		m.notify()
		m.mu.Unlock()
		return
	}
	ctx, cancel := context.WithCancelCause(m.ctx)
	t.cancel = cancel
	m.mu.Lock()
	delete(m.taking, p)
	m.turns[p] = t
	m.stats.Acquired++
	if s.over {
		t.loseLocked()
	}
	m.notify()
	m.mu.Unlock()
	m.turn(ctx, t)
}

// loseLocked ends the turn against the member's will.
func (t *Turn) loseLocked() {
	t.lost = true
	t.cancel(ErrExpelled)
}

// yield frees a lease that is the member's without a turn, by a write whose answer
// was lost, and that it is to have no more.
func (m *Membership) yield(p int, l seenLease, s *session) {
	ctx, cancel := context.WithTimeout(s.ctx, m.o.TTL/6)
	defer cancel()
	_, err := m.writeLease(ctx, p, l.revision, leaseValue{Clean: l.After})
	m.tried(s.ctx, releasing, err)
	if err != nil {
		sleep(s.ctx, retryPause) // the view will tell whether it has to be done again
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.taking, p)
	m.notify()
}

// acquire writes the lease on condition that it is as it was seen. It returns nil
// where it is not, or where that is not known: then the view will tell.
func (m *Membership) acquire(p int, l seenLease, s *session) *Turn {
	t := &Turn{Partition: p, Clean: l.Clean, session: s, revoked: make(chan struct{})}
	if l.Session == s.nonce { // taken by a write whose answer was lost, and nothing was done with it
		t.Clean = l.After
	}
	select {
	case m.slots <- struct{}{}:
		defer func() { <-m.slots }()
	case <-s.ctx.Done():
		return nil
	}
	ctx, cancel := context.WithTimeout(s.ctx, m.o.TTL/6)
	defer cancel()
	revision, err := m.writeLease(ctx, p, l.revision, leaseValue{Owner: m.o.Member, Session: s.nonce, After: t.Clean})
	m.tried(s.ctx, taking, err)
	if err != nil {
		sleep(s.ctx, retryPause) // the view will change soon, or its watch will end
		return nil
	}
	t.Epoch, t.revision = revision, revision
	return t
}

func (m *Membership) writeLease(ctx context.Context, p int, revision uint64, l leaseValue) (uint64, error) {
	text, err := json.Marshal(l)
	if err != nil {
		return 0, err
	}
	return m.keys.KeySet(ctx, m.o.Bucket, m.leaseKey(p), text, revision, 0)
}

// errOwnEnded is the failure of an Own that neither returned nor panicked.
var errOwnEnded = errors.New("the function that owns a partition ended its goroutine (runtime.Goexit)")

// turn calls Own and lets the partition go.
func (m *Membership) turn(ctx context.Context, t *Turn) {
	clean, err := false, errOwnEnded
	defer func() { m.endTurn(t, clean, err) }() // also when Own ends its goroutine
	if m.isStopping() {
		clean, err = t.Clean, nil
		return
	}
	clean, err = m.call(ctx, t)
}

// endTurn releases a partition.
func (m *Membership) endTurn(t *Turn, clean bool, err error) {
	m.mu.Lock()
	t.ended = true
	m.mu.Unlock()
	released := m.release(t, clean && err == nil)
	t.cancel(nil)
	if err != nil {
		m.fail(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.turns, t.Partition)
	if released {
		m.stats.Released++
	}
	if !t.asked && !t.lost {
		m.rest[t.Partition] = time.Now().Add(restPause)
	}
	m.notify()
}

// call calls Own and makes an error of its panic.
func (m *Membership) call(ctx context.Context, t *Turn) (clean bool, err error) {
	defer func() {
		if v := recover(); v != nil {
			clean, err = false, &jetbus.PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return m.own(ctx, t)
}

// release writes that the partition is free, or waits for its static member to come
// back. It gives up with the session, whose end does the same.
func (m *Membership) release(t *Turn, clean bool) bool {
	l := leaseValue{Clean: clean}
	ctx := t.session.ctx
	for ctx.Err() == nil {
		m.mu.Lock()
		if m.stopping && m.o.Static {
			l.Owner, l.Session = m.o.Member, t.session.nonce
		}
		m.mu.Unlock()
		_, err := m.writeLease(ctx, t.Partition, t.revision, l)
		m.tried(ctx, releasing, err)
		switch {
		case err == nil:
			return true
		case errors.Is(err, jetbus.ErrWrongSequence):
			entry, err := m.keys.KeyGet(ctx, m.o.Bucket, m.leaseKey(t.Partition))
			if err == nil && entry.Revision != t.revision {
				return false // released without our knowing, or somebody has meddled
			}
		case isFinal(err):
			return false
		}
		sleep(ctx, retryPause)
	}
	return false
}
