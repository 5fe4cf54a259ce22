package adapter

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// move is what a mover of a group, or of its parts, has to keep alive, and to give back; the
// steps of a move are in move.go. It
// waits for held events for as long as its caller says, an hour if need be, and may die in
// it. So its marks, by which the group stands still, end as its locks do.
type move struct {
	*keptLocks
	dur    *durables
	next   uint64        // where the group is to begin
	wait   time.Duration // for held events
	marked []*topicGroup // guarded by keptLocks.mu
}

// newMove begins a move of that many durables to next, which waits so long for held events.
// Its context ends, with errOutlived, when one of its locks may be another's. The caller
// ends the move.
func (dur *durables) newMove(ctx context.Context, next uint64, wait time.Duration, durables int) (*move, context.Context) {
	m := &move{dur: dur, keptLocks: dur.newKeptLocks(durables), next: next, wait: wait}
	return m, m.start(ctx, m.renewMarks)
}

// begin marks a durable whose lock the move has. Where that fails it may be marked all the
// same, unless the mover may not do that.
func (m *move) begin(ctx context.Context, p *topicGroup) error {
	mark := m.fresh()
	err := m.dur.writeMark(ctx, p, mark.String())
	if errors.Is(err, jetbus.ErrDenied) {
		return err
	}
	m.mu.Lock()
	m.marked = append(m.marked, p)
	m.mu.Unlock()
	if err != nil {
		return err
	}
	return m.dur.pauseAtLeastUntil(ctx, p, mark.until)
}

func (m *move) fresh() moveMark { return moveMark{seq: m.next, until: time.Now().Add(m.life)} }

func (m *move) mark(ctx context.Context, p *topicGroup) error {
	mark := m.fresh()
	return m.dur.markMove(ctx, p, mark.String(), mark.until)
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
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.dur.cfg.Timeout)
	defer cancel()
	return errors.Join(err, everyPart(ctx, marked, func(ctx context.Context, p *topicGroup) error {
		return m.dur.markMove(ctx, p, "", resumeTime(p.info))
	}))
}

// renewMarks is done after the locks were renewed. A mark that is not renewed lets members
// have events, which are waited for as well, and nobody takes the move up while it has the
// lock. Whether the durable is still there, who waits finds out.
func (m *move) renewMarks(ctx context.Context) {
	m.mu.Lock()
	marked := slices.Clone(m.marked)
	m.mu.Unlock()
	_ = everyPart(ctx, marked, func(ctx context.Context, p *topicGroup) error { return m.mark(ctx, p) })
}
