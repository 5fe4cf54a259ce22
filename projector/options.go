package projector

import (
	"log/slog"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// Options configures a projection; see [Start].
type Options struct {
	// Name is the projection's name, in the form of a group name (see
	// jetbus.ValidGroup). All replicas of a projection use it. It is their group on the
	// topic, and identifies the owner of the sink. Required.
	Name string
	// Topic is the topic to project. It must exist. Required.
	Topic string
	// From is a topic that holds the last event of each key of Topic, its snapshot
	// (TopicConfig.SnapshotOf). An empty sink is filled from it, and then follows Topic.
	// A snapshot has the events' own keys and positions: with VersionOf, the last event
	// of a key must have its highest version, and with KeyOf, the key in the sink must
	// follow from the event's Key. Default: Topic itself if it has KeyInSubject, used in
	// the same way. Otherwise the sink is filled event by event, and so is the sink of
	// an exclusive projection, whose position fences each batch.
	From string
	// KeyOf returns an event's key in the sink. An event with an empty key becomes a
	// dead letter. A tombstone needs the key of the state that it deletes, and may have
	// no payload from which to derive it. Default: the event's Key.
	KeyOf func(jetbus.Event) (string, error)
	// Map returns the state that results from an event. If it returns an error or
	// panics, the event becomes a dead letter. Default: the payload, as json.RawMessage,
	// which must be JSON, or as []byte if its content type is application/bson.
	Map func(jetbus.Event) (any, error)
	// Tombstone reports whether an event deletes its key, in addition to the events that
	// [IsTombstone] recognizes. Default: no others.
	Tombstone func(jetbus.Event) bool
	// VersionOf returns the version of the state in an event, for publishers that count
	// versions themselves. Of two events of a key, the higher version wins, and the
	// later event if the versions are equal. Tombstones need a version as well, above
	// the version of the state that they delete; a tombstone without a payload can carry
	// it in a header. Default: the later event wins.
	VersionOf func(jetbus.Event) (int64, error)
	// MaxBatch is the maximum number of events in a batch. A replica holds up to twice
	// as many in memory, but no more than 2,000 for each second of AckTimeout: lower it
	// if payloads are large. Default 5,000, 1 to 10,000.
	MaxBatch int
	// Linger is how long a batch waits for more events while they keep arriving. An
	// event after a pause is written immediately. Default 20 milliseconds; -1 means no
	// wait.
	Linger time.Duration
	// AckTimeout is how long the events of a replica that died are withheld from the
	// others. Default 30 seconds, at least 1 second. An exclusive projection uses it as
	// the TTL of its lock, in whole seconds, from 3 seconds to an hour.
	AckTimeout time.Duration
	// Exclusive lets one replica at a time project all events in order, from the
	// position that the sink holds, while the others stand by. Sinks that keep no
	// tombstones, that count or that append need it. The projection then has no group:
	// its dead letters are replayed to the topic, or by a rebuild. Default false: the
	// replicas share the events.
	Exclusive bool
	// Every passes each event to the sink, not only the last one of its key in a batch.
	// It needs Exclusive, and a rebuild swaps only while no replica runs. Default false.
	Every bool
	// OnNewStream is what Start does if the topic was deleted and declared again, or its
	// broker was restored to an earlier state, since the sink was filled. A running
	// projection ends with ErrNewStream. Default RefuseNewStream.
	OnNewStream NewStream
	// ShutdownTimeout is how long Stop waits for the current batch to be written.
	// Default 30 seconds.
	ShutdownTimeout time.Duration
	// Logger receives messages about an unavailable sink and about dead letters. Default
	// nil: no logging.
	Logger *slog.Logger
}

// NewStream is what a projection does if its topic has another history than the sink.
type NewStream string

// Values of NewStream.
const (
	// RefuseNewStream: Start fails with ErrNewStream.
	RefuseNewStream NewStream = ""
	// RebuildOnNewStream: Start rebuilds the sink, which must be a Rebuilder. With
	// Options.Every, it waits until the earlier replicas end, as they do when they notice.
	RebuildOnNewStream NewStream = "rebuild"
)
