package adapter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter/ce"
)

// Bounds of what a pipelined batch has on its way.
const (
	batchWindow = 4096
	batchBytes  = 16 << 20

	timePerEvent = time.Millisecond // on top of Config.Timeout: more than a synced write takes
)

// PublishBatch implements jetbus.Batcher.
func (b *Bus) PublishBatch(ctx context.Context, events []jetbus.Event, o jetbus.BatchOptions) ([]jetbus.Receipt, error) {
	began := time.Now()
	receipts, err := b.publishBatch(ctx, events, o, began)
	if err != nil {
		err = fmt.Errorf("publish batch: %w", err)
	}
	if b.cfg.Observer != nil {
		b.observeBatch(events, receipts, time.Since(began), err)
	}
	return receipts, err
}

// observeBatch reports a batch as one observation for each topic and schema version.
func (b *Bus) observeBatch(events []jetbus.Event, receipts []jetbus.Receipt, took time.Duration, err error) {
	type stated struct{ topic, version string }
	counts := map[stated]int{}
	for i, e := range events {
		if len(receipts) > i && receipts[i].Event.Seq > 0 {
			counts[stated{e.Topic, e.Headers[jetbus.HeaderSchemaVersion]}]++
		}
	}
	for s, n := range counts {
		b.cfg.Observer(jetbus.Observation{Kind: jetbus.Published, Topic: s.topic, Version: s.version, Count: n, Duration: took})
	}
	if err != nil && len(events) > 0 {
		b.cfg.Observer(jetbus.Observation{Kind: jetbus.PublishFail, Topic: events[0].Topic, Count: len(events), Duration: took, Err: err})
	}
}

func (b *Bus) publishBatch(ctx context.Context, events []jetbus.Event, o jetbus.BatchOptions, now time.Time) ([]jetbus.Receipt, error) {
	if err := b.enter(ctx); err != nil {
		return nil, err
	}
	defer b.calls.end()
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, b.cfg.Timeout+time.Duration(len(events))*timePerEvent)
		defer cancel()
	}
	if err := o.Validate(len(events)); err != nil {
		return nil, err
	}
	if len(events) == 0 {
		return nil, nil
	}
	batch := &batch{b: b, o: o, given: events, receipts: make([]jetbus.Receipt, len(events)), to: make([]destination, len(events))}
	err := batch.prepare(ctx, events, now)
	if b.lookAgain(ctx, err, events...) {
		err = batch.prepare(ctx, events, now)
	}
	if err != nil {
		return nil, err
	}
	switch {
	case o.Atomic:
		return batch.storeAtomic(ctx)
	case o.Chain != nil:
		return batch.storeChained(ctx, *o.Chain)
	}
	return batch.storePipelined(ctx)
}

// batch is the state of one PublishBatch.
type batch struct {
	b        *Bus
	o        jetbus.BatchOptions
	given    []jetbus.Event // by the caller
	receipts []jetbus.Receipt
	to       []destination
	jumper   int    // see send; -1: none
	moved    bool   // the topic of some has begun a generation of partitions: the next round need not wait
	chain    *chain // nil: the events stand for themselves

	sent []time.Time // per event: when the first try of it was that may have been stored; nil: sending again does no harm

	mu       sync.Mutex
	errs     []error // per event: why it is not acknowledged
	settled  bool    // some were refused and are stored: the next round need not wait
	open     int     // sent and not answered
	bytes    int     // of their payloads
	answered int
	stopped  bool          // an answer was a failure: nothing more is sent
	over     bool          // the caller has been told how it ended
	waiting  bool          // in await, for the bounds below
	maxOpen  int           // of open
	maxBytes int           // of bytes
	room     chan struct{} // signaled when they are kept; capacity 1
}

// prepare completes the events and checks that they can be stored as the options ask.
func (p *batch) prepare(ctx context.Context, events []jetbus.Event, now time.Time) error {
	if err := p.complete(ctx, events, now); err != nil {
		return err
	}
	switch {
	case p.o.Atomic:
		return p.checkAtomic()
	case p.o.Chain != nil:
		return p.checkChain(ctx)
	}
	return nil
}

// complete checks all events and fills in what they do not say.
func (p *batch) complete(ctx context.Context, events []jetbus.Event, now time.Time) error {
	limit := p.b.nc.MaxPayload()
	var last destination
	for i := range events {
		e := &p.receipts[i].Event
		*e = events[i]
		to, err := p.b.complete(ctx, e, now, last, true)
		if err == nil {
			p.to[i], last = to, to
			if p.o.Of(i) != (jetbus.PublishOptions{}) || !surelyFits(e, limit) {
				var m *nats.Msg
				if m, err = p.message(i); err == nil {
					err = p.b.eventFits(m)
				}
			}
		}
		if err != nil {
			if jetbus.ValidTopic(e.Topic) == nil { // else that is what is wrong
				err = ofTopic(e.Topic, err)
			}
			return fmt.Errorf("event %d: %w", i, err)
		}
	}
	return nil
}

// message makes the message that stores event i.
func (p *batch) message(i int) (*nats.Msg, error) {
	e := &p.receipts[i].Event
	m := &nats.Msg{Subject: p.to[i].subject, Header: ce.Encode(e), Data: e.Payload}
	return m, p.b.instruct(&p.to[i], m, e, p.o.Of(i), time.Time{})
}

// errNoAnswer and errNotSent are the state of an event until it is answered.
var (
	errNoAnswer = errors.New("no answer")
	errNotSent  = errors.New("not sent: an event before it failed")
)

// storePipelined sends all events in order, in rounds: what could not be taken
// for the moment is sent again, unless that would put it behind a later event
// of its key.
func (p *batch) storePipelined(ctx context.Context) ([]jetbus.Receipt, error) {
	p.room, p.jumper = make(chan struct{}, 1), -1
	p.errs = make([]error, len(p.receipts))
	todo := make([]int, len(p.receipts))
	for i := range todo {
		todo[i], p.errs[i] = i, errNotSent
	}
	retried := make([]bool, len(todo)) // may have been stored in an earlier round
	defer p.tellDuplicates(ctx, retried)
	p.sent = make([]time.Time, len(todo))
	for wait := publishRetry; ; wait = min(2*wait, publishRetryMax) {
		err := p.round(ctx, todo, retried)
		var failed error
		if todo, failed = p.remaining(ctx, todo, retried); len(todo) == 0 && failed == nil {
			return p.receipts, nil
		}
		if failed == nil && p.jumper >= 0 {
			failed = p.jumped(ctx, todo)
		}
		if failed != nil {
			err = failed
		}
		if failed != nil || ctx.Err() != nil || errors.Is(err, jetbus.ErrClosed) || errors.Is(err, errForgotten) {
			return p.receipts, p.failure(err, retried)
		}
		if p.moved || p.settled {
			p.moved, p.settled, wait = false, false, publishRetry/2
			continue
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// round sends events until one fails, and waits for all answers. The server
// works on the first ones while later ones are encoded, all in the same memory:
// a message is bytes in the connection's buffer when PublishMsg returns.
func (p *batch) round(ctx context.Context, todo []int, retried []bool) error {
	lost, err := p.b.link.Wait(ctx)
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.stopped, p.open, p.bytes = false, 0, 0
	p.mu.Unlock()
	reply, forget := p.b.replies.expectBatch(func(i int, m *nats.Msg) { p.answer(i, m) })
	defer forget()
	var m nats.Msg
	var header ce.Writer
	var late error
	for _, i := range todo {
		if late = p.again(i, retried[i]); late != nil {
			break // what is on its way is answered all the same
		}
		e := &p.receipts[i].Event
		p.unlink(m.Header)
		m.Subject, m.Header, m.Data = p.to[i].subject, header.Next(e), e.Payload
		if late = p.b.instruct(&p.to[i], &m, e, p.o.Of(i), time.Time{}); late != nil {
			p.mu.Lock()
			p.errs[i] = unsentError{late} // where the event has moved to, it cannot be done
			p.mu.Unlock()
			break
		}
		p.link(i, i == todo[0], m.Header)
		m.Reply = reply + strconv.FormatInt(int64(i), 36)
		admitted, stopped := p.admit(i)
		for !admitted && !stopped {
			if err := p.await(ctx, lost, batchWindow*3/4, batchBytes*3/4); err != nil {
				return err
			}
			admitted, stopped = p.admit(i)
		}
		if stopped {
			break
		}
		if err := p.send(ctx, i, &m, lost); err != nil {
			return err
		}
		if !p.to[i].topic.isHeard() { // what nobody hears must not be followed by what somebody does
			if err := p.await(ctx, lost, 0, 0); err != nil {
				return err
			}
		}
	}
	return errors.Join(p.await(ctx, lost, 0, 0), late)
}

// again refuses to send event i once more when the server may have forgotten an earlier
// try. Else it notes when the first one is sent that may be stored.
func (p *batch) again(i int, retried bool) error {
	switch {
	case p.sent == nil:
	case !retried:
		p.sent[i] = time.Now()
	case isForgotten(p.sent[i], p.to[i].topic.config.DuplicateWindow):
		return errForgotten
	}
	return nil
}

// admit counts event i as on its way, if there is room for it and no answer was
// a failure.
func (p *batch) admit(i int) (admitted, stopped bool) {
	size := len(p.receipts[i].Event.Payload)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped || p.open >= batchWindow || p.open > 0 && p.bytes+size > batchBytes {
		return false, p.stopped
	}
	p.open++
	p.bytes += size
	p.errs[i] = errNoAnswer
	return true, false
}

// send hands event i to the connection. nats.go keeps what it is given while it
// reconnects and sends it first thing afterwards, ahead of what got lost before:
// an event to which that may have happened is noted as the jumper.
func (p *batch) send(ctx context.Context, i int, m *nats.Msg, lost <-chan struct{}) error {
	if isClosed(lost) || !p.b.nc.IsConnected() { // once more: what follows is the whole window
		p.mu.Lock()
		p.errs[i] = errNotSent
		p.mu.Unlock()
		return errLost
	}
	err := p.b.send(ctx, m, lost)
	switch {
	case err == nil && !p.b.nc.IsConnected():
		p.jumper = i
		return errLost
	case err != nil && !errors.Is(err, errLost):
		p.mu.Lock()
		p.errs[i] = unsentError{err}
		p.mu.Unlock()
	}
	return err
}

// jumped reports that an event was stored, or may have been, ahead of one of its
// key, which must therefore not be sent again.
func (p *batch) jumped(ctx context.Context, todo []int) error {
	jumper := p.jumper
	p.jumper = -1
	at := slices.Index(todo, jumper)
	if at < 0 {
		return nil
	}
	e := &p.receipts[jumper].Event
	before, ok := p.lastOfKey(todo[:at], e)
	if !ok || p.isStored(ctx, before) { // then those before it are, too
		return nil
	}
	seq, found, err := p.b.dedupeLookup(ctx, p.to[jumper].topic, e.ID)
	switch {
	case err != nil:
		return fmt.Errorf("%w, or may be: %w: %w", jetbus.ErrOvertaken, errLost, err)
	case !found:
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	e.Seq, p.errs[jumper] = seq, nil
	return fmt.Errorf("%w: %w", jetbus.ErrOvertaken, errLost)
}

// lastOfKey returns the last of some events that has the key of e.
func (p *batch) lastOfKey(of []int, e *jetbus.Event) (last int, ok bool) {
	for _, i := range slices.Backward(of) {
		if other := &p.receipts[i].Event; other.Topic == e.Topic && other.Key == e.Key {
			return i, true
		}
	}
	return 0, false
}

// isStored reports whether event i is known to be stored.
func (p *batch) isStored(ctx context.Context, i int) bool {
	_, found, err := p.b.dedupeLookup(ctx, p.to[i].topic, p.receipts[i].Event.ID)
	return found && err == nil
}

// await waits until at most that much is on its way, as long as answers come.
func (p *batch) await(ctx context.Context, lost <-chan struct{}, count, bytes int) error {
	var timer *time.Timer
	silent := false // for as long as a refusal takes, at least
	seen := 0
	for {
		p.mu.Lock()
		p.maxOpen, p.maxBytes = count, bytes
		p.waiting = !p.roomLocked()
		waiting, answered := p.waiting, p.answered
		p.mu.Unlock()
		if !waiting {
			return nil
		}
		if timer == nil {
			timer = time.NewTimer(denialCheck)
			defer timer.Stop()
			seen = answered
		}
		select {
		case <-p.room:
		case <-lost:
			return errLost
		case <-timer.C:
			switch alive := p.progress(&seen); {
			case p.markDenied():
			case alive:
				silent = false
			case silent:
				return nats.ErrTimeout
			default:
				silent = true
				timer.Reset(tryTimeout - denialCheck)
				continue
			}
			timer.Reset(denialCheck)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// progress reports whether answers came since they were seen last.
func (p *batch) progress(seen *int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	alive := p.answered != *seen
	*seen = p.answered
	return alive
}

// roomLocked reports whether what await waits for is so.
func (p *batch) roomLocked() bool {
	return p.open == 0 || p.open <= p.maxOpen && p.bytes <= p.maxBytes
}

// markDenied looks for events that the server refused without an answer.
func (p *batch) markDenied() (found bool) {
	denied := map[string]bool{}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, err := range p.errs {
		if err != errNoAnswer { //nolint:errorlint // the mark itself
			continue
		}
		subject := p.to[i].subject
		if _, known := denied[subject]; !known {
			denied[subject] = p.b.denied(subject)
		}
		if denied[subject] {
			p.errs[i] = noPermission(subject)
			p.open--
			p.bytes -= len(p.receipts[i].Event.Payload)
			p.stopped, found = true, true
		}
	}
	return found
}
