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
	"github.com/seed-63e9a637/jetbus/adapter/ce"
)

// termPrefix begins the reason of our own terminations, so that whoever watches
// over what other clients drop knows that these events are dead letters already.
const termPrefix = "jetbus: "

// bury makes a dead letter of what a lease holds: the record is stored and
// acknowledged before the original is terminated. Where it cannot be stored the
// event is kept and comes back. The dead letter has the stack of trace, nil: none. The lease is claimed.
func (h *leaseSet) bury(ctx context.Context, l *lease, reason jetbus.DeadReason, cause, trace error) error {
	if jetbus.DeadLetterTopic(l.t.name()) != "" { // a dead letter stays where it is
		if err := h.b.storeDead(ctx, l, reason, cause, trace); err != nil {
			return h.keepDead(ctx, l, reason, err)
		}
	}
	l.unclaim()
	if err := l.settle(ctx, "reject", []byte("+TERM "+termPrefix+string(reason))); err != nil {
		return err
	}
	h.b.done(l)
	h.noteCount(l, jetbus.DeadLettered, string(reason), cause, l.record.Failed)
	return nil
}

// keepDead puts an event off whose dead letter could not be stored. It is not run
// again: its fate is settled.
func (h *leaseSet) keepDead(ctx context.Context, l *lease, reason jetbus.DeadReason, err error) error {
	l.record.Dead = reason // without the stack: records of all topics and groups share one small bucket
	l.record.Buried++
	h.b.cfg.Logger.ErrorContext(ctx, "a dead letter cannot be stored; its event is kept",
		slog.String("topic", l.t.name()), slog.String("group", h.group), slog.String("event", l.label()), slog.Any("error", err))
	h.note(l, jetbus.DeadFail, "", err)
	return h.comeBack(ctx, l, "nack", h.backoff.Delay(l.record.Buried))
}

// storeDead publishes the dead letter of what a lease holds, unless there is one.
func (b *Bus) storeDead(ctx context.Context, l *lease, reason jetbus.DeadReason, cause, trace error) error {
	ctx, cancel := b.bound(ctx)
	defer cancel()
	origin, err := b.fullOrigin(ctx, l)
	if err != nil {
		return err
	}
	d := jetbus.DeadLetter{
		Event: l.event(), Group: l.h.group, Stream: origin.Stream, StreamCreated: origin.Created,
		Reason: reason, Error: cause.Error(), Stack: jetbus.StackOf(trace), Attempts: l.record.Failed,
		FirstFailed: l.record.First, LastFailed: l.record.Last, Replays: origin.Replays, ReplayOf: origin.ReplayOf,
	}
	return b.publishDead(ctx, d)
}

// publishDead stores a dead letter on condition that there is none of that key.
func (b *Bus) publishDead(ctx context.Context, d jetbus.DeadLetter) error {
	if d.LastFailed.IsZero() {
		d.LastFailed = time.Now()
	}
	if d.FirstFailed.IsZero() {
		d.FirstFailed = d.LastFailed
	}
	err := b.publishDeadOnce(ctx, d)
	if errors.Is(err, jetbus.ErrNoTopic) { // somebody deleted the stream
		b.lostKept()
		if err = b.keepStreams(ctx, 0); err == nil {
			err = b.publishDeadOnce(ctx, d)
		}
	}
	// It may be too large with the headers of a dead letter: the payload is more important than the stack.
	for _, less := range []struct {
		stack     string
		truncated bool
	}{{"", false}, {d.Stack, true}, {"", true}} {
		if !errors.Is(err, jetbus.ErrPayloadTooLarge) {
			return err
		}
		d.Stack, d.Truncated = less.stack, less.truncated
		err = b.publishDeadOnce(ctx, d)
	}
	return err
}

func (b *Bus) publishDeadOnce(ctx context.Context, d jetbus.DeadLetter) error {
	e := d.Record()
	e.ID, e.SID, e.Time, e.Partition = jetbus.NewID(), b.cfg.SID, time.Now(), jetbus.NoPartition
	t := &topic{config: jetbus.TopicConfig{Name: e.Topic, KeyInSubject: true}, stream: ownStream(b.cfg.Prefix, deadStream), kept: true}
	m := &nats.Msg{Subject: eventSubject(b.cfg.Prefix, e.Topic, ce.KeyToken(e.Key)), Header: ce.Encode(&e), Data: e.Payload}
	m.Header[jetstream.ExpectedLastSubjSeqHeader] = []string{"0"}
	if err := b.fits(m); err != nil {
		return err
	}
	_, err := b.store(ctx, t, m)
	switch {
	case err == nil:
		return nil
	case !isWrongSequence(err):
		return b.publishError(&e, m.Subject, err)
	}
	// There is one already, or in a cluster one that was on its way and may get lost.
	have, err := b.leaderMessage(ctx, t.stream, map[string]any{"last_by_subj": m.Subject})
	if err == nil && have.seq == 0 {
		err = errDeadUnsure
	}
	if err != nil {
		return err
	}
	return b.deadAgain(ctx, d, have.seq)
}

// errDeadUnsure: the server refused a dead letter because of another that is not there.
var errDeadUnsure = errors.New("a dead letter of the same event was on its way and is not there")

// deadAgain is for an event that has a dead letter. Where that was replayed, the
// event has failed anew since, when its group was moved back, and gets another.
func (b *Bus) deadAgain(ctx context.Context, d jetbus.DeadLetter, have uint64) error {
	if d.ReplayOf == have {
		return nil
	}
	name := "d" + strconv.FormatUint(have, 10)
	replayed, err := b.Retried(ctx, d.Event.Topic, d.Group, name)
	if err != nil || replayed[name].IsZero() {
		return err
	}
	d.ReplayOf = have
	return b.publishDeadOnce(ctx, d)
}

// event is the event of a lease as it can be stored again. A message that is no
// event is one with its bytes and the id of its place.
func (l *lease) event() jetbus.Event {
	e, err := l.decode()
	if err != nil {
		e, _ = ce.Decode(nil, l.msg.Data, l.place())
		if contentType := l.msg.Header.Get(jetbus.HeaderContentType); contentType != "" && jetbus.ValidHeader(jetbus.HeaderContentType, contentType) == nil {
			e.Headers = map[string]string{jetbus.HeaderContentType: contentType}
		}
	}
	return e
}
