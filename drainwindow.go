package jetbus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"
)

// DrainErrorClass says what a failure of a drainer is a failure of.
type DrainErrorClass string

// The classes of failures.
const (
	DrainBroker DrainErrorClass = "broker" // the broker did not answer; waited for
	DrainTopic  DrainErrorClass = "topic"  // the topic is full, may not be written, or is silent while others answer; waited for
	DrainPoison DrainErrorClass = "poison" // the row can never be published; set aside
	DrainRow    DrainErrorClass = "row"    // anything else; the row is tried again
	DrainStore  DrainErrorClass = "outbox" // the outbox failed; waited for
)

// poison are the reasons that stay with an event, whenever it is tried.
var poison = []error{
	ErrInvalidEvent, ErrInvalidTopic, ErrInvalidHeader, ErrInvalidOption, ErrSchema, ErrPayloadTooLarge,
	ErrNoTopic, ErrNoState, ErrNeedsKeySubject, ErrUnsupported,
}

// classify says what a failed publish was a failure of.
func classify(err error) DrainErrorClass {
	switch {
	case errors.Is(err, ErrClosed), errors.Is(err, ErrUnavailable),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, ErrOvertaken): // of rows without a key: a window has one row of each key
		return DrainBroker
	case errors.Is(err, ErrTopicFull), errors.Is(err, ErrDenied):
		return DrainTopic
	}
	for _, reason := range poison {
		if errors.Is(err, reason) {
			return DrainPoison
		}
	}
	return DrainRow
}

// lane is what has an order.
type lane struct{ topic, key string }

// drainWindow tracks the rows of one claim.
type drainWindow struct {
	*Drainer

	began    time.Time       // before the claim: the lease runs from then on, at the least
	probed   string          // a topic that did not answer, and is tried again; empty: none
	sent     []OutboxRow     // published, in this window
	dups     int             // the number of rows in sent that were duplicates
	failed   []OutboxFailure // their attempts count
	back     []OutboxRow     // not tried, or not to be blamed
	shut     map[lane]bool   // a row of the key is not published, so that later ones wait
	refuse   map[string]bool // topics that take nothing
	heard    map[string]bool // topics that answered
	silent   map[string]silence
	answered bool  // the broker is there
	err      error // of the broker: nothing more is tried
}

// run publishes the rows and tells the outbox. An error is one of the broker.
func (w *drainWindow) run(ctx context.Context, rows []OutboxRow) error {
	w.shut, w.refuse, w.heard, w.silent = map[lane]bool{}, map[string]bool{}, map[string]bool{}, map[string]silence{}
	publishing, cancel := finishing(ctx, w.began.Add(w.o.Lease*2/3), w.o.ShutdownTimeout)
	defer cancel()
	others, probed := w.apart(rows)
	w.publishAll(publishing, others)
	if len(probed) > 0 {
		w.probe(publishing, probed)
	}
	w.settle(ctx)
	w.blame()
	w.count()
	return w.err
}

// publishAll publishes rows that may depend on each other.
func (w *drainWindow) publishAll(ctx context.Context, rows []OutboxRow) {
	for len(rows) > 0 {
		var wave []OutboxRow
		wave, rows = w.wave(rows)
		w.publish(ctx, wave)
	}
}

// wave returns the first row of each key, and all without a key, and what is left.
// Rows that must not be published are sorted out.
func (w *drainWindow) wave(rows []OutboxRow) (wave, rest []OutboxRow) {
	taken := map[lane]bool{}
	for _, row := range rows {
		l := lane{row.Event.Topic, row.Event.Key}
		switch {
		case w.isPublished(row):
			w.unmarked = append(w.unmarked, row)
		case row.Err == nil && (w.err != nil || w.refuse[l.topic] || w.shut[l]):
			w.back = append(w.back, row)
		case l.key != "" && taken[l]:
			rest = append(rest, row)
		default:
			taken[l] = true
			err := row.Err
			if err == nil {
				err = row.Event.Validate()
			}
			if err == nil && row.Event.ID == "" {
				err = fmt.Errorf("%w: no id", ErrInvalidEvent)
			}
			if err != nil {
				w.fail(row, err, true)
				continue
			}
			wave = append(wave, row)
		}
	}
	return wave, rest
}

// publish publishes rows of which no two depend on each other.
func (w *drainWindow) publish(ctx context.Context, rows []OutboxRow) {
	for w.err == nil && ctx.Err() == nil {
		if rows = w.open(rows); len(rows) == 0 {
			return
		}
		events := make([]Event, len(rows))
		for i := range rows {
			events[i] = rows[i].Event
		}
		receipts, err := w.to.PublishBatch(ctx, events, BatchOptions{})
		left := w.stored(rows, receipts, err)
		batch, partly := errors.AsType[*BatchError](err)
		switch class := classify(err); {
		case len(left) == 0:
			w.answered = true
			return
		case class == DrainBroker:
			if ctx.Err() != nil && !errors.Is(err, ErrUnavailable) {
				err = fmt.Errorf("%w: %w: %w", ErrUnavailable, context.Cause(ctx), err)
			}
			w.unanswered(left, err)
			rows = left
		case partly && len(batch.Failed) > 0: // what is stored is a prefix: the first one failed by itself
			w.judge(left[0], batch.Failed[0])
			rows = left[1:]
		case len(left) == 1:
			w.judge(left[0], err)
			return
		default: // nothing was sent, because of one of them
			half := len(left) / 2
			w.publish(ctx, left[:half])
			rows = left[half:]
		}
	}
	w.back = append(w.back, rows...)
}

// open returns the rows of topics that take events, and puts the others back.
func (w *drainWindow) open(rows []OutboxRow) []OutboxRow {
	if len(w.refuse) == 0 {
		return rows
	}
	var open []OutboxRow
	for _, row := range rows {
		if w.refuse[row.Event.Topic] {
			w.back = append(w.back, row)
		} else {
			open = append(open, row)
		}
	}
	return open
}

// stored notes the rows that are published and returns the others.
func (w *drainWindow) stored(rows []OutboxRow, receipts []Receipt, err error) (left []OutboxRow) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, row := range rows {
		if err != nil && (i >= len(receipts) || receipts[i].Event.Seq == 0) {
			left = append(left, row)
			continue
		}
		w.sent = append(w.sent, row)
		w.heard[row.Event.Topic] = true
		delete(w.hold, row.Event.Topic) // until it refuses the next one
		if i < len(receipts) && receipts[i].Duplicate {
			w.dups++
		}
	}
	return left
}

// judge decides what becomes of a row that was refused.
func (w *drainWindow) judge(row OutboxRow, err error) {
	w.answered = true
	switch classify(err) {
	case DrainTopic:
		w.heard[row.Event.Topic] = true
		w.refuse[row.Event.Topic] = true
		w.topicRefused(row.Event.Topic, err)
		w.back = append(w.back, row)
	case DrainPoison:
		w.fail(row, err, true)
	default:
		w.heard[row.Event.Topic] = true
		w.fail(row, err, w.o.MaxAttempts > 0 && attempt(row) >= w.o.MaxAttempts)
	}
}

// fail notes a failed attempt. Later rows of the key wait.
func (w *drainWindow) fail(row OutboxRow, err error, dead bool) {
	if row.Event.Key != "" {
		w.shut[lane{row.Event.Topic, row.Event.Key}] = true
	}
	w.failed = append(w.failed, OutboxFailure{Row: row, Err: err, Dead: dead, RetryIn: w.o.Backoff.Delay(attempt(row))})
}

// attempt returns the number of the attempt to publish a row, from 1. It bounds row.Attempts,
// which other programs may have written.
func attempt(row OutboxRow) int { return min(max(row.Attempts, 0), math.MaxInt32-1) + 1 }

// settle reports the outcome of the window to the outbox. If a report does not arrive, nothing
// is lost: published rows are marked later, and the other rows are due again after the lease.
// settle may take as long as the rest of the lease. During a shutdown it may take
// ShutdownTimeout, and each report gets its share of that time: an outbox may hang in one call
// and answer the others.
func (w *drainWindow) settle(ctx context.Context) {
	began := time.Now()
	left := max(w.o.Lease-began.Sub(w.began), minDrainLease)
	var tell []func(ctx context.Context)
	w.unmarked = append(w.unmarked, w.sent...)
	if len(w.unmarked) > 0 {
		tell = append(tell, func(ctx context.Context) { _ = w.mark(ctx) }) // tried again before the next claim
	}
	if len(w.failed) > 0 {
		tell = append(tell, w.recordFailures)
	}
	if len(w.back) > 0 {
		tell = append(tell, w.giveBack)
	}
	grace := min(left, max(w.o.ShutdownTimeout, minDrainLease))
	for i, f := range tell {
		part := max(grace-time.Since(began), 0) / time.Duration(len(tell)-i)
		telling, cancel := finishing(ctx, began.Add(left), part)
		f(telling)
		cancel()
	}
}

// giveBack releases the rows that were not tried. Those that the outbox refuses to release are due
// again after the lease, like those of a release that does not arrive.
func (w *drainWindow) giveBack(ctx context.Context) {
	err := w.from.Release(ctx, w.back)
	if refused, partly := errors.AsType[*OutboxRowsError](err); partly {
		w.o.Logger.Warn("rows of the outbox cannot be given back", slog.Any("err", refused))
		err = nil
	}
	w.storeSaid("give back", err)
}

// count tells observers, logs and statistics.
func (w *drainWindow) count() {
	var dead []OutboxFailure
	w.mu.Lock()
	w.stats.Published += uint64(len(w.sent))
	w.stats.Duplicates += uint64(w.dups)
	for _, f := range w.failed {
		w.stats.Errors[classOf(f)]++
		switch {
		case w.isUnrecorded(f): // neither dead nor due again after RetryIn
		case f.Dead:
			w.stats.Dead++
			dead = append(dead, f)
		default:
			w.stats.Retried++
		}
	}
	w.mu.Unlock()
	if len(w.sent) > 0 {
		w.o.Observer.Observe(Observation{Kind: Drained, Count: len(w.sent), Duration: time.Since(w.began)})
	}
	for _, f := range w.failed {
		w.observe(DrainFail, f)
		w.o.Logger.Warn("a row of the outbox failed", f.attrs()...)
	}
	for _, f := range dead {
		w.reportDead(f)
	}
	w.brokerSaid(w.err, w.answered)
}

// reportDead reports a dead row to the observer and the log.
func (d *Drainer) reportDead(f OutboxFailure) {
	d.observe(OutboxDead, f)
	d.o.Logger.Error("a row of the outbox is dead", f.attrs()...)
}

func (d *Drainer) observe(kind ObservationKind, f OutboxFailure) {
	e := &f.Row.Event
	d.o.Observer.Observe(Observation{Kind: kind, Topic: e.Topic, ID: e.ID, Attempt: attempt(f.Row), Reason: string(classOf(f)), Err: f.Err})
}

// attrs are the attributes of a log line about the failure.
func (f *OutboxFailure) attrs() []any {
	return []any{slog.String("topic", f.Row.Event.Topic), slog.String("id", f.Row.Event.ID), slog.Any("err", f.Err)}
}

// classOf is the class of a row's failure. A row that cannot be read is poison.
func classOf(f OutboxFailure) DrainErrorClass {
	if f.Row.Err != nil {
		return DrainPoison
	}
	return classify(f.Err)
}
