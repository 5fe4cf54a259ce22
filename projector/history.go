package projector

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/seed-63e9a637/jetbus"
)

// A broker that is restored to an earlier state assigns sequences again. Then a projection
// would treat new events as old, and would keep the effects of events that the topic no longer
// has. The newest event that the sink may have, writer.last, distinguishes the two histories:
// if the topic still has this event, it has all events before it as well.
//
// So writer.last must be compared with the topic after a batch is delivered and before the
// batch advances writer.last. This costs one or two requests per batch in most cases. They are
// necessary:
//
//   - Events of the new history need not look old. The group may resume after the lost events,
//     or other replicas may get the sequences that were used twice.
//   - In a cluster, the stream's leader can be restored while the client stays connected to
//     another server.
//
// If a batch is delivered before the restore and written after it, it becomes writer.last
// itself, and the next check fails.
//
// An exclusive projection needs no check per batch. Its reader makes the comparison whenever it
// creates its consumer, and the consumer does not survive a restore.

// sameTopic returns ErrNewStream if the topic was deleted and declared again since the sink was
// opened. It retries until the broker answers.
func (w *writer) sameTopic(ctx context.Context) (jetbus.TopicInfo, error) {
	info, err := w.info(ctx)
	if err == nil && (info.Stream != w.source.Stream || !info.Created.Equal(w.source.Created)) {
		err = fmt.Errorf("%w: the topic was created again: stream %s at %v; the sink was filled from %s, created at %v: rebuild the sink",
			ErrNewStream, info.Stream, info.Created, w.source.Stream, w.source.Created)
	}
	return info, err
}

// sameHistory is like sameTopic, but also returns ErrNewStream if the topic was restored to a
// state before the newest event that the sink may have.
func (w *writer) sameHistory(ctx context.Context) error {
	info, err := w.sameTopic(ctx)
	if err != nil || info.LastSeq == w.last.Seq && info.LastTime.Equal(w.last.Stored) {
		return err
	}
	return asNewStream(w.verify(ctx, w.last))
}

// verify is Checkpoint.Verify with retries until the broker answers.
func (w *writer) verify(ctx context.Context, c jetbus.Checkpoint) error {
	return w.insist(ctx, func() error { return c.Verify(ctx, w.b, w.source.Topic) })
}

// learn reads from the sink the newest event that the sink may have. It reports whether another
// replica has written it since the last call: it is then neither the writer's last event nor
// next. The caller must verify the event before it writes next, because the other replica may
// be gone.
func (w *writer) learn(ctx context.Context, next jetbus.Checkpoint) (isNew bool, err error) {
	sink, ok := w.sink.(Positioner)
	if !ok || w.source.Exclusive {
		return false, nil
	}
	short, cancel := context.WithTimeout(ctx, w.o.writeTimeout())
	defer cancel()
	at, err := askPosition(func() (Position, error) { return sink.Position(short, w.source) })
	if err != nil || at.Last.Seq < w.last.Seq || isSame(at.Last, w.last) || isSame(at.Last, next) {
		return false, err
	}
	w.last = at.Last
	return true, nil
}

func isSame(a, b jetbus.Checkpoint) bool {
	return a.Seq == b.Seq && a.ID == b.ID && a.Stored.Equal(b.Stored)
}

// later returns the checkpoint of e if e is newer than last and has an ID or a time to compare.
func later(last jetbus.Checkpoint, e *jetbus.Event) jetbus.Checkpoint {
	if e.Seq > last.Seq && (e.ID != "" || !e.Stored.IsZero()) {
		return jetbus.CheckpointOf(e)
	}
	return last
}

// isOneHistory reports whether the deliveries can belong to one history of the topic: no event
// was stored before an event with a lower sequence. Replays are ignored, because they keep the
// sequence of their event, but not its time.
func isOneHistory(batch []*jetbus.Delivery) bool {
	events := slices.DeleteFunc(slices.Clone(batch), func(d *jetbus.Delivery) bool { return d.ReplayOf > 0 })
	slices.SortStableFunc(events, func(a, b *jetbus.Delivery) int { return cmp.Compare(a.Seq, b.Seq) })
	for i := 1; i < len(events); i++ {
		before, e := &events[i-1].Event, &events[i].Event
		if e.Stored.Before(before.Stored) || e.Seq == before.Seq && !isSame(jetbus.CheckpointOf(e), jetbus.CheckpointOf(before)) {
			return false
		}
	}
	return true
}

// asNewStream turns the error for a topic that was restored into ErrNewStream.
func asNewStream(err error) error {
	if isRestored(err) && !errors.Is(err, ErrNewStream) {
		return fmt.Errorf("%w: %w: rebuild the sink", ErrNewStream, err)
	}
	return err
}

func isRestored(err error) bool {
	_, ok := errors.AsType[*jetbus.RestoredError](err)
	return ok
}
