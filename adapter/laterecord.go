package adapter

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// The record of a lease that has run out is written when its event may be in other hands. Their
// records must stay: one may say that a suspect was started, which is all that would be known of
// it if its process died. So the record is written on condition that what is known is still what
// is there; where it is not, what is there gets the failure added, on condition again. Thousands
// of leases may run out at once, so that nothing is read of those nobody else had. What the next
// holder writes after that is what it knows, and may be without this attempt.

// lateTries is how often a record may change under a lease that has run out.
const lateTries = 3

// keepLate counts the attempts of leases that have run out.
func (rec *records) keepLate(ctx context.Context, leases []*lease) {
	records := make([]record, len(leases))
	now := time.Now()
	for i, l := range leases {
		records[i], _ = l.record.ranOut(l, now)
	}
	err := rec.writeLate(ctx, leases, records)
	if err != nil {
		rec.cfg.Logger.WarnContext(ctx, "attempts cannot be recorded; they will count as they should not", slog.Int("events", len(leases)), slog.Any("error", err))
	}
}

// writeLate stores a record of each lease.
func (rec *records) writeLate(ctx context.Context, leases []*lease, sent []record) error {
	var unread error
	for range lateTries {
		refused, err := rec.writeLateOnce(ctx, leases, sent)
		if err != nil || len(refused) == 0 {
			return errors.Join(err, unread)
		}
		leases, sent, err = rec.readLate(ctx, leases, sent, refused)
		if unread = cmp.Or(unread, err); len(leases) == 0 {
			return unread
		}
	}
	return jetbus.ErrWrongSequence
}

func (rec *records) writeLateOnce(ctx context.Context, leases []*lease, sent []record) (refused []int, err error) {
	ctx, end := rec.forRecords(ctx, len(leases))
	defer func() { end(err) }()
	messages := make([]*nats.Msg, len(leases))
	for i, l := range leases {
		messages[i] = rec.recordMessage(l, &sent[i], 0)
		messages[i].Header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(l.base, 10)}
	}
	_, refused, err = rec.writeRecords(ctx, messages)
	return refused, err
}

// readLate reads the records that are not what they were known to be. It returns the leases
// of those that have to be written again, and what they become; the error is that of one that
// could not be read.
func (rec *records) readLate(ctx context.Context, leases []*lease, sent []record, refused []int) (again []*lease, become []record, err error) {
	ctx, cancel := context.WithTimeout(ctx, recallTimeout)
	defer cancel()
	there := make([]record, len(refused))
	write, failed := make([]bool, len(refused)), make([]error, len(refused))
	besides(len(refused), recordsAtOnce, func(i int) {
		there[i], write[i], failed[i] = rec.readLateOf(ctx, leases[refused[i]], &sent[refused[i]])
	})
	for i, at := range refused {
		if write[i] {
			again, become = append(again, leases[at]), append(become, there[i])
		}
		err = cmp.Or(err, failed[i])
	}
	return again, become, err
}

// readLateOf need not have the record written where it was stored, and the answer lost; where
// the other one has counted the attempt; or where it is of another event.
func (rec *records) readLateOf(ctx context.Context, l *lease, sent *record) (r record, write bool, err error) {
	ctx, end := rec.forRecords(ctx, 1)
	entry, marker, err := rec.keyGetMarker(ctx, attemptsBucket, l.attemptKey())
	end(err)
	if err != nil {
		return record{}, false, err
	}
	l.base = max(entry.Revision, marker)
	if entry.Revision > 0 && bytes.Equal(entry.Value, rec.recordMessage(l, sent, 0).Data) {
		return record{}, false, nil
	}
	if there, ok := parseRecord(entry.Value); entry.Revision > 0 && ok && there.Stored >= l.stored {
		r, write = there.ranOut(l, time.Now())
		return r, write && there.Stored == l.stored, nil
	}
	r, write = l.record.ranOut(l, time.Now())
	return r, write, nil
}

// ranOut is the record with an attempt that ended with its lease. It is the same where it counts
// that one already, as who comes next does with one that was started alone. One that was started
// alone before has not settled the event either: its process has died.
func (r *record) ranOut(l *lease, now time.Time) (out record, changed bool) {
	out = *r
	if r != l.record {
		alone := l.record.Started == l.deliveries
		if alone && r.Known >= l.deliveries {
			return out, false
		}
		if r.Started > 0 && r.Started < l.deliveries {
			out.fail(errProcessDied, now)
		}
	}
	out.fail(jetbus.ErrLeaseExpired, now)
	out.Known, out.Stored = max(r.Known, l.deliveries), l.stored
	if r.Started <= l.deliveries {
		out.Started = 0
	}
	return out, true
}
