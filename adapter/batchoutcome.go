package adapter

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
)

// answer notes what the server says to event i.
func (p *batch) answer(i int, m *nats.Msg) {
	var ack pubAck
	err := nats.ErrNoResponders
	if len(m.Data) > 0 {
		ack, err = parsePubAck(m.Data)
	}
	p.mu.Lock()
	if p.over || i >= len(p.errs) || p.errs[i] != errNoAnswer { //nolint:errorlint // the mark itself
		p.mu.Unlock()
		return // of an earlier round, or too late: the receipts are the caller's
	}
	p.errs[i] = err
	if err == nil {
		p.receipts[i].Event.Seq, p.receipts[i].Duplicate = ack.seq, ack.duplicate
		p.to[i].topic.setHeard()
	} else {
		p.stopped = true
	}
	p.open--
	p.bytes -= len(p.receipts[i].Event.Payload)
	p.answered++
	wake := p.waiting && p.roomLocked()
	if wake {
		p.waiting = false
	}
	p.mu.Unlock()
	if wake {
		notify(p.room, struct{}{})
	}
}

// remaining lists what is to be sent again, and the first failure that forbids it.
func (p *batch) remaining(ctx context.Context, todo []int, retried []bool) (again []int, failed error) {
	p.settleStored(ctx, todo, retried)
	unheard := map[*topic]error{} // nobody is there for them: whether they exist
	if again, failed = p.sortOut(ctx, todo, retried, unheard); failed == nil && len(unheard) > 0 {
		failed = p.move(again)
	}
	return again, failed
}

func (p *batch) sortOut(ctx context.Context, todo []int, retried []bool, unheard map[*topic]error) (again []int, failed error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	stored := map[string]bool{} // topic and key of which a later event is stored
	for _, i := range slices.Backward(todo) {
		e := &p.receipts[i].Event
		key := e.Topic + "|" + e.Key
		switch err := p.errs[i]; {
		case err == nil:
			stored[key] = true
			continue
		case errors.Is(err, errNotSent):
		case errors.Is(err, errNoAnswer):
			retried[i] = true
		case isTransient(err):
			t := p.to[i].topic
			verr, asked := unheard[t]
			if errors.Is(err, nats.ErrNoResponders) && !asked {
				p.mu.Unlock() // answers of other calls come on the goroutine that would wait for it
				_, verr = p.b.verify(ctx, t, true)
				p.mu.Lock()
				unheard[t] = verr
			}
			if errors.Is(err, nats.ErrNoResponders) && verr != nil {
				p.errs[i], failed = verr, verr
			}
		default:
			failed = err
		}
		if stored[key] && !errors.Is(p.errs[i], errNotSent) && !isWrongSequence(p.errs[i]) {
			failed = fmt.Errorf("%w: %w", jetbus.ErrOvertaken, p.errs[i])
			p.errs[i] = failed // its own error does not say why it is not tried again
		}
		again = append(again, i)
	}
	slices.Reverse(again)
	return again, failed
}

// settleStored takes refusals, by what events expect, for receipts where the server knows
// their IDs: a single server compares sequences before it looks for duplicates.
func (p *batch) settleStored(ctx context.Context, todo []int, retried []bool) {
	var refused []int
	p.mu.Lock()
	for _, i := range todo {
		if isWrongSequence(p.errs[i]) && (retried[i] || p.given[i].ID != "") {
			refused = append(refused, i)
		}
	}
	p.mu.Unlock()
	_ = eachPart(ctx, refused, func(ctx context.Context, i int) error {
		e := &p.receipts[i].Event
		seq, found, err := p.b.dedupeLookup(ctx, p.to[i].topic, e.ID)
		if found && err == nil {
			p.to[i].topic.setHeard()
			p.mu.Lock() // the lookups run side by side, and an answer that is late may still come to receive
			defer p.mu.Unlock()
			e.Seq, p.receipts[i].Duplicate, p.errs[i] = seq, true, nil
			p.settled = true
		}
		return nil // the refusal stands
	})
}

// move updates the places of events whose topic stores its events elsewhere now. Some of the events may already
// be stored in their old places: the server recognizes them by their IDs.
func (p *batch) move(todo []int) error {
	for _, i := range todo {
		to := &p.to[i]
		fresh := p.b.remembered(to.topic.name())
		if fresh == nil || fresh.samePlace(to.topic) {
			continue
		}
		if err := p.b.moveTo(fresh, &p.receipts[i].Event, to); err != nil {
			return err
		}
		p.moved = true
	}
	return nil
}

// failure lists the events without a receipt. cause is what ended the last round.
func (p *batch) failure(cause error, retried []bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	out := &jetbus.BatchError{Total: len(p.receipts)}
	for i, err := range p.errs {
		if err == nil {
			continue
		}
		unknown := errors.Is(err, errNoAnswer) || retried[i]
		if cause != nil && (errors.Is(err, errNoAnswer) || errors.Is(err, errNotSent)) {
			err = cause
		}
		out.Failed = append(out.Failed, p.b.publishError(&p.receipts[i].Event, p.to[i].subject, unsure(err, unknown)))
	}
	return out
}

// tellDuplicates looks at what counts as a duplicate and may be stored by an earlier try of
// this batch, which makes it none. See storedByAnother for what cannot be told.
func (p *batch) tellDuplicates(ctx context.Context, retried []bool) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var doubtful []int
	for i := range p.receipts {
		switch r := &p.receipts[i]; {
		case !r.Duplicate || !retried[i]:
		case p.given[i].ID == "": // made up here
			r.Duplicate = false
		default:
			doubtful = append(doubtful, i)
		}
	}
	_ = eachPart(ctx, doubtful, func(ctx context.Context, i int) error {
		m, err := p.message(i)
		p.receipts[i].Duplicate = err == nil && p.b.storedByAnother(ctx, p.to[i].topic, m, p.receipts[i].Event.Seq)
		return nil
	})
}
