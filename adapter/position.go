package adapter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter/ce"
)

// How an event is looked for by the time in its id.
const (
	idSkew    = 5 * time.Second // publishers' clocks may run ahead of the server's by that
	idScanMax = 100_000         // events looked at before giving up
)

// groupStart is startSequence for a group. A group starts at a sequence, so with a start in the future it
// would get events that are stored before that time. If the start is only a few seconds ahead, as with
// differing clocks, groupStart waits for it; otherwise it refuses the start.
func (dur *durables) groupStart(ctx context.Context, t *topic, start jetbus.Start) (uint64, error) {
	for start.Kind == jetbus.FromTime {
		info, err := dur.streamInfo(ctx, t.stream)
		if err != nil {
			return 0, dur.translate("", dur.api+"STREAM.INFO."+t.stream, err)
		}
		ahead := start.Time.Sub(info.TimeStamp)
		if ahead <= 0 {
			break
		}
		if ahead > idSkew {
			return 0, fmt.Errorf("%w: from %s: a group cannot start in the future; the broker's clock is at %s", jetbus.ErrInvalidOption, start, info.TimeStamp.UTC().Format(time.RFC3339))
		}
		select {
		case <-time.After(ahead):
		case <-ctx.Done():
			return 0, dur.translate("wait for the time to start at", "", context.Cause(ctx))
		}
	}
	return dur.startSequence(ctx, t, start)
}

// startSequence is the sequence that the first event to read has at least.
func (dur *durables) startSequence(ctx context.Context, t *topic, start jetbus.Start) (uint64, error) {
	if t.config.SnapshotOf != "" && (start.Kind == jetbus.FromAfterID || start.Kind == jetbus.FromAfterSeq && start.Seq > 0) {
		return 0, fmt.Errorf("%w: it is a snapshot, whose events have the positions of %s; read that from %s", jetbus.ErrUnsupported, t.config.SnapshotOf, start)
	}
	ctx, cancel := dur.bound(ctx)
	defer cancel()
	switch start.Kind { //nolint:exhaustive // the others need to know the end
	case jetbus.FromEarliest:
		return 1, nil
	case jetbus.FromTime:
		return dur.sequenceAtTime(ctx, t, start.Time)
	case jetbus.FromAfterID:
		seq, err := dur.sequenceOfID(ctx, t, start.ID)
		return seq + 1, err
	}
	end, err := dur.endSequence(ctx, t)
	if err != nil {
		return 0, err
	}
	if start.Kind != jetbus.FromAfterSeq {
		return end + 1, nil
	}
	if start.Seq > end {
		return 0, fmt.Errorf("%w: sequence %d is behind the end, which is %d", jetbus.ErrPositionUnknown, start.Seq, end)
	}
	return start.Seq + 1, nil
}

// endSequence is the sequence of the last message of the topic's stream.
func (srv *server) endSequence(ctx context.Context, t *topic) (uint64, error) {
	_, end, err := srv.bounds(ctx, t)
	return end, err
}

// bounds are the sequences of the first and of the last message of the topic's stream.
func (srv *server) bounds(ctx context.Context, t *topic) (first, last uint64, err error) {
	info, err := srv.streamInfo(ctx, t.stream)
	if err != nil {
		return 0, 0, srv.translate("", srv.api+"STREAM.INFO."+t.stream, err)
	}
	return info.State.FirstSeq, info.State.LastSeq, nil
}

// sequenceAtTime is the sequence of the first event stored at or after a time, or that
// behind the end. The stream's leader is asked: a replica that lags has nothing of that
// time yet, and what was acknowledged would be passed over. So would what is stored
// between the two questions, if the end were not asked for first.
func (srv *server) sequenceAtTime(ctx context.Context, t *topic, at time.Time) (uint64, error) {
	end, err := srv.endSequence(ctx, t)
	if err != nil {
		return 0, err
	}
	first, err := srv.leaderMessage(ctx, t.stream, map[string]any{"start_time": at, "next_by_subj": t.filter})
	switch {
	case err != nil:
		return 0, srv.translate("find a time", srv.api+"STREAM.MSG.GET."+t.stream, err)
	case first.seq == 0:
		return end + 1, nil
	}
	return first.seq, nil
}

// SequenceAt implements jetbus.CheckpointBus.
func (b *Bus) SequenceAt(ctx context.Context, topic string, at time.Time) (uint64, error) {
	if err := b.enter(ctx); err != nil {
		return 0, fmt.Errorf("find a time in %s: %w", topic, err)
	}
	defer b.calls.end()
	ctx, cancel := b.bound(ctx)
	defer cancel()
	t, err := b.lookup(ctx, topic)
	if err != nil {
		return 0, fmt.Errorf("find a time in %s: %w", topic, err)
	}
	m, err := b.leaderMessage(ctx, t.stream, map[string]any{"start_time": at, "next_by_subj": ">"})
	return m.seq, b.translate("find a time in "+topic, b.api+"STREAM.MSG.GET."+t.stream, err)
}

// sequenceOfID finds an event by id: from the id itself where it is one that the
// bus gave to a message without one, in the server's memory of recent ids, or
// by the time in a UUIDv7.
func (dur *durables) sequenceOfID(ctx context.Context, t *topic, id string) (uint64, error) {
	if rest, ok := strings.CutPrefix(id, t.stream+"-"); ok {
		if seq, err := strconv.ParseUint(rest, 10, 64); err == nil && seq > 0 {
			if e, err := dur.eventAt(ctx, t, seq); !e.Stored.IsZero() || err != nil {
				return seq, err
			}
		}
	}
	if seq, found, _ := dur.dedupeLookup(ctx, t, id); found { // without an answer, the log is read
		return seq, nil
	}
	at, ok := jetbus.IDTime(id)
	if !ok {
		return 0, fmt.Errorf("%w: no recent event has the id %s, which has no time in it to look for older ones", jetbus.ErrPositionUnknown, id)
	}
	return dur.scanForID(ctx, t, id, at.Add(-idSkew))
}

// dedupeLookup asks the server for the sequence of an id in the duplicate window:
// it publishes the id under a condition that cannot hold. A known id is answered
// as a duplicate, an unknown one is refused; nothing is stored either way.
// Without an answer there is an error. A topic that is gone is not declared for it.
func (cat *catalog) dedupeLookup(ctx context.Context, t *topic, id string) (seq uint64, found bool, err error) {
	seq, found, err = cat.dedupeOnce(ctx, t, id)
	if errors.Is(err, nats.ErrNoResponders) { // its events may be stored elsewhere now
		short, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		if fresh, verr := cat.asDeclared(short, t); verr == nil && !fresh.samePlace(t) {
			return cat.dedupeOnce(ctx, fresh, id)
		}
	}
	return seq, found, err
}

func (srv *server) dedupeOnce(ctx context.Context, t *topic, id string) (seq uint64, found bool, err error) {
	subject, err := t.lookupSubject(srv.cfg.Prefix)
	if err != nil {
		return 0, false, err
	}
	name, value := impossible(t)
	m := &nats.Msg{Subject: subject, Header: nats.Header{jetstream.MsgIDHeader: {ce.MsgID(t.name(), id)}, name: {value}}}
	ctx, cancel := context.WithTimeout(ctx, askTimeout/2) // a cluster may refuse it without an answer
	defer cancel()
	a, err := srv.request(ctx, m)
	if err != nil {
		return 0, false, err
	}
	ack, err := parsePubAck(a.Data)
	switch {
	case err == nil:
		return ack.seq, ack.duplicate, nil
	case isTransient(err):
		return 0, false, err
	}
	return 0, false, nil
}

// impossible is a condition that no message meets, and that the server looks at after it
// has looked for duplicates, without a trace. A single server compares sequences before
// that. The leader of a replicated stream compares ids only once the message is in
// its log: by then the id is taken for the whole duplicate window, and a second try of it
// stops the stream (seen with 2.15.2).
func impossible(t *topic) (header, value string) {
	if t.config.Replicas > 1 {
		return jetstream.ExpectedLastSeqHeader, strconv.Itoa(math.MaxInt64)
	}
	return jetstream.ExpectedLastMsgIDHeader, "?"
}

// scanForID reads on from a time until it meets the id, or what was the last event when it
// began by the word of the stream's leader: a replica that lags is waited for.
func (srv *server) scanForID(ctx context.Context, t *topic, id string, from time.Time) (uint64, error) {
	next, err := srv.sequenceAtTime(ctx, t, from)
	if err != nil {
		return 0, err
	}
	end, err := srv.endSequence(ctx, t)
	if err != nil {
		return 0, err
	}
	var at uint64
	seen := 0
	err = srv.eachMessage(ctx, t, next, end, scanStep, func(m *message) bool {
		seen++
		if m.isEvent && m.event.ID == id {
			at = m.seq
		}
		return at == 0 && seen < idScanMax
	})
	switch {
	case err != nil:
		return 0, fmt.Errorf("find %s: %w", id, err)
	case at > 0:
		return at, nil
	case seen < idScanMax:
		return 0, fmt.Errorf("%w: the topic has no event %s", jetbus.ErrPositionUnknown, id)
	}
	return 0, fmt.Errorf("%w: event %s is not among the %d events stored after the time in it", jetbus.ErrPositionUnknown, id, idScanMax)
}

// eventAt returns the event of the topic at a sequence, if the topic still has it: zero
// where it has not, or what is there is no event.
func (srv *server) eventAt(ctx context.Context, t *topic, at uint64) (jetbus.Event, error) {
	m, err := srv.messageAt(ctx, t, at)
	if err != nil || m.seq == 0 {
		return jetbus.Event{}, srv.translate("", srv.api+"STREAM.MSG.GET."+t.stream, err)
	}
	e, err := ce.Decode(m.Header, m.Data, t.messagePlace(&m.Msg, m.seq, m.time))
	if err != nil {
		return jetbus.Event{}, nil //nolint:nilerr // what is no event has no id
	}
	return e, nil
}

// messageAt asks the stream's leader for the message of the topic at a sequence; its own
// is 0 where the topic has none there. A replica that lags would not have it yet.
func (srv *server) messageAt(ctx context.Context, t *topic, at uint64) (keyMessage, error) {
	m, err := srv.leaderMessage(ctx, t.stream, map[string]any{"seq": at, "next_by_subj": t.filter})
	if err != nil || m.seq != at {
		return keyMessage{}, err
	}
	return m, nil
}

// directGet reads messages of a stream with batched direct gets. Streams that JetBus creates allow them.
// An adopted stream may not (AllowDirect is off): then directGet requests consecutive messages one by one
// from its leader, with a round trip each.
//
// A request is repeated if the connection breaks, or nothing arrives, before the first message: its
// replica may be lost. A request with MultiLast is repeated until everything is read: each request
// returns latestBytes, and the server reports that there is more. With atLeast, the error is errBehind if
// the replica has not stored that sequence yet. A replica that continues must be as recent as the replica
// before it. Otherwise a key that changed in between could be missing from both answers.
func (srv *server) directGet(ctx context.Context, stream string, r directRequest, each func(*nats.Msg, uint64, time.Time) bool) error {
	wait := publishRetry
	if r.MultiLast != nil {
		r.MaxBytes = latestBytes
	}
	for r.within = tryTimeout; ; { // twice as long each time: the server may have to search many messages
		_, err := srv.link.Wait(ctx)
		if err != nil {
			return err
		}
		called, more := false, true
		if r.MultiLast != nil {
			if err := srv.enterLatest(ctx); err != nil {
				return err
			}
		}
		tail, err := directGet(ctx, srv.nc, srv.api+"DIRECT.GET."+stream, r, func(m *nats.Msg, seq uint64, stored time.Time) bool {
			called = true
			more = each(m, seq, stored)
			if r.MultiLast != nil {
				r.Seq = seq + 1
			}
			return more
		})
		if r.MultiLast != nil {
			srv.leaveLatest()
		}
		if errors.Is(err, nats.ErrTimeout) && !called && ctx.Err() == nil {
			if why := srv.whyNoAnswer(ctx, stream); why != nil {
				return srv.leaderGetFor(ctx, stream, r, each, why)
			}
			r.within *= 2
			continue
		}
		if errors.Is(err, errLost) && !called {
			continue
		}
		if err == nil && r.atLeast > 0 {
			if tail.upTo < r.atLeast {
				return errBehind
			}
			r.atLeast = tail.upTo
		}
		if err == nil && r.MultiLast != nil && called && more && tail.pending > 0 {
			continue
		}
		if !errors.Is(err, nats.ErrNoResponders) {
			return err
		}
		if why := srv.whyNoDirect(ctx, stream); why != nil {
			return srv.leaderGetFor(ctx, stream, r, each, why)
		}
		select { // no replica is ready, or this server knows of none because it has just started or has lost its routes
		case <-time.After(wait):
			wait = min(2*wait, publishRetryMax)
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				err = context.Cause(ctx)
			}
			return err
		}
	}
}

// leaderGetFor returns why a direct get has no answer, or reads with leaderGet if that is possible.
func (srv *server) leaderGetFor(ctx context.Context, stream string, r directRequest, each func(*nats.Msg, uint64, time.Time) bool, why error) error {
	if errors.Is(why, jetbus.ErrUnsupported) && r.NextBySubject != "" {
		return srv.leaderGet(ctx, stream, r, each)
	}
	return why
}

// leaderGet reads consecutive messages, starting at r.Seq, with requests to the stream's leader.
func (srv *server) leaderGet(ctx context.Context, stream string, r directRequest, each func(*nats.Msg, uint64, time.Time) bool) error {
	bytes := 0
	for range cmp.Or(r.Batch, maxDirect) {
		m, err := srv.streamMessage(ctx, stream, map[string]any{"seq": max(r.Seq, 1), "next_by_subj": r.NextBySubject})
		if err != nil || m.seq == 0 || !each(&m.Msg, m.seq, m.time) {
			return err
		}
		r.Seq = m.seq + 1
		if bytes += len(m.Data); r.MaxBytes > 0 && bytes >= r.MaxBytes {
			return nil
		}
	}
	return nil
}

// whyNoAnswer is whyNoDirect for a request that timed out. Across a leaf node, or if another client subscribes to the
// subject, the server does not report that the request has no responders. Without an answer soon, nothing is known.
func (srv *server) whyNoAnswer(ctx context.Context, stream string) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	why := srv.whyNoDirect(ctx, stream)
	if !errors.Is(why, jetbus.ErrUnsupported) {
		return nil
	}
	return why
}

// whyNoDirect returns why a direct get has no responder: the stream does not exist or does not allow
// direct gets. It returns nil if the stream allows them, so that a retry may succeed.
func (srv *server) whyNoDirect(ctx context.Context, stream string) error {
	info, err := srv.streamInfo(ctx, stream)
	if err == nil && !info.Config.AllowDirect {
		return fmt.Errorf("%w: stream %s does not allow direct gets: set AllowDirect", jetbus.ErrUnsupported, stream)
	}
	return err
}
