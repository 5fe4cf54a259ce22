package adapter

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter/ce"
)

// scanStep is the maximum number of events that one request of a scan asks for, and scanBytes the number of bytes after
// which the server sends no more. The events are in memory while the caller reads them.
const (
	scanStep  = 500
	scanBytes = 256 << 10
)

// Scan implements jetbus.Store.
func (b *Bus) Scan(ctx context.Context, topic string, q jetbus.ScanQuery) iter.Seq2[jetbus.Event, error] {
	return sequence(ctx, b, "scan "+topic, func(ctx context.Context, yield func(jetbus.Event, error) bool) error {
		return b.scan(ctx, topic, q, yield)
	})
}

func (b *Bus) scan(ctx context.Context, name string, q jetbus.ScanQuery, yield func(jetbus.Event, error) bool) error {
	if err := q.Validate(); err != nil {
		return err
	}
	if q.From.Kind == "" {
		q.From = jetbus.Earliest()
	}
	bounded, cancel := b.bound(ctx)
	defer cancel()
	t, err := b.lookup(bounded, name)
	if err != nil {
		return err
	}
	if q.Limit == 1 && q.Filter.IsZero() {
		if e, found, err := b.firstEvent(bounded, t, q.From); err != nil || found {
			if err == nil {
				yield(e, nil)
			}
			return err
		}
	}
	next, err := b.startSequence(bounded, t, q.From)
	if err != nil {
		return err
	}
	first, end, err := b.bounds(bounded, t)
	if err != nil {
		return err
	}
	next = max(next, first) // what was dropped before, a replica that lags may have yet
	left, batch := q.Limit, scanStep
	if left > 0 && q.Filter.IsZero() { // each event that comes is one of those that are wanted
		batch = min(left, scanStep)
	}
	return b.eachEvent(ctx, t, next, end, batch, func(e *jetbus.Event) bool {
		if q.From.Excludes(e) || !q.Filter.Match(e) {
			return true
		}
		if left--; !yield(*e, nil) {
			return false
		}
		return left != 0
	})
}

// firstEvent returns the first event after a sequence, or since a time, with one request to the stream's leader. found
// is false if there is no event, if that message is not an event, or for another kind of start.
func (srv *server) firstEvent(ctx context.Context, t *topic, from jetbus.Start) (e jetbus.Event, found bool, err error) {
	which := map[string]any{"next_by_subj": t.filter}
	switch {
	case t.config.SnapshotOf != "":
		return e, false, nil
	case from.Kind == jetbus.FromAfterSeq:
		which["seq"] = from.Seq + 1
	case from.Kind == jetbus.FromTime:
		which["start_time"] = from.Time
	default:
		return e, false, nil
	}
	m, err := srv.leaderMessage(ctx, t.stream, which)
	if err != nil || m.seq == 0 {
		return e, false, srv.translate("", srv.api+"STREAM.MSG.GET."+t.stream, err)
	}
	e, err = ce.Decode(m.Header, m.Data, t.messagePlace(&m.Msg, m.seq, m.time))
	return e, err == nil && !from.Excludes(&e), nil
}

// eachEvent reads the topic's events from next up to end, as many in the first request as
// batch says, and more in each after it. f returns false to stop. Events are handed out between requests, so that f may
// take its time.
func (srv *server) eachEvent(ctx context.Context, t *topic, next, end uint64, batch int, f func(*jetbus.Event) bool) error {
	return srv.eachMessage(ctx, t, next, end, batch, func(m *message) bool { return !m.isEvent || f(&m.event) })
}

// message is one that was read, whether or not it is an event.
type message struct {
	event   jetbus.Event
	isEvent bool
	seq     uint64 // in its stream
	stored  time.Time
}

// eachMessage is eachEvent that does not leave out what is no event. Any replica
// answers; where one has nothing more, the leader is asked whether that is the end.
func (srv *server) eachMessage(ctx context.Context, t *topic, next, end uint64, batch int, f func(*message) bool) error {
	for ; next <= end; batch = min(2*batch, scanStep) {
		var page []message
		past, before := false, next
		bounded, cancel := srv.bound(ctx)
		request := directRequest{Seq: next, NextBySubject: t.filter, Batch: batch, MaxBytes: scanBytes}
		err := srv.directGet(bounded, t.stream, request, func(m *nats.Msg, seq uint64, stored time.Time) bool {
			if seq > end {
				past = true
				return false
			}
			next = seq + 1
			e, ok := srv.readEvent(t, m, seq, stored)
			page = append(page, message{event: e, isEvent: ok, seq: seq, stored: stored})
			return true
		})
		cancel()
		for i := range page {
			if !f(&page[i]) {
				return nil
			}
		}
		if next > before && (errors.Is(err, errLost) || errors.Is(err, errDirectLoss)) {
			continue // behind what came
		}
		if err != nil {
			return srv.translate("", srv.api+"DIRECT.GET."+t.stream, err)
		}
		if past {
			return nil
		}
		if next == before {
			if more, err := srv.awaitReplicas(ctx, t, next, end); !more || err != nil {
				return err
			}
		}
	}
	return nil
}

// awaitReplicas waits until the replicas have the next message of a topic from a
// sequence on, unless there is none up to end.
func (srv *server) awaitReplicas(ctx context.Context, t *topic, next, end uint64) (more bool, err error) {
	ctx, cancel := srv.bound(ctx)
	defer cancel()
	first, err := srv.firstFrom(ctx, t, next)
	if first == 0 || first > end || err != nil {
		return false, err
	}
	for wait := publishRetry; ; wait = min(2*wait, publishRetryMax) {
		var there uint64
		request := directRequest{Seq: first, NextBySubject: t.filter, Batch: 1}
		err := srv.directGet(ctx, t.stream, request, func(_ *nats.Msg, seq uint64, _ time.Time) bool { there = seq; return false })
		switch {
		case there > 0:
			return true, nil
		case ctx.Err() != nil:
			return false, fmt.Errorf("%w: no replica that answers has event %d yet", jetbus.ErrUnavailable, first)
		case err != nil && !errors.Is(err, errLost):
			return false, srv.translate("", srv.api+"DIRECT.GET."+t.stream, err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		switch again, err := srv.firstFrom(ctx, t, next); {
		case err != nil: // the server is not well
		case again == 0 || again > end:
			return false, nil // removed meanwhile
		default:
			first = again
		}
	}
}

// readEvent decodes a message that a direct get returned. One that is no event
// is skipped, and the observer told: it must not end every read that meets it.
func (srv *server) readEvent(t *topic, m *nats.Msg, seq uint64, stored time.Time) (jetbus.Event, bool) {
	e, err := ce.Decode(m.Header, m.Data, t.messagePlace(m, seq, stored))
	if err != nil {
		srv.cfg.Observer.Observe(jetbus.Observation{Kind: jetbus.Undecodable, Topic: t.name(), Seq: seq, Err: err})
	}
	return e, err == nil
}
