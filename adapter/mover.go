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
	to     *seek
	marked []*topicGroup // guarded by keptLocks.mu
}

// seek is what a group is to be moved to. A mover that has outlived its locks begins anew with
// what it knows.
type seek struct {
	next  uint64        // where the group is to begin
	wait  time.Duration // for held events
	force bool          // instead of waiting
	held  bool          // it has had the group's lock before
	// begun are the durables that have had a mark of it, by the names that they keep in all
	// epochs: by which move they stood where they did, see metaMove. Guarded by keptLocks.mu;
	// nil where it does not begin anew.
	begun map[string]string
}

// newMove begins a move of that many durables. Its context ends, with errOutlived, when one
// of its locks may be another's. The caller ends the move.
func (dur *durables) newMove(ctx context.Context, to *seek, durables int) (*move, context.Context) {
	m := &move{dur: dur, keptLocks: dur.newKeptLocks(durables), to: to}
	return m, m.start(ctx, m.renewMarks)
}

// isOver reports whether a durable that had a mark of this move has been moved since: by
// its mover, which was not told so, or by whoever took the move up.
func (m *move) isOver(p *topicGroup) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	before, marked := m.to.begun[groupName(p.topic, p.group)]
	now := p.info.Config.Metadata[metaMove]
	return marked && now != "" && now != before
}

// begin marks a durable whose lock the move has. Where that fails it may be marked all the
// same, unless the mover may not do that.
func (m *move) begin(ctx context.Context, p *topicGroup) error {
	mark := m.fresh(p)
	err := m.dur.writeMark(ctx, p, mark.String())
	if errors.Is(err, jetbus.ErrDenied) {
		return err
	}
	m.mu.Lock()
	m.marked = append(m.marked, p)
	if m.to.begun != nil {
		m.to.begun[groupName(p.topic, p.group)] = p.info.Config.Metadata[metaMove]
	}
	m.mu.Unlock()
	if err != nil {
		return err
	}
	return m.standstill(ctx, p, mark)
}

// standstill pauses a durable that has a mark for as long as that says, unless the group is
// paused for longer anyhow.
func (m *move) standstill(ctx context.Context, p *topicGroup, mark moveMark) error {
	if mark.pause.After(mark.until) {
		return nil
	}
	return m.dur.pauseAtLeastUntil(ctx, p, mark.until)
}

// fresh is the mark that a durable gets now.
func (m *move) fresh(p *topicGroup) moveMark {
	return moveMark{seq: m.to.next, until: time.Now().Add(m.life), pause: resumeTime(p.info)}
}

func (m *move) mark(ctx context.Context, p *topicGroup) error {
	mark := m.fresh(p)
	if err := m.dur.writeMark(ctx, p, mark.String()); err != nil {
		return err
	}
	return m.standstill(ctx, p, mark)
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
