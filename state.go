package jetbus

import (
	"bytes"
	"context"
	"time"
)

// HeaderTombstone marks an event that was meant as a tombstone; its value is "1".
// Publishing it is an error then where it would delete nothing: to a topic that
// keeps no state ([ErrNoState]), without a key or with another payload than null
// ([ErrInvalidEvent]).
const HeaderTombstone = "x-tombstone"

// Tombstone returns the event that deletes a key in a topic that is compacted or
// has a snapshot: its payload is the JSON value null. Readers of a compacted topic
// see it for TopicConfig.TombstoneTTL, those of a log as long as that keeps events,
// those of a log's snapshot for good; nothing older of the key comes back. An event of that
// kind takes neither PublishOptions.TTL nor a DeliverAt ([ErrInvalidOption]).
func Tombstone(topic, key string) Event {
	return Event{Topic: topic, Key: key, Headers: map[string]string{HeaderTombstone: "1"}, Payload: []byte("null")}
}

// IsTombstone reports whether the event deletes its key: whether it has one, or
// [HeaderTombstone], and its payload is the JSON value null. What the broker leaves
// for a key whose last event expired reads the same; it has that header where the
// event that expired had no key.
func (e *Event) IsTombstone() bool {
	return (e.Key != "" || e.Headers[HeaderTombstone] != "") && string(bytes.Trim(e.Payload, " \t\r\n")) == "null"
}

// StateStore reads the state that a topic is the log of: the last event of each key.
type StateStore interface {
	// LatestByKey returns the last event of each of the keys; keys without events,
	// and those deleted in a topic that keeps state, are missing in the map. The
	// topic needs KeyInSubject ([ErrNeedsKeySubject]). What was acknowledged before the
	// call counts: with Replicas above 1 one that lags is waited for, [ErrUnavailable]
	// where that takes too long. Its cost follows the number of keys asked for.
	LatestByKey(ctx context.Context, topic string, keys ...string) (map[string]Event, error)
	// ScanLatest calls each with the last event of every key, in the order of the
	// topic, tombstones included, and returns the position as of which that is the
	// state: to follow it, Read with that in ReadOptions.After. Of a snapshot it is
	// a position of the other topic. A key that changes meanwhile comes again, and
	// so does everything after a lost connection: of several events of a key the
	// last one counts. It ends with the first error of each. The topic needs
	// KeyInSubject ([ErrNeedsKeySubject]). Its cost follows the number of keys, not
	// that of events.
	ScanLatest(ctx context.Context, topic string, q LatestQuery, each func(Event) error) (asOf uint64, err error)
	// StateAt returns the state as of a time by the broker's clock, events stored
	// at that very moment included, from what the topic still holds: see
	// [State].Exact. A time to come means now. The error is [ErrBeyondHorizon] for a
	// time before the first event that it holds; a topic without events has an
	// empty state. It works on topics without KeyInSubject, too; of a snapshot it
	// is [ErrUnsupported]: ask the other topic. Its cost follows the number of
	// events up to that time.
	StateAt(ctx context.Context, topic string, at time.Time) (State, error)
}

// LatestQuery selects what ScanLatest reads.
type LatestQuery struct {
	KeyPrefix string `json:"keyPrefix,omitempty"` // only keys that start so; defaults to all
}

// State is the last event of each key as of a moment.
type State struct {
	// AsOf is the position of the last event that counts, 0 where there is none.
	AsOf uint64
	// Time is when that was stored, by the broker's clock.
	Time time.Time
	// Exact says that nothing is missing: every event of the topic's stream up to
	// AsOf was there to be read. None had expired, was deleted, or had given way to a
	// later one of its key; the present state of a compacted topic that loses
	// nothing else is exact all the same, also where somebody deleted a message of
	// its stream by hand, which nobody can know. Where it is false, keys may be missing or
	// be those of earlier events. It is always false where it cannot be known: in
	// a stream shared by topics, or with delayed events, that has lost any event.
	Exact bool
	// Events by key, without those of deleted keys.
	Events map[string]Event
}
