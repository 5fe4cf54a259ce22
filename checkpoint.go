package jetbus

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"
)

// Checkpoint is a position in a topic together with the identity of the event there. A
// sequence alone is not enough to resume: a broker that is restored from a backup, or that
// loses what it had not synced to disk, assigns the sequences after the restored state to
// other events. Keep the Checkpoint of the last event that was processed, and pass it in
// [ReadOptions] Last or call [Checkpoint.Verify] before resuming.
//
// The zero value is the position before the first event. A Checkpoint with
// nothing but a Seq, such as one recorded by an older version, is compared with the end of the
// topic alone.
type Checkpoint struct {
	// Seq is the event's position in its topic.
	Seq uint64 `json:"seq"`
	// ID is the event's ID. Empty: not compared.
	ID string `json:"id,omitempty"`
	// Stored is when the broker stored the event, in nanoseconds; see Event.Stored. Zero: not
	// compared. Leave it out for an event that was read from a snapshot, which has a time of its own.
	Stored time.Time `json:"stored,omitzero"`
}

// CheckpointBus is what [Checkpoint.Verify] needs of a [Backend].
type CheckpointBus interface {
	Scan(ctx context.Context, topic string, q ScanQuery) iter.Seq2[Event, error]
	TopicInfo(ctx context.Context, topic string) (TopicInfo, error)
	// SequenceAt returns the sequence of the first message that was stored at or after a time in
	// the topic's stream. Other topics that share the stream count as well. 0 means that there is
	// no such message.
	SequenceAt(ctx context.Context, topic string, at time.Time) (uint64, error)
}

// CheckpointOf returns the checkpoint of an event that was read or delivered.
func CheckpointOf(e *Event) Checkpoint {
	return Checkpoint{Seq: e.Seq, ID: e.ID, Stored: e.Stored.Round(0)}
}

// Verify reports whether a topic still has the history that the checkpoint was taken in. The
// error is a [RestoredError], which matches [ErrPositionUnknown], if the topic ends before the
// checkpoint or has another event at its position: the topic was restored to an earlier state,
// and what was derived from it must be rebuilt.
//
// If the topic no longer has the event, because of its retention, compaction or a purge, the
// position counts as verified unless the topic's stream has a message at or before it that was
// stored later than the checkpoint's event. So a restore remains undetected only if every message
// stored since then, up to the position, has been removed too, or if the checkpoint has no Stored.
//
// It costs one request in most cases. Do not call it for a snapshot or for a topic that was
// deleted and declared again: compare [TopicInfo] Created for that.
func (c Checkpoint) Verify(ctx context.Context, b CheckpointBus, topic string) error {
	if c.Seq == 0 {
		return nil
	}
	e, found, err := firstEvent(ctx, b, topic, AfterSeq(c.Seq-1))
	switch {
	case errors.Is(err, ErrPositionUnknown):
		return c.restored(topic, "the topic ends before it")
	case err != nil:
		return fmt.Errorf("verify position %d of %s: %w", c.Seq, topic, err)
	case found && e.Seq == c.Seq:
		return c.compare(&e)
	case !found: // it was removed, or the topic ends directly before it
		info, err := b.TopicInfo(ctx, topic)
		if err != nil {
			return fmt.Errorf("verify position %d of %s: %w", c.Seq, topic, err)
		}
		if info.LastSeq < c.Seq {
			return c.restored(topic, fmt.Sprintf("the topic ends at %d", info.LastSeq))
		}
	}
	if c.Stored.IsZero() {
		return nil
	}
	later, err := b.SequenceAt(ctx, topic, c.Stored.Add(1))
	if err != nil {
		return fmt.Errorf("verify position %d of %s: %w", c.Seq, topic, err)
	}
	if later > 0 && later <= c.Seq {
		return c.restored(topic, fmt.Sprintf("message %d of its stream was stored after %s", later, stamp(c.Stored)))
	}
	return nil
}

// firstEvent returns the first event of a topic from a start on.
func firstEvent(ctx context.Context, b CheckpointBus, topic string, from Start) (e Event, found bool, err error) {
	for e, err := range b.Scan(ctx, topic, ScanQuery{From: from, Limit: 1}) {
		return e, err == nil, err
	}
	return Event{}, false, nil
}

// compare reports whether e, which is at the checkpoint's position, is its event.
func (c Checkpoint) compare(e *Event) error {
	switch {
	case c.ID != "" && e.ID != "" && c.ID != e.ID:
		return c.restored(e.Topic, fmt.Sprintf("the event there is %s, not %s", e.ID, c.ID))
	case !c.Stored.IsZero() && !e.Stored.IsZero() && !c.Stored.Equal(e.Stored):
		return c.restored(e.Topic, fmt.Sprintf("the event there was stored at %s, not at %s", stamp(e.Stored), stamp(c.Stored)))
	}
	return nil
}

// restored returns the error for a topic that has another history.
func (c Checkpoint) restored(topic, why string) error {
	return &RestoredError{Topic: topic, Checkpoint: c, Why: why}
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
