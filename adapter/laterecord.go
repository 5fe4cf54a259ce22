package adapter

import (
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
// of leases may run out at once, so that nothing is read of those nobody else had.

// lateTries is how often a record may change under a lease that has run out.
const lateTries = 3

// keepLate counts the attempts of leases that have run out.
func (b *Bus) keepLate(ctx context.Context, leases []*lease) {
	records := make([]record, len(leases))
	now := time.Now()
	for i, l := range leases {
		records[i], _ = l.record.ranOut(l, now)
	}
	err := b.writeLate(ctx, leases, records)
	if err != nil {
		b.cfg.Logger.WarnContext(ctx, "attempts cannot be recorded; they will count as they should not", slog.Int("events", len(leases)), slog.Any("error", err))
	}
}

// writeLate stores a record of each lease.
func (b *Bus) writeLate(ctx context.Context, leases []*lease, records []record) error {
	for range lateTries {
		refused, err := b.writeLateOnce(ctx, leases, records)
		if err != nil || len(refused) == 0 {
			return err
		}
		others := make([]*lease, len(refused))
		for i, at := range refused {
			others[i] = leases[at]
		}
		if leases, records, err = b.readLate(ctx, others); err != nil || len(leases) == 0 {
			return err
		}
	}
	return jetbus.ErrWrongSequence
}

func (b *Bus) writeLateOnce(ctx context.Context, leases []*lease, records []record) (refused []int, err error) {
	ctx, end := b.forRecords(ctx, len(leases))
	defer func() { end(err) }()
	messages := make([]*nats.Msg, len(leases))
	for i, l := range leases {
		messages[i] = b.recordMessage(l, &records[i], 0)
		messages[i].Header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(l.base, 10)}
	}
	_, refused, err = b.writeRecords(ctx, messages)
	return refused, err
}

// readLate reads the records of leases that somebody else has written since. It returns those
// that have to be written again, and what they become.
func (b *Bus) readLate(ctx context.Context, leases []*lease) (again []*lease, records []record, err error) {
	ctx, end := b.forRecords(ctx, len(leases))
	defer func() { end(err) }()
	there := make([]record, len(leases))
	write, failed := make([]bool, len(leases)), make([]error, len(leases))
	besides(len(leases), func(i int) { there[i], write[i], failed[i] = b.readLateOf(ctx, leases[i]) })
	for i, l := range leases {
		if write[i] {
			again, records = append(again, l), append(records, there[i])
		}
	}
	return again, records, errors.Join(failed...)
}

// readLateOf need not have the record written where the other one has counted the attempt, or
// where it is of another event.
func (b *Bus) readLateOf(ctx context.Context, l *lease) (r record, write bool, err error) {
	entry, marker, err := b.keyGetMarker(ctx, attemptsBucket, l.attemptKey())
	if err != nil {
		return record{}, false, err
	}
	l.base = max(entry.Revision, marker)
	if there, ok := parseRecord(entry.Value); entry.Revision > 0 && ok && there.Stored >= l.stored {
		r, write = there.ranOut(l, time.Now())
		return r, write && there.Stored == l.stored, nil
	}
	r, write = (&record{}).ranOut(l, time.Now())
	return r, write, nil
}

// ranOut is the record with an attempt that ended with its lease. It is the same where it counts
// that one already, as who comes next does with one that was started alone.
func (r *record) ranOut(l *lease, now time.Time) (out record, changed bool) {
	out = *r
	alone := l.record.Started == l.deliveries
	if alone && r != l.record && r.Known >= l.deliveries {
		return out, false
	}
	out.fail(jetbus.ErrLeaseExpired, now)
	out.Known, out.Stored = max(r.Known, l.deliveries), l.stored
	if r.Started <= l.deliveries {
		out.Started = 0
	}
	return out, true
}
