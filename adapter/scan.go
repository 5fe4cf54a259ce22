package adapter

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
)

// Sizes of batched direct gets. The server finds at most 1,024 subjects at once.
const (
	scanStep   = 500
	latestStep = 1000
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
	next, err := b.startSequence(bounded, t, q.From)
	if err != nil {
		return err
	}
	end, err := b.endSequence(bounded, t)
	if err != nil {
		return err
	}
	left := q.Limit
	return b.eachEvent(ctx, t, next, end, func(e *jetbus.Event) bool {
		if !q.Filter.Match(e) {
			return true
		}
		if left--; !yield(*e, nil) {
			return false
		}
		return left != 0
	})
}

// eachEvent reads the topic's events from next up to end. f returns false to
// stop. Events are handed out between requests, so that f may take its time.
func (b *Bus) eachEvent(ctx context.Context, t *topic, next, end uint64, f func(*jetbus.Event) bool) error {
	for next <= end {
		var page []jetbus.Event
		past, before := false, next
		bounded, cancel := b.bound(ctx)
		request := directRequest{Seq: next, NextBySubject: t.filter, Batch: scanStep}
		err := b.directGet(bounded, t.stream, request, func(m *nats.Msg, seq uint64, stored time.Time) bool {
			if seq > end {
				past = true
				return false
			}
			next = seq + 1
			if e, ok := b.readEvent(t, m, seq, stored); ok {
				page = append(page, e)
			}
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
			return b.translate("read", b.api+"DIRECT.GET."+t.stream, err)
		}
		if past || next == before {
			return nil
		}
	}
	return nil
}

// LatestByKey implements jetbus.Store.
func (b *Bus) LatestByKey(ctx context.Context, topic string, keys ...string) (map[string]jetbus.Event, error) {
	op := "latest by key " + topic
	if err := b.enter(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	defer b.calls.Done()
	ctx, cancel := b.bound(ctx)
	defer cancel()
	out := make(map[string]jetbus.Event, len(keys))
	t, err := b.lookup(ctx, topic)
	if err == nil && !t.config.KeyInSubject {
		err = jetbus.ErrNeedsKeySubject
	}
	for part := range slices.Chunk(keys, latestStep) {
		if err != nil {
			break
		}
		err = b.latest(ctx, t, part, out)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	return out, nil
}

// latest reads the last event of up to latestStep keys.
func (b *Bus) latest(ctx context.Context, t *topic, keys []string, out map[string]jetbus.Event) error {
	subjects := make([]string, len(keys))
	for i, key := range keys {
		if err := jetbus.ValidKey(key); err != nil {
			return err
		}
		subjects[i] = eventSubject(b.cfg.Prefix, t.name(), keyToken(key))
	}
	slices.Sort(subjects)
	err := b.directGet(ctx, t.stream, directRequest{MultiLast: slices.Compact(subjects), Batch: latestStep}, func(m *nats.Msg, seq uint64, stored time.Time) bool {
		e, ok := b.readEvent(t, m, seq, stored)
		if key, isKey := parseKeyToken(t.storedAt(m.Subject, seq, stored).Token); ok && isKey {
			out[key] = e
		}
		return true
	})
	return b.translate("read", b.api+"DIRECT.GET."+t.stream, err)
}

// readEvent decodes a message that a direct get returned. One that is no event
// is skipped, and the observer told: it must not end every read that meets it.
func (b *Bus) readEvent(t *topic, m *nats.Msg, seq uint64, stored time.Time) (jetbus.Event, bool) {
	return b.decodeOrSkip(t, m, t.storedAt(m.Subject, seq, stored))
}

func (b *Bus) decodeOrSkip(t *topic, m *nats.Msg, at stored) (jetbus.Event, bool) {
	e, err := decodeEvent(m.Header, m.Data, at)
	if err != nil {
		b.cfg.Observer.Observe(jetbus.Observation{Kind: jetbus.Undecodable, Topic: t.name(), Seq: at.Seq, Err: err})
	}
	return e, err == nil
}
