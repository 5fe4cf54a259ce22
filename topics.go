package jetbus

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
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
	// ListTopics describes all topics of this bus's prefix, sorted by name. It leaves out those
	// whose servers are down, or have no leader for longer than an election takes.
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
	// DuplicateWindow is how long the topic remembers event IDs, from 100 milliseconds to
	// Retention. Defaults to 2 minutes, or to Retention if that is shorter. Only snapshots have
	// none. A publish that may have been stored is not retried beyond the window: it fails with
	// StoredUnknown.
	DuplicateWindow time.Duration `json:"-"`
	// KeyInSubject puts each key into the subject of its events. LatestByKey, ScanLatest and
	// ExpectLastSeq need it. Every distinct key then costs the server about 200 bytes of
	// memory. It cannot be changed: delete the topic first.
	KeyInSubject bool `json:"keyInSubject,omitempty"`
	// Partitions distributes the topic's events by key over that many partitions, at most
	// MaxPartitions, so that the members of a group share them and each key keeps its order:
	// see package partition. 8 to 32 is usual. An event without a key is assigned by its ID or,
	// with KeyInSubject, to the partition of the empty key. Partitions must be set when the
	// topic is first declared. Partitions.Repartition adds some. After that, a declaration with
	// the previous number is accepted and changes nothing. It excludes Stream, Subject and SnapshotOf.
	// Defaults to none.
	Partitions int `json:"partitions,omitempty"`
	// Delays allows PublishOptions.DeliverAt. It needs server 2.12 or newer, and cannot be
	// switched off. It excludes DiscardNew, MaxBytes and MaxEvents: a full topic would drop
	// events that wait for their time. To add Delays to a topic with such limits, also set
	// MaxBytes and MaxEvents to -1.
	Delays bool `json:"delays,omitempty"`
	// Compact keeps the last History events of each key, and deletes a key at its tombstone
	// ([Tombstone]). Events without a key count as events of one key. If the last event of a
	// key expires, by its TTL or by Retention, it leaves a tombstone. Compact implies
	// KeyInSubject. Retention then defaults to none, and Discard to DiscardNew (DiscardOld with
	// Delays), because a full topic must not lose state. It cannot be changed: delete the topic
	// first.
	Compact bool `json:"compact,omitempty"`
	// History is how many events of a key a compacted topic keeps, 1 to 64. With more than 1,
	// PublishOptions.TTL is refused, because the event before would reappear. Lowering History
	// needs Shrink, and immediately removes the excess events. A full topic (DiscardNew) still
	// accepts updates and tombstones of keys that have History events; with more than 1 it
	// refuses them for other keys ([ErrTopicFull]). With more than 1, or with a snapshot of the
	// topic, a tombstone may make groups lose events that their members hold at that moment and
	// do not acknowledge (servers up to 2.15.2). Defaults to 1.
	History int `json:"history,omitempty"`
	// SnapshotOf makes the topic a read-only snapshot of the named topic, which must exist with
	// KeyInSubject: the server keeps the last event of each key, with its original Topic and
	// Seq. By convention a snapshot is named [SnapshotTopic]. A snapshot has no groups and
	// cannot be read from AfterSeq or AfterID ([ErrUnsupported]): read the snapshot, then
	// follow the topic.
	//
	// A snapshot keeps events and tombstones that its topic removes by Retention. If the topic
	// is compacted, TombstoneTTL removes tombstones from both, and an event with a TTL expires
	// in both and leaves a tombstone. A log with a snapshot rejects a TTL ([ErrUnsupported]):
	// the key's previous event would reappear, in the log only.
	//
	// A snapshot has its own stream and no DuplicateWindow (-1). Retention and Discard default
	// as with Compact, and MaxBytes to none except in memory. The snapshot of a topic in memory
	// must be in memory, too. A full snapshot stalls, and events and tombstones that the topic
	// removes by Retention in the meantime are lost to it: watch TopicInfo.Lag.
	//
	// SnapshotOf cannot be changed. If the topic was deleted by other means and re-created, its
	// positions restart, and the snapshot is refused ([ErrConflict]): delete the snapshot
	// first.
	SnapshotOf string `json:"snapshotOf,omitempty"`
	// TombstoneTTL is how long a tombstone stays readable in a compacted topic; whole seconds.
	// A change applies to tombstones published after it. It must be longer than readers can be
	// absent. A server that is killed, not stopped, may restore from its files a key whose
	// tombstone has expired: if that must not happen, use years. Defaults to 24 hours, or to
	// Retention if that is shorter; at most Retention. In a log with a snapshot, a tombstone is
	// removed along with the events of its time.
	TombstoneTTL time.Duration `json:"-"`
	// Stream places the topic into a stream of that name, which several topics may share: they
	// then have one order, one set of limits and atomic batches across them. A topic with
	// Partitions cannot share its stream. Defaults to a stream of its own, named after the
	// topic. With Subject set it names an existing stream to adopt.
	Stream string `json:"stream,omitempty"`
	// Subject adopts events of a stream that JetBus did not create: the messages on this
	// subject (wildcards allowed) are the topic's events. The stream must exist and is never
	// changed. Publishing needs a subject without wildcards. If the stream does not set
	// AllowDirect, events are read one by one from its leader.
	Subject string `json:"subject,omitempty"`
	// Shrink allows this one declaration to reduce what an existing topic keeps: a shorter
	// Retention, DuplicateWindow or TombstoneTTL, smaller MaxBytes, MaxEvents or History, fewer
	// Replicas, DiscardOld after DiscardNew. Events beyond the new limits are removed
	// immediately. Shrink is not a setting of the topic: it is not stored, TopicInfo does not
	// have it, and it has no JSON form. Defaults to false: such a change is refused with a
	// [ConflictError] that names the fields.
	Shrink bool `json:"-"`
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

// Defaults of TopicConfig.
const (
	DefaultRetention       = 7 * 24 * time.Hour
	DefaultMaxBytes        = 10 << 30
	DefaultReplicas        = 1
	DefaultDuplicateWindow = 2 * time.Minute
	DefaultHistory         = 1
	DefaultTombstoneTTL    = 24 * time.Hour

	minRetention        = 100 * time.Millisecond // the server's own bound, for the window too
	maxReplicas         = 5
	maxHistory          = 64 // the server's own, of its key-value buckets
	maxDescriptionBytes = 4 << 10
	maxStreamBytes      = 255
	maxSubjectBytes     = 1 << 10
)

// Normalize returns the configuration of a topic that does not exist yet: with
// defaults filled in, limits that are none as -1, or an error wrapping [ErrInvalidTopic] or [ErrInvalidOption] that
// names the field. Stream stays empty where it was: the bus chooses the name.
func (c TopicConfig) Normalize() (TopicConfig, error) {
	if c.Compact || c.SnapshotOf != "" {
		c.stateDefaults()
	}
	setDefault(&c.Retention, DefaultRetention)
	if c.Delays {
		setDefault(&c.MaxBytes, -1)
	}
	setDefault(&c.MaxBytes, DefaultMaxBytes)
	setDefault(&c.MaxEvents, -1)
	setDefault(&c.Discard, DiscardOld)
	setDefault(&c.Storage, FileStorage)
	setDefault(&c.Replicas, DefaultReplicas)
	if c.DuplicateWindow == 0 {
		c.DuplicateWindow = DefaultDuplicateWindow
		if c.Retention > 0 {
			c.DuplicateWindow = min(c.DuplicateWindow, c.Retention)
		}
	}
	if err := ValidTopic(c.Name); err != nil {
		return c, err
	}
	if err := c.validLimits(); err != nil {
		return c, err
	}
	if err := c.validPlace(); err != nil {
		return c, err
	}
	return c, c.validState()
}

// stateDefaults fills in what is different for topics that keep state.
func (c *TopicConfig) stateDefaults() {
	c.KeyInSubject = true
	setDefault(&c.History, DefaultHistory)
	setDefault(&c.Retention, -1)
	if !c.Delays {
		setDefault(&c.Discard, DiscardNew)
	}
	if c.Compact && c.TombstoneTTL == 0 {
		c.TombstoneTTL = DefaultTombstoneTTL
		if c.Retention > 0 {
			c.TombstoneTTL = min(c.TombstoneTTL, max(c.Retention.Truncate(time.Second), time.Second))
		}
	}
	if c.SnapshotOf != "" {
		setDefault(&c.DuplicateWindow, -1)
		if c.Storage != MemoryStorage {
			setDefault(&c.MaxBytes, -1) // one that is full misses what its topic loses meanwhile
		}
	}
}

// validState checks what is said about state.
func (c *TopicConfig) validState() error {
	switch {
	case !c.Compact && c.SnapshotOf == "":
		if c.History != 0 || c.TombstoneTTL != 0 {
			return fmt.Errorf("%w: History and TombstoneTTL need Compact", ErrInvalidOption)
		}
		return nil
	case c.History < 1 || c.History > maxHistory:
		return fmt.Errorf("%w: History is %d, use 1 to %d", ErrInvalidOption, c.History, maxHistory)
	case c.Compact && (c.TombstoneTTL < time.Second || c.TombstoneTTL > maxTTL || c.TombstoneTTL%time.Second != 0):
		return fmt.Errorf("%w: TombstoneTTL is %v, use whole seconds from 1s to %v", ErrInvalidOption, c.TombstoneTTL, maxTTL)
	case c.Compact && c.Retention != -1 && c.TombstoneTTL > c.Retention:
		return fmt.Errorf("%w: TombstoneTTL is %v, use at most Retention (%v), which ends tombstones, too", ErrInvalidOption, c.TombstoneTTL, c.Retention)
	case c.SnapshotOf == "":
		return nil
	case ValidTopic(c.SnapshotOf) != nil || c.SnapshotOf == c.Name:
		return fmt.Errorf("%w: SnapshotOf is %q, use another topic", ErrInvalidOption, c.SnapshotOf)
	case c.Compact || c.History != 1 || c.TombstoneTTL != 0 || c.Delays || c.Stream != "" || c.DuplicateWindow != -1:
		return fmt.Errorf("%w: SnapshotOf excludes Compact, History, TombstoneTTL, Delays, DuplicateWindow, Stream and Subject", ErrInvalidOption)
	}
	return nil
}

// validLimits checks what is kept, and for how long.
func (c *TopicConfig) validLimits() error {
	switch {
	case c.Retention != -1 && c.Retention < minRetention:
		return fmt.Errorf("%w: Retention is %v, use at least %v, or -1 for none", ErrInvalidOption, c.Retention, minRetention)
	case c.MaxBytes < -1:
		return fmt.Errorf("%w: MaxBytes is %d, use 1 or more, or -1 for none", ErrInvalidOption, c.MaxBytes)
	case c.MaxEvents < -1:
		return fmt.Errorf("%w: MaxEvents is %d, use 1 or more, or -1 for none", ErrInvalidOption, c.MaxEvents)
	case c.Discard != DiscardOld && c.Discard != DiscardNew:
		return fmt.Errorf("%w: Discard is %q, use %q or %q", ErrInvalidOption, c.Discard, DiscardOld, DiscardNew)
	case c.Delays && c.Discard == DiscardNew:
		return fmt.Errorf("%w: Delays excludes DiscardNew, use DiscardOld", ErrInvalidOption)
	case c.Delays && (c.MaxBytes != -1 || c.MaxEvents != -1):
		err := fmt.Errorf("%w: Delays excludes limits, and MaxBytes is %d and MaxEvents %d: a full topic would drop events that wait for their time; use -1 for both",
			ErrInvalidOption, c.MaxBytes, c.MaxEvents)
		return &RemedyError{Err: err, See: "TopicConfig.MaxBytes, TopicConfig.MaxEvents"}
	case c.SnapshotOf != "": // has no window: see validState
	case c.DuplicateWindow < minRetention:
		return fmt.Errorf("%w: DuplicateWindow is %v, use at least %v", ErrInvalidOption, c.DuplicateWindow, minRetention)
	case c.Retention != -1 && c.DuplicateWindow > c.Retention:
		return fmt.Errorf("%w: DuplicateWindow is %v, use at most Retention (%v)", ErrInvalidOption, c.DuplicateWindow, c.Retention)
	}
	return nil
}

// validPlace checks where the topic is kept.
func (c *TopicConfig) validPlace() error {
	switch {
	case len(c.Description) > maxDescriptionBytes:
		return fmt.Errorf("%w: Description has %d bytes, at most %d are allowed", ErrInvalidOption, len(c.Description), maxDescriptionBytes)
	case c.Storage != FileStorage && c.Storage != MemoryStorage:
		return fmt.Errorf("%w: Storage is %q, use %q or %q", ErrInvalidOption, c.Storage, FileStorage, MemoryStorage)
	case c.Replicas < 1 || c.Replicas > maxReplicas:
		return fmt.Errorf("%w: Replicas is %d, use 1 to %d", ErrInvalidOption, c.Replicas, maxReplicas)
	case c.Partitions < 0 || c.Partitions > MaxPartitions:
		return fmt.Errorf("%w: Partitions is %d, use 1 to %d, or 0 for none", ErrInvalidOption, c.Partitions, MaxPartitions)
	case c.Partitions > 0 && (c.Stream != "" || c.Subject != "" || c.SnapshotOf != ""):
		return fmt.Errorf("%w: Partitions excludes Stream, Subject and SnapshotOf: such a topic has a stream of its own", ErrInvalidOption)
	case c.Subject != "" && c.Stream == "":
		return fmt.Errorf("%w: Subject needs Stream, the existing stream that has it", ErrInvalidOption)
	}
	if c.Stream != "" || c.SnapshotOf != "" { // else it may be a snapshot that is there already
		if err := ValidSnapshotOf(c.Name, c.SnapshotOf); err != nil {
			return err
		}
	}
	if c.Stream != "" {
		if err := validStream(c.Stream); err != nil {
			return err
		}
	}
	if c.Subject != "" {
		return validSubject(c.Subject)
	}
	return nil
}

// validStream is the server's rule of stream names, without control characters.
func validStream(name string) error {
	switch {
	case len(name) > maxStreamBytes:
		return fmt.Errorf("%w: Stream has %d bytes, at most %d are allowed", ErrInvalidOption, len(name), maxStreamBytes)
	case !printable(name) || strings.ContainsAny(name, ` .*>/\`):
		return fmt.Errorf(`%w: Stream is %q: names have no spaces, control characters, '.', '*', '>', '/' and '\'`, ErrInvalidOption, name)
	}
	return nil
}

// validSubject is the server's rule of subjects, but refuses a wildcard that is
// only part of a token: the server would take it literally, which nobody means.
func validSubject(subject string) error {
	bad := func(why string) error {
		return fmt.Errorf("%w: Subject is %.100q: %s", ErrInvalidOption, subject, why)
	}
	switch {
	case len(subject) > maxSubjectBytes:
		return bad(fmt.Sprintf("it has %d bytes, at most %d are allowed", len(subject), maxSubjectBytes))
	case !printable(subject) || strings.ContainsRune(subject, ' '):
		return bad("it has spaces or control characters, or is no UTF-8")
	}
	rest, more := subject, true
	for more {
		var token string
		token, rest, more = strings.Cut(rest, ".")
		switch {
		case token == "":
			return bad("it has an empty token")
		case token == ">" && more:
			return bad("'>' may only be the last token")
		case len(token) > 1 && strings.ContainsAny(token, "*>"):
			return bad("'*' and '>' stand for whole tokens")
		}
	}
	return nil
}

type plainTopicConfig TopicConfig

type topicConfigJSON struct {
	plainTopicConfig
	RetentionMs       millis `json:"retentionMs,omitempty"`
	DuplicateWindowMs millis `json:"duplicateWindowMs,omitempty"`
	TombstoneTTLMs    millis `json:"tombstoneTtlMs,omitempty"`
}

// MarshalJSON gives the members name, description, retentionMs, maxBytes,
// maxEvents, discard, storage, replicas, duplicateWindowMs, keyInSubject, partitions,
// delays, compact, history, snapshotOf, tombstoneTtlMs, stream and subject, leaving out what is zero, except name.
func (c TopicConfig) MarshalJSON() ([]byte, error) {
	return json.Marshal(topicConfigJSON{plainTopicConfig(c), millis(c.Retention), millis(c.DuplicateWindow), millis(c.TombstoneTTL)})
}

// UnmarshalJSON reads what MarshalJSON writes. It does not validate.
func (c *TopicConfig) UnmarshalJSON(text []byte) error {
	w, err := unmarshal[topicConfigJSON](text, "topic configuration")
	if err != nil {
		return err
	}
	*c = TopicConfig(w.plainTopicConfig)
	c.Retention, c.DuplicateWindow = time.Duration(w.RetentionMs), time.Duration(w.DuplicateWindowMs)
	c.TombstoneTTL = time.Duration(w.TombstoneTTLMs)
	return nil
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

type plainTopicInfo TopicInfo

type topicInfoJSON struct {
	plainTopicInfo
	Created *int64 `json:"created,omitempty"`
	LastTS  *int64 `json:"lastTs,omitempty"`
}

// MarshalJSON gives the members config, stream, created, events, bytes,
// firstSeq, lastSeq, lastTs, groups, generations and lag, times in epoch milliseconds and left out
// when zero.
func (i TopicInfo) MarshalJSON() ([]byte, error) {
	return json.Marshal(topicInfoJSON{plainTopicInfo(i), toEpoch(i.Created), toEpoch(i.LastTime)})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (i *TopicInfo) UnmarshalJSON(text []byte) error {
	w, err := unmarshal[topicInfoJSON](text, "topic info")
	if err != nil {
		return err
	}
	*i = TopicInfo(w.plainTopicInfo)
	i.Created, i.LastTime = fromEpoch(w.Created), fromEpoch(w.LastTS)
	return nil
}
