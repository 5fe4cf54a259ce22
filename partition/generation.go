package partition

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/shutdown"
)

// generation is a subscription's part in the partitions of one generation.
type generation struct {
	jetbus.Generation
	s          *Subscription
	older      []jetbus.Generation
	membership *Membership
}

// enterAll begins with the generations that there are. A table that others know to
// be old is read once more.
func (s *Subscription) enterAll(ctx context.Context) (err error) {
	for range 3 {
		if err = s.look(ctx); !errors.Is(err, jetbus.ErrConflict) || isOtherOrder(err) {
			return err
		}
		sleep(ctx, gatePause)
	}
	return err
}

// run follows the generations of the topic until the subscription stops.
func (s *Subscription) run() {
	for {
		select {
		case <-s.life.Done():
			return
		case <-s.again:
			sleep(s.life, retryPause)
			s.rested = time.Time{}
		case <-time.After(lookPause):
		}
		err := s.look(s.life)
		switch {
		case err == nil || s.life.Err() != nil:
		case isOver(err):
			s.fail(err)
			return
		default:
			s.warn(err)
		}
	}
}

// isOver reports whether an error is there to stay.
func isOver(err error) bool {
	return isFinal(err) || isOtherOrder(err) || errors.Is(err, jetbus.ErrNoTopic) || errors.Is(err, jetbus.ErrNoPartitions) || errors.Is(err, jetbus.ErrNoGroup)
}

// look makes the process a member in each generation that has work, and ends its
// part in the others. The newest has work always. One that was left may have some again:
// somebody replayed a dead letter to it who does not know of the newest.
func (s *Subscription) look(ctx context.Context) error {
	all, err := s.bus.Generations(ctx, s.topic)
	if err == nil && len(all) == 0 {
		err = jetbus.ErrNoPartitions
	}
	if err != nil {
		return err
	}
	newest := all[len(all)-1]
	if s.in(newest) == nil {
		for _, g := range all {
			if err := agreeOnOrder(ctx, s.bus, s.o.Bucket, GroupOf(s.topic, s.group, g), s.o.PerPartition.Order); err != nil {
				return err
			}
		}
		if err := s.bus.JoinPartitions(ctx, s.topic, s.group, s.o.PerPartition); err != nil {
			return err
		}
	}
	if err := s.enter(ctx, newest, all[:len(all)-1]); err != nil {
		return err
	}
	older := all[:len(all)-1]
	member := slices.ContainsFunc(older, func(g jetbus.Generation) bool { return s.in(g) != nil })
	if len(older) == 0 || !member && time.Since(s.rested) < restLook {
		return nil
	}
	there, err := s.partitions(ctx)
	if err != nil {
		return err
	}
	s.rested = time.Now()
	for i, g := range older {
		part := s.in(g)
		switch busy := there.busy(g); {
		case busy && part == nil:
			if err := s.enter(ctx, g, older[:i]); err != nil {
				return err
			}
		case !busy && part != nil:
			part.membership.stop() // it is forgotten when it has ended
		}
	}
	return nil
}

// in returns the subscription's part in a generation; nil: there is none.
func (s *Subscription) in(g jetbus.Generation) *generation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.generations[g.Generation]
}

// enter makes the process a member in a generation, if it is not.
func (s *Subscription) enter(ctx context.Context, g jetbus.Generation, older []jetbus.Generation) error {
	if s.in(g) != nil {
		return nil
	}
	part := &generation{Generation: g, s: s, older: older}
	on := terms{anew: true, order: s.o.PerPartition.Order}
	m, err := join(ctx, s.life, s.bus, GroupOf(s.topic, s.group, g), part.own, s.o.join(g.Partitions), on)
	if err != nil {
		return err
	}
	part.membership = m
	s.mu.Lock()
	s.generations[g.Generation] = part
	s.mu.Unlock()
	s.work.Go(func() { s.await(part) })
	return nil
}

// await takes note of the end of a membership.
func (s *Subscription) await(part *generation) {
	m := part.membership
	<-m.Done()
	s.mu.Lock()
	delete(s.generations, part.Generation.Generation)
	s.counts = s.counts.plus(m.Stats())
	s.mu.Unlock()
	switch err := m.Err(); {
	case err == nil:
	case errors.Is(err, jetbus.ErrConflict) && !isOtherOrder(err): // the topic is another one by now
		s.warn(err)
		s.lookAgain()
	default:
		s.fail(err)
	}
}

// own handles the events of a partition while it is this process's. It waits for
// older generations each time that it begins: a group that somebody moved back may have
// events there again.
func (g *generation) own(ctx context.Context, t *Turn) (clean bool, _ error) {
	s, p := g.s, jetbus.Partition{Generation: g.Generation.Generation, Number: t.Partition}
	turn := jetbus.PartitionTurn{Partition: p, Epoch: t.Epoch, Clean: t.Clean}
	orderly := true // of what this process had, which may be nothing; turn.Clean is for the next owner, of all before
	drained := func(there partitions) bool { return there.drained(p, g.older) }
	for assigned := false; ; pause(ctx, t) {
		ready := false
		if turn.Move, ready = s.gate.wait(ctx, t.Revoked(), p, drained); !ready || over(ctx, t) {
			break
		}
		if !assigned {
			assigned = true
			s.assign(ctx, Assigned{p, t.Epoch})
			defer func() { s.revoke(ctx, Revoked{p, t.Epoch, orderly && ctx.Err() == nil}) }()
		}
		began, err := s.serve(ctx, t, &turn)
		if began {
			orderly = turn.Clean
		}
		switch {
		case over(ctx, t):
		case err == nil: // the group was moved
			s.lookAgain()
		case isOver(err):
			return turn.Clean, fmt.Errorf("partition %s: %w", p, err)
		default:
			s.warn(fmt.Errorf("partition %s: %w", p, err))
		}
	}
	return turn.Clean, nil
}

func (s *Subscription) assign(ctx context.Context, a Assigned) {
	if s.o.OnAssigned != nil {
		s.o.OnAssigned(ctx, a)
	}
}

func (s *Subscription) revoke(ctx context.Context, r Revoked) {
	if s.o.OnRevoked != nil {
		s.o.OnRevoked(ctx, r)
	}
}

// lookAgain has run look at all generations soon.
func (s *Subscription) lookAgain() {
	select {
	case s.again <- struct{}{}:
	default:
	}
}

// serve subscribes to a partition until the turn is over or the subscription fails,
// and notes in the turn how it ended. It begins when events are asked for.
func (s *Subscription) serve(ctx context.Context, t *Turn, turn *jetbus.PartitionTurn) (began bool, err error) {
	sub, err := s.bus.SubscribePartition(ctx, s.topic, s.group, *turn, s.handler, s.o.PerPartition)
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	s.live[turn.Partition] = sub
	if s.paused {
		sub.Pause()
	}
	s.mu.Unlock()
	select {
	case <-t.Revoked():
		err = sub.Stop(shutdown.Firm(ctx)) // it is canceled when the partition is lost
	case <-ctx.Done():
	case <-sub.Done():
	}
	<-sub.Done()
	s.mu.Lock()
	delete(s.live, turn.Partition)
	addCounters(&s.past, sub.Stats())
	s.mu.Unlock()
	turn.Clean = sub.Clean()
	return sub.Began(), errors.Join(sub.Err(), err)
}

// over reports whether a turn is.
func over(ctx context.Context, t *Turn) bool {
	select {
	case <-ctx.Done():
		return true
	case <-t.Revoked():
		return true
	default:
		return false
	}
}

// pause waits before a partition is subscribed to again.
func pause(ctx context.Context, t *Turn) {
	select {
	case <-ctx.Done():
	case <-t.Revoked():
	case <-time.After(gatePause):
	}
}

// partitions are those of a group as the broker has them.
type partitions map[jetbus.Partition]jetbus.PartitionInfo

// partitions asks for those of the group.
func (s *Subscription) partitions(ctx context.Context) (partitions, error) {
	list, err := s.bus.GroupPartitions(ctx, s.topic, s.group)
	if err != nil {
		return nil, err
	}
	there := make(partitions, len(list))
	for _, p := range list {
		there[p.Partition] = p
	}
	return there, nil
}

// busy reports whether the group has something to do in a generation.
func (there partitions) busy(g jetbus.Generation) bool {
	for p := range g.Partitions {
		if i, known := there[jetbus.Partition{Generation: g.Generation, Number: p}]; !known || !i.Drained() || i.Retries > 0 {
			return true
		}
	}
	return false
}

// drained reports whether the group is done with all events of older generations
// whose keys may be in a partition. Keys move only to partitions that are new: what is in
// partition j now was in j before, where there was one.
func (there partitions) drained(p jetbus.Partition, older []jetbus.Generation) bool {
	for _, g := range older {
		first, last := 0, g.Partitions-1
		if p.Number < g.Partitions {
			first, last = p.Number, p.Number
		}
		for j := first; j <= last; j++ {
			if i, known := there[jetbus.Partition{Generation: g.Generation, Number: j}]; !known || !i.Drained() {
				return false
			}
		}
	}
	return true
}

// gate is where partitions wait for older ones. Those that wait share their questions.
type gate struct {
	look  func(context.Context) (partitions, error)
	turn  chan struct{} // holds a value while somebody asks; capacity 1
	there partitions    // the last answer; of whom has the turn
	asked time.Time     // when it was asked for
}

// wait waits until enough is true of what the broker says from now on: an answer
// that is older may be from before the last event of an older generation. It reports
// false when ctx or revoked ends it. It has to be true twice: what a publisher had sent
// before the topic grew may be on its way among the broker's replicas when members
// hear that it has grown. Who moves the group later, and so makes it untrue, is told by
// the move that partition p was at when it was true first.
func (g *gate) wait(ctx context.Context, revoked <-chan struct{}, p jetbus.Partition, enough func(partitions) bool) (move string, ok bool) {
	if enough(nil) {
		return "", true
	}
	since := time.Now()
	var opened time.Time // when the first of the answers was asked for that say so one behind the other
	for {
		select {
		case g.turn <- struct{}{}:
		case <-revoked:
			return "", false
		case <-ctx.Done():
			return "", false
		}
		if g.there == nil || g.asked.Before(since) || time.Since(g.asked) >= gatePause {
			g.asked = time.Now()
			g.there, _ = g.look(ctx) // nil: not known, and asked for again
		}
		open, at, asked := g.there != nil && enough(g.there), g.there[p].Move, g.asked
		<-g.turn
		switch {
		case !open:
			opened = time.Time{}
		case opened.IsZero() || at != move:
			opened, move = asked, at
		case asked.Sub(opened) >= gateAgain:
			return move, true
		}
		select {
		case <-time.After(gatePause):
		case <-revoked:
			return "", false
		case <-ctx.Done():
			return "", false
		}
	}
}

func comparePartitions(a, b jetbus.Partition) int {
	return cmp.Or(cmp.Compare(a.Generation, b.Generation), cmp.Compare(a.Number, b.Number))
}
