package processes

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// maxConflicts is how often a state is computed anew because another projector
// was faster, before the heartbeat is given to the backoff.
const maxConflicts = 10

// beat projects one heartbeat. Its order is what makes it safe to crash
// anywhere: publish the state on condition, then acknowledge. Crashing between
// the two brings the heartbeat back, and the state then says that it was done.
func (p *Projector) beat(ctx context.Context, d *jetbus.Delivery) error {
	h, err := decodeHeartbeat(d.Payload)
	if err != nil {
		p.invalid.Add(1)
		p.log.LogAttrs(ctx, slog.LevelWarn, "heartbeat skipped", slog.String("topic", d.Topic),
			slog.String("id", d.ID), slog.Uint64("seq", d.Seq), slog.Any("err", err))
		return nil
	}
	key := h.ProcessID()
	next := entry{
		Process: Process{
			ProcessID: key, Name: h.Name, Host: h.Host, PID: h.PID, SID: h.SID,
			CPUPct: h.CPUPct, MemMB: h.MemMB, LastSeen: d.Time.UnixMilli(), Status: Alive,
		},
		known: true,
		beat:  d.ID,
		at:    position{epoch: p.epoch, seq: d.Seq, ts: d.Time.UnixMilli()},
	}
	for range maxConflicts {
		have := p.view.get(key)
		if have.known && !next.at.after(have.at) {
			p.repeated.Add(1)
			return nil
		}
		err := p.publish(ctx, next, d.Time, have.seq)
		switch {
		case err == nil:
			p.states.Add(1)
			return nil
		case !errors.Is(err, jetbus.ErrWrongSequence):
			return err
		}
		if err := p.refresh(ctx, key); err != nil {
			return err
		}
	}
	return fmt.Errorf("state of %s: %d times another projector was faster: %w", key, maxConflicts, jetbus.ErrWrongSequence)
}

// publish stores a state as the successor of the state event at last. An id
// that the topic already knows is a state that was stored by a call that did not
// get to know it, or by another projector: the view did not show it, so this is
// ErrWrongSequence like any other view that lagged.
func (p *Projector) publish(ctx context.Context, n entry, when time.Time, last uint64) error {
	payload, err := json.Marshal(n.Process)
	if err != nil {
		return fmt.Errorf("encode state of %s: %w", n.ProcessID, err)
	}
	r, err := p.b.Publish(ctx, jetbus.Event{
		ID:      stateID(n, last),
		Time:    when,
		Topic:   p.o.States,
		Key:     n.ProcessID,
		Payload: payload,
		Headers: map[string]string{
			headerSeq:   strconv.FormatUint(n.at.seq, 10),
			headerEpoch: strconv.FormatInt(n.at.epoch, 10),
		},
		CausedBy: causes(n.beat),
	}, jetbus.PublishOptions{ExpectLastSeq: &last})
	switch {
	case err != nil:
		return err
	case r.Duplicate:
		return fmt.Errorf("state of %s is stored already: %w", n.ProcessID, jetbus.ErrWrongSequence)
	}
	p.view.apply(r.Event, time.Now())
	return nil
}

// stateID derives the id of a state from the event it follows from, so that the
// topic refuses the second of two equal states even where nothing else does:
// from the heartbeat, or, for a silence, from the state that the silence ends.
func stateID(n entry, last uint64) string {
	if n.Status == Stale {
		return "stale-" + strconv.FormatUint(last, 10)
	}
	id := "alive-" + strconv.FormatUint(n.at.seq, 10) + "-" + n.beat
	if len(id) <= jetbus.MaxIDBytes {
		return id
	}
	digest := sha256.Sum256([]byte(id))
	return "alive-" + hex.EncodeToString(digest[:])
}

// causes is the CausedBy of a state; one that another program published may not name its heartbeat.
func causes(beat string) []string {
	if beat == "" {
		return nil
	}
	return []string{beat}
}

// refresh asks the topic for the states of some keys.
func (p *Projector) refresh(ctx context.Context, keys ...string) error {
	latest, err := p.b.LatestByKey(ctx, p.o.States, keys...)
	if err != nil {
		return fmt.Errorf("latest states: %w", err)
	}
	p.view.replace(keys, latest, time.Now())
	return nil
}
