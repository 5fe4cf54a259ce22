package partition

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/deadline"
)

const (
	retryPause   = 250 * time.Millisecond // between tries that fail at once
	maxRelease   = 5 * time.Second        // how long the end of a session may take
	renewalsASec = 4                      // renewals in a TTL, about
)

// session is the time in which a process is a member. It ends when the member
// leaves, or when it could not be renewed in time.
type session struct {
	nonce    string
	tries    map[string]bool // nonces under which it may have begun without our knowing
	joined   time.Time       // when it began
	known    bool            // the member was there before: nobody takes it for new
	begun    uint64          // revision of the first write
	revision uint64          // of the last write that is known to be stored; the renewer's own
	unsure   time.Time       // when the first renewal after that was sent; zero: there is none
	expiry   *deadline.Alarm
	over     bool            // guarded by Membership.mu
	ctx      context.Context //nolint:containedctx // of requests that it entitles to; ends with it
	end      context.CancelFunc
}

// surely is how long after the sending of a write the session is ours for sure.
func (m *Membership) surely() time.Duration { return m.o.TTL - m.o.TTL/5 }

func (m *Membership) memberKey() string { return m.group + memberPrefix + m.o.Member }

// attend keeps the process a member until it has left.
func (m *Membership) attend(ctx context.Context) {
	before := "" // the nonce of the session that was lost
	for {
		s, err := m.enter(ctx, before)
		if err != nil {
			m.fail(err)
			return
		}
		if s == nil { // stopped meanwhile
			return
		}
		if !m.renew(s.ctx, s) { //nolint:contextcheck // that of the session is derived from it
			return
		}
		before = s.nonce
		m.watchAgain()
		m.o.Log.LogAttrs(ctx, slog.LevelWarn, "a member lost its session and joins anew", slog.String("group", m.group), slog.String("member", m.o.Member))
	}
}

// enter waits until the member's name is free, and begins a session; nil when the
// membership stops first. The session that the member lost may be renewed once more, by a
// write that was on its way: that is no other process.
func (m *Membership) enter(ctx context.Context, lost string) (*session, error) {
	s := &session{tries: map[string]bool{}}
	s.ctx, s.end = context.WithCancel(ctx)
	select {
	case <-m.seen: // others would leave a share to who cannot see that it has one
	case <-m.quit:
		s.end()
		return nil, nil //nolint:nilnil // as below
	}
	var before seenSession // that has our name
	for {
		there, err := m.readSession(ctx)
		switch {
		case err != nil:
		case s.tries[there.Nonce]: // a write whose answer was lost: it may be old
			err = m.keys.KeyDelete(ctx, m.o.Bucket, m.memberKey(), there.revision)
		case there.State == stateLive && there.Nonce == before.Nonce && there.Nonce != lost && there.revision != before.revision:
			s.end()
			return nil, fmt.Errorf("%w: %s", ErrMemberExists, m.o.Member)
		case there.revision != 0 && there.State != stateAway: // alive, or dead and not over yet
			before, s.known = there, true
		case !m.sees(): // it cannot any more
		default:
			s.known = s.known || there.State == stateAway
			if lost != "" { // the group's settings may have been lost with the session
				if err = agree(ctx, m.keys, m.group, m.o, m.on); err != nil {
					break
				}
			}
			if err = m.begin(s.ctx, s, there.revision); err == nil { //nolint:contextcheck // derived from it
				m.tried(ctx, entering, nil)
				return s, nil
			}
		}
		if isFinal(err) || errors.Is(err, jetbus.ErrConflict) {
			s.end()
			return nil, err
		}
		m.tried(ctx, entering, err)
		select {
		case <-time.After(retryPause):
		case <-m.quit:
			s.end()
			return nil, nil //nolint:nilnil // no session, and nothing wrong
		}
	}
}

// readSession is what the bucket holds under the member's name.
func (m *Membership) readSession(ctx context.Context) (there seenSession, err error) {
	entry, err := m.keys.KeyGet(ctx, m.o.Bucket, m.memberKey())
	if err != nil || entry.Revision == 0 {
		return there, err
	}
	there.revision = entry.Revision
	return there, json.Unmarshal(entry.Value, &there.sessionValue)
}

// begin writes the first value of a session.
func (m *Membership) begin(ctx context.Context, s *session, revision uint64) (err error) {
	ctx, cancel := context.WithTimeout(ctx, m.o.TTL/2)
	defer cancel()
	sent := time.Now()
	s.nonce, s.joined = jetbus.NewID(), sent
	s.tries[s.nonce] = true
	if s.revision, err = m.writeSession(ctx, s, revision, stateLive); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s.begun = s.revision
	m.session = s
	s.expiry = deadline.NewAlarm(sent.Add(m.surely()), func() { m.fence(s) })
	m.notify()
	return nil
}

// isFinal reports whether there is no point in trying again.
func isFinal(err error) bool {
	return errors.Is(err, jetbus.ErrClosed) || errors.Is(err, jetbus.ErrDenied) || errors.Is(err, jetbus.ErrInvalidOption) || errors.Is(err, jetbus.ErrUnsupported)
}

// writeSession stores the session. All values of a session have the same length, so that a renewal
// fits into a full bucket.
func (m *Membership) writeSession(ctx context.Context, s *session, revision uint64, state string) (uint64, error) {
	text, err := json.Marshal(sessionValue{State: state, Nonce: s.nonce, Weight: m.o.Weight, Static: m.o.Static, Joined: s.joined.UTC(), Meta: m.meta})
	if err != nil {
		return 0, err
	}
	text = append(text, "       "[:len(stateLeaving)-len(state)]...)
	return m.keys.KeySet(ctx, m.o.Bucket, m.memberKey(), text, revision, m.o.TTL)
}

// fence ends a session against the member's will: its partitions may soon be others'.
func (m *Membership) fence(s *session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.over {
		return
	}
	s.over = true
	s.end()
	s.expiry.Stop()
	if m.session == s {
		m.session = nil
	}
	m.stats.Expelled++
	for _, t := range m.turns {
		if t.session == s {
			t.loseLocked()
		}
	}
	m.notify()
}

// renew keeps the session. It reports whether it was lost; otherwise the member
// has left.
func (m *Membership) renew(ctx context.Context, s *session) (lost bool) {
	wait := m.o.TTL / renewalsASec
	leaving, quit := false, m.quit
	for {
		select {
		case <-time.After(wait):
		case <-quit:
			leaving, quit = true, nil // tell the others at once
		case <-ctx.Done():
			return true
		case <-m.left:
			m.leave(ctx, s)
			return false
		}
		state := stateLive
		if leaving {
			state = stateLeaving
		}
		wait = m.renewOnce(ctx, s, state)
	}
}

// renewOnce renews the session, if it can, and returns when to do so next.
func (m *Membership) renewOnce(ctx context.Context, s *session, state string) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, m.o.TTL/6) // several fit into the time that is left
	defer cancel()
	sent := time.Now()
	if s.unsure.IsZero() {
		s.unsure = sent
	}
	revision, err := m.writeSession(ctx, s, s.revision, state)
	m.tried(s.ctx, renewing, err) //nolint:contextcheck // its end ends the session
	switch {
	case err == nil:
		m.renewed(s, revision, sent)
		return max(m.o.TTL/renewalsASec-time.Since(sent), 0)
	case !errors.Is(err, jetbus.ErrWrongSequence):
		return retryPause
	}
	there, err := m.readSession(ctx)
	switch {
	case err != nil:
		return retryPause
	case there.Nonce == s.nonce:
		if there.revision > s.revision { // a renewal whose answer was lost
			m.renewed(s, there.revision, s.unsure)
		}
		return retryPause
	}
	m.fence(s)
	return 0
}

// renewed counts a renewal that was sent at that time or later.
func (m *Membership) renewed(s *session, revision uint64, sent time.Time) {
	s.revision, s.unsure = revision, time.Time{}
	s.expiry.Move(sent.Add(m.surely()))
}

// leave ends the session in order: the partitions are released already.
func (m *Membership) leave(ctx context.Context, s *session) {
	m.mu.Lock()
	over := s.over
	s.over = true
	if m.session == s {
		m.session = nil
	}
	m.mu.Unlock()
	if over {
		return
	}
	defer s.end()
	s.expiry.Stop()
	ctx, cancel := context.WithTimeout(ctx, min(m.o.TTL, maxRelease))
	defer cancel()
	for {
		var err error
		if m.o.Static {
			_, err = m.writeSession(ctx, s, s.revision, stateAway)
		} else {
			err = m.keys.KeyDelete(ctx, m.o.Bucket, m.memberKey(), s.revision)
		}
		if err == nil || isFinal(err) || ctx.Err() != nil {
			return // what stays ends by its TTL
		}
		if errors.Is(err, jetbus.ErrWrongSequence) {
			there, err := m.readSession(ctx)
			if err == nil && (there.Nonce != s.nonce || there.State == stateAway) {
				return
			}
			if err == nil {
				s.revision = there.revision
				continue
			}
		}
		sleep(ctx, retryPause)
	}
}

// sleep waits, but not longer than ctx.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
