package partition

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/shutdown"
)

const (
	restPause  = time.Second           // before a partition that was given up without need is taken again
	viewPause  = 20 * time.Millisecond // changes that come so close together are looked at once
	writeAhead = 16                    // leases that are taken at once
)

// assign is Assign. Tests of large groups put one there that remembers, as all their
// members see the same.
var assign = Assign

// Membership is a process's part in a group. Its methods may be called concurrently.
type Membership struct {
	o     Options
	on    terms
	keys  jetbus.Keys
	group string
	own   Own
	meta  json.RawMessage         // o.Meta, encoded
	ctx   context.Context         //nolint:containedctx // values for Own, never canceled
	life  context.Context         //nolint:containedctx // of its own requests; canceled at the end
	die   context.CancelCauseFunc // of life
	quit  chan struct{}           // closed when it is to stop
	left  chan struct{}           // closed when it stops and has no partitions any more
	done  chan struct{}           // closed when nothing runs any more
	wake  chan struct{}           // signaled when there may be something to do; capacity 1
	work  sync.WaitGroup          // all goroutines but the last
	slots chan struct{}           // leases being taken
	seen  chan struct{}           // closed when the others were seen for the first time

	mu       sync.Mutex
	view     *view              // nil: currently unknown
	unwatch  context.CancelFunc // ends the current watch; then the next one begins
	session  *session
	turns    map[int]*Turn
	taking   map[int]bool      // partitions whose lease is being changed
	rest     map[int]time.Time // partitions not to be taken before then
	tidied   time.Time         // when the view was
	troubles map[string]trouble
	stopping bool
	err      error
	stats    Stats
}

// Stats count what a member did since it joined.
type Stats struct {
	Acquired uint64 // partitions taken
	Released uint64 // partitions given up in order
	Expelled uint64 // sessions lost
}

// Join makes this process a member of a group, and calls own with each partition
// that is its own. All members must name the same group, bucket and number of
// partitions. Buses of all prefixes share the groups of the default bucket: one is to be told apart
// from another's by its name, as that of [Subscribe] is. It returns when the group is known to agree; sessions begin behind it, and
// wait through outages of the broker. The end of ctx is a Stop; its values go to own.
//
// Of the errors, [jetbus.ErrInvalidOption] is about the arguments, [jetbus.ErrConflict]
// about a group of another number of partitions, the others are of the broker.
// [ErrMemberExists] comes later, as Membership.Err: that another process has the name
// shows only when it renews its session.
func Join(ctx context.Context, k jetbus.Keys, group string, own Own, o Options) (*Membership, error) {
	return join(ctx, ctx, k, group, own, o, terms{})
}

// join is Join. ctx bounds it, and the end of life is a Stop.
func join(ctx, life context.Context, k jetbus.Keys, group string, own Own, o Options, on terms) (*Membership, error) {
	o, err := o.Normalize()
	meta, _ := encodeMeta(o.Meta) // Normalize has checked it
	switch {
	case err != nil:
	case k == nil || own == nil:
		err = fmt.Errorf("%w: a store of keys and a function are needed", jetbus.ErrInvalidOption)
	default:
		err = validName(group)
	}
	if err == nil {
		err = agree(ctx, k, group, o, on)
	}
	if err != nil {
		return nil, fmt.Errorf("join group %s: %w", group, err)
	}
	m := &Membership{
		o: o, keys: k, group: group, own: own, meta: meta,
		quit: make(chan struct{}), left: make(chan struct{}), done: make(chan struct{}), wake: make(chan struct{}, 1),
		on: on, slots: make(chan struct{}, writeAhead), seen: make(chan struct{}),
		turns: map[int]*Turn{}, taking: map[int]bool{}, rest: map[int]time.Time{}, troubles: map[string]trouble{},
	}
	m.ctx = context.WithValue(context.WithoutCancel(life), insideKey{m}, true)
	m.life, m.die = context.WithCancelCause(m.ctx)
	unfollow := context.AfterFunc(life, m.stop)
	m.work.Go(m.watch)
	m.work.Go(m.run)
	go func() {
		m.attend(m.life)
		m.stop() // it may have failed
		m.lose(jetbus.ErrStopped)
		m.die(jetbus.ErrStopped)
		m.work.Wait()
		unfollow()
		close(m.done)
	}()
	return m, nil
}

// Member is the name under which the process is a member.
func (m *Membership) Member() string { return m.o.Member }

// Done is closed when the membership has ended and nothing of it runs.
func (m *Membership) Done() <-chan struct{} { return m.done }

// Err is why the membership ended; nil while it goes on, and when it was stopped.
func (m *Membership) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// Stats returns the counts.
func (m *Membership) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stats
}

// Owned lists the partitions in this member's hands, sorted.
func (m *Membership) Owned() []int {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []int
	for p, t := range m.turns {
		if !t.lost {
			out = append(out, p)
		}
	}
	slices.Sort(out)
	return out
}

// Stop gives up all partitions and leaves the group. It returns when all is over;
// when ctx ends first, the contexts of what still runs are canceled ([jetbus.ErrStopped])
// and Stop waits on for it to return, and returns the error of ctx. It may be called
// again, and returns nil where the membership has ended. A ctx that was canceled before
// the call leaves jetbus.DefaultShutdownTimeout, or until its deadline if it has one. From inside
// Own it does not wait if ctx is Own's context or one made from it; given another one it would wait
// for itself, without end.
func (m *Membership) Stop(ctx context.Context) error {
	m.stop()
	if ctx.Value(insideKey{m}) != nil { // whoever asks is one of those to wait for
		return nil
	}
	ctx, release := shutdown.Context(ctx, jetbus.DefaultShutdownTimeout) // what the caller's function does has no bound
	defer release()
	select {
	case <-m.done:
		return nil
	case <-ctx.Done():
	}
	m.lose(jetbus.ErrStopped)
	<-m.done
	return fmt.Errorf("leave group %s: %w", m.group, context.Cause(ctx))
}

func (m *Membership) isStopping() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stopping
}

func (m *Membership) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.stopping {
		m.stopping = true
		close(m.quit)
		m.notify()
	}
}

// lose cancels what runs, without letting the leases go in order.
func (m *Membership) lose(cause error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range m.turns {
		t.cancel(cause)
	}
}

func (m *Membership) fail(err error) {
	m.mu.Lock()
	if m.err == nil {
		m.err = fmt.Errorf("group %s: %w", m.group, err)
	}
	m.mu.Unlock()
	m.stop()
}

func (m *Membership) notify() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// watch follows the group's keys until the end.
func (m *Membership) watch() {
	last := newView()
	for m.life.Err() == nil {
		next := newView()
		synced := false
		var config *jetbus.KeyEntry // the last one that came so far
		ctx, cancel := context.WithCancel(m.life)
		m.mu.Lock()
		m.unwatch = cancel
		m.mu.Unlock()
		for e, err := range m.keys.KeyWatch(ctx, m.o.Bucket, m.group+groupKeys) {
			if ctx.Err() != nil {
				break
			}
			if err != nil {
				m.cannotSee(err)
				break
			}
			now := time.Now()
			switch {
			case e.Synced:
				next.resumed(last, now)
				lost := e.Lost && e.Revision != last.life || next.missesAll(last)
				if lost {
					next.lostKeys(last, now.Add(m.o.TTL))
				}
				next.life = e.Revision
				m.askAfter(next, last, lost)
				synced, last = true, next
				closeOnce(m.seen)
				m.tried(m.life, watching, nil) //nolint:contextcheck // ctx is of one watch
				m.mu.Lock()
				var kicked *session
				if ctx.Err() == nil {
					m.view = next
					m.inspectLocked()
					kicked = m.goneLocked()
				}
				m.notify()
				m.mu.Unlock()
				if kicked != nil {
					m.fence(kicked)
				}
				if config != nil {
					m.checkConfig(*config)
				}
			case e.Key == m.group+configKey && !synced: // a replica that lags may return an old one
				config = &e
			case e.Key == m.group+configKey:
				m.checkConfig(e)
			case !synced:
				next.apply(e, m.group, now, false, 0)
			default:
				m.mu.Lock()
				kicked := m.kickedLocked(e)
				if next.apply(e, m.group, now, true, max(m.o.JoinDelay, 0)) {
					m.inspectLocked()
					m.notify()
				}
				m.mu.Unlock()
				if kicked != nil {
					m.fence(kicked)
				}
			}
		}
		cancel()
		m.mu.Lock()
		m.view = nil
		m.mu.Unlock()
		sleep(m.life, retryPause)
	}
}

// watchAgain ends the current watch and discards its view. If a member's session is gone, its
// bucket may have been purged, which a watch does not report.
func (m *Membership) watchAgain() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.view = nil
	if m.unwatch != nil {
		m.unwatch()
	}
}

// What a member tries that nobody waits for; see tried.
const (
	watching  = "watch the group"
	entering  = "begin a session"
	renewing  = "renew the session"
	taking    = "take a partition"
	releasing = "release a partition"
)

// cannotSee ends a member that may not watch its group: it would keep what it has for ever, and
// take nothing that it is given.
func (m *Membership) cannotSee(err error) {
	switch {
	case m.life.Err() != nil:
	case isFinal(err):
		m.fail(err)
	default:
		m.tried(m.life, watching, err)
	}
}

// sees reports whether the member knows what the group is like at present.
func (m *Membership) sees() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.view != nil
}

// askAfter reads the sessions that ended, or seem to have ended, between the last watch and the
// current one, because no watch reports them. If a read fails, view.over waits instead. If the
// bucket lost its keys, the session of another member may still be valid although it is absent.
func (m *Membership) askAfter(now, before *view, lost bool) {
	for id, old := range now.unseen(before) {
		if lost && id != m.o.Member {
			continue
		}
		e, err := m.keys.KeyGet(m.life, m.o.Bucket, m.group+memberPrefix+id)
		var s sessionValue
		switch {
		case err != nil:
		case e.Revision == 0:
			now.died(id, old, time.Now(), max(m.o.JoinDelay, 0))
		case json.Unmarshal(e.Value, &s) == nil && s.Nonce != old.Nonce: // the watch is about to tell
			now.ended[old.Nonce] = time.Now()
		}
	}
}

// goneLocked returns the member's session if it ended without a word to its watch.
func (m *Membership) goneLocked() *session {
	if s := m.session; s != nil {
		if _, over := m.view.ended[s.nonce]; over {
			return s
		}
	}
	return nil
}

// kickedLocked returns the member's session if e says that somebody deleted it.
func (m *Membership) kickedLocked(e jetbus.KeyEntry) *session {
	if s := m.session; e.Deleted && s != nil && e.Key == m.memberKey() && e.Revision > s.begun {
		return s
	}
	return nil
}

// inspectLocked gives up the partitions whose lease another program has written: an operator,
// because no member does so while the session in the lease is valid.
func (m *Membership) inspectLocked() {
	if m.view == nil { // the next watch has not begun yet
		return
	}
	for p, t := range m.turns {
		l, there := m.view.leases[p]
		if t.lost || t.ended || there && l.revision <= t.revision || !there && m.view.removed[p] <= t.revision {
			continue
		}
		if l.Owner != m.o.Member || l.Session != t.session.nonce {
			t.loseLocked()
		}
	}
}

// run takes and gives up partitions, as the view demands, until the member has left.
func (m *Membership) run() {
	for {
		next := m.look()
		timer := time.NewTimer(next)
		select {
		case <-m.wake:
			timer.Stop()
			sleep(m.life, viewPause)
		case <-timer.C:
		case <-m.life.Done():
			timer.Stop()
			return
		}
	}
}

// look compares what is with what should be, and returns when to do so again at
// the latest.
func (m *Membership) look() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, wait := time.Now(), m.o.TTL/2
	if m.stopping {
		for _, t := range m.turns {
			m.revoke(t)
		}
		if len(m.turns) == 0 && len(m.taking) == 0 {
			closeOnce(m.left)
		}
		return wait
	}
	if m.view == nil || m.session == nil {
		return wait
	}
	until := func(at time.Time) {
		if !at.IsZero() {
			wait = min(wait, max(at.Sub(now), time.Millisecond))
		}
	}
	maps.DeleteFunc(m.rest, func(_ int, at time.Time) bool { return !now.Before(at) })
	if now.Sub(m.tidied) > m.o.TTL {
		m.view.forget(now, m.o.TTL)
		m.tidied = now
	}
	m.view.newcomer(m.o.Member, m.session)
	members, at := m.view.sharers(now, max(m.o.JoinDelay, 0))
	until(at)
	for p, id := range assign(m.o.Partitions, members, m.view.holders(m.o.Partitions)) {
		t := m.turns[p]
		switch {
		case id != m.o.Member && t == nil && !m.taking[p] && m.view.leases[p].Session == m.session.nonce:
			m.startLocked(p, m.view.leases[p], m.yield) // taken without our knowing
		case id != m.o.Member:
			m.revoke(t)
		case t == nil && !m.taking[p]:
			if at, resting := m.rest[p]; resting {
				until(at)
				continue
			}
			l, at := m.free(p, now)
			until(at)
			if l != nil {
				m.startLocked(p, *l, m.take)
			}
		}
	}
	return wait
}

// startLocked runs f, which changes a lease, on a goroutine of its own.
func (m *Membership) startLocked(p int, l seenLease, f func(int, seenLease, *session)) {
	m.taking[p] = true
	s := m.session
	m.work.Go(func() { f(p, l, s) })
}

func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// revoke asks for a partition back.
func (m *Membership) revoke(t *Turn) {
	if t != nil && !t.asked {
		t.asked = true
		close(t.revoked)
	}
}

// free returns the lease of a partition if it can be taken, or when to ask again.
func (m *Membership) free(p int, now time.Time) (*seenLease, time.Time) {
	l := m.view.leases[p]
	if l.revision == 0 && m.view.isDoubtful(now) {
		return nil, m.view.doubt
	}
	if l.Owner == "" || l.Owner == m.o.Member { // ours: of the past, or taken without our knowing
		return &l, time.Time{}
	}
	over, at := m.view.over(l.Owner, l.Session, now, m.o.TTL)
	if over {
		return &l, time.Time{}
	}
	return nil, at
}
