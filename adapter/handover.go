package adapter

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// restKey is behind the name of an owner's lock: where what it has left is kept.
const restKey = "/rest"

// handOverTimeout bounds a hand-over; the next owner begins as after a death then.
const handOverTimeout = 5 * time.Second

// predecessor is what is known of the owner before.
type predecessor struct {
	clean bool   // it has handed over
	read  bool   // rests were read
	rests []rest // what it left, by durable
}

// leave hands the topic over: it lets handlers finish, then gives back what is
// left. It reports whether the next owner may simply go on.
func (o *owner) leave(ctx context.Context) (clean bool) {
	o.endPulls()
	err := o.await(ctx, func() bool {
		switch o.s.patience {
		case waitsForAll:
			return !o.anyLocked((*slot).inHand)
		case waitsForHandlers:
			return o.busy == 0
		default:
			return true
		}
	})
	if err == nil && o.s.b.link.IsUp() {
		o.giveBack(ctx)
		err = o.handOver(ctx)
		clean = err == nil && ctx.Err() == nil
	}
	if err != nil {
		o.s.b.cfg.Logger.WarnContext(ctx, "the topic of an ordered group is not handed over in order",
			slog.String("topic", o.name()), slog.String("group", o.s.group), slog.Any("error", err))
	}
	o.lose()
	return clean
}

// giveBack lets go of what no handler has.
func (o *owner) giveBack(ctx context.Context) {
	o.s.mu.Lock()
	o.flowing = false
	left := o.lanes.drop(func(s *slot) bool { return s.running })
	for _, s := range left {
		if s.turn != nil { // of ManualAck, and nobody has settled it
			s.turn.state, s.turn.decided = leaseLost, true
		}
		s.loseLocked()
		s.tr.open[s.lease.seq] = nil
	}
	o.s.mu.Unlock()
	for _, s := range left {
		s.unmark(ctx)
		s.lease.h.note(s.lease, jetbus.GivenBack, "standing down", nil)
	}
}

// handOver leaves the durables as the next owner needs them, and tells it what is
// settled beyond the first open event. Giving events back to the server would not
// do: it delivers them again in an order of its own where a pull request, or an
// event, was on its way when this member stopped asking.
func (o *owner) handOver(ctx context.Context) error {
	o.s.mu.Lock()
	busy := o.busy
	o.s.mu.Unlock()
	if busy > 0 {
		return errors.New("handlers are left behind")
	}
	ctx, cancel := context.WithTimeout(ctx, handOverTimeout)
	defer cancel()
	for _, tr := range o.tracks {
		if err := tr.prepare(ctx, predecessor{}); err != nil {
			return err
		}
	}
	return o.writeRests(ctx)
}

// readRests reads what the owner before has left. Without that everything behind
// the first open event would be handled again.
func (o *owner) readRests(ctx context.Context, before *predecessor) error {
	entry, err := o.s.b.KeyGet(ctx, ownersBucket, o.lock.Key+restKey)
	if err != nil {
		return err
	}
	before.read = true
	if entry.Revision > 0 && json.Unmarshal(entry.Value, &before.rests) != nil {
		before.rests = nil // of a version that is not this one's
	}
	return nil
}

// writeRests tells the next owner what is left.
func (o *owner) writeRests(ctx context.Context) error {
	o.s.mu.Lock()
	rests := make([]rest, len(o.tracks))
	for i, tr := range o.tracks {
		rests[i] = tr.rest(tr.durable)
		rests[i].Created = tr.created
	}
	o.s.mu.Unlock()
	value, err := json.Marshal(rests)
	if err != nil {
		return err
	}
	key := o.lock.Key + restKey
	for {
		entry, err := o.s.b.KeyGet(ctx, ownersBucket, key)
		if err != nil {
			return err
		}
		_, err = o.s.b.KeySet(ctx, ownersBucket, key, value, entry.Revision, 0)
		if !errors.Is(err, jetbus.ErrWrongSequence) { // an owner that was before, and is late
			return err
		}
	}
}
