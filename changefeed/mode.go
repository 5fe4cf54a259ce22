package changefeed

import (
	"context"
	"fmt"
	"iter"
	"math"
	"strings"

	"github.com/seed-63e9a637/jetbus"
)

// Mode is how a feed sees to it that its topic has each change once and in order. In
// each of them the topic's last event is the checkpoint, and nothing is ever stored
// behind a change that is missing. They differ in what becomes of two instances that
// both believe that they lead, as after a pause of one of them for longer than LeaseTTL.
type Mode string

// The modes.
const (
	// Auto is Chain for a topic that has a stream of its own, and Atomic for the others;
	// Serial where the broker or the stream takes no atomic batches. It is the default.
	Auto Mode = "auto"
	// Chain: each event is stored only directly behind the one before it, which the broker
	// checks. An instance that is behind is refused, whenever that is. The topic needs a
	// stream of its own, without TopicConfig.Stream, Subject and Delays.
	Chain Mode = "chain"
	// Atomic: up to 1000 events are stored together or not at all. The broker cannot compare
	// them with the end of one topic among several: an instance saves its position in the
	// TokenStore, unless another one has done so since, directly before it sends a batch.
	// One that is paused between the two for longer than the topic's DuplicateWindow, while
	// another one leads, stores that one batch a second time. It needs NATS 2.12.
	Atomic Mode = "atomic"
	// Serial: one event at a time, the next one once the one before is stored. The position
	// is saved at least every second meanwhile: one that is paused for longer than
	// the DuplicateWindow, directly before it sends, stores that one event a second time.
	Serial Mode = "serial"
)

// maxAtomic is how many events an atomic batch may have.
const maxAtomic = 1000

// portion is how many events are published at once.
func (m Mode) portion(events int) int {
	switch m { //nolint:exhaustive // Auto is in force nowhere
	case Atomic:
		return min(events, maxAtomic)
	case Serial:
		return min(events, 1)
	}
	return events
}

// modeFor is the mode for a topic.
func (f *Feed) modeFor(info *jetbus.TopicInfo) (Mode, error) {
	c := &info.Config
	others := isShared(c)
	switch {
	case c.SnapshotOf != "":
		return "", fmt.Errorf("%w: topic %s is a snapshot, which only the server writes", jetbus.ErrUnsupported, f.o.Topic)
	case strings.ContainsAny(c.Subject, "*>"):
		return "", fmt.Errorf("%w: topic %s has the wildcard subject %s, which names no place to publish to", jetbus.ErrUnsupported, f.o.Topic, c.Subject)
	case f.o.Mode == Chain && others:
		return "", fmt.Errorf("%w: mode chain: topic %s is in a stream into which others write: declare one without Stream, Subject and Delays, or use mode auto", jetbus.ErrUnsupported, f.o.Topic)
	case f.o.Mode != Auto:
		return f.o.Mode, nil
	case others:
		return Atomic, nil
	}
	return Chain, nil
}

// isShared reports whether a topic's stream is not its own.
func isShared(c *jetbus.TopicConfig) bool { return c.Stream != "" || c.Subject != "" || c.Delays }

// scanner is what finding the last event of a topic needs of a bus.
type scanner interface {
	Scan(ctx context.Context, topic string, q jetbus.ScanQuery) iter.Seq2[jetbus.Event, error]
}

// lastEvent returns the last event of a topic that the broker did not write itself. In a
// stream of its own it is at the end or has left the stream. In a compacted topic markers
// of the broker may be behind it, or the places of tombstones that ended; in a shared
// stream the events of others. Then it is looked for in steps that double, and then
// halve, and what has been looked at is left out: that looks at each marker about twice,
// and at one event of the rest of the topic in each step.
func lastEvent(ctx context.Context, b scanner, info *jetbus.TopicInfo) (e jetbus.Event, found bool, err error) {
	end := info.LastSeq
	if end == 0 {
		return e, false, nil
	}
	step := uint64(1)
	e, found, err = firstBehind(ctx, b, info, end-step, math.MaxUint64)
	if found || err != nil || !isShared(&info.Config) && !info.Config.Compact {
		return e, found, err
	}
	none := end // no event is behind it
	for !found {
		if none = end - step; none == 0 {
			return e, false, nil
		}
		step = min(2*step, end)
		if e, found, err = firstBehind(ctx, b, info, end-step, none); err != nil {
			return e, false, err
		}
	}
	for e.Seq < none {
		middle := e.Seq + (none-e.Seq)/2
		later, found, err := firstBehind(ctx, b, info, middle, none)
		switch {
		case err != nil:
			return e, false, err
		case found:
			e = later
		default:
			none = middle
		}
	}
	return e, true, nil
}

// firstBehind returns a topic's first event behind a position and up to another one that
// the broker did not write itself. Mostly that is the very next one: more are asked for at
// once, and each time more of them, only where markers are in between.
func firstBehind(ctx context.Context, b scanner, info *jetbus.TopicInfo, seq, upTo uint64) (jetbus.Event, bool, error) {
	for limit := 1; ; limit = min(8*limit, maxAtOnce) {
		came := 0
		for e, err := range b.Scan(ctx, info.Config.Name, jetbus.ScanQuery{From: jetbus.AfterSeq(seq), Limit: limit}) {
			switch {
			case err != nil:
				return jetbus.Event{}, false, err
			case e.Seq > upTo:
				return jetbus.Event{}, false, nil
			case !isMarker(&e, info.Stream):
				return e, true, nil
			}
			came, seq = came+1, e.Seq
		}
		if came < limit {
			return jetbus.Event{}, false, nil
		}
	}
}

// maxAtOnce is how many events a scan behind many markers is to bring at most.
const maxAtOnce = 4096

// isMarker reports whether the broker wrote an event of a stream itself, for a key of a
// compacted topic whose last event ended.
func isMarker(e *jetbus.Event, stream string) bool {
	return e.IsTombstone() && e.Headers[HeaderOp] == "" && e.ID == fmt.Sprintf("%s-%d", stream, e.Seq)
}
