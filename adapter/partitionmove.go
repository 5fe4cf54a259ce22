package adapter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// moveParts moves a group by partition to next, in all its partitions or, where
// members do not let go of their events in time, in none. A mover that dies on its way
// has begun with some of them: they are completed by whoever meets them, as the one
// durable of another group is, and the others stay until SetCursor is called again.
func (dur *durables) moveParts(ctx context.Context, t *topicGroup, to *seek) error {
	to.wait = cmp.Or(to.wait, describeGroup(t.topic, t.durables(), t.end).AckTimeout)
	begun, ctx := dur.newMove(ctx, to, len(t.parts))
	m := &partsMove{move: begun}
	defer m.end(ctx)
	held, err := dur.lockParts(ctx, t, m.life, to.held)
	if err != nil {
		return err
	}
	m.keep(held)
	to.held = true
	return m.result(ctx, m.carryOut(ctx, t, to.force))
}

// lockParts is lockMove for a group by partition, whose lock only movers take.
func (dur *durables) lockParts(ctx context.Context, t *topicGroup, ttl time.Duration, before bool) (*heldLock, error) {
	if before {
		return dur.hold(ctx, groupLock(t), ttl)
	}
	held, err := dur.lockOnce(ctx, groupLock(t), ttl)
	if errors.Is(err, jetbus.ErrWrongSequence) {
		err = &jetbus.GroupBusyError{Topic: t.name(), Group: t.group, Held: describeGroup(t.topic, t.durables(), t.end).Held}
	}
	return held, err
}

// carryOut is moveParts with the group's lock.
func (m *partsMove) carryOut(ctx context.Context, t *topicGroup, force bool) (err error) {
	dur := m.dur
	if err := m.hold(ctx, joinLock(t.topic, t.group)); err != nil { // no partition joins meanwhile, at the old start
		return err
	}
	if t.parts, err = dur.partsOf(ctx, t.topic, t.group); err != nil {
		return err
	}
	m.parts = slices.Clone(t.parts)
	err = eachPart(ctx, m.parts, m.beginPart)
	m.parts = slices.DeleteFunc(m.parts, m.isOver)
	if err == nil && !force {
		err = m.awaitUnheld(ctx, t)
	}
	if err != nil && len(m.parts) < len(t.parts) {
		err = fmt.Errorf("%w: some partitions were moved when the locks were lost: %v", jetbus.ErrUnavailable, err) //nolint:errorlint // not a GroupBusyError, by which nothing has changed
	}
	if err := m.decide(ctx, err); err != nil {
		return err
	}
	for len(m.parts) > 0 { // a later generation waits for those before it, which must be back by then
		of := m.parts[0].part.Generation
		n := 0
		for n < len(m.parts) && m.parts[n].part.Generation == of {
			n++
		}
		if err := eachPart(ctx, m.parts[:n], m.replace); err != nil {
			return err
		}
		m.parts = m.parts[n:]
	}
	return nil
}

// partsMove is a move of several durables at once.
type partsMove struct {
	*move

	parts []*topicGroup
}

// beginPart takes a durable's lock, since its owner may be about to replace it, and marks it.
func (m *partsMove) beginPart(ctx context.Context, p *topicGroup) (err error) {
	if err = m.hold(ctx, groupLock(p)); err != nil {
		return err
	}
	if p.info, err = m.dur.findGroup(ctx, p.topic, p.group); err != nil {
		return err
	}
	if m.isOver(p) {
		return nil
	}
	return m.begin(ctx, p)
}

// awaitUnheld waits until no member holds an event in any partition.
func (m *partsMove) awaitUnheld(ctx context.Context, t *topicGroup) error {
	until := time.Now().Add(m.to.wait)
	var mu sync.Mutex
	held := 0
	err := eachPart(ctx, m.parts, func(ctx context.Context, p *topicGroup) error {
		err := m.dur.awaitUnheld(ctx, p, max(time.Until(until), 0))
		if busy, ok := errors.AsType[*jetbus.GroupBusyError](err); ok { // the others are counted, too
			mu.Lock()
			defer mu.Unlock()
			held += busy.Held
			return nil
		}
		return err
	})
	if err == nil && held > 0 {
		err = &jetbus.GroupBusyError{Topic: t.name(), Group: t.group, Held: held}
	}
	return err
}

func (m *partsMove) replace(ctx context.Context, p *topicGroup) error {
	return m.dur.putAt(ctx, p, m.to.next)
}
