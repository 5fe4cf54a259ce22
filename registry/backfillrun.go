package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/registry/schema"
)

// backfill is one run.
type backfill struct {
	BackfillOptions

	b          jetbus.Backend
	r          *Registry
	n          *Normalizer
	own        target // the schema of To
	compact    bool   // To is compacted
	keepsState bool   // tombstones delete something in To
	tag        string // of what this backfill writes
	resumed    bool
	pipelined  bool // the broker has no atomic batches

	rec      backfillRecord
	revision uint64
	stored   map[uint64]bool // positions of From behind rec.Stats.Seq that To has already
	due      time.Time       // when Rate lets the next batch begin
}

// item is an event that is to be written.
type item struct {
	seq   uint64 // in From
	event jetbus.Event
}

func (f *backfill) run(ctx context.Context) error {
	if err := f.begin(ctx); err != nil {
		return err
	}
	if f.rec.Stats.Finished {
		return nil
	}
	o := NormalizedOptions{Upcasters: f.Upcasters}
	if f.rec.Version > 0 {
		o.Versions = map[string]int{f.From: f.rec.Version}
	}
	f.n = NewNormalizer(f.r, o)
	if f.rec.ToVersion > 0 {
		var err error
		if f.own, err = wanted(ctx, f.r, f.To, f.rec.ToVersion); err != nil {
			return err
		}
	}
	if f.resumed && !f.compact {
		if err := f.findStored(ctx); err != nil {
			return err
		}
	}
	for read := 0; f.Limit == 0 || read < f.Limit; {
		batch, more, err := f.next(ctx, read)
		if err != nil {
			return err
		}
		if err := f.step(ctx, batch, !more); err != nil {
			return err
		}
		if f.Progress != nil {
			f.Progress(f.Stats())
		}
		if !more {
			break
		}
		read += len(batch)
	}
	return nil
}

// Stats returns a copy that stays as it is.
func (f *backfill) Stats() BackfillStats {
	s := f.rec.Stats
	s.Problems = append([]BackfillProblem(nil), s.Problems...)
	return s
}

// next reads the next events of From; more: there may be others behind them.
func (f *backfill) next(ctx context.Context, read int) (batch []jetbus.Event, more bool, err error) {
	most := f.BatchSize
	if f.Limit > 0 {
		most = min(most, f.Limit-read)
	}
	if f.Rate > 0 {
		most = max(min(most, int(f.Rate)), 1)
		if err := f.pause(ctx); err != nil {
			return nil, false, err
		}
	}
	if f.rec.Stats.Seq >= f.rec.Stats.Last {
		return nil, false, nil
	}
	from := jetbus.Earliest()
	if f.rec.Stats.Seq > 0 {
		from = jetbus.AfterSeq(f.rec.Stats.Seq)
	}
	size := 0
	for e, err := range f.b.Scan(ctx, f.From, jetbus.ScanQuery{From: from, Limit: most}) {
		if err != nil {
			return nil, false, err
		}
		if e.Seq > f.rec.Stats.Last {
			break
		}
		batch = append(batch, e)
		if size += len(e.Payload); size >= maxBackfillBytes || e.Seq == f.rec.Stats.Last {
			break
		}
	}
	if f.Rate > 0 {
		f.due = f.due.Add(time.Duration(float64(len(batch)) / f.Rate * float64(time.Second)))
	}
	more = len(batch) > 0 && batch[len(batch)-1].Seq < f.rec.Stats.Last
	return batch, more, nil
}

// pause waits until the next batch may begin.
func (f *backfill) pause(ctx context.Context) error {
	now := time.Now()
	if f.due.Before(now) {
		f.due = now
	}
	timer := time.NewTimer(f.due.Sub(now))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// step writes a batch and notes that.
func (f *backfill) step(ctx context.Context, batch []jetbus.Event, last bool) error {
	before, target := f.Stats(), f.rec.Target
	var items []item
	for _, e := range batch {
		out, ok, err := f.prepare(ctx, e)
		if err != nil {
			f.rec.Stats = before
			return fmt.Errorf("event %s at %d: %w", e.ID, e.Seq, err)
		}
		if ok {
			items = append(items, item{e.Seq, out})
		}
	}
	err := f.write(ctx, items)
	if err != nil {
		f.rec.Stats = before
		return err
	}
	s := &f.rec.Stats
	s.Read += len(batch)
	if len(batch) > 0 {
		f.rec.Source = jetbus.CheckpointOf(&batch[len(batch)-1])
		s.Seq = f.rec.Source.Seq
	}
	if last {
		s.Seq, s.Finished = max(s.Seq, s.Last), true
	}
	maps.DeleteFunc(f.stored, func(seq uint64, _ bool) bool { return seq <= s.Seq })
	if len(f.stored) > 0 { // they are before what was written now, and are to be found again
		f.rec.Target = target
	}
	if err := f.save(ctx); err != nil {
		f.rec.Stats = before
		return err
	}
	return nil
}

// prepare makes the event that is written for one of From; not ok: none is.
func (f *backfill) prepare(ctx context.Context, e jetbus.Event) (out jetbus.Event, ok bool, err error) {
	out = e
	if f.rec.Version > 0 { // else it had no schema when this began, and what came since is not for it
		out, err = f.n.Normalize(ctx, e)
	}
	if err == nil {
		out, err = f.adopt(out)
	}
	switch d := jetbus.DispositionOf(err); {
	case err == nil:
		return out, true, nil
	case ctx.Err() != nil:
		return out, false, err
	case d.Action == jetbus.ActionAck:
		f.rec.Stats.Dropped++
		return out, false, nil
	case d.Action == jetbus.ActionReject, errors.Is(err, jetbus.ErrSchema), errors.Is(err, ErrNewer), isInvalid(err):
		f.problem(e.Seq, e.ID, err)
		return out, false, nil
	}
	return out, false, err // it may go better another time
}

func isInvalid(err error) bool {
	return errors.Is(err, jetbus.ErrInvalidEvent) || errors.Is(err, jetbus.ErrInvalidHeader) || errors.Is(err, jetbus.ErrPayloadTooLarge)
}

// problem counts an invalid event.
func (f *backfill) problem(seq uint64, id string, err error) {
	f.rec.Stats.Invalid++
	if len(f.rec.Stats.Problems) < maxBackfillProblems {
		f.rec.Stats.Problems = append(f.rec.Stats.Problems, BackfillProblem{Seq: seq, ID: id, Err: cutTo(err.Error(), 500)})
	}
}

// adopt makes an event one of To.
func (f *backfill) adopt(e jetbus.Event) (jetbus.Event, error) {
	if n, err := statedVersion(&e); err == nil && n > 0 {
		stamp(&e, n) // else it would be taken for a version of To's schema
	}
	id := e.ID
	e.Topic, e.ID, e.Partition = f.To, f.eventID(e.Seq), jetbus.NoPartition
	headers := make(map[string]string, len(e.Headers)+4)
	maps.Copy(headers, e.Headers)
	headers[HeaderBackfillOf], headers[HeaderBackfill] = f.place(e.Seq), f.tag
	if e.IsTombstone() && f.keepsState {
		headers[jetbus.HeaderTombstone] = "1"
	} else {
		delete(headers, jetbus.HeaderTombstone) // it would be refused where it deletes nothing
	}
	e.Headers = headers
	causes := e.CausedBy
	e.CausedBy = append([]string{id}, causes...)
	e.Seq = 0
	if f.compact && e.Key == "" {
		return e, fmt.Errorf("%w: it has no key, and the target is compacted", jetbus.ErrInvalidEvent)
	}
	if f.own.schema != nil && !isUnjudged(&e) {
		if err := judgeable(&e, f.own.version); err != nil {
			return e, err
		}
		if err := f.own.schema.ValidateWritten(e.Payload, f.own.settings.Model, schema.MaxWork); err != nil {
			return e, judgment(f.To, f.own.version, err)
		}
		stamp(&e, f.own.version)
	}
	if err := e.Validate(); err == nil {
		return e, nil
	}
	e.CausedBy = []string{id} // the list was full
	return e, e.Validate()
}
