package jetbus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"time"
)

// MaxReplays is how often an event is replayed without [ReplayOptions].Force: a
// dead letter of an event that failed after so many replays is left alone.
const MaxReplays = 5

// Replayer is what Replay needs of a bus.
type Replayer interface {
	DeadLetterStore
	Publisher
}

// ReplayOptions say which dead letters are replayed, and how. The zero value
// of each field is its default; only Topic is required.
type ReplayOptions struct {
	// DeadLetterQuery selects the dead letters. Its Limit bounds how many are
	// replayed, and does not count those that are not.
	DeadLetterQuery
	// Transform changes each event before it is replayed. It must leave the topic as
	// it is; what it says of Seq and Partition is ignored. An error, or a panic, fails that
	// event and no other. Nil: events are replayed as they were.
	Transform func(Event) (Event, error) `json:"-"`
	// Rate is how many events a second are replayed at most. Zero: as fast as it goes.
	Rate float64 `json:"rate,omitempty"`
	// DryRun changes nothing and counts what would happen. Transform is called.
	DryRun bool `json:"dryRun,omitempty"`
	// ToTopic publishes the events to this topic, for all its groups, instead of
	// putting them before the group that failed: with a new id, and the old one in
	// CausedBy. An event that several groups could not process is published once.
	ToTopic string `json:"toTopic,omitempty"`
	// Force replays what was replayed before, or [MaxReplays] times, and to a topic
	// that keeps state, where an old event takes the place of a newer one.
	Force bool `json:"force,omitempty"`
	// Progress is called after every dead letter that was looked at, by the goroutine
	// that called Replay. Nil: not.
	Progress func(ReplayStats) `json:"-"`
}

// Validate reports what DeadLetterQuery.Validate does, a Rate that is no rate, or
// a ToTopic that is no topic to publish to. The error wraps [ErrInvalidTopic],
// [ErrInvalidGroup] or [ErrInvalidOption].
func (o ReplayOptions) Validate() error {
	if err := o.DeadLetterQuery.Validate(); err != nil {
		return err
	}
	if o.Rate < 0 || math.IsNaN(o.Rate) || math.IsInf(o.Rate, 0) || o.Rate > 0 && o.Rate < minReplayRate {
		return fmt.Errorf("%w: Rate is %v, use events per second, at least %v, or 0 for no bound", ErrInvalidOption, o.Rate, minReplayRate)
	}
	if o.ToTopic == "" {
		return nil
	}
	if err := ValidTopic(o.ToTopic); err != nil {
		return err
	}
	if IsDeadLetterTopic(o.ToTopic) {
		return fmt.Errorf("%w: ToTopic %q holds dead letters, and nothing else is published there", ErrInvalidTopic, o.ToTopic)
	}
	return nil
}

// minReplayRate is one event a day.
const minReplayRate = 1.0 / (24 * 60 * 60)

// ReplayStats count what a replay did, or in a dry run would do.
type ReplayStats struct {
	Read int `json:"read"` // dead letters looked at
	// Matched is how many were selected by the query, and the sum of those below. Those
	// of earlier replays, which were not looked at again, are among them.
	Matched  int `json:"matched"`
	Replayed int `json:"replayed"` // stored for their group, or in ToTopic
	Already  int `json:"already"`  // replayed before, and left alone
	Guarded  int `json:"guarded"`  // replayed MaxReplays times before they failed, and left alone
	Failed   int `json:"failed"`   // could not be replayed; the error says why
	// LastSeq is the position of the last one that is among Replayed; 0: there is none. As UpToSeq
	// of a replay behind a dry run it keeps those behind it from the places of those that were counted.
	LastSeq uint64 `json:"lastSeq"`
}

// Replay puts dead letters before the group that could not process them, and
// before no other: its members get them beside the events of the topic, with
// Delivery.ReplayOf set. It walks the dead letters of the topic in their order,
// up to the last one present when it began, and returns what it did.
//
// A dead letter is replayed once: what was replayed in the last 30 days is
// counted as Already, so that a replay that was interrupted, or repeated, or run
// twice at once goes on where the others are. Dead letters stay where they are.
// An event that fails again becomes another dead letter, which can be replayed
// itself, up to [MaxReplays] times.
//
// Dead letters that cannot be replayed, since their group is gone
// ([ErrNoGroup]), since what Truncated left out is gone ([ErrPositionUnknown]), since
// Transform fails or the event is refused, do not keep others from it: they are
// counted as Failed, and the error at the end joins the first of their errors.
// What would fail for all of them ends the replay: ctx, the connection,
// permissions, a topic that is gone or full. The error is [ErrNoDeadLetters]
// where the query selects nothing, [ErrPositionUnknown] where it is of a dead-letter
// topic that is no more, [ErrConflict] for a ToTopic that needs Force.
func Replay(ctx context.Context, b Replayer, o ReplayOptions) (ReplayStats, error) {
	r := &replay{b: b, o: o, gone: make(map[string]error), published: make(map[string]bool)}
	err := r.run(ctx)
	if err != nil {
		err = fmt.Errorf("replay dead letters of %s: %w", o.Topic, err)
	}
	return r.stats, err
}

// maxReplayErrors is how many errors of single dead letters are returned.
const maxReplayErrors = 20

// replay is one run of Replay.
type replay struct {
	b      Replayer
	o      ReplayOptions
	stats  ReplayStats
	walk   *deadWalk
	low    lowWater
	due    time.Time // when the next event may be stored, with a Rate
	failed []error   // the first of them

	gone      map[string]error // groups that are no more
	groups    []GroupInfo      // with DryRun: those that are there
	published map[string]bool  // with ToTopic: marks of this run
}

func (r *replay) run(ctx context.Context) error {
	if err := r.o.Validate(); err != nil {
		return err
	}
	if err := r.checkTopic(ctx); err != nil {
		return err
	}
	var err error
	if r.walk, err = newDeadWalk(ctx, r.b, r.o.DeadLetterQuery); err != nil {
		return err
	}
	if r.o.DryRun && r.o.ToTopic == "" {
		if r.groups, err = r.b.Groups(ctx, r.o.Topic); err != nil {
			return err
		}
	}
	if err = r.low.load(ctx, r); err != nil {
		return err
	}
	r.walk.after = r.low.Seq
	r.stats.Matched, r.stats.Already = r.low.Count, r.low.Count
	early := false
	err = r.walk.run(ctx, func(page []DeadLetter) (bool, error) {
		more, err := r.page(ctx, page)
		early = !more
		return more, err
	})
	if !early {
		r.stats.Read = r.walk.read
	}
	if ctx.Err() == nil {
		err = errors.Join(err, r.low.save(ctx, r))
	}
	if err == nil && r.stats.Matched == 0 {
		return fmt.Errorf("%w: none of %d matches", ErrNoDeadLetters, r.walk.info.Events)
	}
	if r.stats.Failed == 0 {
		return err
	}
	failures := fmt.Errorf("%d of %d failed: %w", r.stats.Failed, r.stats.Matched, errors.Join(r.failed...))
	if err == nil {
		return failures
	}
	return errors.Join(err, failures)
}

// page replays a page of dead letters.
func (r *replay) page(ctx context.Context, page []DeadLetter) (more bool, err error) {
	for i := range page {
		d := &page[i]
		r.stats.Read = r.walk.read - (len(page) - 1 - i)
		r.stats.Matched++
		before := r.stats
		if err := r.one(ctx, d); err != nil {
			if ctx.Err() != nil || !ofOneEvent(err) {
				r.stats.Matched-- // nobody knows
				return false, fmt.Errorf("dead letter %d: %w", d.Seq, err)
			}
			r.fail(d, err)
		}
		if r.stats.Replayed > before.Replayed {
			r.stats.LastSeq = d.Seq
		}
		r.low.advance(d, r.stats.Replayed+r.stats.Already > before.Replayed+before.Already)
		if err := r.low.saveSometimes(ctx, r); err != nil {
			return false, err
		}
		if r.o.Progress != nil {
			r.o.Progress(r.stats)
		}
		if r.o.Limit > 0 && r.stats.Replayed >= r.o.Limit {
			return false, nil
		}
	}
	return true, nil
}

func (r *replay) fail(d *DeadLetter, err error) {
	r.stats.Failed++
	if len(r.failed) < maxReplayErrors {
		r.failed = append(r.failed, fmt.Errorf("dead letter %d of %s: %w", d.Seq, d.Group, err))
	}
}

// transformError is what Transform made of an event.
type transformError struct{ err error }

// Error gives the cause.
func (e *transformError) Error() string { return "transform: " + e.err.Error() }

// Unwrap returns the cause.
func (e *transformError) Unwrap() error { return e.err }

// errOriginalGone is of a dead letter whose payload was left out.
var errOriginalGone = fmt.Errorf("the dead letter is truncated and its original is gone: %w", ErrPositionUnknown)

// ofOneEvent reports whether an error says something about one dead letter, and
// not that the next one would fare the same.
func ofOneEvent(err error) bool {
	if _, ok := errors.AsType[*transformError](err); ok {
		return true
	}
	if p, ok := errors.AsType[*PublishError](err); ok && p.Stored == StoredUnknown {
		return false
	}
	return !slices.ContainsFunc([]error{
		context.Canceled, context.DeadlineExceeded, ErrClosed, ErrUnavailable, ErrDenied, ErrUnsupported, ErrNoTopic, ErrTopicFull,
	}, func(target error) bool { return errors.Is(err, target) })
}

// one replays one dead letter and counts it, unless it returns an error.
func (r *replay) one(ctx context.Context, d *DeadLetter) error {
	if r.o.ToTopic == "" && !r.o.Force && !r.walk.retries[d.Seq].last.IsZero() {
		r.stats.Already++
		return nil
	}
	if d.Replays >= MaxReplays && !r.o.Force {
		r.stats.Guarded++
		return nil
	}
	if r.o.ToTopic != "" {
		return r.publish(ctx, d)
	}
	if err := r.gone[d.Group]; err != nil {
		return err
	}
	e, err := r.event(ctx, d)
	if err != nil {
		return err
	}
	if !r.o.DryRun {
		return r.retry(ctx, d, e)
	}
	if !slices.ContainsFunc(r.groups, func(g GroupInfo) bool { return g.Group == d.Group }) {
		return fmt.Errorf("group %s/%s: %w", r.o.Topic, d.Group, ErrNoGroup)
	}
	r.stats.Replayed++
	return nil
}

// retry stores the event of a dead letter among the retries of its group.
func (r *replay) retry(ctx context.Context, d *DeadLetter, e Event) error {
	if err := r.wait(ctx); err != nil {
		return err
	}
	n := 1
	if r.o.Force || r.walk.retries[d.Seq].stale {
		var err error
		if n, _, err = r.walk.nextRetry(ctx, d); err != nil {
			return err
		}
	}
	receipt, err := r.b.Retry(ctx, d.Group, e, RetryOptions{
		Name: retryName(d.Seq, n), ReplayOf: d.Seq, Replays: d.Replays + n, Stream: d.Stream, StreamCreated: d.StreamCreated,
	})
	switch {
	case errors.Is(err, ErrNoGroup):
		r.gone[d.Group] = err
		return err
	case err != nil:
		return err
	case receipt.Duplicate: // another replay was faster
		r.stats.Already++
	default:
		r.stats.Replayed++
	}
	return nil
}

// event is the event to be replayed.
func (r *replay) event(ctx context.Context, d *DeadLetter) (Event, error) {
	e := d.Event
	if d.Truncated {
		original, found, err := eventAt(ctx, r.b, e.Topic, e.Seq)
		switch {
		case err != nil && !errors.Is(err, ErrNoTopic):
			return Event{}, err
		case err != nil || !found || original.ID != e.ID:
			return Event{}, errOriginalGone
		}
		e = original
	}
	if r.o.Transform != nil {
		changed, err := r.transform(e)
		if err == nil && changed.Topic != e.Topic {
			err = fmt.Errorf("%w: the topic became %q; see ToTopic", ErrInvalidEvent, changed.Topic)
		}
		if err != nil {
			return Event{}, &transformError{err}
		}
		changed.Seq, changed.Partition = e.Seq, e.Partition
		e = changed
	}
	return e, e.Validate()
}

// transform calls Transform, whose panics are errors.
func (r *replay) transform(e Event) (out Event, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return r.o.Transform(e)
}

// wait keeps to the Rate.
func (r *replay) wait(ctx context.Context) error {
	if r.o.Rate == 0 {
		return ctx.Err()
	}
	now := time.Now()
	if wait := r.due.Sub(now); wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	r.due = later(r.due, now).Add(time.Duration(float64(time.Second) / r.o.Rate))
	return nil
}

type replayJSON struct {
	deadLetterQueryJSON
	Rate    float64 `json:"rate,omitempty"`
	DryRun  bool    `json:"dryRun,omitempty"`
	ToTopic string  `json:"toTopic,omitempty"`
	Force   bool    `json:"force,omitempty"`
}

// MarshalJSON gives the members of the query, and rate, dryRun, toTopic and
// force, leaving out what is zero, except topic. Transform and Progress have no
// JSON form.
func (o ReplayOptions) MarshalJSON() ([]byte, error) {
	return json.Marshal(replayJSON{o.wire(), o.Rate, o.DryRun, o.ToTopic, o.Force})
}

// UnmarshalJSON reads what MarshalJSON writes. It does not validate.
func (o *ReplayOptions) UnmarshalJSON(text []byte) error {
	w, err := unmarshal[replayJSON](text, "replay options")
	if err == nil {
		*o = ReplayOptions{DeadLetterQuery: w.query(), Rate: w.Rate, DryRun: w.DryRun, ToTopic: w.ToTopic, Force: w.Force}
	}
	return err
}
