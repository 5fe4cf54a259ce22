package registry

import (
	"context"
	"errors"
	"fmt"

	"github.com/seed-63e9a637/jetbus"
)

// maxAtomicPairs is how many events, each of them twice, are one atomic batch: the
// server takes 1,000 messages.
const maxAtomicPairs = 400

// pairs is a batch in which events stand twice.
type pairs struct {
	events []jetbus.Event          // of the caller, completed
	all    []jetbus.Event          // as they are sent
	each   []jetbus.PublishOptions // of all
	own    []int                   // the index in all of each event
	other  []int                   // that of its twin, -1 where it has none
}

// PublishBatch implements jetbus.Batcher. Each event is beside its twin in the
// batch. With DualWriteOptions.Atomic each pair is stored or none of it, and so are
// some hundred pairs of one topic at a time.
func (b *dualWrite) PublishBatch(ctx context.Context, events []jetbus.Event, o jetbus.BatchOptions) ([]jetbus.Receipt, error) {
	if err := o.Validate(len(events)); err != nil {
		return nil, fmt.Errorf("publish batch: %w", err)
	}
	atomic := o.Atomic || b.o.Atomic
	p := pairs{events: make([]jetbus.Event, len(events))}
	for i, e := range events {
		other, twice, err := b.twin(ctx, &e)
		asked := o.Of(i)
		if err == nil && twice {
			if err = e.Validate(); err == nil && !atomic {
				err = expectsBoth(e, other, asked)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("publish batch: event %d: %w", i, err)
		}
		p.add(i, e, other, asked, twice, atomic)
	}
	if len(p.all) == len(p.events) { // none stands twice
		return b.Backend.PublishBatch(ctx, p.events, o)
	}
	if o.ExpectLastSeq != nil || len(o.Each) > 0 {
		o.ExpectLastSeq, o.Each = nil, p.each
	}
	if o.Chain != nil { // is of one topic, and these are two: it says so
		return b.Backend.PublishBatch(ctx, p.all, o)
	}
	if b.o.Atomic && !o.Atomic {
		return b.publishRuns(ctx, &p, o)
	}
	receipts, err := b.Backend.PublishBatch(ctx, p.all, o)
	return p.fold(receipts, err)
}

// add adds an event. Of an atomic pair the caller's goes first; else the twin does.
func (p *pairs) add(i int, e, other jetbus.Event, asked jetbus.PublishOptions, twice, atomic bool) {
	p.events[i] = e
	n := len(p.all)
	twin := jetbus.PublishOptions{TTL: asked.TTL} // what the caller expects is not about its topic
	switch {
	case !twice:
		p.all, p.each = append(p.all, e), append(p.each, asked)
		p.own, p.other = append(p.own, n), append(p.other, -1)
	case atomic:
		p.all, p.each = append(p.all, e, other), append(p.each, asked, twin)
		p.own, p.other = append(p.own, n), append(p.other, n+1)
	default:
		p.all, p.each = append(p.all, other, e), append(p.each, twin, asked)
		p.own, p.other = append(p.own, n+1), append(p.other, n)
	}
}

// fold makes the receipts and the error of the caller's events from those of all.
func (p *pairs) fold(receipts []jetbus.Receipt, err error) ([]jetbus.Receipt, error) {
	failed, sent := errors.AsType[*jetbus.BatchError](err)
	if err != nil && !sent {
		return nil, err
	}
	why := map[int]*jetbus.PublishError{} // by the index in all
	if sent {
		next := 0
		for i := range p.all {
			if (receipts == nil || receipts[i].Event.Seq == 0) && next < len(failed.Failed) {
				why[i] = failed.Failed[next]
				next++
			}
		}
	}
	out := make([]jetbus.Receipt, len(p.events))
	broken := &jetbus.BatchError{Total: len(p.events)}
	for i := range p.events {
		own, other := why[p.own[i]], (*jetbus.PublishError)(nil)
		if p.other[i] >= 0 {
			other = why[p.other[i]]
		}
		if receipts != nil {
			out[i] = receipts[p.own[i]]
		} else {
			out[i].Event = p.events[i]
		}
		if own == nil && other == nil {
			continue
		}
		out[i].Event.Seq = 0
		broken.Failed = append(broken.Failed, p.failure(i, own, other))
	}
	if len(broken.Failed) > 0 {
		return out, broken
	}
	return out, err
}

// failure is the error of event i: own that of its own topic, other that of its twin.
func (p *pairs) failure(i int, own, other *jetbus.PublishError) *jetbus.PublishError {
	e := p.events[i]
	if p.other[i] < 0 {
		return own
	}
	twin := p.all[p.other[i]].Topic
	var err error
	switch {
	case own != nil && other != nil:
		if own.Stored == jetbus.StoredUnknown { // then that is what is to be known
			other = own
		}
		err = halfStored(e, "", other.Event.Topic, other)
	case own != nil:
		err = halfStored(e, twin, e.Topic, own)
	default:
		err = halfStored(e, e.Topic, twin, other)
	}
	out, _ := errors.AsType[*jetbus.PublishError](err) // halfStored makes one of one
	return out
}

// publishRuns publishes all as one atomic batch, and where they are too many or of
// several streams, runs of events of one topic, each run atomically. After the first
// failure nothing more is sent. The first try sees to it that all events are valid.
func (b *dualWrite) publishRuns(ctx context.Context, p *pairs, o jetbus.BatchOptions) ([]jetbus.Receipt, error) {
	receipts, err := b.Backend.PublishBatch(ctx, p.all, jetbus.BatchOptions{Atomic: true, Each: o.Each})
	if !errors.Is(err, jetbus.ErrConflict) && !errors.Is(err, jetbus.ErrBatchTooLarge) {
		return p.fold(receipts, err)
	}
	var out []jetbus.Receipt
	for begin := 0; begin < len(p.events); {
		end := begin + 1
		for end < len(p.events) && end-begin < maxAtomicPairs && p.events[end].Topic == p.events[begin].Topic && p.other[begin] >= 0 && p.other[end] >= 0 {
			end++
		}
		receipts, err := b.publishRun(ctx, p, begin, end, o)
		out = append(out, receipts...)
		_, sent := errors.AsType[*jetbus.BatchError](err)
		switch {
		case err != nil && begin == 0 && !sent:
			return nil, err // nothing was sent
		case err != nil:
			return p.giveUp(out, err, end)
		}
		begin = end
	}
	return out, nil
}

// publishRun publishes the events from begin to end. A run that is refused since
// something in it is stored already is published pair by pair.
func (b *dualWrite) publishRun(ctx context.Context, p *pairs, begin, end int, o jetbus.BatchOptions) ([]jetbus.Receipt, error) {
	run := pairs{events: make([]jetbus.Event, end-begin)}
	for i := begin; i < end; i++ {
		twice := p.other[i] >= 0
		var other jetbus.Event
		if twice {
			other = p.all[p.other[i]]
		}
		run.add(i-begin, p.events[i], other, p.each[p.own[i]], twice, true)
	}
	if len(o.Each) > 0 {
		o.Each = run.each
	}
	if p.other[begin] < 0 {
		return b.Backend.PublishBatch(ctx, run.events, o)
	}
	receipts, err := b.Backend.PublishBatch(ctx, run.all, jetbus.BatchOptions{Atomic: true, Each: o.Each})
	if _, sent := errors.AsType[*jetbus.BatchError](err); !sent || !errors.Is(err, jetbus.ErrConflict) {
		return run.fold(receipts, err)
	}
	out := make([]jetbus.Receipt, len(run.events))
	for i, e := range run.events {
		if out[i], err = b.publishAtomic(ctx, e, run.all[run.other[i]], run.each[run.own[i]:run.own[i]+1]); err != nil {
			out[i] = jetbus.Receipt{Event: e}
			return run.giveUp(out[:i+1], failedAt(e, err), i+1)
		}
	}
	return out, nil
}

// failedAt is the batch error of one event.
func failedAt(e jetbus.Event, err error) error {
	p, ok := errors.AsType[*jetbus.PublishError](err)
	if !ok {
		p = &jetbus.PublishError{Event: e, Err: err}
	}
	return &jetbus.BatchError{Failed: []*jetbus.PublishError{p}, Total: 1}
}

// errNotTried: an event behind the one that failed.
var errNotTried = errors.New("an event before it in the batch failed")

// giveUp completes receipts and error of a batch of which nothing was sent from
// event at on.
func (p *pairs) giveUp(out []jetbus.Receipt, err error, at int) ([]jetbus.Receipt, error) {
	whole := &jetbus.BatchError{Total: len(p.events)}
	if failed, ok := errors.AsType[*jetbus.BatchError](err); ok {
		whole.Failed = append(whole.Failed, failed.Failed...)
	} else {
		for _, e := range p.events[len(out):at] {
			whole.Failed = append(whole.Failed, &jetbus.PublishError{Event: e, Err: err})
		}
	}
	for _, e := range p.events[len(out):at] {
		out = append(out, jetbus.Receipt{Event: e})
	}
	for _, e := range p.events[at:] {
		out = append(out, jetbus.Receipt{Event: e})
		whole.Failed = append(whole.Failed, &jetbus.PublishError{Event: e, Err: errNotTried})
	}
	for i := range out {
		if i >= at {
			out[i].Event.Seq = 0
		}
	}
	return out, whole
}
