package projector

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/seed-63e9a637/jetbus"
)

// A broker that is restored to an earlier state assigns sequences again. A projection would
// then take new events for old ones, and would keep what it made of events that the topic no
// longer has. The newest event that the sink may have, writer.last, tells the two histories
// apart: if the topic still has it, the topic has everything before it as well.
//
// So the topic has to be asked for writer.last after a batch was delivered and before the
// batch moves writer.last. It is one request for each batch, and it cannot be saved:
//
//   - Events of the new history need not look old. The group may resume after the lost events,
//     or other replicas may get the sequences that were used twice.
//   - In a cluster, the stream's leader can be restored while the client stays connected to
//     another server.
//
// A batch that was delivered before the restore and written after it becomes writer.last
// itself, and the next check fails.
//
// The reader of an exclusive projection does the same whenever its consumer is created, and the
// consumer does not survive a restore. There a batch costs nothing.

// sameTopic returns ErrNewStream if the topic was deleted and declared again since the sink
// was opened. It asks until the broker answers.
func (w *writer) sameTopic(ctx context.Context) (jetbus.TopicInfo, error) {
	info, err := w.info(ctx)
	if err == nil && (info.Stream != w.source.Stream || !info.Created.Equal(w.source.Created)) {
		err = fmt.Errorf("%w: the topic was created again: stream %s at %v; the sink was filled from %s, created at %v: rebuild the sink",
			ErrNewStream, info.Stream, info.Created, w.source.Stream, w.source.Created)
	}
	return info, err
}

// sameHistory is sameTopic that also returns ErrNewStream if the topic was restored to a state
// before the newest event that the sink may have.
func (w *writer) sameHistory(ctx context.Context) error {
	info, err := w.sameTopic(ctx)
	if err != nil || info.LastSeq == w.last.Seq && info.LastTime.Equal(w.last.Stored) {
		return err
	}
	return asNewStream(w.verify(ctx, w.last))
}

// verify is Checkpoint.Verify that asks until the broker answers.
func (w *writer) verify(ctx context.Context, c jetbus.Checkpoint) error {
	return w.insist(ctx, func() error { return c.Verify(ctx, w.b, w.source.Topic) })
}

// learn reads the newest event that the sink may have. It reports whether that is one that
// another replica wrote since the last call, neither the writer's nor next. The caller must
// verify it before it writes next: the other replica may be gone.
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

// later returns the checkpoint of e if that is the newer event, and has something to compare.
func later(last jetbus.Checkpoint, e *jetbus.Event) jetbus.Checkpoint {
	if e.Seq > last.Seq && (e.ID != "" || !e.Stored.IsZero()) {
		return jetbus.CheckpointOf(e)
	}
	return last
}

// isOneHistory reports whether deliveries can be of one history of the topic: a later event was
// not stored earlier. Replays keep the sequence of their event, but not its time.
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

// asNewStream makes ErrNewStream of a topic that was restored.
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
