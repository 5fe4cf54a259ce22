package adapter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// track is one durable of a topic's owner: of the topic, or of its retries.
type track struct {
	o    *owner
	p    *puller
	base string // name of the first durable

	// Used by the owner, and read by deliver while events flow.
	durable  string    // the present one; "": this turn of the owner has none yet
	created  time.Time // when it was
	recorded uint64    // up to this sequence attempts may be recorded
	suspects uint64    // up to this sequence a process that died may have handled events

	account // guarded by leaseSet.mu
}

// deliver takes charge of a message.
func (tr *track) deliver(m *nats.Msg, a ackReply, now time.Time) {
	o, p, s := tr.o, tr.p, tr.o.s
	l := newLease(p.t, m, a, s.o.MaxAttempts)
	l.h, l.p, l.consumer = &s.leaseSet, p, tr.base
	l.slot = &slot{lease: l, o: o, tr: tr}
	key, keyed := o.laneOf(l)
	s.mu.Lock()
	since, first := p.arrivedLocked(l.size, now)
	if !o.flowing || a.consumer != tr.durable { // it will come again
		s.mu.Unlock()
		return
	}
	what, why := tr.arrive(l.seq, a.consumed)
	switch what {
	case arrivalDisorder:
		o.disturbLocked(why)
	case arrivalAgain:
		l = tr.open[l.seq].lease
		l.slot.attachLocked(p, m.Reply, since)
	case arrivalNew:
		l.slot.again, l.slot.suspect = a.deliveries > 1 || l.seq <= tr.recorded, l.seq <= tr.suspects
		tr.open[l.seq] = l.slot
		p.holdLocked(l)
		s.addLocked(l, since)
		if o.lanes.push(l.slot, key, keyed) {
			o.readyLocked(l.slot)
		}
	case arrivalSettled:
		p.settlesLocked(m.Reply, now)
	}
	request, reply := p.requestLocked(now)
	s.mu.Unlock()
	switch what {
	case arrivalSettled:
		_ = s.b.nc.Publish(m.Reply, nil) // else it comes once more
	case arrivalNew, arrivalAgain:
		s.secure(l)
	case arrivalDisorder:
	}
	p.send(request, reply)
	if first {
		p.polled(now.Sub(since))
	}
}

// errMoved: the durable was replaced by somebody else this moment.
var errMoved = errors.New("the group was moved")

// prepare finds the durable, and replaces it where it may bring events in another
// order than the topic's, or take orders from others.
func (tr *track) prepare(ctx context.Context, before predecessor) error {
	info, err := tr.find(ctx)
	if err != nil {
		return err
	}
	replace := false
	switch move := info.Config.Metadata[metaMove]; {
	case tr.durable == "" && !tr.p.t.retries && tr.o.move != "" && tr.o.move != move: // while this member was on its way, or paused
		tr.o.moved(tr.p.t.part)
		return errMoved
	case tr.durable == "":
		delivered, _ := strconv.ParseUint(info.Config.Metadata[metaDelivered], 10, 64) // none is 0
		tr.recorded, tr.suspects = delivered, 0
		replace = !before.clean || info.NumAckPending > 0 || info.NumWaiting > 0
		if !before.clean {
			tr.recorded = max(delivered, info.Delivered.Stream)
			tr.suspects = tr.recorded
		}
		tr.restart(info, before)
	case (info.Name != tr.durable || !info.Created.Equal(tr.created)) && info.Config.Metadata[metaBy] != tr.o.token:
		if err := tr.forsake(ctx); err != nil {
			return err
		}
		tr.recorded, tr.suspects = 0, 0
		tr.restart(info, predecessor{})
		tr.o.moved(tr.p.t.part)
	default:
		replace = tr.unsettled() || info.NumAckPending > 0 || info.NumWaiting > 0
	}
	if replace {
		if info, err = tr.replace(ctx, info); err != nil {
			return err
		}
	}
	s := tr.o.s
	s.mu.Lock()
	defer s.mu.Unlock()
	s.adoptLocked(info)
	tr.durable, tr.created = info.Name, info.Created.UTC()
	tr.begin(info.Delivered.Consumer)
	return nil
}

// find returns the present durable.
func (tr *track) find(ctx context.Context) (*jetstream.ConsumerInfo, error) {
	s, t := tr.o.s, tr.p.t
	s.mu.Lock()
	ackTimeout := s.ackTimeout
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, s.b.cfg.Timeout+ackTimeout+keptLife) // a move under way may have to be completed
	defer cancel()
	info, err := s.b.findGroup(ctx, t, s.group)
	if err != nil {
		return nil, err
	}
	if mark, ok := readMoveMark(info.Config.Metadata); ok {
		if err := s.b.finishMove(ctx, t, s.group, info, mark); err != nil {
			return nil, err
		}
		return nil, errMoved
	}
	return info, orderChanged(t, s.group, info, s.o.Order)
}

// replace puts a new durable in the place of the old one, beginning with the first
// event that is not settled. What was sent to or by the old one has no effect any more.
func (tr *track) replace(ctx context.Context, info *jetstream.ConsumerInfo) (made *jetstream.ConsumerInfo, err error) {
	b := tr.o.s.b
	ctx, cancel := context.WithTimeout(ctx, 2*keptLife+info.Config.AckWait+b.cfg.Timeout) // others who died may have the lock
	defer cancel()
	g := &topicGroup{topic: tr.p.t, group: tr.o.s.group, info: info}
	err = b.locked(ctx, groupLock(g), func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, b.cfg.Timeout)
		defer cancel()
		made, err = tr.replaceHeld(ctx, g)
		return err
	})
	return made, err
}

// replaceHeld is replace for who has the group's lock.
func (tr *track) replaceHeld(ctx context.Context, g *topicGroup) (*jetstream.ConsumerInfo, error) {
	s, seen := tr.o.s, g.info
	var err error
	if g.info, err = s.b.findGroup(ctx, tr.p.t, s.group); err != nil {
		return nil, err
	}
	if g.info.Name != seen.Name || g.info.Config.Metadata[metaMark] != "" || !maps.Equal(kin(g.info), kin(seen)) {
		return nil, errMoved
	}
	s.mu.Lock()
	next := tr.from()
	tr.recorded = max(tr.recorded, tr.last, g.info.Delivered.Stream)
	s.mu.Unlock()
	metadata := map[string]string{metaDelivered: strconv.FormatUint(tr.recorded, 10), metaBy: tr.o.token}
	maps.Copy(metadata, kin(g.info))
	made, err := s.b.replaceConsumer(ctx, g, next, metadata)
	if err != nil {
		return nil, fmt.Errorf("replace the durable: %w", err)
	}
	return made, nil
}

// forsake gives up what is in hand of a durable that somebody has replaced, and
// waits for its handlers to return.
func (tr *track) forsake(ctx context.Context) error {
	o := tr.o
	o.s.mu.Lock()
	for head := range o.lanes.heads() { // after halt nobody waits behind them
		if head.tr == tr {
			o.lanes.done(head)
			head.loseLocked()
		}
	}
	o.s.mu.Unlock()
	return o.await(ctx, func() bool { return o.busy == 0 })
}

// restart begins an account of a durable that this owner has not used yet.
func (tr *track) restart(info *jetstream.ConsumerInfo, before predecessor) {
	tr.o.s.mu.Lock()
	defer tr.o.s.mu.Unlock()
	for _, r := range before.rests {
		if r.Durable == info.Name && r.Created.Equal(info.Created) && before.clean {
			tr.resume(r)
			return
		}
	}
	tr.reset(settledSeq(info))
}

func (tr *track) unsettled() bool {
	tr.o.s.mu.Lock()
	defer tr.o.s.mu.Unlock()
	return len(tr.open) > 0
}
