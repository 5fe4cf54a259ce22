package jetbus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"
)

// DeadLetterStore is what reading dead letters needs of a bus.
type DeadLetterStore interface {
	Store
	Retrier
	Keys
	Topics
}

// DeadLetterQuery selects dead letters of a topic. All conditions that are set
// must hold; what is zero is no condition.
type DeadLetterQuery struct {
	// Topic is the topic that the events come from, without "dlq.". Required.
	Topic   string       `json:"topic"`
	Group   string       `json:"group,omitempty"`   // that could not process the event
	Reasons []DeadReason `json:"reasons,omitempty"` // any of these
	// Since and Until bound when the event was given up: at or after the one, before
	// the other, by the clock of the process that gave it up, which is taken to be at
	// most 5 minutes ahead of the broker's.
	Since time.Time `json:"-"`
	Until time.Time `json:"-"`
	Key   string    `json:"key,omitempty"`   // of the original, exactly
	ID    string    `json:"id,omitempty"`    // of the original
	Error string    `json:"error,omitempty"` // the text of the error contains this
	Seqs  []uint64  `json:"seqs,omitempty"`  // positions in the dead-letter topic
	// UpToSeq is the position in the dead-letter topic behind which none is selected: that of
	// the last one that was listed, say, so that what came since is left alone. Zero: there is none.
	UpToSeq uint64 `json:"upToSeq,omitempty"`
	// Created is the [TopicInfo] Created of the dead-letter topic that Seqs and UpToSeq are
	// positions in, to the millisecond. One that has been deleted and made anew since, which
	// counts from 1 again, is [ErrPositionUnknown]. Zero: they are taken for those of what there is.
	Created time.Time `json:"-"`
	Open    bool      `json:"open,omitempty"` // not replayed yet
	// Limit bounds how many are selected, the oldest first. Defaults to all.
	Limit int `json:"limit,omitempty"`
}

// deadSkew is how far the clock of a process may be ahead of the broker's.
const deadSkew = 5 * time.Minute

// Validate reports a topic or a group that is no name, a topic that holds dead
// letters itself, times or positions that exclude each other, or a negative Limit.
// The error wraps [ErrInvalidTopic], [ErrInvalidGroup] or [ErrInvalidOption].
func (q DeadLetterQuery) Validate() error {
	if err := ValidTopic(q.Topic); err != nil {
		return err
	}
	if IsDeadLetterTopic(q.Topic) {
		return fmt.Errorf("%w: %q: name the topic that the events come from, %s", ErrInvalidTopic, q.Topic, strings.TrimPrefix(q.Topic, deadPrefix))
	}
	if q.Group != "" {
		if err := ValidGroup(q.Group); err != nil {
			return err
		}
	}
	switch {
	case !yearInRange(q.Since) || !yearInRange(q.Until) || !yearInRange(q.Created):
		return fmt.Errorf("%w: Since, Until and Created need years of four digits", ErrInvalidOption)
	case !q.Since.IsZero() && !q.Until.IsZero() && !q.Since.Before(q.Until):
		return fmt.Errorf("%w: Since %v is not before Until %v: that selects nothing", ErrInvalidOption, q.Since.UTC(), q.Until.UTC())
	case slices.Contains(q.Seqs, 0):
		return fmt.Errorf("%w: Seqs has 0; positions begin with 1", ErrInvalidOption)
	case len(q.Seqs) > 0 && q.behind(slices.Min(q.Seqs)):
		return fmt.Errorf("%w: all of Seqs are behind UpToSeq %d: that selects nothing", ErrInvalidOption, q.UpToSeq)
	case q.Limit < 0:
		return fmt.Errorf("%w: Limit is %d, use 1 or more, or 0 for all", ErrInvalidOption, q.Limit)
	}
	return nil
}

// behind reports whether a position is behind the last one that can be selected.
func (q *DeadLetterQuery) behind(seq uint64) bool { return q.UpToSeq > 0 && seq > q.UpToSeq }

// match reports whether a dead letter meets the conditions, without UpToSeq, Open and Limit.
func (q *DeadLetterQuery) match(d *DeadLetter) bool {
	switch {
	case q.Group != "" && d.Group != q.Group,
		len(q.Reasons) > 0 && !slices.Contains(q.Reasons, d.Reason),
		!q.Since.IsZero() && d.Time.Before(q.Since),
		!q.Until.IsZero() && !d.Time.Before(q.Until),
		q.Key != "" && d.Event.Key != q.Key,
		q.ID != "" && d.Event.ID != q.ID,
		!strings.Contains(d.Error, q.Error):
		return false
	}
	return len(q.Seqs) == 0 || slices.Contains(q.Seqs, d.Seq)
}

// DeadLetters returns the dead letters of a topic that the query selects, oldest
// first, up to the last one present when it began. Each says whether it was
// replayed. Events in the dead-letter topic that are no dead letters, which somebody
// else put there, are left out; [DeadLetterStats] counts them. An error is
// the last pair; it is [ErrNoDeadLetters] where the topic has none at all, and
// [ErrPositionUnknown] where the query is of a dead-letter topic that is no more.
func DeadLetters(ctx context.Context, b DeadLetterStore, q DeadLetterQuery) iter.Seq2[DeadLetter, error] {
	return func(yield func(DeadLetter, error) bool) {
		left := q.Limit
		err := walkDeadLetters(ctx, b, q, func(page []DeadLetter) (bool, error) {
			for _, d := range page {
				left--
				if !yield(d, nil) || left == 0 {
					return false, nil
				}
			}
			return true, nil
		})
		if err != nil {
			yield(DeadLetter{}, fmt.Errorf("dead letters of %s: %w", q.Topic, err))
		}
	}
}

// walkDeadLetters reads what a query selects, without its Limit.
func walkDeadLetters(ctx context.Context, b DeadLetterStore, q DeadLetterQuery, each func([]DeadLetter) (more bool, err error)) error {
	if err := q.Validate(); err != nil {
		return err
	}
	w, err := newDeadWalk(ctx, b, q)
	if err != nil {
		return err
	}
	return w.run(ctx, each)
}

// deadPage is how many dead letters are looked at together.
const deadPage = 100

// errNoneDead is of a topic that has no dead letters at all. Whether there is a place for them
// yet, which the first member of a group makes, is nothing to whoever asks. Nor does it say that
// there is the topic, which nobody has looked for.
var errNoneDead = fmt.Errorf("%w: there are none", ErrNoDeadLetters)

// deadWalk reads a dead-letter topic from one end to the other.
type deadWalk struct {
	b       DeadLetterStore
	q       DeadLetterQuery
	info    TopicInfo // of the dead-letter topic
	after   uint64    // begin behind this position
	marks   map[origin]time.Time
	foreign int // events that are no dead letters
	read    int // dead letters

	retries map[uint64]deadRetries // of the page at hand, by position of the dead letter
	stored  map[uint64]time.Time   // when the broker stored the dead letters of the page at hand
}

// deadRetries is what is known of the replays of a dead letter to its group.
type deadRetries struct {
	last  time.Time // zero: there are none
	stale bool      // the first name was taken by another dead letter, see current
}

func newDeadWalk(ctx context.Context, b DeadLetterStore, q DeadLetterQuery) (*deadWalk, error) {
	w := &deadWalk{b: b, q: q, stored: make(map[uint64]time.Time)}
	var err error
	w.info, err = b.TopicInfo(ctx, DeadLetterTopic(q.Topic))
	switch {
	case errors.Is(err, ErrNoTopic):
		return nil, errNoneDead
	case err != nil:
		return nil, err
	case !q.Created.IsZero() && q.Created.UnixMilli() != w.info.Created.UnixMilli():
		return nil, fmt.Errorf("%w: topic %s was made anew at %s", ErrPositionUnknown, DeadLetterTopic(q.Topic), w.info.Created.Format(time.RFC3339Nano))
	case w.info.Events == 0:
		return nil, errNoneDead
	}
	w.marks, err = topicMarks(ctx, b, q.Topic)
	return w, err
}

// run hands out what the query selects in pages.
func (w *deadWalk) run(ctx context.Context, each func([]DeadLetter) (more bool, err error)) error {
	page := make([]DeadLetter, 0, deadPage)
	flush := func() (bool, error) {
		if err := w.setReplayed(ctx, page); err != nil {
			return false, err
		}
		if w.q.Open {
			page = slices.DeleteFunc(page, func(d DeadLetter) bool { return !d.Replayed.IsZero() })
		}
		if len(page) == 0 {
			return true, nil
		}
		more, err := each(page)
		page = page[:0]
		clear(w.stored)
		return more, err
	}
	for e, err := range w.events(ctx) {
		if err != nil {
			return err
		}
		if w.q.behind(e.Seq) {
			break
		}
		d, err := ParseDeadLetter(e)
		if err != nil {
			w.foreign++
			continue
		}
		w.read++
		if !w.q.match(&d) {
			continue
		}
		w.stored[d.Seq] = e.Stored
		if page = append(page, d); len(page) == deadPage {
			if more, err := flush(); err != nil || !more {
				return err
			}
		}
	}
	_, err := flush()
	return err
}

// events reads what the query can select: single positions, or the topic from somewhere on.
func (w *deadWalk) events(ctx context.Context) iter.Seq2[Event, error] {
	topic := DeadLetterTopic(w.q.Topic)
	if len(w.q.Seqs) == 0 {
		query := ScanQuery{From: Earliest()}
		switch {
		case w.after > 0:
			query.From = AfterSeq(w.after)
		case !w.q.Since.IsZero() && yearInRange(w.q.Since.Add(-deadSkew)):
			query.From = AtTime(w.q.Since.Add(-deadSkew))
		}
		return w.b.Scan(ctx, topic, query)
	}
	return func(yield func(Event, error) bool) {
		for _, seq := range slices.Compact(slices.Sorted(slices.Values(w.q.Seqs))) {
			if seq > w.info.LastSeq || w.q.behind(seq) {
				return
			}
			e, found, err := eventAt(ctx, w.b, topic, seq)
			if (found || err != nil) && !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// eventAt returns the event at a position of a topic, if it is still there.
func eventAt(ctx context.Context, b Store, topic string, seq uint64) (e Event, found bool, err error) {
	for e, err := range b.Scan(ctx, topic, ScanQuery{From: AfterSeq(seq - 1), Limit: 1}) {
		if errors.Is(err, ErrPositionUnknown) { // behind the end
			return Event{}, false, nil
		}
		if err != nil {
			return Event{}, false, err
		}
		return e, e.Seq == seq, nil
	}
	return Event{}, false, nil
}

// setReplayed looks up which dead letters of a page were replayed.
func (w *deadWalk) setReplayed(ctx context.Context, page []DeadLetter) error {
	names := make(map[string][]string)
	for i := range page {
		names[page[i].Group] = append(names[page[i].Group], retryName(page[i].Seq, 1))
	}
	at := make(map[string]map[string]time.Time, len(names))
	for group, list := range names {
		var err error
		if at[group], err = w.b.Retried(ctx, w.q.Topic, group, list...); err != nil {
			return err
		}
	}
	w.retries = make(map[uint64]deadRetries, len(page))
	for i := range page {
		d := &page[i]
		var found deadRetries
		if stored, ok := at[d.Group][retryName(d.Seq, 1)]; ok && w.current(stored, d) {
			found.last = stored
		} else if ok {
			found.stale = true
			var err error
			if _, found.last, err = w.nextRetry(ctx, d); err != nil {
				return err
			}
		}
		w.retries[d.Seq] = found
		d.Replayed = later(w.marks[originOf(d)], found.last)
	}
	return nil
}

// retrySkew is how far the clocks of two servers of a cluster may differ.
const retrySkew = 5 * time.Second

// current reports whether a retry that was stored at a time can be of a dead letter. An older one is of another dead
// letter, which had the same position: in a topic that was deleted since, or before the broker was restored to an
// earlier state.
func (w *deadWalk) current(stored time.Time, d *DeadLetter) bool {
	return !stored.Before(w.info.Created) && !stored.Before(w.stored[d.Seq].Add(-retrySkew))
}

// retryNames is how many names of retries are looked up at once.
const retryNames = 16

// nextRetry returns which replay of a dead letter the next one is, by the first
// name that no retry has, and when the last one that counts was stored.
func (w *deadWalk) nextRetry(ctx context.Context, d *DeadLetter) (n int, last time.Time, err error) {
	for n = 1; ; {
		names := make([]string, retryNames)
		for i := range names {
			names[i] = retryName(d.Seq, n+i)
		}
		stored, err := w.b.Retried(ctx, d.Event.Topic, d.Group, names...)
		if err != nil {
			return 0, last, err
		}
		for _, name := range names {
			at, ok := stored[name]
			if !ok {
				return n, last, nil
			}
			if w.current(at, d) {
				last = later(last, at)
			}
			n++
		}
	}
}

// retryName is the name of the nth replay of a dead letter: "d17", then "d17-2".
func retryName(seq uint64, n int) string {
	if n == 1 {
		return fmt.Sprintf("d%d", seq)
	}
	return fmt.Sprintf("d%d-%d", seq, n)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// PurgeDeadLetters removes the dead letters that the query selects, for good,
// and returns how many. Of several purges side by side each counts what it removed
// itself. What was replayed before is then no longer counted by replays of all, as far as
// they can be told: that is no part of the result. The error is [ErrNoDeadLetters] where it
// removed none, [ErrPositionUnknown] where the query is of a dead-letter topic that is no more;
// after any other, what was counted is removed and the rest is still there.
func PurgeDeadLetters(ctx context.Context, b interface {
	DeadLetterStore
	Remover
}, q DeadLetterQuery,
) (int, error) {
	removed, left := 0, q.Limit
	purged := purgedCounts{}
	err := walkDeadLetters(ctx, b, q, func(page []DeadLetter) (bool, error) {
		if q.Limit > 0 {
			page = page[:min(len(page), left)]
			left -= len(page)
		}
		seqs := make([]uint64, len(page))
		for i := range page {
			seqs[i] = page[i].Seq
		}
		n, err := b.RemoveEvents(ctx, DeadLetterTopic(q.Topic), seqs...)
		removed += n
		purged.add(page[:n]) // in their order, but for those that were removed beside it
		return q.Limit == 0 || left > 0, err
	})
	purged.takeFromMarks(context.WithoutCancel(ctx), b, q.Topic)
	if err == nil && removed == 0 {
		err = fmt.Errorf("%w: none matches", ErrNoDeadLetters)
	}
	if err != nil {
		return removed, fmt.Errorf("purge dead letters of %s: %w", q.Topic, err)
	}
	return removed, nil
}

type plainDeadLetterQuery DeadLetterQuery

type deadLetterQueryJSON struct {
	plainDeadLetterQuery
	Since   *int64 `json:"since,omitempty"`
	Until   *int64 `json:"until,omitempty"`
	Created *int64 `json:"created,omitempty"`
}

func (w deadLetterQueryJSON) query() DeadLetterQuery {
	q := DeadLetterQuery(w.plainDeadLetterQuery)
	q.Since, q.Until, q.Created = fromEpoch(w.Since), fromEpoch(w.Until), fromEpoch(w.Created)
	return q
}

// MarshalJSON gives the members topic, group, reasons, since, until, key, id,
// error, seqs, upToSeq, created, open and limit, times in epoch milliseconds,
// leaving out what is zero, except topic.
func (q DeadLetterQuery) MarshalJSON() ([]byte, error) { return json.Marshal(q.wire()) }

// UnmarshalJSON reads what MarshalJSON writes. It does not validate.
func (q *DeadLetterQuery) UnmarshalJSON(text []byte) error {
	w, err := unmarshal[deadLetterQueryJSON](text, "dead letter query")
	if err == nil {
		*q = w.query()
	}
	return err
}

func (q DeadLetterQuery) wire() deadLetterQueryJSON {
	return deadLetterQueryJSON{plainDeadLetterQuery(q), toEpoch(q.Since), toEpoch(q.Until), toEpoch(q.Created)}
}
