package projector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// retryBackoff is the wait between tries of a sink, or a broker, that is away.
var retryBackoff = jetbus.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}

// minWriteTimeout is how long a Write may take at least before it counts as failed.
const minWriteTimeout = time.Minute

// writer writes batches of a source to a sink and counts what becomes of them.
type writer struct {
	b      Backend
	sink   Sink
	source Source
	o      *Options
	count  *counters

	// failed is called when a write has failed, before it is tried again, and says
	// how long the sink has been away. Its error ends the tries. Nil: nothing.
	failed func(ctx context.Context, away time.Duration, err error) error
	wrote  func()          // called with each batch that is written; nil: nothing
	live   context.Context //nolint:containedctx // ends the waits between tries before ctx does; nil: ctx alone

	last    jetbus.Checkpoint // the newest event that the sink may have
	undated bool              // events are read from a snapshot, which stored them at other times

	refusals map[string]uint64 // by key of an event that became a dead letter, its sequence; nil: not noted
}

// writeTimeout is how long one Write may take.
func (o *Options) writeTimeout() time.Duration { return max(2*o.AckTimeout, minWriteTimeout) }

// store is storeRead for events that were read without a check of the topic's history: it
// makes that check first.
func (w *writer) store(ctx context.Context, events []jetbus.Event, upTo uint64) error {
	if err := w.sameHistory(ctx); err != nil {
		return err
	}
	return w.storeRead(ctx, events, upTo)
}

// storeRead folds events and writes them, and retries until the sink has them. An event that
// can never be written becomes a dead letter before the position moves past it. storeRead
// returns errors that a retry would not change, and the cause of ctx.
func (w *writer) storeRead(ctx context.Context, events []jetbus.Event, upTo uint64) error {
	w.count.events.Add(uint64(len(events)))
	f := fold(events, w.o)
	newest := w.newest(events)
	buried := 0
	for {
		for _, r := range f.refusals[buried:] {
			e := &events[r.event]
			if err := w.bury(ctx, *e, r.err); err != nil {
				return err
			}
			if w.refusals != nil && e.Key != "" {
				w.refusals[e.Key] = max(w.refusals[e.Key], e.Seq)
			}
		}
		buried = len(f.refusals)
		if len(f.changes) == 0 && upTo == 0 {
			break
		}
		rejected, err := w.persist(ctx, Batch{Changes: f.changes, UpTo: upTo, Last: newest})
		if err != nil {
			return err
		}
		f.refuse(rejected)
		if len(rejected) == 0 {
			break
		}
	}
	w.count.stale.Add(uint64(f.stale)) //nolint:gosec // not negative
	return nil
}

// persist writes a batch until the sink has it. It returns what was rejected, or the
// one change that has failed too often while the sink was there.
func (w *writer) persist(ctx context.Context, b Batch) ([]Rejection, error) {
	var began time.Time
	failures := map[int]int{} // by change
	for attempt := 1; ; attempt++ {
		tried := time.Now()
		var out Outcome
		isNew, err := w.learn(ctx, b.Last)
		if isNew {
			if err := w.sameHistory(ctx); err != nil {
				return nil, err
			}
		}
		if err == nil {
			out, err = w.write(ctx, b)
		}
		switch {
		case err == nil:
			w.count.wrote(out, b, w.source.Exclusive)
			if b.Last.Seq > w.last.Seq {
				w.last = b.Last
			}
			if w.wrote != nil {
				w.wrote()
			}
			return out.Rejected, nil
		case isFinal(err):
			return nil, fmt.Errorf("write: %w", err)
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		}
		if began.IsZero() {
			began = tried
		}
		w.count.failedWrite(err)
		if bad, ok := errors.AsType[*ChangeError](err); ok && bad.Index >= 0 && bad.Index < len(b.Changes) {
			if failures[bad.Index]++; failures[bad.Index] == jetbus.DefaultMaxAttempts {
				return []Rejection{{Index: bad.Index, Err: &gaveUpError{bad.Err}}}, nil
			}
			began = time.Time{} // the sink is there
		}
		if attempt == 1 {
			w.o.Logger.LogAttrs(ctx, slog.LevelWarn, "a batch cannot be written; it is tried again",
				slog.String("projection", w.o.Name), slog.Int("changes", len(b.Changes)), slog.Any("error", err))
		}
		if w.failed != nil && !began.IsZero() {
			if err := w.failed(ctx, time.Since(began), err); err != nil {
				return nil, err
			}
		}
		if err := w.pause(ctx, retryBackoff.Delay(attempt)); err != nil {
			return nil, err
		}
	}
}

// gaveUpError is what a change becomes a dead letter for that failed too often.
type gaveUpError struct{ err error }

func (e *gaveUpError) Error() string {
	return fmt.Sprintf("failed %d times: %v", jetbus.DefaultMaxAttempts, e.err)
}

func (e *gaveUpError) Unwrap() error { return e.err }

// isGivenUp reports whether a change failed too often. Nothing is known then of the others.
func isGivenUp(r Rejection) bool {
	_, ok := errors.AsType[*gaveUpError](r.Err)
	return ok
}

// pause waits, unless ctx or w.live ends.
func (w *writer) pause(ctx context.Context, d time.Duration) error { //nolint:contextcheck // it goes by two
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if live := w.live; live != nil {
		defer context.AfterFunc(live, func() { cancel(context.Cause(live)) })() //nolint:contextcheck // the other one
	}
	return pause(ctx, d)
}

// isFinal reports whether writing again is of no use.
func isFinal(err error) bool {
	return errors.Is(err, ErrOwned) || errors.Is(err, ErrNewStream) || errors.Is(err, ErrFenced) || errors.Is(err, errBadOutcome)
}

// errBadOutcome: a sink breaks the contract.
var errBadOutcome = errors.New("the sink rejected a change that it was not given")

// write calls the sink once. A panic, and a sink that hangs, are errors.
func (w *writer) write(ctx context.Context, b Batch) (out Outcome, err error) {
	ctx, cancel := context.WithTimeout(ctx, w.o.writeTimeout())
	defer cancel()
	defer func() {
		if r := recover(); r != nil {
			err = panicked{&jetbus.PanicError{Value: r, Stack: debug.Stack()}}
		}
	}()
	if out, err = w.sink.Write(ctx, b); err != nil {
		return out, err
	}
	last := -1
	for _, r := range out.Rejected {
		if r.Index <= last || r.Index >= len(b.Changes) || r.Err == nil {
			return out, fmt.Errorf("%w: change %d of %d", errBadOutcome, r.Index, len(b.Changes))
		}
		last = r.Index
	}
	return out, nil
}

// newest returns the checkpoint of the newest event that was written or is in events.
func (w *writer) newest(events []jetbus.Event) jetbus.Checkpoint {
	last := w.last
	for i := range events {
		last = later(last, &events[i])
	}
	if w.undated && last != w.last {
		last.Stored = time.Time{}
	}
	return last
}

// bury makes a dead letter of an event that no delivery holds, through all that
// passes. One that is a dead letter itself stays where it is.
func (w *writer) bury(ctx context.Context, e jetbus.Event, cause error) error {
	w.logRefused(ctx, &e, cause)
	if jetbus.IsDeadLetterTopic(e.Topic) {
		w.count.rejected.Add(1)
		return nil
	}
	d := jetbus.DeadLetter{
		Event: e, Group: w.source.Projection, Stream: w.source.Stream, StreamCreated: w.source.Created,
		Reason: jetbus.DeadRejected, Error: cause.Error(), Stack: jetbus.StackOf(cause), Attempts: 1,
	}
	if _, ok := errors.AsType[*gaveUpError](cause); ok {
		d.Reason, d.Attempts = jetbus.DeadMaxAttempts, jetbus.DefaultMaxAttempts
	}
	if err := w.insist(ctx, func() error { return w.b.Bury(ctx, d) }); err != nil {
		return err
	}
	w.count.rejected.Add(1)
	return nil
}

// logRefused tells the log of an event that can never be written.
func (w *writer) logRefused(ctx context.Context, e *jetbus.Event, cause error) {
	attrs := []slog.Attr{
		slog.String("projection", w.o.Name), slog.String("topic", e.Topic), slog.String("id", e.ID), slog.Uint64("seq", e.Seq), slog.Any("error", cause),
	}
	if p, ok := errors.AsType[*jetbus.PanicError](cause); ok {
		attrs = append(attrs, slog.String("stack", string(p.Stack)))
	}
	w.o.Logger.LogAttrs(ctx, slog.LevelWarn, "an event cannot be projected; it becomes a dead letter", attrs...)
}

// insist calls the broker until it answers.
func (w *writer) insist(ctx context.Context, call func() error) error {
	for attempt := 1; ; attempt++ {
		err := call()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !isAway(err):
			return err
		}
		w.count.trouble(err)
		if err := w.pause(ctx, retryBackoff.Delay(attempt)); err != nil {
			return err
		}
	}
}

// isAway reports whether an error of the broker may pass by itself.
func isAway(err error) bool {
	return errors.Is(err, jetbus.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, jetbus.ErrTopicFull)
}

// pause waits, unless ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
