package jetbus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// The outbox may refuse to change a single row. That row must not stop the others, and must not
// be counted as changed. If the failure of a row cannot be recorded, usually because of its
// text, the row becomes dead with a reason that any database can store. A published row that
// cannot be marked as sent becomes dead, too: otherwise it would be published again after each
// lease. A row that cannot be made dead either is claimed again after each lease until the
// outbox accepts a change. Ready reports it.

// Reasons for rows that are dead because the outbox refused to record something else.
var (
	errUnrecordable = errors.New("the outbox cannot record why publishing failed; see the log of the drainer")
	errUnmarkable   = errors.New("published, but the outbox cannot mark the row as sent; see the log of the drainer")
)

// unrecorded is a row that the outbox refuses to change.
type unrecorded struct {
	row       OutboxRow
	err       error
	published bool      // it must not be published again
	until     time.Time // when to forget it, if it is not claimed again
}

// recordFailures records the failed attempts of a window.
func (w *drainWindow) recordFailures(ctx context.Context) {
	w.storeSaid("note failures", w.record(ctx, w.failed, errUnrecordable))
}

// buryUnmarked makes the published rows dead that the outbox refused to mark as sent.
func (d *Drainer) buryUnmarked(ctx context.Context, refused *OutboxRowsError) {
	d.o.Logger.Error("rows of the outbox cannot be marked as sent", slog.Any("err", refused))
	var failures []OutboxFailure
	for _, row := range d.unmarked {
		if slices.Contains(refused.Refs, row.Ref) {
			failures = append(failures, OutboxFailure{Row: row, Err: errUnmarkable, Dead: true})
		}
	}
	d.storeSaid("note failures", d.record(ctx, failures, errUnmarkable))
	d.mu.Lock()
	d.stats.Errors[DrainStore] += uint64(len(failures))
	failures = slices.DeleteFunc(failures, d.isUnrecorded)
	d.stats.Dead += uint64(len(failures))
	d.mu.Unlock()
	for _, f := range failures {
		d.reportDead(f)
	}
}

// record records failures. If the outbox refuses to record the failure of a row, record makes
// the row dead with reason, and sets Dead in the failure. It notes in d.unrecorded the rows for
// which the outbox refuses that, too. The error is a failure of the outbox, not of single rows.
func (d *Drainer) record(ctx context.Context, failures []OutboxFailure, reason error) (outage error) {
	left, why, outage := d.tryRecord(ctx, failures)
	if outage == nil && len(left) > 0 {
		for i := range failures {
			f := &failures[i]
			f.Dead = f.Dead || slices.ContainsFunc(left, func(l OutboxFailure) bool { return l.Row.Ref == f.Row.Ref })
		}
		for i := range left {
			left[i].Dead, left[i].Err = true, reason
		}
		left, why, outage = d.tryRecord(ctx, left)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range failures {
		delete(d.unrecorded, f.Row.Ref)
	}
	for _, f := range left {
		published := errors.Is(reason, errUnmarkable)
		d.unrecorded[f.Row.Ref] = unrecorded{row: f.Row, err: why, published: published, until: time.Now().Add(d.forgetAfter())}
	}
	return outage
}

// tryRecord calls Failed, and returns the failures that were not recorded and the reason.
func (d *Drainer) tryRecord(ctx context.Context, failures []OutboxFailure) (left []OutboxFailure, why, outage error) {
	err := d.from.Failed(ctx, failures)
	if err == nil {
		return nil, nil, nil
	}
	refused, partly := errors.AsType[*OutboxRowsError](err)
	if !partly {
		return failures, err, err
	}
	d.o.Logger.Error("failures of rows of the outbox cannot be recorded", slog.Any("err", refused))
	for _, f := range failures {
		if slices.Contains(refused.Refs, f.Row.Ref) {
			left = append(left, f)
		}
	}
	return left, refused.Err, nil
}

// forgetAfter is how long a row is reported after its last claim. A row that still exists is due
// again after its lease, and the next poll finds it.
func (d *Drainer) forgetAfter() time.Duration { return 2 * (d.o.Lease + d.o.PollMax + maxBrokerPause) }

// recorded removes rows that the outbox changed from d.unrecorded.
func (d *Drainer) recorded(rows []OutboxRow) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, row := range rows {
		delete(d.unrecorded, row.Ref)
	}
}

// isPublished reports whether this drainer published the row and the outbox refused to mark it.
func (d *Drainer) isPublished(row OutboxRow) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	u, ok := d.unrecorded[row.Ref]
	return ok && u.published && u.row.Event.ID == row.Event.ID
}

// isUnrecorded reports whether the outbox refuses to change the row. The caller holds the lock.
func (d *Drainer) isUnrecorded(f OutboxFailure) bool {
	_, ok := d.unrecorded[f.Row.Ref]
	return ok
}

// countUnrecorded counts the rows that the outbox refuses to change, and describes one of them.
// The caller holds the lock.
func (d *Drainer) countUnrecorded() (n int, err error) {
	first := ""
	for ref, u := range d.unrecorded {
		if time.Now().After(u.until) {
			delete(d.unrecorded, ref)
			continue
		}
		if n++; n == 1 || ref < first { // the same one each time
			first = ref
			err = fmt.Errorf("row %s (topic %q, id %q) cannot be changed: %w", ref, u.row.Event.Topic, u.row.Event.ID, u.err)
		}
	}
	return n, err
}
