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
	ID      string    `json:"id,omitempty"` // of the dead letter at Seq; empty: recorded by an older version
	Count   int       `json:"count"`        // dead letters up to there
	// Groups are those that they were replayed to, each with when it was made, in milliseconds:
	// with a group go its replays, handled or not, and one that is made anew has had none.
	Groups map[string]int64 `json:"groups"`

	made     map[string]int64 // the topic's groups, in the same way
	kept     bool             // false: this replay does not keep one
	revision uint64
	saved    uint64 // Seq
	closed   bool   // a dead letter was left alone: what follows does not count
}

// lowWaterStep is how many positions are passed before they are saved.
const lowWaterStep = 1000

// load reads where all replays before this one ended. Replays that select single dead letters,
// or end before that, neither begin there nor move it.
func (l *lowWater) load(ctx context.Context, r *replay) error {
	q := r.o.DeadLetterQuery
	single := len(q.Reasons) > 0 || !q.Since.IsZero() || !q.Until.IsZero() || q.Key != "" || q.ID != "" || q.Error != "" || len(q.Seqs) > 0 || q.Open
	if single || r.o.Force || r.o.ToTopic != "" {
		return nil
	}
	made, err := r.groupsMade(ctx)
	if err != nil {
		return err
	}
	var revision uint64
	if *l, revision, err = readLowWater(ctx, r.b, q.Topic, q.Group); err != nil {
		return err
	}
	restored, err := l.isRestored(ctx, r.b)
	if err != nil {
		return err
	}
	info := &r.walk.info
	if !l.Created.Equal(info.Created) || l.Seq > info.LastSeq || !l.holds(made) || restored {
		*l = lowWater{Topic: q.Topic, Group: q.Group, Created: info.Created.UTC()}
	}
	if q.behind(l.Seq) { // it counts what is behind, too
		*l = lowWater{}
		return nil
	}
	if gone := max(info.FirstSeq, 1) - 1; l.Count > 0 { // there are no more of them than positions
		l.Count = int(min(uint64(l.Count), max(l.Seq, gone)-gone)) //nolint:gosec // at most what it was
	}
	l.kept, l.revision, l.saved, l.made = true, revision, l.Seq, made
	if l.Groups == nil {
		l.Groups = map[string]int64{}
	}
	return nil
}

// isRestored reports whether the dead-letter topic was restored to an earlier state and has another dead letter at Seq.
func (l *lowWater) isRestored(ctx context.Context, b Store) (bool, error) {
	if l.ID == "" {
		return false, nil
	}
	e, found, err := eventAt(ctx, b, DeadLetterTopic(l.Topic), l.Seq)
	return found && e.ID != l.ID, err
}

// holds reports whether the groups that it speaks of are those that there are.
func (l *lowWater) holds(made map[string]int64) bool {
	for group, at := range l.Groups {
		if made[group] != at {
			return false
		}
	}
	return l.Seq == 0 || len(l.Groups) > 0
}

// groupsMade tells when each group of the topic was made. Who may not know it, or has no
// topic any more, replays without a mark.
func (r *replay) groupsMade(ctx context.Context) (map[string]int64, error) {
	groups, err := r.b.Groups(ctx, r.o.Topic)
	if err != nil && !errors.Is(err, ErrDenied) && !errors.Is(err, ErrNoTopic) {
		return nil, err
	}
	made := make(map[string]int64, len(groups))
	for _, g := range groups {
		made[g.Group] = g.Created.UnixMilli()
	}
	return made, nil
}

// advance notes a dead letter, and whether it was replayed, now or before.
func (l *lowWater) advance(d *DeadLetter, replayed bool) {
	at, there := l.made[d.Group]
	l.closed = l.closed || !replayed || !there
	if !l.closed {
		l.Seq, l.ID, l.Groups[d.Group] = d.Seq, d.ID, at
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
	if !l.kept || r.o.DryRun || l.Seq == l.saved {
		return nil
	}
	revision, err := l.write(ctx, r.b, l.revision)
	if errors.Is(err, ErrWrongSequence) {
		l.kept = false
		return nil
	}
	l.revision, l.saved = revision, l.Seq
	return err
}

func (l *lowWater) write(ctx context.Context, b Keys, revision uint64) (uint64, error) {
	value, err := json.Marshal(l)
	if err != nil {
		return 0, err
	}
	return b.KeySet(ctx, replayBucket, lowWaterKey(l.Topic, l.Group), value, revision, 0)
}

// readLowWater returns the mark of a group, or of a topic, and its revision. One that
// cannot be read is none.
func readLowWater(ctx context.Context, b Keys, topic, group string) (l lowWater, revision uint64, err error) {
	entry, err := b.KeyGet(ctx, replayBucket, lowWaterKey(topic, group))
	if err == nil && json.Unmarshal(entry.Value, &l) != nil {
		l = lowWater{}
	}
	return l, entry.Revision, err
}

func lowWaterKey(topic, group string) string { return replayKey("low", topic+" "+group) }

// purgedCounts are the positions of dead letters that a purge removed, by group; of the
// whole topic by "".
type purgedCounts map[string][]uint64

func (p purgedCounts) add(page []DeadLetter) {
	for i := range page {
		for _, group := range []string{"", page[i].Group} {
			p[group] = append(p[group], page[i].Seq)
		}
	}
}

// takeFromMarks takes them out of the counts of low-water marks: otherwise replays would speak
// of dead letters that are no more. Where a mark cannot be read or written they do, and so they
// do where a replay passes, at this moment, what is being removed.
func (p purgedCounts) takeFromMarks(ctx context.Context, b Keys, topic string) {
	for group, seqs := range p {
		for {
			mark, revision, err := readLowWater(ctx, b, topic, group)
			if err != nil || mark.Count == 0 {
				break
			}
			n := 0
			for _, seq := range seqs {
				if seq <= mark.Seq {
					n++
				}
			}
			mark.Count = max(mark.Count-n, 0)
			if n == 0 {
				break
			}
			if _, err = mark.write(ctx, b, revision); !errors.Is(err, ErrWrongSequence) {
				break
			}
		}
	}
}
