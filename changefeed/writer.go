package changefeed

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// outgoing is a change on its way.
type outgoing struct {
	event  jetbus.Event
	change *Change
	poison error // why it cannot be published; nil: it can
}

// batch is what the reader hands over at once.
type batch struct {
	out     []outgoing
	changes int   // that were read for it
	upTo    Token // behind which everything before is in this batch or an earlier one
	copy    *CopyProgress
	saved   chan<- struct{} // closed when the position is saved, which is done now; nil: as usual
}

// writer publishes batches in order, each after the batch before it.
type writer struct {
	f     *Feed
	in    chan batch // closed by the reader's owner
	chain jetbus.Chain
	saved Progress
	last  time.Time // when the position was saved
	// holder is a random ID of the turn, which identifies its saves.
	holder string
	fenced time.Time // when the position was saved to find out whether the turn is over

	token    Token // all changes up to it are published
	copy     *CopyProgress
	created  time.Time         // the creation time of the topic that has those events
	recorded jetbus.Checkpoint // the newest event when token was reached

	end   mark      // the newest event now
	known time.Time // when the topic was last known to have end
	doubt mark      // the newest event before the events in flight, if the topic may have lost it; zero: none
}

// newWriter returns a writer that publishes after the position p.
func newWriter(f *Feed, p *position) *writer {
	return &writer{
		f: f, chain: p.chain, holder: jetbus.NewID(),
		token: p.token, copy: p.copy, created: p.created, recorded: p.last, end: p.end,
	}
}

// run publishes until in is closed. If ctx ends, it stops publishing and saves the
// position.
func (w *writer) run(ctx context.Context) error {
	defer w.leave()
	w.last = time.Now()
	for {
		select {
		case b, ok := <-w.in:
			if !ok {
				return w.finish(ctx)
			}
			if err := w.batch(ctx, b); err != nil {
				if ctx.Err() == nil {
					return err
				}
				return w.finish(ctx)
			}
		case <-ctx.Done():
			return w.finish(ctx)
		}
	}
}

// finish saves the position for the last time.
func (w *writer) finish(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), jetbus.ErrLockLost) {
		return nil // it is somebody else's
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTimeout)
	defer cancel()
	if err := w.save(ctx); err != nil && !errors.Is(err, ErrFenced) {
		w.f.o.Log.LogAttrs(ctx, slog.LevelWarn, "change feed: position not saved", slog.String("feed", w.f.o.Name), slog.Any("error", err))
	}
	return nil
}

func (w *writer) batch(ctx context.Context, b batch) error {
	for i := range b.out {
		if b.out[i].poison == nil {
			continue
		}
		if err := w.bury(ctx, &b.out[i], w.f.o.OnPoison, ErrPoison); err != nil {
			return err
		}
	}
	events := slices.DeleteFunc(b.out, func(o outgoing) bool { return o.poison != nil })
	if err := w.publish(ctx, events); err != nil {
		return err
	}
	w.f.status.count(func(s *Stats) { s.InFlight -= b.changes })
	w.end.token, w.f.lost = b.upTo, nil
	w.token, w.copy, w.created, w.recorded = b.upTo, b.copy, w.f.made(), w.end.at
	if b.saved == nil && time.Since(w.last) < w.f.o.ProgressInterval {
		w.f.status.written(w.token)
		return nil
	}
	if err := w.checkEnd(ctx); err != nil {
		return err
	}
	err := w.save(ctx)
	if err == nil || b.saved == nil {
		w.f.status.written(w.token)
	}
	if err == nil && b.saved != nil {
		close(b.saved)
	}
	if err != nil && !errors.Is(err, ErrFenced) && b.saved == nil {
		w.f.o.Log.LogAttrs(ctx, slog.LevelWarn, "change feed: position not saved", slog.String("feed", w.f.o.Name), slog.Any("error", err))
		w.last = time.Now()
		return nil // what is published says itself where it is; the next one may be saved
	}
	return err
}

// save stores the position, if it has moved.
func (w *writer) save(ctx context.Context) error {
	last := w.saved.Last
	same := w.token == w.saved.Token && w.copy == nil && w.saved.Copy == nil && w.created.Equal(w.saved.Created) &&
		w.recorded.Seq == last.Seq && w.recorded.ID == last.ID && w.recorded.Stored.Equal(last.Stored)
	if w.token == "" || w.isLong() || same {
		return nil
	}
	return w.saveNow(ctx)
}

// maxSaved is how long a token, or how far a copy is, may be to be saved.
const maxSaved = 256 << 10

// isLong reports whether the position is too large for a store: it has the _id of a
// document in it. The one before it does as well, and the next one will be shorter.
func (w *writer) isLong() bool {
	return len(w.token) > maxSaved || w.copy != nil && len(w.copy.After) > maxSaved
}

func (w *writer) saveNow(ctx context.Context) error {
	p := Progress{Token: w.token, Copy: w.copy, Created: w.created, Last: w.recorded}
	if w.isLong() {
		p = w.saved
	}
	p.Source, p.Topic, p.Holder, p.Revision = w.f.source(), w.f.o.Topic, w.holder, w.saved.Revision
	p.Saved = time.Now().UTC().Truncate(time.Millisecond)
	revision, err := w.f.o.TokenStore.Save(ctx, w.f.o.Name, p)
	if err != nil {
		return fmt.Errorf("save the position: %w", err)
	}
	w.last, p.Revision = time.Now(), revision
	w.saved = p
	return nil
}

// publish stores events in order. It retries while the broker is unavailable.
func (w *writer) publish(ctx context.Context, out []outgoing) error {
	return w.publishIn(ctx, out, func() Mode { return w.f.status.modeNow() })
}

func (w *writer) publishIn(ctx context.Context, out []outgoing, mode func() Mode) error {
	unsure := false // the last events sent may be stored
	for attempt := 1; len(out) > 0; attempt++ {
		m := mode()
		part := out[:m.portion(len(out))]
		if err := w.fence(ctx, m); err != nil {
			return err
		}
		var done result
		if unsure && m != Chain { // the broker may have forgotten the IDs in the meantime, or was restored
			if err := w.retry(ctx, func() error { return w.verifyEnd(ctx) }); err != nil {
				return err
			}
			done.n, _, done.err = w.found(ctx, part)
			done.final = isRefused(done.err)
		}
		if done.n == 0 && done.err == nil {
			done = w.sendVerified(ctx, part, m)
		}
		unsure = done.err != nil
		if out = out[done.n:]; done.n > 0 {
			attempt = 1
		}
		switch {
		case done.err == nil:
			w.f.status.writing(nil)
			attempt = 0
			continue
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case done.final:
			return done.err
		}
		w.f.status.writing(done.err)
		sleep(ctx, w.f.o.Backoff.Delay(attempt))
	}
	return nil
}

// result is what became of some events.
type result struct {
	n     int   // of them are done with, the first ones
	err   error // what keeps the next one
	final bool  // sending it again is no use
}

// sendPart publishes some events once.
func (w *writer) sendPart(ctx context.Context, part []outgoing, m Mode) result {
	events := make([]jetbus.Event, len(part))
	for i := range part {
		events[i] = part[i].event
	}
	o := jetbus.BatchOptions{Atomic: m == Atomic}
	if m == Chain {
		o.Chain = &w.chain
	}
	receipts, err := w.f.b.PublishBatch(ctx, events, o)
	n := w.stored(receipts)
	if n > 0 {
		w.end.token = part[n-1].change.Token
	}
	switch {
	case err == nil, ctx.Err() != nil:
		return result{n: n, err: err}
	case blames(err):
		err = w.divide(ctx, part[n:], err)
		return result{n: len(part), err: err, final: true}
	case m == Atomic && errors.Is(err, jetbus.ErrConflict):
		return w.repeated(ctx, part)
	case m == Atomic && w.f.o.Mode != Atomic && errors.Is(err, jetbus.ErrUnsupported):
		w.f.o.Log.LogAttrs(ctx, slog.LevelWarn, "change feed: no atomic batches: events are published one by one", slog.String("feed", w.f.o.Name), slog.Any("error", err))
		w.f.status.useSerial()
		return result{}
	}
	return result{n: n, err: err, final: isRefused(err)}
}

// isRefused reports whether a bus says no for good.
func isRefused(err error) bool {
	return errors.Is(err, jetbus.ErrWrongSequence) || errors.Is(err, jetbus.ErrClosed) || errors.Is(err, jetbus.ErrDenied) ||
		errors.Is(err, jetbus.ErrNoTopic) || errors.Is(err, jetbus.ErrUnsupported) || errors.Is(err, jetbus.ErrConflict)
}

// serialFence is for how long the position that was saved last keeps others out.
const serialFence = time.Second

// fence makes sure that no other instance has saved a position since this one did,
// where the broker will not: who saves one keeps all others from the next.
func (w *writer) fence(ctx context.Context, m Mode) error {
	if m == Chain || m == Serial && time.Since(w.fenced) < serialFence {
		return nil
	}
	return w.retry(ctx, func() error {
		began := time.Now()
		err := w.saveNow(ctx)
		if err == nil {
			w.fenced = began
		}
		return err
	})
}

// retry calls do until it succeeds, fails permanently, or ctx ends.
func (w *writer) retry(ctx context.Context, do func() error) error {
	for attempt := 1; ; attempt++ {
		err := do()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, ErrFenced), errors.Is(err, jetbus.ErrPositionUnknown), isRefused(err):
			return err
		}
		w.f.status.writing(err)
		sleep(ctx, w.f.o.Backoff.Delay(attempt))
	}
}

// found looks how many events at the front of part are in the topic: all up to the one
// with which it ends.
func (w *writer) found(ctx context.Context, part []outgoing) (n int, last jetbus.Event, err error) {
	info, err := w.f.b.TopicInfo(ctx, w.f.o.Topic)
	if err != nil {
		return 0, last, err
	}
	last, _, err = lastEvent(ctx, w.f.b, &info)
	if err != nil {
		return 0, last, err
	}
	for i := range part {
		if part[i].event.ID == last.ID {
			w.end = mark{jetbus.CheckpointOf(&last), part[i].change.Token}
			w.f.status.count(func(s *Stats) { s.Duplicates += uint64(i + 1) })
			return i + 1, last, nil
		}
	}
	return 0, last, nil
}

// repeated goes on with an atomic batch that was refused because some of it is stored:
// an answer was lost, or another instance is at work.
func (w *writer) repeated(ctx context.Context, part []outgoing) result {
	n, last, err := w.found(ctx, part)
	switch {
	case n > 0, err != nil:
		return result{n: n, err: err, final: isRefused(err)}
	case Token(last.Headers[HeaderToken]).Compare(part[0].change.Token) > 0:
		return result{err: fmt.Errorf("%w: topic %s ends with event %s already", ErrFenced, w.f.o.Topic, last.ID), final: true}
	}
	// What is stored of it has left the topic: the broker tells one by one.
	err = w.publishIn(ctx, part, func() Mode { return Serial })
	return result{n: len(part), err: err, final: true}
}

// stored counts the events at the front that have a receipt, and moves the chain
// behind them.
func (w *writer) stored(receipts []jetbus.Receipt) (n int) {
	duplicates := 0
	for _, r := range receipts {
		if r.Event.Seq == 0 {
			break
		}
		w.chain = jetbus.Chain{AfterID: r.Event.ID, AfterSeq: r.Event.Seq}
		w.end.at = jetbus.Checkpoint{Seq: r.Event.Seq, ID: r.Event.ID}
		n++
		if r.Duplicate {
			duplicates++
		}
	}
	w.f.status.count(func(s *Stats) { s.Published += uint64(n - duplicates); s.Duplicates += uint64(duplicates) })
	return n
}

// blames reports whether an error is about what an event holds. Nothing was sent then.
func blames(err error) bool {
	return errors.Is(err, jetbus.ErrPayloadTooLarge) || errors.Is(err, jetbus.ErrSchema) ||
		errors.Is(err, jetbus.ErrInvalidEvent) || errors.Is(err, jetbus.ErrInvalidHeader)
}

// divide finds the events that an error blames, publishes the others, and does
// with these what the options say.
func (w *writer) divide(ctx context.Context, out []outgoing, err error) error {
	if n := len(out); n > 1 {
		if err := w.publish(ctx, out[:n/2]); err != nil {
			return err
		}
		return w.publish(ctx, out[n/2:])
	}
	one := &out[0]
	one.poison = err
	if !errors.Is(err, jetbus.ErrPayloadTooLarge) {
		return w.bury(ctx, one, w.f.o.OnPoison, ErrPoison)
	}
	if w.f.o.OnOversize == KeyOnly && one.event.Headers[HeaderOmitted] != OmittedOversize {
		w.f.status.count(func(s *Stats) { s.Oversize++ })
		one.event.Headers[HeaderOmitted] = OmittedOversize
		delete(one.event.Headers, jetbus.HeaderContentType) // of what Map has made of it
		if err := w.f.setPayload(&one.event, one.change.DocumentKey); err != nil {
			return err
		}
		return w.publish(ctx, out)
	}
	return w.bury(ctx, one, w.f.o.OnOversize, ErrOversize)
}

// bury does with a change that cannot be published what a policy says.
func (w *writer) bury(ctx context.Context, one *outgoing, policy Policy, what error) error {
	w.f.status.count(func(s *Stats) {
		if what == ErrOversize { //nolint:errorlint // the caller's own
			s.Oversize++
		} else {
			s.Poisoned++
		}
	})
	c := one.change
	w.f.o.Log.LogAttrs(ctx, slog.LevelWarn, "change feed: change not published", slog.String("feed", w.f.o.Name),
		slog.String("policy", string(policy)), slog.String("key", c.Key), slog.String("token", string(c.Token)), slog.Any("error", one.poison))
	switch policy {
	case Skip:
		return nil
	case DeadLetter:
	default:
		return fmt.Errorf("%w: %s of %s in %s: %w", what, c.Op, c.Key, c.namespace(), one.poison)
	}
	for attempt := 1; ; attempt++ {
		err := w.f.b.Bury(ctx, w.f.deadLetter(one))
		switch {
		case err == nil:
			w.f.status.writing(nil)
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !errors.Is(err, jetbus.ErrUnavailable) && !errors.Is(err, jetbus.ErrTopicFull):
			return fmt.Errorf("%w: %s of %s in %s: %w; its dead letter: %w", what, c.Op, c.Key, c.namespace(), one.poison, err)
		}
		w.f.status.writing(err)
		sleep(ctx, w.f.o.Backoff.Delay(attempt))
	}
}

// deadLetter makes the dead letter of a change. It has no position in the topic, and
// is named by its token instead, so that it is stored once. What no event can have is
// left out: what keeps a change from being published is not to keep it from being buried.
func (f *Feed) deadLetter(one *outgoing) jetbus.DeadLetter {
	e := one.event
	reason := jetbus.DeadRejected
	if errors.Is(one.poison, jetbus.ErrSchema) {
		reason = jetbus.DeadSchema
	}
	sum := sha256.Sum256([]byte(e.ID))
	e.Seq = binary.BigEndian.Uint64(sum[:]) | 1
	f.makeValid(&e)
	return jetbus.DeadLetter{
		Event: e, Group: "changefeed-" + f.o.Name, Stream: "mongodb_" + f.o.Name, StreamCreated: f.created,
		Reason: reason, Error: one.poison.Error(), Stack: jetbus.StackOf(one.poison), Attempts: 1,
	}
}
