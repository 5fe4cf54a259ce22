package changefeed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// A broker that is restored to an earlier state, or loses what it had not synced to disk, lacks
// the last events of a feed and assigns their sequences again. A feed publishes those events a
// second time. For that it has to know which of the topic's events were stored before the loss:
// an event that was in flight while the broker was restored is stored after events that are
// missing. In mode Chain the broker refuses such an event. In the other modes the writer
// compares the topic with the newest event that it knows of.

// mark is the newest event of the feed in its topic.
type mark struct {
	at    jetbus.Checkpoint
	token Token // everything up to it is published with that event
}

// errTopicLost is why a feed cannot resume at its position although MongoDB may have the changes.
var errTopicLost = errors.New("the topic no longer has what was published up to the feed's position")

// resume moves a position from the topic's last event to the saved position if that is later
// and the topic still has everything that was published up to it. last is the topic's last
// event, nil if there is none.
func (f *Feed) resume(ctx context.Context, p *position, last *jetbus.Event) error {
	known := p.saved
	positions := []Progress{known}
	if f.lost != nil && !known.Saved.After(f.lost.Saved) {
		positions = append(positions, *f.lost)
	}
	recreated := false
	for _, at := range positions {
		if !at.Created.IsZero() && !at.Created.Equal(f.made()) { // older versions did not save it
			known, recreated = at, true
			continue
		}
		_, err := f.verify(ctx, at.Last)
		if _, restored := errors.AsType[*jetbus.RestoredError](err); restored {
			f.rewind(ctx, p, at, last, err)
			return nil
		}
		if err != nil {
			return err
		}
	}
	if known.Token.Compare(p.token) > 0 {
		p.token, p.copy, p.unsaid = known.Token, known.Copy, false
	}
	switch {
	case last != nil:
		p.end = mark{jetbus.CheckpointOf(last), p.token}
		p.last = p.end.at
	case recreated && known.Token != "":
		p.created, p.last = known.Created, known.Last
		p.lost = fmt.Errorf("%w: it was deleted, and created again at %s", errTopicLost, f.made().Format(time.RFC3339Nano))
	case !recreated:
		p.end = mark{known.Last, p.token}
		p.last = known.Last
	}
	return nil
}

// rewind sets the position for a topic that was restored to an earlier state. The feed resumes
// after the topic's last event, and so publishes the lost events again. If that event may have
// been stored after the restore, events before it are missing, and the history is lost.
func (f *Feed) rewind(ctx context.Context, p *position, known Progress, last *jetbus.Event, restored error) {
	if last != nil {
		p.end = mark{jetbus.CheckpointOf(last), p.token}
	}
	order := p.token.Compare(known.Token)
	chained := f.status.modeNow() == Chain
	if last == nil || !chained && (order > 0 || order == 0 && p.copy == nil) {
		p.token, p.copy, p.unsaid, p.last = known.Token, known.Copy, false, known.Last
		p.lost = fmt.Errorf("%w: %w", errTopicLost, restored)
		return
	}
	if order == 0 && !chained { // the copy has one token for many documents: events of some may be missing
		p.copy = &CopyProgress{Start: p.copy.Start}
	}
	p.last, f.lost = p.end.at, nil
	f.o.Log.LogAttrs(ctx, slog.LevelWarn, "change feed: publish again what the topic lost", slog.String("feed", f.o.Name), slog.Any("error", restored))
}

// restoreTime is less than it takes to restore a broker. The topic is not compared again until
// this time has passed since the broker certainly had the newest event.
const restoreTime = 20 * time.Millisecond

// verify compares the topic with an event of the feed, and returns its checkpoint with the time at
// which it was stored. The error is a [jetbus.RestoredError] if the topic does not have the event and no
// limit has removed it. Checkpoint.Verify alone accepts the gap if it has no time to compare: in
// a shared stream the sequence may be another topic's by now.
func (f *Feed) verify(ctx context.Context, c jetbus.Checkpoint) (jetbus.Checkpoint, error) {
	if c.Seq == 0 {
		return c, nil
	}
	if !c.Stored.IsZero() {
		return c, c.Verify(ctx, f.b, f.o.Topic)
	}
	for e, err := range f.b.Scan(ctx, f.o.Topic, jetbus.ScanQuery{From: jetbus.AfterSeq(c.Seq - 1), Limit: 1}) {
		if err == nil && e.Seq == c.Seq && e.ID == c.ID {
			return jetbus.CheckpointOf(&e), nil
		}
	}
	if err := c.Verify(ctx, f.b, f.o.Topic); err != nil {
		return c, err
	}
	info, err := f.b.TopicInfo(ctx, f.o.Topic)
	if err == nil && !info.Config.Compact && info.FirstSeq <= c.Seq {
		err = &jetbus.RestoredError{Topic: f.o.Topic, Checkpoint: c, Why: fmt.Sprintf("the event is missing, and the stream begins at %d", info.FirstSeq)}
	}
	return c, err
}

// verify compares the topic with an event of the feed. A [jetbus.RestoredError] ends the turn; the
// next one begins with what the topic has.
func (w *writer) verify(ctx context.Context, m mark) (jetbus.Checkpoint, error) {
	at, err := w.f.verify(ctx, m.at)
	if _, restored := errors.AsType[*jetbus.RestoredError](err); restored {
		w.miss(m)
	}
	return at, err
}

// miss notes an event that the topic may have lost, for the next turn.
func (w *writer) miss(m mark) {
	w.f.lost = &Progress{Token: m.token, Copy: w.copy, Last: m.at, Saved: time.Now(), Created: w.created}
}

// leave ends a turn. If events are in flight, the next turn compares the topic with the event
// before them. The saved position is not enough: a TokenStore may have been restored, too.
func (w *writer) leave() {
	if w.doubt.at.Seq > 0 && w.f.lost == nil {
		w.miss(w.doubt)
	}
}

// saveLost saves what the next turn would compare the topic with, for the next process. Another
// instance that has saved its position in the meantime has compared it.
func (f *Feed) saveLost(ctx context.Context) {
	if f.lost == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTimeout)
	defer cancel()
	saved, err := f.o.TokenStore.Load(ctx, f.o.Name)
	if err == nil && !saved.Saved.After(f.lost.Saved) {
		p := *f.lost
		p.Source, p.Topic, p.Holder, p.Revision = f.source(), f.o.Topic, jetbus.NewID(), saved.Revision
		p.Saved = p.Saved.UTC().Truncate(time.Millisecond)
		_, err = f.o.TokenStore.Save(ctx, f.o.Name, p)
	}
	if err != nil && !errors.Is(err, ErrFenced) {
		f.o.Log.LogAttrs(ctx, slog.LevelWarn, "change feed: position not saved", slog.String("feed", f.o.Name), slog.Any("error", err))
	}
}

// verifyEnd is verify of the newest event. The broker returns the time at which it stored the event
// here and not in the receipt; it identifies the position once the event has left the topic.
func (w *writer) verifyEnd(ctx context.Context) error {
	began := time.Now()
	at, err := w.verify(ctx, w.end)
	if err == nil {
		w.end.at, w.known = at, began
	}
	return err
}

// checkEnd is verifyEnd for the position that is about to be saved. Without an answer of the
// broker the position is saved all the same: it is compared again before the feed resumes there.
func (w *writer) checkEnd(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	err := w.verifyEnd(ctx)
	if errors.Is(err, jetbus.ErrPositionUnknown) {
		return err
	}
	w.recorded = w.end.at
	return nil
}

// isStale reports whether the broker may have been restored since it certainly had the newest
// event.
func (w *writer) isStale(m Mode) bool { return m != Chain && time.Since(w.known) >= restoreTime }

// sendVerified is sendPart that fails with a [jetbus.RestoredError] if the broker was restored
// before the events were stored.
func (w *writer) sendVerified(ctx context.Context, part []outgoing, m Mode) result {
	if w.isStale(m) {
		if err := w.retry(ctx, func() error { return w.verifyEnd(ctx) }); err != nil {
			return result{err: err, final: true}
		}
	}
	before := w.end
	if m != Chain {
		w.doubt = before
	}
	done := w.sendPart(ctx, part, m)
	stored := time.Now()
	if done.n == 0 {
		return done
	}
	if w.isStale(m) {
		if err := w.retry(ctx, func() error { _, err := w.verify(ctx, before); return err }); err != nil {
			return result{n: done.n, err: err, final: true}
		}
	}
	w.known, w.doubt = stored, mark{}
	return done
}
