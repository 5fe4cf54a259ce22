package adapter

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
)

// maxAtomic is how many messages the server takes in one atomic batch.
const maxAtomic = 1000

// storeAtomic stores all events or none, by the server's atomic batch (2.12).
func (p *batch) storeAtomic(ctx context.Context) ([]jetbus.Receipt, error) {
	messages := make([]*nats.Msg, len(p.receipts))
	if err := p.fillUnit(messages); err != nil {
		return nil, err
	}
	last := len(messages) - 1
	ack, err := p.b.storeUnit(ctx, p, messages)
	if err != nil {
		out := &jetbus.BatchError{Total: len(p.receipts)}
		for i := range p.receipts {
			out.Failed = append(out.Failed, p.b.publishError(&p.receipts[i].Event, p.to[i].subject, err))
		}
		return nil, out
	}
	for i := range p.receipts {
		p.receipts[i].Event.Seq = ack.seq - uint64(last-i)
	}
	return p.receipts, nil
}

// fillUnit builds the messages of an atomic batch.
func (p *batch) fillUnit(messages []*nats.Msg) error {
	for i := range messages {
		var err error
		if messages[i], err = p.message(i); err != nil {
			return fmt.Errorf("event %d: %w", i, err)
		}
	}
	return p.markAtomic(messages)
}

func (p *batch) checkAtomic() error {
	if err := p.b.needs("an atomic batch"); err != nil {
		return err
	}
	if len(p.receipts) > maxAtomic {
		return fmt.Errorf("%w: an atomic one of %d events, the server takes %d", jetbus.ErrBatchTooLarge, len(p.receipts), maxAtomic)
	}
	first := p.to[0].topic
	seen := map[[2]string]bool{}
	for i, to := range p.to {
		e := &p.receipts[i].Event
		key := [2]string{e.Topic, e.Key}
		if seen[key] && p.o.Of(i).ExpectLastSeq != nil {
			return fmt.Errorf("event %d: %w: ExpectLastSeq behind another event of its key in an atomic batch", i, jetbus.ErrInvalidOption)
		}
		seen[key] = true
		if t := to.topic; t.stream != first.stream {
			return &jetbus.RemedyError{
				Err: fmt.Errorf("%w: an atomic batch needs one stream: topic %s is in %s, %s is in %s: declare them in the same one", jetbus.ErrConflict, first.name(), first.stream, t.name(), t.stream),
				See: "TopicConfig.Stream",
			}
		}
	}
	return nil
}

// storeUnit sends an atomic batch until it is answered. A batch whose first try
// was stored without an answer is refused as a duplicate when repeated; where
// all its events lie in a row, that was the first try.
func (cat *catalog) storeUnit(ctx context.Context, p *batch, messages []*nats.Msg) (pubAck, error) {
	s := triesOf(p.to[0].topic, messages[0])
	for {
		ack, err := cat.sendUnit(ctx, messages, &s)
		switch {
		case err == nil:
			return ack, nil
		case errors.Is(err, errForgotten):
			return pubAck{}, unknownError{err}
		case s.unknown() && (apiCode(err) == codeBatchDuplicate || isWrongSequence(err)):
			seq, ok, lookErr := cat.unitStored(ctx, p)
			if ok {
				return pubAck{seq: seq}, nil
			}
			return pubAck{}, unsure(err, lookErr != nil || s.forgotten())
		case errors.Is(err, nats.ErrNoResponders):
			moved, err := p.moveUnit(ctx, messages)
			if err != nil {
				return pubAck{}, unsure(err, s.unknown())
			}
			if moved {
				continue
			}
		}
		s.failed(err)
		if ctx.Err() != nil || !isTransient(err) {
			return pubAck{}, unsure(err, s.unknown())
		}
		select {
		case <-time.After(publishRetry):
		case <-ctx.Done():
		}
	}
}

// moveUnit is called after a subject of an atomic batch had no responders. If a topic of the batch stores its
// events elsewhere now, moveUnit builds the messages again.
func (p *batch) moveUnit(ctx context.Context, messages []*nats.Msg) (moved bool, err error) {
	now := map[*topic]*topic{}
	for i := range p.to {
		to := &p.to[i]
		fresh := now[to.topic]
		if fresh == nil {
			if fresh, err = p.b.verify(ctx, to.topic, true); err != nil {
				return false, err
			}
			now[to.topic] = fresh
		}
		if fresh.samePlace(to.topic) {
			continue
		}
		if err := p.b.moveTo(fresh, &p.receipts[i].Event, to); err != nil {
			return false, err
		}
		moved = true
	}
	if !moved {
		return false, nil
	}
	return true, p.fillUnit(messages)
}

func (srv *server) sendUnit(ctx context.Context, messages []*nats.Msg, s *tries) (pubAck, error) {
	lost, err := srv.link.Wait(ctx)
	if err != nil {
		return pubAck{}, unsentError{err}
	}
	if err := s.begin(); err != nil {
		return pubAck{}, err
	}
	id := jetbus.NewID()
	last := len(messages) - 1
	for i, m := range messages {
		m.Header["Nats-Batch-Id"] = []string{id}
		m.Header["Nats-Batch-Sequence"] = []string{strconv.Itoa(i + 1)}
		m.Reply = ""
		if i == last {
			break
		}
		if err := srv.send(ctx, m, lost); err != nil {
			return pubAck{}, unsentError{err} // without the commit nothing is stored
		}
	}
	m := messages[last]
	m.Header["Nats-Batch-Commit"] = []string{"1"}
	a, err := srv.exchange(ctx, m, lost, tryTimeout)
	if err != nil {
		return pubAck{}, err
	}
	return parsePubAck(a.Data)
}

// unitStored reports whether the events of a batch lie in a row in the stream,
// and where the last one is. An error says that nobody could tell.
func (cat *catalog) unitStored(ctx context.Context, p *batch) (seq uint64, ok bool, err error) {
	last := len(p.receipts) - 1
	first, found, err := cat.dedupeLookup(ctx, p.to[0].topic, p.receipts[0].Event.ID)
	if err != nil || !found {
		return 0, false, err
	}
	seq, found, err = cat.dedupeLookup(ctx, p.to[last].topic, p.receipts[last].Event.ID)
	return seq, err == nil && found && seq-first == uint64(last), err
}
