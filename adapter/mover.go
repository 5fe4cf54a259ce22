package adapter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/deadline"
)

// A mover waits for held events for as long as its caller says, an hour if need be, and may
// die in it. So its locks, and its marks, by which the group stands still, end soon after
// it, and begin their lives anew while it lives.
const (
	moverLife     = 15 * time.Second
	moverLifePart = 50 * time.Millisecond // more of it for each durable: so long it may take to renew them
	moverRenewals = 4                     // in a life
)

// errOutlived: whatever the move's marks say, others act on it by now. They are not taken back.
var errOutlived = fmt.Errorf("%w: for so long that somebody else may be moving the group by now", jetbus.ErrUnavailable)

// move is what a mover of a group, or of its parts, has to keep alive, and to give back.
type move struct {
	b    *Bus
	next uint64                  // where the group is to begin
	life time.Duration           // of locks and marks
	wait time.Duration           // for held events
	lose context.CancelCauseFunc // ends the move's context
	stop func()                  // ends the renewing, and waits for it

	renewing chan struct{} // full while locks and marks are renewed
	mu       sync.Mutex
	locks    []*heldLock
	marked   []*topicGroup
}

// newMove begins a move of that many durables to next, which waits so long for held events.
// Its context ends, with errOutlived, when one of its locks may be another's. The caller
// ends the move.
func (b *Bus) newMove(ctx context.Context, next uint64, wait time.Duration, durables int) (*move, context.Context) {
	life := moverLife + time.Duration(durables)*moverLifePart
	m := &move{b: b, next: next, wait: wait, life: life + seekGrace, renewing: make(chan struct{}, 1)}
	ctx, m.lose = context.WithCancelCause(ctx)
	var renewing sync.WaitGroup
	renewing.Go(func() { m.keepAlive(ctx) })
	m.stop = func() {
		m.lose(nil)
		renewing.Wait()
	}
	return m, ctx
}

// end gives all locks back.
func (m *move) end(ctx context.Context) {
	m.stop()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unlockTimeout)
	defer cancel()
	_ = everyPart(ctx, m.locks, func(ctx context.Context, l *heldLock) error {
		l.unlock(ctx)
		return nil
	})
}

// result is the error of a move that ended with err: what was asked when it was outlived says
// no more than that it was canceled.
func (m *move) result(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errOutlived) {
		return cause
	}
	return err
}

// hold waits for a lock, which the move has until it ends.
func (m *move) hold(ctx context.Context, name string) error {
	held, err := m.b.hold(ctx, name, m.life)
	if err == nil {
		m.keep(held)
	}
	return err
}

func (m *move) keep(held *heldLock) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.locks = append(m.locks, held)
}

// begin marks a durable whose lock the move has. Where that fails it may be marked all the
// same, unless the mover may not do that.
func (m *move) begin(ctx context.Context, p *topicGroup) error {
	mark := m.fresh()
	err := m.b.writeMark(ctx, p, mark.String())
	if errors.Is(err, jetbus.ErrDenied) {
		return err
	}
	m.mu.Lock()
	m.marked = append(m.marked, p)
	m.mu.Unlock()
	if err != nil {
		return err
	}
	return m.b.pauseUntil(ctx, p, mark.until)
}

func (m *move) fresh() seekMark { return seekMark{seq: m.next, until: time.Now().Add(m.life)} }

func (m *move) mark(ctx context.Context, p *topicGroup) error {
	mark := m.fresh()
	return m.b.markSeek(ctx, p, mark.String(), mark.until)
}

// decide ends the time of the marks: all that is held is settled, and the durables are about
// to be replaced, or, with an error, they are not, and the marks are taken back.
func (m *move) decide(ctx context.Context, err error) error {
	m.renewing <- struct{}{} // a mark that was renewed later would stay
	m.mu.Lock()
	marked := m.marked
	m.marked = nil
	m.mu.Unlock()
	<-m.renewing
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errOutlived):
		return cause
	case err == nil:
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.b.cfg.Timeout)
	defer cancel()
	return errors.Join(err, everyPart(ctx, marked, func(ctx context.Context, p *topicGroup) error {
		return m.b.markSeek(ctx, p, "", resumeTime(p.info))
	}))
}

// keepAlive renews locks and marks until ctx is over, or it has not been able to for so long
// that a lock may be over before the next time.
func (m *move) keepAlive(ctx context.Context) {
	every := m.life / moverRenewals
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		m.renew(ctx, every)
	}
}

// renew does what it does to its end, also where ctx is over: of a lock that is given back
// it is known what was written last.
func (m *move) renew(ctx context.Context, within time.Duration) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer cancel()
	m.renewing <- struct{}{}
	defer func() { <-m.renewing }()
	m.mu.Lock()
	locks, marked := slices.Clone(m.locks), slices.Clone(m.marked)
	m.mu.Unlock()
	err := everyPart(ctx, locks, func(ctx context.Context, l *heldLock) error { return l.extend(ctx) })
	if soon := time.Now().Add(within); slices.ContainsFunc(locks, func(l *heldLock) bool { return deadline.Over(l.until, soon) }) {
		m.lose(errors.Join(errOutlived, err)) // before anybody decides
		return
	}
	// A mark that is not renewed lets members have events, which are waited for as well, and
	// nobody takes the move up while it has the lock. Whether the durable is still there, who
	// waits finds out.
	_ = everyPart(ctx, marked, func(ctx context.Context, p *topicGroup) error { return m.mark(ctx, p) })
}
