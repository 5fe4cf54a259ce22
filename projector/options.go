package projector

import (
	"log/slog"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// Options configure a projection; see [Start].
type Options struct {
	// Name names the projection, as a group is named (see jetbus.ValidGroup).
	// Replicas of one projection share it; it is its group on the topic, and says in
	// the sink whose it is. Required.
	Name string
	// Topic is projected. It must exist. Required.
	Topic string
	// From is a topic that holds the last event of each key of Topic, its snapshot
	// (TopicConfig.SnapshotOf): a sink that is empty is filled from it, and then
	// follows Topic. Default: Topic itself where it has KeyInSubject, which the same
	// is done with; else, and in an exclusive projection, whose position fences each
	// batch, the sink is filled event by event. A snapshot goes by the events' own keys
	// and positions: with VersionOf the last event of a key must have its highest
	// version, and with KeyOf the key in the sink must follow from the event's Key.
	From string
	// KeyOf gives an event's key in the sink; an event whose key is empty becomes a
	// dead letter. Tombstones need the key of what they delete, and may have no
	// payload to find it in. Default: the event's Key.
	KeyOf func(jetbus.Event) (string, error)
	// Map makes the state of an event's key. An error, or a panic, makes the event a
	// dead letter. Default: the payload, as json.RawMessage, which must be JSON.
	Map func(jetbus.Event) (any, error)
	// Tombstone reports that an event deletes its key, beside those that
	// [IsTombstone] knows. Default: no other.
	Tombstone func(jetbus.Event) bool
	// VersionOf gives the version of the state that an event carries, where its
	// publishers count versions of their own: of two events of a key the one with
	// the higher version wins, and of equal ones the later. Tombstones need a version
	// as well, above that of the state they delete; one without a payload has room for
	// it in a header. Default: the later wins.
	VersionOf func(jetbus.Event) (int64, error)
	// MaxBatch is how many events are written at once, at most. A replica holds up to
	// twice as many, and not more than 2,000 for each second of AckTimeout, in memory:
	// lower it where payloads are large. Default 5,000, 1 to 10,000.
	MaxBatch int
	// Linger is how long a batch waits for more events while they keep coming; an
	// event after a silence is written at once. Default 20 milliseconds, -1 not at all.
	Linger time.Duration
	// AckTimeout is how long the events of a replica that died are held back from
	// the others. Default 30 seconds, at least 1 second. An exclusive projection
	// uses it as the TTL of its lock, at least 3 seconds, in whole ones.
	AckTimeout time.Duration
	// Exclusive lets one replica at a time project, all events in their order, from
	// the position that the sink holds, while the others stand by. Sinks that keep
	// no tombstones, that count or that append need it. It has no group: its dead
	// letters are replayed to the topic, or by a rebuild. Default false: the
	// replicas share the events.
	Exclusive bool
	// Every hands each event to the sink, and not only the last one of its key in a
	// batch. It needs Exclusive, and a rebuild swaps only while no replica runs. Default
	// false.
	Every bool
	// OnNewStream is what Start does if the topic was deleted and declared again, or its
	// broker was restored to an earlier state, since the sink was filled. A running
	// projection ends with ErrNewStream. Default RefuseNewStream.
	OnNewStream NewStream
	// ShutdownTimeout is how long Stop lets a batch in hand be written. Default 30
	// seconds.
	ShutdownTimeout time.Duration
	// Logger is told of a sink that is away and of events that become dead letters.
	// Default nil: nobody is told.
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
