package jetbus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Replays leave their marks in a bucket of Keys.
//
//	topic/<topic>                that there are marks of the topic's events
//	mark/<topic>/<target+event>  a replayMark: this event is, or is being, published to that topic
//	low/<topic+group>            a lowWater
//
// Names are hashed where they stand in a key, which has no room for them.
const (
	replayBucket = "JETBUS_REPLAYS"
	replayMemory = 30 * 24 * time.Hour // as long as retries are remembered
)

func replayKey(kind string, names ...string) string {
	for i, name := range names {
		sum := sha256.Sum256([]byte(name))
		names[i] = hex.EncodeToString(sum[:16])
	}
	return kind + "/" + strings.Join(names, "/")
}

// origin names a stored event at the broker.
type origin struct {
	stream  string
	created int64
	seq     uint64
}

func originOf(d *DeadLetter) origin {
	return origin{d.Stream, d.StreamCreated.UnixNano(), d.Event.Seq}
}

func (o origin) String() string {
	return o.stream + "@" + strconv.FormatInt(o.created, 10) + "/" + strconv.FormatUint(o.seq, 10)
}

// replayMark says that an event was published to a topic, or may have been.
type replayMark struct {
	Topic   string    `json:"topic"` // it was published to
	ID      string    `json:"id"`    // it got there
	Time    time.Time `json:"time"`
	Done    bool      `json:"done"` // it is known to be stored
	Stream  string    `json:"stream"`
	Created int64     `json:"created"`
	Seq     uint64    `json:"seq"`
}

// topicMarks returns which events of a topic were published again, and when.
func topicMarks(ctx context.Context, b Keys, topic string) (map[origin]time.Time, error) {
	flag, err := b.KeyGet(ctx, replayBucket, replayKey("topic", topic))
	if err != nil || flag.Revision == 0 {
		return nil, err
	}
	marks := make(map[origin]time.Time)
	for entry, err := range b.KeyWatch(ctx, replayBucket, replayKey("mark", topic)+"/") {
		if err != nil {
			return nil, err
		}
		if entry.Synced {
			return marks, nil
		}
		var m replayMark
		if !entry.Deleted && json.Unmarshal(entry.Value, &m) == nil && m.Done {
			at := origin{m.Stream, m.Created, m.Seq}
			marks[at] = later(marks[at], m.Time)
		}
	}
	return nil, errors.Join(ErrUnavailable, ctx.Err()) // the watch ended before it told everything
}

// checkTopic refuses a ToTopic that does not exist, or keeps state.
func (r *replay) checkTopic(ctx context.Context) error {
	if r.o.ToTopic == "" {
		return nil
	}
	info, err := r.b.TopicInfo(ctx, r.o.ToTopic)
	if err != nil || r.o.Force {
		return err
	}
	state := info.Config.Compact || info.Config.SnapshotOf != ""
	if !state {
		topics, err := r.b.ListTopics(ctx)
		if err != nil {
			return err
		}
		state = slices.ContainsFunc(topics, func(t TopicInfo) bool { return t.Config.SnapshotOf == r.o.ToTopic })
	}
	if state {
		return fmt.Errorf("%w: topic %s keeps state, and old events would take the place of newer ones; replay to the group, or use Force", ErrConflict, r.o.ToTopic)
	}
	return nil
}

// publish publishes the event of a dead letter to ToTopic. Its mark is written
// before, so that a replay that dies in between is followed by one that knows
// which id to look for.
func (r *replay) publish(ctx context.Context, d *DeadLetter) error {
	key := replayKey("mark", r.o.Topic, r.o.ToTopic+" "+originOf(d).String())
	if r.published[key] { // for another group
		r.stats.Already++
		return nil
	}
	entry, mark, err := r.mark(ctx, key)
	if err != nil {
		return err
	}
	if entry.Revision == 0 || r.o.Force {
		mark = replayMark{Topic: r.o.ToTopic, ID: NewID(), Stream: d.Stream, Created: d.StreamCreated.UnixNano(), Seq: d.Event.Seq}
	} else if err := r.finish(ctx, key, &mark, &entry); err != nil {
		return err
	}
	if mark.Done {
		r.stats.Already++
		return nil
	}
	e, err := r.event(ctx, d)
	if err != nil {
		return err
	}
	if e, err = again(e, mark); err != nil {
		return err
	}
	if !r.o.DryRun {
		err = r.publishMarked(ctx, key, e, mark, &entry)
	} else {
		r.stats.Replayed++
	}
	r.published[key] = err == nil
	return err
}

// finish looks whether what a mark says was stored by a replay that died
// before it could note that. Where it was not, its id is used again, in case it
// is still on its way.
func (r *replay) finish(ctx context.Context, key string, mark *replayMark, entry *KeyEntry) error {
	if mark.Done {
		return nil
	}
	var err error
	if mark.Done, err = r.stored(ctx, *mark); err != nil || !mark.Done || r.o.DryRun {
		return err
	}
	if err = r.setMark(ctx, key, *mark, entry); errors.Is(err, ErrWrongSequence) {
		return nil // another one did
	}
	return err
}

// again is the event that is published anew.
func again(e Event, m replayMark) (Event, error) {
	old := e.ID
	e.Topic, e.ID, e.SID, e.Seq, e.Partition = m.Topic, m.ID, "", 0, NoPartition
	if old != "" {
		causes := e.CausedBy
		if e.CausedBy = append([]string{old}, causes...); validList("caused_by", e.CausedBy) != nil {
			e.CausedBy = []string{old}
		}
	}
	return e, e.Validate()
}

// publishMarked publishes an event between two writes of its mark.
func (r *replay) publishMarked(ctx context.Context, key string, e Event, mark replayMark, entry *KeyEntry) error {
	if err := r.wait(ctx); err != nil {
		return err
	}
	if mark.Time.IsZero() {
		mark.Time = time.Now()
	}
	err := r.setMark(ctx, key, mark, entry)
	if errors.Is(err, ErrWrongSequence) { // another replay is at the same event at this moment
		r.stats.Already++
		return nil
	}
	if err != nil {
		return err
	}
	receipt, err := r.b.Publish(ctx, e)
	if neverStored(err) {
		return errors.Join(err, r.b.KeyDelete(ctx, replayBucket, key, entry.Revision))
	}
	if err != nil { // the mark stays: the next replay looks whether the event is there
		return err
	}
	mark.Done = true
	if err := r.setMark(ctx, key, mark, entry); err != nil && !errors.Is(err, ErrWrongSequence) {
		return err
	}
	if receipt.Duplicate {
		r.stats.Already++
	} else {
		r.stats.Replayed++
	}
	return nil
}

// neverStored reports whether a publish's error says that the event is not in the topic.
func neverStored(err error) bool {
	if p, ok := errors.AsType[*PublishError](err); ok {
		return p.Stored == StoredNo
	}
	return slices.ContainsFunc([]error{ErrInvalidEvent, ErrInvalidHeader, ErrPayloadTooLarge}, func(target error) bool { return errors.Is(err, target) })
}

// mark reads a mark.
func (r *replay) mark(ctx context.Context, key string) (KeyEntry, replayMark, error) {
	var m replayMark
	entry, err := r.b.KeyGet(ctx, replayBucket, key)
	if err == nil && entry.Revision > 0 {
		if err = json.Unmarshal(entry.Value, &m); err != nil {
			err = fmt.Errorf("mark %s in bucket %s: %w", key, replayBucket, err)
		}
	}
	return entry, m, err
}

func (r *replay) setMark(ctx context.Context, key string, m replayMark, entry *KeyEntry) error {
	if !m.Done && r.walk.marks == nil { // the first mark of this topic
		_, err := r.b.KeySet(ctx, replayBucket, replayKey("topic", r.o.Topic), []byte(r.o.Topic), 0, 0)
		if err != nil && !errors.Is(err, ErrWrongSequence) {
			return err
		}
		r.walk.marks = make(map[origin]time.Time)
	}
	value, err := json.Marshal(m)
	if err != nil {
		return err
	}
	revision, err := r.b.KeySet(ctx, replayBucket, key, value, entry.Revision, replayMemory)
	if err == nil {
		entry.Revision = revision
	}
	return err
}

// maxMarkScan is how many events are looked at for one of which nobody knows
// whether it was stored.
const maxMarkScan = 100_000

// stored reports whether the event of a mark is in ToTopic. Where the bus does not
// find it by its id, whose time is wrong after a clock was set back, it is looked
// for among what was stored since the mark was written.
func (r *replay) stored(ctx context.Context, m replayMark) (bool, error) {
	for _, err := range r.b.Scan(ctx, m.Topic, ScanQuery{From: AfterID(m.ID), Limit: 1}) {
		if errors.Is(err, ErrPositionUnknown) {
			return r.storedSince(ctx, m)
		}
		return err == nil, err
	}
	return true, nil // nothing is behind it
}

func (r *replay) storedSince(ctx context.Context, m replayMark) (bool, error) {
	for e, err := range r.b.Scan(ctx, m.Topic, ScanQuery{From: AtTime(m.Time.Add(-deadSkew)), Limit: maxMarkScan}) {
		if err != nil || e.ID == m.ID {
			return err == nil, err
		}
	}
	return false, nil
}
