package adapter

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter/ce"
)

// Bounds of how long a chained batch looks for its place.
const (
	chainTries   = 20  // refusals in a row that may be due to answers that came late
	chainMarkers = 100 // messages of the server's own behind the last event
)

// lastIDPrefix is what the server says before the id of the last message.
const lastIDPrefix = "wrong last msg ID: "

// chain is the state of a chained batch: the event that is behind us.
//
// The server keeps the id of the last message it stored, and compares it with what
// a message expects; after a restart it reads it from the last message. So a
// message whose predecessor is not there is refused, and all that follow it, however
// many are on their way. It has no id to compare with where the last message has
// left the stream, or is a marker of its own: then the first event goes by the
// stream's last sequence, and the others by their ids again.
type chain struct {
	afterID  string
	afterSeq uint64 // 0: not known, or there is none
	bySeq    bool   // the first event expects lastSeq
	lastSeq  uint64 // of the stream
	tries    int    // refusals since the chain grew

	// replicated: all go by sequences. The leader of a replicated stream compares these
	// before it proposes a message, and ids only after that: one that is refused then
	// stays "in process", and a second try of it stops the stream (seen with 2.15.2).
	replicated bool
	first      int // the event that expects lastSeq in this round
}

// unlink removes what link has set, so that the header can be used again.
func (p *batch) unlink(h nats.Header) {
	if p.chain != nil {
		delete(h, jetstream.ExpectedLastMsgIDHeader)
		delete(h, jetstream.ExpectedLastSeqHeader)
	}
}

// link makes the message of event i expect the one before it.
func (p *batch) link(i int, first bool, h nats.Header) {
	if p.chain == nil {
		return
	}
	t := p.to[i].topic.name()
	if first {
		p.chain.first = i
	}
	switch {
	case p.chain.replicated:
		h[jetstream.ExpectedLastSeqHeader] = []string{strconv.FormatUint(p.chain.lastSeq+uint64(i-p.chain.first), 10)}
	case !first:
		h[jetstream.ExpectedLastMsgIDHeader] = []string{ce.MsgID(t, p.receipts[i-1].Event.ID)}
	case p.chain.bySeq:
		h[jetstream.ExpectedLastSeqHeader] = []string{strconv.FormatUint(p.chain.lastSeq, 10)}
	default:
		h[jetstream.ExpectedLastMsgIDHeader] = []string{ce.MsgID(t, p.chain.afterID)}
	}
}

// storeChained sends all events in order, in rounds, each from the first event
// that is not known to be stored.
func (p *batch) storeChained(ctx context.Context, after jetbus.Chain) ([]jetbus.Receipt, error) {
	p.chain = &chain{afterID: after.AfterID, afterSeq: after.AfterSeq, bySeq: after.AfterID == "", lastSeq: after.AfterSeq}
	if p.chain.replicated = p.to[0].topic.config.Replicas > 1; p.chain.replicated && after.AfterID != "" && after.AfterSeq == 0 {
		return nil, fmt.Errorf("%w: topic %s is replicated: pass Chain.AfterSeq, too", jetbus.ErrInvalidOption, p.to[0].topic.name())
	}
	p.room = make(chan struct{}, 1)
	p.errs = make([]error, len(p.receipts))
	todo := make([]int, len(p.receipts))
	for i := range todo {
		todo[i], p.errs[i] = i, errNotSent
	}
	retried := make([]bool, len(todo)) // may have been stored in an earlier round
	defer p.tellDuplicates(ctx, retried)
	for wait := publishRetry; ; wait = min(2*wait, publishRetryMax) {
		before := len(todo)
		err := p.round(ctx, todo, retried)
		failed := p.grow(&todo)
		if failed == nil && len(todo) > 0 {
			failed = p.relink(ctx, &todo, retried)
		}
		if len(todo) == 0 && failed == nil {
			return p.receipts, nil
		}
		if failed != nil {
			err = failed
		}
		if failed != nil || ctx.Err() != nil || errors.Is(err, jetbus.ErrClosed) {
			return p.receipts, p.failure(err, retried)
		}
		if len(todo) < before || p.moved {
			p.moved = false
			wait = publishRetry
			if err == nil {
				continue // its place has changed, and the server is well
			}
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// checkChain refuses what has no chain of its own.
func (p *batch) checkChain(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	t := p.to[0].topic
	for i, to := range p.to {
		if to.topic.name() != t.name() {
			return fmt.Errorf("%w: a chained batch is of one topic: event %d is of %s, the first one of %s", jetbus.ErrConflict, i, to.topic.name(), t.name())
		}
	}
	switch {
	case t.kept, t.retries, t.config.Delays, t.adopted():
		return fmt.Errorf("%w: a chained batch to topic %s, into whose stream others write: declare one without Delays, and without Subject", jetbus.ErrUnsupported, t.name())
	case t.stream != ownStream(p.b.cfg.Prefix, t.name()):
		return &jetbus.RemedyError{
			Err: fmt.Errorf("%w: a chained batch needs a stream of the topic's own, and %s is in %s: declare a topic that names no stream", jetbus.ErrConflict, t.name(), t.stream),
			See: "TopicConfig.Stream",
		}
	}
	return nil
}

// grow takes what is stored off the list, and refuses a duplicate that stands
// before its place.
func (p *batch) grow(todo *[]int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.chain
	for len(*todo) > 0 {
		i := (*todo)[0]
		if p.errs[i] != nil {
			return nil
		}
		r := &p.receipts[i]
		if r.Event.Seq <= c.afterSeq {
			p.errs[i] = &jetbus.ChainError{Topic: r.Event.Topic, AfterID: c.afterID, LastID: r.Event.ID, LastSeq: r.Event.Seq, Reason: "it is stored already, and not behind that one"}
			r.Event.Seq, r.Duplicate = 0, false
			return p.errs[i]
		}
		*c = chain{afterID: r.Event.ID, afterSeq: r.Event.Seq, lastSeq: r.Event.Seq, replicated: c.replicated}
		*todo = (*todo)[1:]
	}
	return nil
}

// relink finds out how to go on with the first event that is not stored, or that
// it cannot be.
func (p *batch) relink(ctx context.Context, todo *[]int, retried []bool) error {
	first := (*todo)[0]
	p.mu.Lock()
	err := p.errs[first]
	for _, i := range *todo { // what was stored behind first is sent again, too
		stored := p.errs[i] == nil && !p.receipts[i].Duplicate
		retried[i] = retried[i] || stored || errors.Is(p.errs[i], errNoAnswer)
	}
	p.mu.Unlock()
	switch {
	case errors.Is(err, errNotSent), errors.Is(err, errNoAnswer):
		return nil
	case errors.Is(err, nats.ErrNoResponders):
		if _, err := p.b.verify(ctx, p.to[first].topic, true); err != nil {
			return err
		}
		return p.move(*todo)
	case isTransient(err):
		return nil
	case apiCode(err) == codeWrongLastID:
		api, _ := errors.AsType[*jetstream.APIError](err)
		last, _ := strings.CutPrefix(api.Description, lastIDPrefix)
		if last != "" {
			return p.place(ctx, todo, last, 0)
		}
	case !isWrongSequence(err):
		return err
	}
	return p.placeByEnd(ctx, todo)
}

// place goes by the id of the stream's last message: where that is an event of the
// batch, all up to it are stored.
func (p *batch) place(ctx context.Context, todo *[]int, last string, seq uint64) error {
	c := p.chain
	first := (*todo)[0]
	t := p.to[first].topic
	for _, i := range *todo {
		if ce.MsgID(t.name(), p.receipts[i].Event.ID) != last {
			continue
		}
		if seq == 0 {
			seq = p.before(i)
		}
		if seq == 0 {
			var err error
			if seq, err = p.endWith(ctx, t, last); err != nil || seq == 0 {
				return unlessTransient(err) // it was the last one a moment ago
			}
		}
		p.settleChain(first, i, seq)
		return p.grow(todo)
	}
	c.tries++
	ours := last == ce.MsgID(t.name(), c.afterID)
	for _, r := range p.receipts[:first] {
		ours = ours || last == ce.MsgID(t.name(), r.Event.ID)
	}
	if ours && c.tries <= chainTries { // what was refused went ahead of what it belongs behind
		c.bySeq = c.afterID == ""
		return nil
	}
	id, _ := strings.CutPrefix(last, ce.MsgID(t.name(), ""))
	return p.broken(first, &jetbus.ChainError{Topic: t.name(), AfterID: c.afterID, LastID: id, LastSeq: seq})
}

// endWith returns the stream's last sequence, if the message there has that id or
// has left the stream since.
func (p *batch) endWith(ctx context.Context, t *topic, id string) (uint64, error) {
	info, err := p.b.streamInfo(ctx, t.stream)
	if err != nil {
		return 0, err
	}
	m, err := p.b.leaderMessage(ctx, t.stream, map[string]any{"seq": info.State.LastSeq})
	if err != nil || m.seq != 0 && m.Header.Get(ce.HeaderMsgID) != id {
		return 0, err
	}
	return info.State.LastSeq, nil
}

// unlessTransient drops an error after which the next round asks again.
func unlessTransient(err error) error {
	if isTransient(err) {
		return nil
	}
	return err
}

// before returns the position of event i, if the one behind it has just been stored.
func (p *batch) before(i int) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i+1 < len(p.errs) && p.errs[i+1] == nil {
		return p.receipts[i+1].Event.Seq - 1
	}
	return 0
}

// settleChain notes that the events from first to last are stored, the last one
// at seq: nothing comes between events of a chain.
func (p *batch) settleChain(first, last int, seq uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := first; i <= last; i++ {
		if p.errs[i] == nil {
			continue
		}
		p.receipts[i].Event.Seq, p.receipts[i].Duplicate = seq-uint64(last-i), true
		p.errs[i] = nil
	}
}

// placeByEnd goes by what the stream's leader has behind the event that is behind
// us: nothing, markers of the server, or an event.
func (p *batch) placeByEnd(ctx context.Context, todo *[]int) error {
	c := p.chain
	first := (*todo)[0]
	t := p.to[first].topic
	info, err := p.b.streamInfo(ctx, t.stream)
	if err != nil {
		return p.b.translate("", p.b.api+"STREAM.INFO."+t.stream, unlessTransient(err))
	}
	end := info.State.LastSeq
	last, free, err := p.lastBehind(ctx, t, end)
	switch {
	case err != nil:
		return p.b.translate("read its end", p.b.api+"STREAM.MSG.GET."+t.stream, unlessTransient(err))
	case last.seq > c.afterSeq:
		return p.place(ctx, todo, last.Header.Get(ce.HeaderMsgID), last.seq)
	case c.afterID != "" && c.afterSeq == 0:
		return p.broken(first, &jetbus.ChainError{Topic: t.name(), AfterID: c.afterID, LastSeq: end, Reason: "the server does not know its ID any more: pass Chain.AfterSeq"})
	}
	if c.tries++; !free || c.tries > chainTries {
		return p.broken(first, &jetbus.ChainError{Topic: t.name(), AfterID: c.afterID, LastSeq: end, Reason: fmt.Sprintf("that one was at %d", c.afterSeq)})
	}
	c.lastSeq = end
	c.bySeq = end != last.seq || c.afterID == "" || last.Header.Get(ce.HeaderMsgID) != ce.MsgID(t.name(), c.afterID)
	return nil
}

// lastBehind returns the last message of the stream, which is at end, if it is
// there and no marker of the server; else whether there is nothing but such
// markers behind the event that is behind us. What has left the stream may have
// been an event.
func (p *batch) lastBehind(ctx context.Context, t *topic, end uint64) (last keyMessage, free bool, err error) {
	after := p.chain.afterSeq
	for seq := end; seq > after; seq-- {
		m, err := p.b.leaderMessage(ctx, t.stream, map[string]any{"seq": seq})
		if err != nil || m.seq == 0 || end-seq > chainMarkers {
			return keyMessage{}, false, err
		}
		if !isServerMarker(&m) {
			return m, false, nil
		}
	}
	last, err = p.b.leaderMessage(ctx, t.stream, map[string]any{"seq": max(after, 1)})
	return last, err == nil && end >= after, err
}

// isServerMarker reports whether the server wrote a message itself, for a key that
// ended. (A tombstone of ours says the same, and has an id.)
func isServerMarker(m *keyMessage) bool {
	return m.Header.Get(ce.HeaderMarker) != "" && m.Header.Get(ce.HeaderMsgID) == ""
}

// broken notes why the chain ends.
func (p *batch) broken(i int, err *jetbus.ChainError) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.errs[i] = err
	return err
}
