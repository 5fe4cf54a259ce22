package adapter

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter/ce"
)

const (
	headerRollup   = "Nats-Rollup"
	headerSchedule = "Nats-Schedule"
	headerTTL      = "Nats-TTL"
)

// tombstoneHeader is what the tombstones of a topic have besides their events'
// headers, nil where the topic keeps no state.
//
// In a compacted topic a tombstone removes everything older of its key, and ends
// after TombstoneTTL. The server takes it for a marker of its own, after whose end
// it does not put another one. Where one event of a key is kept, that removes what
// is older by itself, and there is no rollup: it would move the ack floors of
// groups over events that their members hold.
//
// In a log with a snapshot it has no end of its own: it goes with the log's
// oldest events, after everything older of its key, which would otherwise come
// back, also with a snapshot that begins anew. In the snapshot it stays.
func tombstoneHeader(c *jetbus.TopicConfig, s *jetstream.StreamConfig) nats.Header {
	switch {
	case c.Compact && c.History <= 1 && len(snapshotsOf(s, c.Name)) == 0: // a snapshot may keep more
		return nats.Header{headerTTL: {c.TombstoneTTL.String()}, ce.HeaderMarker: {"Remove"}}
	case c.Compact:
		return nats.Header{headerRollup: {"sub"}, headerTTL: {c.TombstoneTTL.String()}, ce.HeaderMarker: {"Remove"}}
	case c.SnapshotOf != "", len(snapshotsOf(s, c.Name)) > 0:
		return nats.Header{}
	}
	return nil
}

// checkTombstone finds out whether an event deletes its key, and refuses one that
// is meant to and would not. What is remembered of the topic may be older than
// its snapshot, so that the server is asked before that.
func (st *streams) checkTombstone(ctx context.Context, e *jetbus.Event, to *destination) error {
	_, meant := e.Headers[jetbus.HeaderTombstone]
	if !meant {
		to.tombstone = to.topic.tombstone != nil && e.IsTombstone()
		return nil
	}
	switch {
	case e.Key == "":
		return fmt.Errorf("%w: a tombstone needs a key", jetbus.ErrInvalidEvent)
	case !e.IsTombstone():
		return fmt.Errorf("%w: a tombstone's payload is null, not %.40q", jetbus.ErrInvalidEvent, e.Payload)
	}
	if to.topic.tombstone == nil {
		t, _, err := st.inspect(ctx, to.topic.name())
		if err != nil {
			return err
		}
		if t.tombstone == nil {
			return jetbus.ErrNoState
		}
		to.topic = t
	}
	to.tombstone = true
	return nil
}

// bury makes the message of a tombstone, which takes no options about time.
func (to *destination) bury(h nats.Header, o jetbus.PublishOptions, now time.Time) error {
	switch {
	case o.TTL > 0:
		return &jetbus.RemedyError{Err: fmt.Errorf("%w: TTL of a tombstone: its topic says how long it is readable", jetbus.ErrInvalidOption), See: "TopicConfig.TombstoneTTL"}
	case o.DeliverAt.After(now):
		return fmt.Errorf("%w: DeliverAt of a tombstone: publish it when the key is to be deleted", jetbus.ErrInvalidOption)
	}
	to.mark(h)
	return nil
}

// mark adds to the headers of a message what makes it a tombstone, if it is one.
func (to *destination) mark(h nats.Header) {
	if !to.tombstone {
		return
	}
	maps.Copy(h, to.topic.tombstone)
}

// markAtomic is mark for the events of one atomic batch. The server takes a rollup
// there for the first event of a subject only. Where one event of a key is kept,
// it is not needed.
func (p *batch) markAtomic(messages []*nats.Msg) error {
	seen := make(map[string]bool)
	for i, m := range messages {
		if p.to[i].tombstone && seen[m.Subject] && len(m.Header[headerRollup]) > 0 {
			if p.to[i].topic.config.History > 1 {
				return fmt.Errorf("event %d: %w: in an atomic batch a tombstone must be the first event of its key, where History is %d",
					i, jetbus.ErrInvalidOption, p.to[i].topic.config.History)
			}
			delete(m.Header, headerRollup)
		}
		seen[m.Subject] = true
	}
	return nil
}

// deletes reports whether an event of the topic deletes its key. In a topic that
// keeps no state, null is a payload like any other.
func (t *topic) deletes(e *jetbus.Event) bool {
	if t.tombstone == nil && e.Headers[jetbus.HeaderTombstone] == "" {
		return false
	}
	return e.IsTombstone()
}
