package jetbus

import (
	"context"
	"fmt"
	"time"
)

// Topics declares, inspects and removes topics and groups.
type Topics interface {
	// EnsureTopic declares a topic: it creates what is missing, changes what
	// differs and may be changed, and refuses the rest with a [ConflictError]. Of a
	// topic that exists, fields of c that are zero stay as they are; a new one gets
	// their defaults, or in a shared stream (TopicConfig.Stream) the stream's settings.
	// What would make a topic keep less than it does is refused unless c.Shrink is set. It
	// is idempotent and safe to race. Other buses that know the topic learn of a
	// change when they use it next, at the latest 10 seconds after it.
	EnsureTopic(ctx context.Context, c TopicConfig) (TopicInfo, error)
	// TopicInfo describes a topic ([ErrNoTopic]).
	TopicInfo(ctx context.Context, topic string) (TopicInfo, error)
	// ListTopics describes all topics of this bus's prefix, sorted by name.
	ListTopics(ctx context.Context) ([]TopicInfo, error)
	// DeleteTopic removes a topic with all its events and groups ([ErrNoTopic]). In
	// a shared stream it removes the topic's events and groups only. A topic that
	// has a snapshot is refused, [ErrConflict]: delete the snapshot first.
	DeleteTopic(ctx context.Context, topic string) error
	// Groups describes the groups of a topic, sorted by name ([ErrNoTopic]).
	Groups(ctx context.Context, topic string) ([]GroupInfo, error)
	// EnsureGroup makes a group that events wait for, without a member. A group that exists
	// goes on where it is; what c names of its settings is changed as members do. It is
	// idempotent and safe to race. A group that has partitions is made by
	// Partitions.JoinPartitions, and is an [ErrConflict] here. The error may be [ErrNoTopic],
	// [ErrInvalidOption], [ErrInvalidGroup], [ErrPositionUnknown] for c.From, and
	// [ErrUnsupported] for a snapshot.
	EnsureGroup(ctx context.Context, topic string, c GroupConfig) (GroupInfo, error)
	// DeleteGroup removes a group and its position ([ErrNoGroup]). Its running
	// members end with that error.
	DeleteGroup(ctx context.Context, topic, group string) error
	// PauseGroup stops delivery to all members of a group until a time, surviving
	// restarts: once it returns nothing more is handed out; events held are settled as
	// usual. ResumeGroup ends it. Both need a server 2.11 or newer, and wait for a SetCursor
	// that is moving the group.
	PauseGroup(ctx context.Context, topic, group string, until time.Time) error
	// ResumeGroup lets a paused group go on.
	ResumeGroup(ctx context.Context, topic, group string) error
}

// Storage is where a topic's events are kept.
type Storage string

// The kinds of storage.
const (
	FileStorage   Storage = "file"   // on disk; the default
	MemoryStorage Storage = "memory" // in memory: gone with the last replica
)

// Discard says what a topic does at MaxBytes or MaxEvents.
type Discard string

// The ways to treat a full topic.
const (
	DiscardOld Discard = "old" // remove the oldest events; the default
	DiscardNew Discard = "new" // refuse new ones with ErrTopicFull
)

// TopicConfig declares a topic. The zero value of each field leaves a topic that exists as
// it is, and is the default of a new one; a limit of -1 means none. So what is on cannot be
// turned off by a declaration, nor a description be taken away: both need another topic.
type TopicConfig struct {
	Name        string `json:"name"` // see ValidTopic
	Description string `json:"description,omitempty"`
	// Retention is how long events are kept, at least 100 milliseconds. Defaults to 7 days.
	Retention time.Duration `json:"-"`
	// MaxBytes bounds the topic's size with headers. Defaults to 10 GiB, and to none
	// for a snapshot in files and with Delays.
	MaxBytes int64 `json:"maxBytes,omitempty"`
	// MaxEvents bounds the number of events. Defaults to none.
	MaxEvents int64 `json:"maxEvents,omitempty"`
	// Discard is what happens at MaxBytes or MaxEvents. Defaults to DiscardOld.
	Discard Discard `json:"discard,omitempty"`
	// Storage defaults to FileStorage. It cannot be changed later.
	Storage Storage `json:"storage,omitempty"`
	// Replicas in a cluster, 1 to 5. Defaults to 1.
	Replicas int `json:"replicas,omitempty"`
	// DuplicateWindow is how long an id is remembered. Defaults to 2 minutes, or
	// Retention where that is shorter; at least 100 milliseconds, at most Retention.
	// Only that of a snapshot is none. A publish that may be stored is not repeated for longer:
	// it ends with StoredUnknown.
	DuplicateWindow time.Duration `json:"-"`
	// KeyInSubject puts each key into the subject of its events. LatestByKey,
	// ScanLatest and ExpectLastSeq need it; every distinct key then costs the server
	// about 200 bytes of memory. It cannot be changed: delete the topic first.
	KeyInSubject bool `json:"keyInSubject,omitempty"`
	// Partitions spreads the topic's events by their keys over that many partitions, at
	// most MaxPartitions, so that the members of a group share them out and each key keeps
	// its order: see package partition. 8 to 32 is usual. An event without a key goes
	// by its ID, or with KeyInSubject to the one partition of the empty key. A topic has
	// partitions from its first day or never; Partitions.Repartition adds some, and a
	// declaration that still says a number which the topic had before is left at that. It
	// excludes Stream, Subject and SnapshotOf. Defaults to none.
	Partitions int `json:"partitions,omitempty"`
	// Delays allows PublishOptions.DeliverAt. It needs a server 2.12 or newer, and
	// cannot be switched off. It excludes DiscardNew, MaxBytes and MaxEvents: a full topic
	// would drop events that wait for their time. A topic that has such limits already gets
	// it together with a MaxBytes and MaxEvents of -1.
	Delays bool `json:"delays,omitempty"`
	// Compact keeps the last History events of each key, and deletes a key at its
	// tombstone ([Tombstone]). Events without a key count as those of one key. An
	// event that ends, by its TTL or by Retention, leaves a tombstone where it was
	// the last of its key. It implies KeyInSubject. Retention then defaults to none,
	// and Discard to DiscardNew (DiscardOld with Delays): state must not vanish for
	// want of room. It cannot be changed: delete the topic first.
	Compact bool `json:"compact,omitempty"`
	// History is how many events of a key a compacted topic keeps, 1 to 64. With
	// more than 1 it takes no PublishOptions.TTL: the event before would come back.
	// Lowering it, which needs Shrink, removes the events that are too many, at once. A topic that is full (DiscardNew) still takes updates and
	// tombstones of keys that have History events; with more than 1 it refuses
	// those of others ([ErrTopicFull]). With more than 1, or with a snapshot of the
	// topic, a tombstone may make its groups lose what their members hold at that
	// moment and do not acknowledge (servers up to 2.15.2). Defaults to 1.
	History int `json:"history,omitempty"`
	// SnapshotOf makes this topic the snapshot of another, which must exist and needs
	// KeyInSubject, by custom under the name of [SnapshotTopic]: the last event of each of
	// its keys, kept by the server. It is read only; its events have the Topic and Seq they
	// have in the other one, and so it cannot be read from AfterSeq or AfterID, and has no
	// groups ([ErrUnsupported]): read it, then follow the other one. What the other topic
	// loses by its Retention stays, and so do tombstones, unless the other topic is
	// compacted: then TombstoneTTL ends them in both. There an event with a TTL ends in
	// both, and leaves a tombstone; a log with a snapshot takes no TTL ([ErrUnsupported]):
	// the event before would come back, in the log alone. It has no DuplicateWindow (-1),
	// and a stream of its own; Retention and Discard default as with Compact, and MaxBytes
	// to none, in memory apart. One that is full stands still, and what the other topic
	// loses by Retention meanwhile is lost to it, tombstones included: watch TopicInfo.Lag.
	// The topic of a snapshot cannot be changed; where that was deleted by other means and
	// made anew, which begins its positions anew, the snapshot is refused ([ErrConflict]):
	// delete it first. That of a topic in memory must be in memory, too.
	SnapshotOf string `json:"snapshotOf,omitempty"`
	// TombstoneTTL is how long a tombstone stays readable in a compacted topic;
	// whole seconds. It counts for tombstones published from then on. It must be
	// longer than readers can be away. And a server that is killed, not stopped, may
	// bring back from its files a key whose tombstone has ended: where that must not
	// be, use years. Defaults to 24 hours, or Retention where that is shorter; at
	// most Retention. (In a log that has a snapshot a tombstone goes with the events
	// of its time.)
	TombstoneTTL time.Duration `json:"-"`
	// Stream places the topic into a stream of that name, which several topics may
	// share: they then have one order, one set of limits and atomic batches across
	// them. Defaults to a stream of the topic's own, named after it. With Subject
	// set it names an existing stream to adopt.
	Stream string `json:"stream,omitempty"`
	// Subject adopts events of a stream that JetBus did not create: the subject
	// (wildcards allowed) whose messages are the topic's events. The stream must
	// exist and is never changed; publishing needs a subject without wildcards.
	Subject string `json:"subject,omitempty"`
	// Shrink allows this one declaration to make a topic that exists keep less: a
	// shorter Retention, DuplicateWindow or TombstoneTTL, smaller MaxBytes, MaxEvents or
	// History, fewer Replicas, DiscardOld after DiscardNew. What is too old or too much
	// then is removed at once. It is no setting of the topic: it is not stored, TopicInfo
	// does not have it, and it has no JSON form. Defaults to false: such a change is
	// refused with a [ConflictError] that names the fields.
	Shrink bool `json:"-"`
}

// TopicInfo describes a topic as it is at the broker.
type TopicInfo struct {
	Config  TopicConfig `json:"config"` // all defaults resolved
	Stream  string      `json:"stream"`
	Created time.Time   `json:"-"`
	// Events is how many the topic holds. Those that wait for their DeliverAt are not among
	// them. Where the topic has replicas and its stream holds more than its events (Delays,
	// Stream, Subject), one of them has counted, which may be moments behind the others; it
	// is 0 only where there is no event.
	Events   uint64    `json:"events"`
	Bytes    uint64    `json:"bytes"` // of the whole stream
	FirstSeq uint64    `json:"firstSeq"`
	LastSeq  uint64    `json:"lastSeq"` // of the whole stream; a snapshot's counts for itself
	LastTime time.Time `json:"-"`
	Groups   int       `json:"groups"` // of the whole stream
	// Generations are the topic's partitions, oldest first; nil where it has none.
	Generations []Generation `json:"generations,omitempty"`
	// Lag is, for a snapshot, how many events of the other topic it has not taken
	// in yet, give or take one: it is 0 only where there are none (with servers older
	// than 2.15, or one). -1 where the server has not heard of that topic lately, as
	// for a moment after the snapshot was declared.
	Lag int64 `json:"lag,omitempty"`
}

// GroupConfig declares a group. The zero value of each field leaves a group that exists as
// it is, and is the default of a new one.
type GroupConfig struct {
	Group string
	// From is where a new group begins. Defaults to Latest.
	From Start
	// AckTimeout is how long a lease lasts, at least 100 milliseconds. It is made longer,
	// never shorter. Defaults to 30 seconds.
	AckTimeout time.Duration
	// MaxInFlight is how many events all members hold at most, as
	// SubscribeOptions.GroupMaxInFlight. Defaults to 10000.
	MaxInFlight int
	// Inactive is how long a group without members stays: after that the broker deletes it,
	// with its position. What is known of failed attempts at events is kept for a day
	// more, and of retries for 30. At least a minute; -1, the default, is for ever. It is for
	// groups that may die with their process. The time begins anew whenever a member asks
	// for events, which one that is paused or disconnected does not, and with each broker
	// that starts. Events of the topic that are held keep the group for as long as their
	// leases last, and for Inactive more.
	Inactive time.Duration
}

const minInactive = time.Minute // more than another member takes to take an ordered group over

// Normalize returns the declaration as a bus takes it, or an error wrapping
// [ErrInvalidOption], [ErrInvalidGroup] that names the field.
func (c GroupConfig) Normalize() (GroupConfig, error) {
	if err := ValidGroup(c.Group); err != nil {
		return c, err
	}
	if err := c.From.Validate(); err != nil {
		return c, err
	}
	switch {
	case c.AckTimeout != 0 && c.AckTimeout < minAckTimeout:
		return c, fmt.Errorf("%w: AckTimeout is %v, use %v or more, or 0 for that of the group", ErrInvalidOption, c.AckTimeout, minAckTimeout)
	case c.MaxInFlight < 0 || c.MaxInFlight > maxInFlight:
		return c, fmt.Errorf("%w: MaxInFlight is %d, use 1 to %d, or 0 for that of the group", ErrInvalidOption, c.MaxInFlight, maxInFlight)
	case c.Inactive != 0 && c.Inactive != -1 && c.Inactive < minInactive:
		return c, fmt.Errorf("%w: Inactive is %v, use %v or more, -1 for ever, or 0 for that of the group", ErrInvalidOption, c.Inactive, minInactive)
	}
	return c, nil
}

// GroupInfo describes a group as it is at the broker.
type GroupInfo struct {
	Topic      string        `json:"topic"`
	Group      string        `json:"group"`
	Created    time.Time     `json:"-"`
	AckTimeout time.Duration `json:"-"`
	// MaxInFlight is how many events all members may hold; of partitions, in each.
	MaxInFlight int `json:"maxInFlight,omitempty"`
	// Inactive is how long it stays without members; 0: for ever.
	Inactive time.Duration `json:"-"`
	Pending  uint64        `json:"pending"`  // events not delivered yet
	Held     int           `json:"held"`     // delivered, not settled
	Retrying int           `json:"retrying"` // of those, delivered more than once
	AckedSeq uint64        `json:"ackedSeq"` // everything up to here is settled
	Waiting  int           `json:"waiting"`  // requests of members waiting for events
	Paused   bool          `json:"paused"`   // by PauseGroup, or while its start is being set
	LastAck  time.Time     `json:"-"`
}
