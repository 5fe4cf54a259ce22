package adapter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

const (
	ownersBucket = "JETBUS_GROUPS"
	ownerTTL     = 15 * time.Second // until a member that died is replaced
	// ownerExpiry bounds the life of an ordered member's pull requests: those of one
	// that died are gone before its lock is.
	ownerExpiry = 4 * time.Second
	ownerPause  = 250 * time.Millisecond // after something failed, or went wrong twice in a second
)

// owner is a member's part in one topic of an ordered group. Of all members' owners
// one has the topic, by a lock; the others stand by. While it has the topic it
// goes in rounds: a durable that brings events in order, from the first that is not
// settled, until something disturbs that order; then what no handler has started is
// dropped, the durable replaced, and the next round begins.
type owner struct {
	s       *subscription
	tracks  []*track // of the topic, of its retries
	lock    jetbus.Lock
	changed chan struct{} // signaled when something below has changed; capacity 1
	token   string        // of the present turn: marks the durables it made
	epoch   uint64        // of the turn of a partition; 0: it is none
	move    string        // on which that turn relies; "": on none

	// Guarded by leaseSet.mu.
	lanes   lanes
	cancel  context.CancelFunc // ends the wait for the lock; nil: nobody waits
	owns    bool               // has the lock
	began   bool               // events have flowed, or may have
	flowing bool               // events come, in order
	leaving bool               // no handler starts any more
	reason  string             // why it is leaving
	trouble string             // what ended the round
	busy    int                // slots that workers have
}

func (s *subscription) newOwner(topic, retries *puller) *owner {
	o := &owner{s: s, changed: make(chan struct{}, 1)}
	o.lanes.init()
	o.lock = jetbus.Lock{Bucket: ownersBucket, Key: ownerKey(topic.t, s.group), Owner: s.b.cfg.SID, TTL: ownerTTL}
	for _, p := range []*puller{topic, retries} {
		p.tr = &track{o: o, p: p, base: epochName(p.t, s.group, 0)}
		p.tr.reset(0)
		o.tracks = append(o.tracks, p.tr)
	}
	return o
}

// ownerKey names the lock of a group's topic.
func ownerKey(t *topic, group string) string {
	return ownerName(t.stream, groupName(t, group))
}

// isOwned reports whether some member has a topic of an ordered group.
func (kv *buckets) isOwned(ctx context.Context, t *topic, group string) (bool, error) {
	entry, _, err := kv.readKey(ctx, "look for an owner", ownersBucket, ownerKey(t, group))
	if err != nil || entry.Revision == 0 {
		return false, err
	}
	var lock struct {
		State string `json:"state"`
	}
	return json.Unmarshal(entry.Value, &lock) == nil && lock.State != "free", nil
}

// startOwners lets the topics be competed for.
func (s *subscription) startOwners() {
	if len(s.owners) > 0 {
		s.b.sweepLater()
	}
	for _, o := range s.owners {
		unwatch := s.b.link.Watch(o.reconnected)
		s.mu.Lock()
		s.unwatch = append(s.unwatch, unwatch)
		s.mu.Unlock()
		s.owning.Go(o.run)
	}
}

// run competes for the topic until the subscription stops.
func (o *owner) run() {
	s := o.s
	for {
		ctx, ok := o.standBy()
		if !ok {
			return
		}
		err := o.lock.Hold(ctx, s.b, o.own)
		if err == nil || ctx.Err() != nil {
			continue
		}
		if isHopeless(err) {
			o.fail(err)
			continue
		}
		s.b.cfg.Logger.WarnContext(ctx, "the topic of an ordered group could not be kept",
			slog.String("topic", o.name()), slog.String("group", s.group), slog.Any("error", err))
		o.pause(ctx)
	}
}

// standBy waits until the member is not paused. It returns a context that ends
// when it is, or when the subscription stops; then it reports false.
func (o *owner) standBy() (ctx context.Context, ok bool) {
	for {
		o.s.mu.Lock()
		if o.s.stopping {
			o.s.mu.Unlock()
			return nil, false
		}
		if !o.s.paused {
			ctx, cancel := context.WithCancel(o.s.ctx)
			o.cancel, o.leaving, o.reason = cancel, false, ""
			o.s.mu.Unlock()
			return ctx, true
		}
		o.s.mu.Unlock()
		<-o.changed
	}
}

// quitLocked makes the owner stand down.
func (o *owner) quitLocked(reason string) {
	if !o.leaving {
		o.leaving, o.reason = true, reason
	}
	if o.cancel != nil && !o.owns { // the lock's context would not tell any more that the lock was lost
		o.cancel()
	}
	notify(o.changed, struct{}{})
}

// disturbLocked ends the round.
func (o *owner) disturbLocked(why string) {
	if !o.flowing {
		return
	}
	o.flowing, o.trouble = false, why
	notify(o.changed, struct{}{})
}

// reconnected runs after a reconnect, and when the connection was closed.
func (o *owner) reconnected() {
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	if o.s.b.link.IsClosed() {
		o.s.failLocked(fmt.Errorf("subscribe %s/%s: %w: the connection was closed", o.name(), o.s.group, jetbus.ErrClosed))
		return
	}
	o.disturbLocked("the connection was lost")
}

// own has the topic until ctx ends, the lock being lost, or until quitLocked. It
// reports whether the durables are in order.
func (o *owner) own(ctx context.Context, held jetbus.Held) (clean bool, err error) {
	if !o.begin() {
		return held.Clean, nil
	}
	stop := context.AfterFunc(ctx, o.lost)
	clean = o.rounds(ctx, predecessor{clean: held.Clean})
	stop()
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	o.owns, o.cancel = false, nil
	return clean, nil
}

func (o *owner) begin() bool {
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	if o.leaving {
		return false
	}
	o.owns, o.token = true, jetbus.NewID()
	for _, tr := range o.tracks {
		tr.durable = ""
	}
	return true
}

// begun notes that events may flow.
func (o *owner) begun() {
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	o.began = true
}

// rounds goes on as owner until it is over.
func (o *owner) rounds(ctx context.Context, before predecessor) bool {
	took, prepared := time.Now(), false
	for round := 0; ; round++ {
		started := time.Now()
		err := o.prepare(ctx, &before)
		if err == nil {
			if !prepared {
				prepared = true
				o.begun()
				o.tell(jetbus.TookOver, "", time.Since(took))
			}
			err = o.flow(ctx)
		}
		if err == nil {
			_ = o.await(ctx, func() bool { return o.leaving || !o.flowing }) // the lock may be lost: see below
		}
		switch leaving, reason := o.isLeaving(); {
		case ctx.Err() != nil:
			o.lose()
			o.tell(jetbus.StoodDown, "the lock was lost", 0)
			return false
		case leaving && !prepared:
			return before.clean // as it was
		case leaving:
			left := o.leave(ctx)
			o.tell(jetbus.StoodDown, reason, 0)
			return left
		case isOver(err):
			o.fail(err)
			continue
		default:
			o.complain(ctx, err)
		}
		o.halt()
		if err != nil || time.Since(started) < time.Second && round > 0 {
			o.pause(ctx)
		}
	}
}

// complain logs why a round has ended, or why there is none.
func (o *owner) complain(ctx context.Context, err error) {
	o.s.mu.Lock()
	why := o.trouble
	o.s.mu.Unlock()
	if err != nil && !errors.Is(err, errMoved) {
		why = err.Error()
	}
	o.s.b.cfg.Logger.InfoContext(ctx, "an ordered group begins anew at its first open event",
		slog.String("topic", o.name()), slog.String("group", o.s.group), slog.String("why", why))
}

// isOver reports whether there is nothing left to own, or nothing that this member may own.
func isOver(err error) bool {
	return errors.Is(err, jetbus.ErrNoGroup) || errors.Is(err, jetbus.ErrNoTopic) || errors.Is(err, jetbus.ErrConflict) || isHopeless(err)
}

// isHopeless reports whether asking for a lock again is of no use, as Hold has it: a bucket
// whose keys cannot expire has none.
func isHopeless(err error) bool {
	return errors.Is(err, jetbus.ErrClosed) || errors.Is(err, jetbus.ErrDenied) || errors.Is(err, jetbus.ErrInvalidOption) || errors.Is(err, jetbus.ErrUnsupported)
}

func (o *owner) fail(err error) {
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	if errors.Is(err, jetbus.ErrNoGroup) || errors.Is(err, jetbus.ErrNoTopic) {
		err = fmt.Errorf("%w: it was deleted", err)
	}
	of := o.name() + "/" + o.s.group
	o.s.failLocked(doing("subscribe "+of, "group "+of, err))
}

// prepare makes the durables ready for a round.
func (o *owner) prepare(ctx context.Context, before *predecessor) error {
	if before.clean && !before.read {
		if err := o.readRests(ctx, before); err != nil {
			return err
		}
	}
	for _, tr := range o.tracks {
		if err := tr.prepare(ctx, *before); err != nil {
			return err
		}
	}
	return nil
}

// flow begins a round.
func (o *owner) flow(ctx context.Context) error {
	o.s.mu.Lock()
	o.flowing = ctx.Err() == nil // lost comes later, otherwise
	o.s.mu.Unlock()
	for _, tr := range o.tracks {
		if err := tr.p.resume(tr.durable); err != nil {
			o.s.mu.Lock()
			o.flowing = false
			o.s.mu.Unlock()
			return err
		}
	}
	return nil
}

// halt ends a round: what no handler has started is dropped, the rest waits for
// its event to come again.
func (o *owner) halt() {
	o.s.mu.Lock()
	o.flowing = false
	for _, s := range o.lanes.drop((*slot).started) {
		s.loseLocked()
		s.tr.open[s.lease.seq] = nil
	}
	for s := range o.lanes.heads() {
		s.driftLocked()
	}
	o.s.mu.Unlock()
	o.endPulls()
}

func (o *owner) endPulls() {
	for _, tr := range o.tracks {
		tr.p.end(o.s.life)
	}
}

// lost gives up everything at once: the topic may soon be another member's.
func (o *owner) lost() {
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	o.loseLocked()
}

// lose gives up everything and waits for the handlers to return.
func (o *owner) lose() {
	o.lost()
	o.endPulls()
	_ = o.await(o.s.ctx, func() bool { return o.busy == 0 || o.s.patience == waitsForNobody })
}

// loseLocked is lost for who has the lock. Handlers that run are canceled, and what they say of
// their events is refused from here on; that they return is waited for without the lock (lose).
func (o *owner) loseLocked() {
	o.flowing = false
	for _, s := range o.lanes.drop(func(*slot) bool { return false }) {
		s.loseLocked()
	}
	for _, tr := range o.tracks {
		tr.reset(0)
	}
}

// anyLocked reports whether one of the events that are first of their keys is such a one.
func (o *owner) anyLocked(match func(*slot) bool) bool {
	for s := range o.lanes.heads() {
		if match(s) {
			return true
		}
	}
	return false
}

// await waits until a condition holds, which is checked under the lock of the
// leaseSet whenever changed is signaled.
func (o *owner) await(ctx context.Context, holds func() bool) error {
	for {
		o.s.mu.Lock()
		over := holds()
		o.s.mu.Unlock()
		if over {
			return nil
		}
		select {
		case <-o.changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// pause waits for a moment, or until something changes.
func (o *owner) pause(ctx context.Context) {
	timer := time.NewTimer(ownerPause)
	defer timer.Stop()
	for {
		if leaving, _ := o.isLeaving(); leaving {
			return
		}
		select {
		case <-timer.C:
			return
		case <-o.changed:
		case <-ctx.Done():
			return
		}
	}
}

func (o *owner) isLeaving() (leaving bool, reason string) {
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	return o.leaving, o.reason
}

// readyLocked lets a worker have the head of a lane.
func (o *owner) readyLocked(s *slot) { o.s.readyLocked(s.lease) }

// laneOf says in which lane an event is to wait: that of its key, or, with keyed
// false, one of its own.
func (o *owner) laneOf(l *lease) (key string, keyed bool) {
	if o.s.o.Order == jetbus.Total {
		return "", true
	}
	e, err := l.decode()
	return e.Key, err == nil && e.Key != ""
}

// countLocked adds what the owner knows to the member's counts.
func (o *owner) countLocked(stats *jetbus.SubscriptionStats) {
	stats.Active = stats.Active || o.owns && !o.leaving
	waits := func(s *slot) bool { return s.timer != nil && s.failed }
	for s := range o.lanes.heads() {
		if waits(s) {
			stats.Retrying++
		}
	}
	if key, n := o.lanes.blocked(waits); n > stats.Blocked {
		stats.BlockedKey, stats.Blocked = key, n
	}
}

func (o *owner) name() string { return o.tracks[0].p.t.name() }

func (o *owner) tell(kind jetbus.ObservationKind, reason string, after time.Duration) {
	o.s.b.cfg.Observer.Observe(jetbus.Observation{Kind: kind, Topic: o.name(), Group: o.s.group, Reason: reason, Duration: after})
}
