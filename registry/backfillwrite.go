package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/seed-63e9a637/jetbus"
)

// write stores items in their order. What a run before this one stored counts as
// written.
func (f *backfill) write(ctx context.Context, items []item) error {
	if f.compact {
		return f.writeState(ctx, items)
	}
	left := items[:0:0]
	for _, i := range items {
		if f.stored[i.seq] {
			f.rec.Stats.Written++
			continue
		}
		left = append(left, i)
	}
	if f.DryRun {
		f.rec.Stats.Written += len(left)
		return nil
	}
	return f.writeLog(ctx, left)
}

// writeLog appends items to a log: all of them or none, where the broker can do
// that, so that a run which ends here leaves no gaps.
func (f *backfill) writeLog(ctx context.Context, items []item) error {
	for try := 0; len(items) > 0; try++ {
		receipts, err := f.publish(ctx, items)
		switch {
		case err == nil:
			f.written(receipts)
			return nil
		case errors.Is(err, jetbus.ErrPayloadTooLarge): // of one of them; nothing was sent
			return f.writeSingly(ctx, items)
		case !errors.Is(err, jetbus.ErrConflict) || try > 0:
			return err
		}
		// Something of it is stored already: a run before this one was still sending when
		// this one looked.
		if err := f.findStored(ctx); err != nil {
			return err
		}
		left := slices.DeleteFunc(slices.Clone(items), func(i item) bool { return f.stored[i.seq] })
		if len(left) == len(items) {
			return err
		}
		f.rec.Stats.Written += len(items) - len(left)
		items = left
	}
	return nil
}

func (f *backfill) publish(ctx context.Context, items []item) ([]jetbus.Receipt, error) {
	events := make([]jetbus.Event, len(items))
	for i := range items {
		events[i] = items[i].event
	}
	if !f.pipelined {
		receipts, err := f.b.PublishBatch(ctx, events, jetbus.BatchOptions{Atomic: true})
		if !errors.Is(err, jetbus.ErrUnsupported) {
			return receipts, err
		}
		f.pipelined = true
	}
	return f.b.PublishBatch(ctx, events, jetbus.BatchOptions{})
}

// written counts what was stored.
func (f *backfill) written(receipts []jetbus.Receipt) {
	f.rec.Stats.Written += len(receipts)
	for _, r := range receipts {
		f.rec.Target = max(f.rec.Target, r.Event.Seq)
	}
}

// writeSingly stores items one by one, and finds those that are too large.
func (f *backfill) writeSingly(ctx context.Context, items []item) error {
	for _, i := range items {
		receipts, err := f.publish(ctx, []item{i})
		switch {
		case err == nil:
			f.written(receipts)
		case errors.Is(err, jetbus.ErrPayloadTooLarge):
			f.problem(i.seq, i.event.CausedBy[0], err)
		default:
			return err
		}
	}
	return nil
}

// findStored finds what this backfill stored in To without having noted it.
func (f *backfill) findStored(ctx context.Context) error {
	f.stored = map[uint64]bool{}
	from := jetbus.Earliest()
	if f.rec.Target > 0 {
		from = jetbus.AfterSeq(f.rec.Target)
	}
	for e, err := range f.b.Scan(ctx, f.To, jetbus.ScanQuery{From: from}) {
		if err != nil {
			return fmt.Errorf("look for what is stored: %w", err)
		}
		if seq, mine, ok := f.origin(&e); ok && mine && seq > f.rec.Stats.Seq {
			f.stored[seq] = true
		}
	}
	return nil
}
