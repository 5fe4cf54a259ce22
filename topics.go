package jetbus

import (
	"context"
	"time"
)

// Topics declares, inspects and removes topics and groups.
type Topics interface {
	// EnsureTopic declares a topic: it creates what is missing, changes what
	// differs and may be changed, and refuses the rest with a [ConflictError]. It
	// is idempotent and safe to race.
	EnsureTopic(ctx context.Context, c TopicConfig) (TopicInfo, error)
	// TopicInfo describes a topic ([ErrNoTopic]).
	TopicInfo(ctx context.Context, topic string) (TopicInfo, error)
	// ListTopics describes all topics of this bus's prefix, sorted by name.
	ListTopics(ctx context.Context) ([]TopicInfo, error)
	// DeleteTopic removes a topic with all its events and groups ([ErrNoTopic]). In
	// a shared stream it removes the topic's events and groups only.
	DeleteTopic(ctx context.Context, topic string) error
	// Groups describes the groups of a topic, sorted by name ([ErrNoTopic]).
	Groups(ctx context.Context, topic string) ([]GroupInfo, error)
	// DeleteGroup removes a group and its position ([ErrNoGroup]). Its running
	// members end with that error.
	DeleteGroup(ctx context.Context, topic, group string) error
	// PauseGroup stops delivery to all members of a group until a time, surviving
	// restarts; events held are settled as usual. ResumeGroup ends it. Both need a server 2.11 or newer.
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

// TopicConfig declares a topic. The zero value of each field is its default; a
// limit of -1 means none.
type TopicConfig struct {
	Name        string `json:"name"` // see ValidTopic
	Description string `json:"description,omitempty"`
	// Retention is how long events are kept, at least 100 milliseconds. Defaults to 7 days.
	Retention time.Duration `json:"-"`
	// MaxBytes bounds the topic's size with headers. Defaults to 10 GiB.
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
	// It cannot be none.
	DuplicateWindow time.Duration `json:"-"`
	// KeyInSubject puts each key into the subject of its events. LatestByKey and
	// ExpectLastSeq need it; every distinct key then costs the server about 200 bytes of
	// memory. It cannot be changed while the topic holds events.
	KeyInSubject bool `json:"keyInSubject,omitempty"`
	// Delays allows PublishOptions.DeliverAt. It needs a server 2.12 or newer,
	// excludes DiscardNew, and cannot be switched off.
	Delays bool `json:"delays,omitempty"`
	// Stream places the topic into a stream of that name, which several topics may
	// share: they then have one order, one set of limits and atomic batches across
	// them. Defaults to a stream of the topic's own, named after it. With Subject
	// set it names an existing stream to adopt.
	Stream string `json:"stream,omitempty"`
	// Subject adopts events of a stream that JetBus did not create: the subject
	// (wildcards allowed) whose messages are the topic's events. The stream must
	// exist and is never changed; publishing needs a subject without wildcards.
	Subject string `json:"subject,omitempty"`
}

// TopicInfo describes a topic as it is at the broker.
type TopicInfo struct {
	Config   TopicConfig `json:"config"` // all defaults resolved
	Stream   string      `json:"stream"`
	Created  time.Time   `json:"-"`
	Events   uint64      `json:"events"`
	Bytes    uint64      `json:"bytes"` // of the whole stream
	FirstSeq uint64      `json:"firstSeq"`
	LastSeq  uint64      `json:"lastSeq"` // of the whole stream
	LastTime time.Time   `json:"-"`
	Groups   int         `json:"groups"` // of the whole stream
}

// GroupInfo describes a group as it is at the broker.
type GroupInfo struct {
	Topic      string        `json:"topic"`
	Group      string        `json:"group"`
	Created    time.Time     `json:"-"`
	AckTimeout time.Duration `json:"-"`
	Pending    uint64        `json:"pending"`  // events not delivered yet
	Held       int           `json:"held"`     // delivered, not settled
	Retrying   int           `json:"retrying"` // of those, delivered more than once
	AckedSeq   uint64        `json:"ackedSeq"` // everything up to here is settled
	Waiting    int           `json:"waiting"`  // requests of members waiting for events
	Paused     bool          `json:"paused"`   // by PauseGroup, or while its start is being set
	LastAck    time.Time     `json:"-"`
}
