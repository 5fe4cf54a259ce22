package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// PublishBatch implements [jetbus.Batcher]. One that is atomic or chained must fit into one
// frame of the gateway, else it is [jetbus.ErrUnsupported]. An atomic one is not sent again when the
// connection breaks before the answer, or that says that it may be stored, but is an error with
// [jetbus.StoredUnknown].
func (c *Client) PublishBatch(ctx context.Context, events []jetbus.Event, o jetbus.BatchOptions) ([]jetbus.Receipt, error) {
	b := &batch{c: c, o: o, receipts: make([]jetbus.Receipt, len(events))}
	err := b.prepare(events)
	if err == nil && len(events) > 0 {
		err = b.publish(ctx)
	}
	if err != nil {
		return b.receipts, fmt.Errorf("publish batch: %w", err)
	}
	return b.receipts, nil
}

// batch is one PublishBatch.
type batch struct {
	c        *Client
	l        *link
	o        jetbus.BatchOptions
	receipts []jetbus.Receipt
	items    []frame.PublishItem
	fresh    []bool // its id was made up here
	sizes    []int
	unknown  int // the events up to there that have no receipt may be stored all the same
}

// prepare checks all events before the first is sent.
func (b *batch) prepare(events []jetbus.Event) error {
	if err := b.o.Validate(len(events)); err != nil {
		return err
	}
	var err error
	if b.l, err = b.c.main(); err != nil {
		return err
	}
	most := b.l.allowed().MaxMessage
	for i, e := range events {
		if err := e.Validate(); err != nil {
			return fmt.Errorf("event %d: %w", i, err)
		}
		fresh := e.ID == ""
		e = b.c.complete(e)
		item, err := itemOf(e, b.o.Of(i))
		if err != nil {
			return fmt.Errorf("event %d: %w", i, err)
		}
		size := len(item.Payload) + len(item.Opts) + len(item.Topic) + 64
		if item.PayloadBase64 != nil {
			size += len(*item.PayloadBase64)
		}
		if most > 0 && size > most {
			return fmt.Errorf("event %d: %w: the gateway takes frames of %d bytes (Limits.FrameBytes)", i, jetbus.ErrPayloadTooLarge, most)
		}
		b.receipts[i].Event = e
		b.items, b.fresh, b.sizes = append(b.items, item), append(b.fresh, fresh), append(b.sizes, size)
	}
	return b.whole()
}

// whole reports a batch that does not fit into a frame and cannot be taken apart: of a chain that is
// stored already the bus must see the end.
func (b *batch) whole() error {
	if n := b.fits(0); (b.o.Atomic || b.o.Chain != nil) && n < len(b.items) {
		return fmt.Errorf("%w: an atomic or chained batch is one frame of the gateway, into which %d of the %d events fit (Limits.BatchEvents, FrameBytes)", jetbus.ErrUnsupported, n, len(b.items))
	}
	return nil
}

// request is the frame of n events.
func (b *batch) request(from, n int) *frame.Request {
	req := &frame.Request{Op: frame.PublishBatch, Events: b.items[from : from+n], Atomic: b.o.Atomic, Chain: b.o.Chain}
	if req.Chain != nil && from > 0 {
		before := &b.receipts[from-1].Event
		req.Chain = &jetbus.Chain{AfterID: before.ID, AfterSeq: before.Seq}
	}
	return req
}

// fits is how many events from one on fit into a frame.
func (b *batch) fits(from int) int {
	l := b.l.allowed()
	n, bytes := 0, 256+ageBytes
	for _, size := range b.sizes[from:] {
		bytes += size
		if n > 0 && (l.MaxMessage > 0 && bytes > l.MaxMessage || l.MaxBatch > 0 && n == l.MaxBatch) {
			break
		}
		n++
	}
	return n
}

// publish sends one frame after the other, until one has an event that fails.
func (b *batch) publish(ctx context.Context) error {
	ctx, cancel := b.c.bound(ctx)
	defer cancel()
	if err := b.c.enter(ctx); err != nil {
		return b.failed(0, err)
	}
	defer b.c.exit()
	wait := retryWait
	var t tries // of what comes next
	for next := 0; next < len(b.items); {
		if err := b.whole(); err != nil { // it is another gateway, after a connection that broke
			return b.failed(0, err)
		}
		n := b.fits(next)
		m, wrote, err := b.l.try(ctx, b.request(next, n), b.o.Atomic, &t)
		if t.stored() == jetbus.StoredUnknown { // by a frame before, of whose answer nothing is known
			b.unknown = max(b.unknown, next+n)
		}
		switch {
		case err == nil:
			var done int
			if done, err = b.take(next, n, m); done > 0 {
				wait = retryWait
			}
			next += done
		case wrote && storedBy(err) == jetbus.StoredUnknown:
			b.unknown = max(b.unknown, next+n)
		}
		if b.unknown > next {
			t.failed(jetbus.StoredUnknown)
		} else {
			t = tries{}
		}
		if err == nil {
			continue
		}
		again := passes(err) || !wrote && errors.Is(err, errBroken)
		if b.o.Atomic && b.unknown > 0 { // what is stored already would be refused, and told as not stored
			again = false
		}
		if again && sleep(ctx, max(wait, retryAfter(err))) == nil { // what was stored is told as a duplicate
			wait = min(2*wait, maxRetryWait)
			continue
		}
		return b.failed(next, err)
	}
	return nil
}

// take takes the results of a frame: how many events of its beginning are stored, and what is
// wrong with the next one.
func (b *batch) take(from, n int, m *frame.Message) (done int, err error) {
	for i := range n {
		if i >= len(m.Results) {
			b.unknown = max(b.unknown, from+n)
			return done, fmt.Errorf("%w: the gateway's answer has %d results for %d events", jetbus.ErrUnavailable, len(m.Results), n)
		}
		r := &m.Results[i]
		if r.Code == "" {
			to := &b.receipts[from+i]
			fill(&to.Event, r.ID, r.SID, r.TS, r.Partition, r.Seq)
			to.Duplicate = r.Duplicate && !b.fresh[from+i]
			if done == i {
				done++
			}
			continue
		}
		if r.Stored != jetbus.StoredNo.String() {
			b.unknown = max(b.unknown, from+i+1)
		}
		if err == nil {
			err = refusal(&frame.Message{Code: r.Code, Msg: r.Msg, Retryable: r.Retryable, Details: r.Details})
		}
	}
	return done, err
}

// failed is the error for what has no receipt.
func (b *batch) failed(from int, err error) error {
	out := &jetbus.BatchError{Total: len(b.items)}
	for i := from; i < len(b.receipts); i++ {
		if e := b.receipts[i].Event; e.Seq == 0 {
			stored := jetbus.StoredNo
			if i < b.unknown {
				stored = jetbus.StoredUnknown
			}
			out.Failed = append(out.Failed, &jetbus.PublishError{Event: e, Stored: stored, Err: err})
		}
	}
	return out
}
