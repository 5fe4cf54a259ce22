package jetbus

import (
	"context"
	"encoding/json"
	"errors"
	"time"
)

// lowWater is the position up to which all dead letters of a group, or of a
// topic, were replayed to their groups. A replay of all of them begins there;
// nothing else depends on it.
type lowWater struct {
	Topic   string    `json:"topic"`
	Group   string    `json:"group,omitempty"`
	Created time.Time `json:"created"` // the dead-letter topic: in another one positions mean something else
	Seq     uint64    `json:"seq"`
	Count   int       `json:"count"` // dead letters up to there

	key      string // empty: this replay does not keep one
	revision uint64
	saved    uint64 // Seq
	closed   bool   // a dead letter was left alone: what follows does not count
}

// lowWaterStep is how many positions are passed before they are saved.
const lowWaterStep = 1000

// load reads where all replays before this one ended. Replays that select single dead letters
// neither begin there nor move it.
func (l *lowWater) load(ctx context.Context, r *replay) error {
	q := r.o.DeadLetterQuery
	single := len(q.Reasons) > 0 || !q.Since.IsZero() || !q.Until.IsZero() || q.Key != "" || q.ID != "" || q.Error != "" || len(q.Seqs) > 0 || q.Open
	if single || r.o.Force || r.o.ToTopic != "" {
		return nil
	}
	fresh := lowWater{Topic: q.Topic, Group: q.Group, Created: r.walk.info.Created.UTC(), key: replayKey("low", q.Topic+" "+q.Group)}
	entry, err := r.b.KeyGet(ctx, replayBucket, fresh.key)
	if err != nil {
		return err
	}
	if json.Unmarshal(entry.Value, l) != nil || !l.Created.Equal(fresh.Created) || l.Seq > r.walk.info.LastSeq {
		*l = fresh
	}
	l.key, l.revision, l.saved = fresh.key, entry.Revision, l.Seq
	return nil
}

// advance notes a dead letter, and whether it was replayed, now or before.
func (l *lowWater) advance(seq uint64, replayed bool) {
	l.closed = l.closed || !replayed
	if !l.closed {
		l.Seq = seq
		l.Count++
	}
}

func (l *lowWater) saveSometimes(ctx context.Context, r *replay) error {
	if l.Seq < l.saved+lowWaterStep {
		return nil
	}
	return l.save(ctx, r)
}

// save writes how far this replay came. Another one that wrote meanwhile wins.
func (l *lowWater) save(ctx context.Context, r *replay) error {
	if l.key == "" || r.o.DryRun || l.Seq == l.saved {
		return nil
	}
	value, err := json.Marshal(l)
	if err != nil {
		return err
	}
	revision, err := r.b.KeySet(ctx, replayBucket, l.key, value, l.revision, 0)
	if errors.Is(err, ErrWrongSequence) {
		l.key = ""
		return nil
	}
	l.revision, l.saved = revision, l.Seq
	return err
}
