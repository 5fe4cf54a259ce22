package jetbus

import (
	"errors"
	"fmt"
	"strings"
)

// Conditions, for errors.Is. Errors returned by a bus wrap them with the operation and its subject. A [ConflictError]
// of EnsureTopic, EnsureGroup, Subscribe and Receive names its subject itself.
var (
	// ErrClosed: the bus was closed, or its connection was closed under it.
	ErrClosed = errors.New("bus is closed")
	// ErrUnavailable: the broker did not answer in time, has no JetStream, or is too old.
	ErrUnavailable = errors.New("broker is unavailable")
	// ErrDenied: the connection's user may not do this at the broker.
	ErrDenied = errors.New("permission denied by the broker")
	// ErrUnsupported: this server version, or this topic's configuration, cannot do it.
	ErrUnsupported = errors.New("not supported")

	// ErrInvalidTopic: a name that ValidTopic refuses.
	ErrInvalidTopic = errors.New("invalid topic")
	// ErrInvalidGroup: a name that ValidGroup refuses.
	ErrInvalidGroup = errors.New("invalid group")
	// ErrInvalidEvent: an event whose id, key, time or list fields cannot be stored.
	ErrInvalidEvent = errors.New("invalid event")
	// ErrInvalidHeader: a header that ValidHeader refuses.
	ErrInvalidHeader = errors.New("invalid header")
	// ErrInvalidOption: options that contradict each other or are out of range.
	ErrInvalidOption = errors.New("invalid option")
	// ErrBatchTooLarge: an atomic batch of more events than the server takes. It wraps [ErrInvalidOption].
	ErrBatchTooLarge = fmt.Errorf("%w: batch too large", ErrInvalidOption)
	// ErrSchema: the event does not follow the schema of its topic. Errors of buses that
	// check schemas wrap it; package registry has the details.
	ErrSchema = errors.New("the event breaks the schema of its topic")
	// ErrPayloadTooLarge: the event exceeds what the broker accepts. Nothing was sent.
	ErrPayloadTooLarge = errors.New("payload too large")

	// ErrNoTopic: the topic was not declared; see EnsureTopic.
	ErrNoTopic = errors.New("no such topic")
	// ErrNoGroup: the group has never subscribed to the topic.
	ErrNoGroup = errors.New("no such group")
	// ErrConflict: what exists differs from what was asked and cannot be changed to it; see ConflictError.
	ErrConflict = errors.New("conflict")
	// ErrNeedsKeySubject: the operation needs TopicConfig.KeyInSubject.
	ErrNeedsKeySubject error = &RemedyError{errors.New("the topic does not keep keys in its subjects"), "TopicConfig.KeyInSubject"}
	// ErrNoPartitions: the topic was declared without TopicConfig.Partitions, which
	// cannot be added: declare another topic with them.
	ErrNoPartitions error = &RemedyError{errors.New("the topic has no partitions"), "TopicConfig.Partitions"}
	// ErrWrongSequence: ExpectLastSeq did not hold; nothing was stored.
	ErrWrongSequence = errors.New("wrong last sequence")
	// ErrOvertaken: the connection broke during a PublishBatch, or a cluster changed its leader, and a later event of
	// a key was stored before an earlier one, which must not follow it. The batch is abandoned. Publish the events
	// without a receipt again, with new IDs, if their order does not matter.
	ErrOvertaken = errors.New("a later event of the key is stored ahead of it")
	// ErrTopicFull: the topic reached its limit and refuses new events (DiscardNew).
	ErrTopicFull = errors.New("topic is full")
	// ErrBucketFull: a bucket of [Keys] reached its limit and refuses values; nothing was stored.
	// Keys that are deleted, or expire, make room.
	ErrBucketFull = errors.New("bucket is full")
	// ErrPositionUnknown: no event with that ID was found; pass its sequence. Or the position belongs to a topic that
	// was deleted and declared again, or was restored to an earlier state ([RestoredError]): start over.
	ErrPositionUnknown = errors.New("position unknown: pass the sequence")
	// ErrGroupBusy: members of the group hold events; see GroupBusyError.
	ErrGroupBusy = errors.New("group is busy")

	// ErrNoDeadLetters: there are no dead letters, or none of the requested ones.
	ErrNoDeadLetters = errors.New("no such dead letters")
	// ErrNoState: the topic is neither compacted nor has a snapshot, so a tombstone would delete nothing.
	ErrNoState error = &RemedyError{errors.New("the topic keeps no state"), "TopicConfig.Compact, TopicConfig.SnapshotOf"}
	// ErrBeyondHorizon: the topic has no events as old as the requested ones.
	ErrBeyondHorizon = errors.New("beyond the horizon of the topic")

	// ErrLeaseExpired: the lease expired; another member may hold the event.
	ErrLeaseExpired = errors.New("lease expired")
	// ErrNotHeld: this process holds no lease for that event.
	ErrNotHeld = errors.New("event is not held")
	// ErrAlreadySettled: the delivery was acknowledged, refused or given back before.
	ErrAlreadySettled = errors.New("delivery is already settled")
	// ErrStopped: the cause of a handler's canceled context when its subscription stopped and ShutdownTimeout passed.
	ErrStopped = errors.New("subscription stopped")
	// ErrLockLost: a lock could not be renewed in time, or another process holds it; see Lock.
	ErrLockLost = errors.New("lock lost")
	// ErrUndecodable: a stored message is not an event and cannot be decoded as one.
	ErrUndecodable = errors.New("undecodable event")
)

// RemedyError is an error together with what of this API does away with it: a field or a
// method. It is data, so that a program whose users know these by other names can say those:
// its flags, say.
type RemedyError struct {
	Err error
	// See names fields with their types, and methods alone, separated by ", ":
	// "TopicConfig.Delays", "EnsureTopic".
	See string
}

// Error is the error's text and where to look.
func (e *RemedyError) Error() string { return e.Err.Error() + " (see " + e.See + ")" }

// Unwrap returns Err.
func (e *RemedyError) Unwrap() error { return e.Err }

// Stored says what a failed publish means for the log.
type Stored int

// The two answers a failed publish can give.
const (
	StoredNo      Stored = iota // nothing was stored
	StoredUnknown               // the request went out and no answer came: the event may be stored
)

// String returns "no" or "unknown".
func (s Stored) String() string {
	if s == StoredNo {
		return "no"
	}
	return "unknown"
}

// PublishError is returned by Publish when a valid event was not acknowledged.
// With Stored unknown, publishing the same event (same ID) again within the
// topic's duplicate window is safe.
type PublishError struct {
	Event  Event  // with the ID it was or would have been stored under
	Stored Stored // whether it may be in the log all the same
	Err    error
}

// Error names the topic, the event and what is known of its storage.
func (e *PublishError) Error() string {
	return fmt.Sprintf("publish %s %s (stored: %s): %v", e.Event.Topic, e.Event.ID, e.Stored, e.Err)
}

// Unwrap returns the cause.
func (e *PublishError) Unwrap() error { return e.Err }

// BatchError is returned by PublishBatch when not all events were acknowledged.
// Its Failed list holds one error for each event without a receipt, in the
// order of the batch.
type BatchError struct {
	Failed []*PublishError
	Total  int // events in the batch
}

// Error gives the counts and the first cause.
func (e *BatchError) Error() string {
	text := fmt.Sprintf("publish batch: %d of %d events not acknowledged", len(e.Failed), e.Total)
	if len(e.Failed) > 0 {
		text += ", first: " + e.Failed[0].Error()
	}
	return text
}

// Unwrap returns the first cause.
func (e *BatchError) Unwrap() error {
	if len(e.Failed) == 0 {
		return nil
	}
	return e.Failed[0]
}

// Difference is one field in which what exists differs from what was asked.
type Difference struct {
	Field      string // as spelled in the options or the configuration
	Have, Want string
}

// ConflictError says what exists with other settings. It matches [ErrConflict].
type ConflictError struct {
	What        string // "topic process.state", "group heartbeat.received/ops"
	Differences []Difference
	Hint        string // why it stays as it is, or the remedy, if there is one
	// See names what of this API does away with it, as that of a [RemedyError] does:
	// "TopicConfig.Shrink". Empty: Hint says all that there is to say.
	See string
}

// Error lists the differences, and says what to do about them and where to look.
func (e *ConflictError) Error() string {
	var b strings.Builder
	b.WriteString(e.What + " exists with other settings")
	separator := ": "
	for _, d := range e.Differences {
		fmt.Fprintf(&b, "%s%s is %s, not %s", separator, d.Field, d.Have, d.Want)
		separator = ", "
	}
	if e.Hint != "" {
		b.WriteString("; " + e.Hint)
	}
	if e.See != "" {
		b.WriteString(" (see " + e.See + ")")
	}
	return b.String()
}

// Is reports whether target is ErrConflict.
func (e *ConflictError) Is(target error) bool { return target == ErrConflict }

// RestoredError is returned for a position in a history that the topic no longer has: its broker was restored to an
// earlier state, or lost writes that it had not synced to disk. Everything that was derived from the topic up to that
// position must be rebuilt. RestoredError matches [ErrPositionUnknown].
type RestoredError struct {
	Topic      string
	Checkpoint Checkpoint
	Why        string // what was found at the position
}

// Error names the topic, the position and what was found there.
func (e *RestoredError) Error() string {
	return fmt.Sprintf("topic %s was restored to an earlier state: position %d is unknown: %s", e.Topic, e.Checkpoint.Seq, e.Why)
}

// Is reports whether target is ErrPositionUnknown.
func (e *RestoredError) Is(target error) bool { return target == ErrPositionUnknown }

// GroupBusyError says how many events members of a group still hold. It
// matches [ErrGroupBusy].
type GroupBusyError struct {
	Topic, Group string
	Held         int // deliveries not settled yet
}

// Error gives the count and the remedy.
func (e *GroupBusyError) Error() string {
	return fmt.Sprintf("group %s/%s is busy: %d events are held; wait longer, stop its members, or force", e.Topic, e.Group, e.Held)
}

// Is reports whether target is ErrGroupBusy.
func (e *GroupBusyError) Is(target error) bool { return target == ErrGroupBusy }

// PanicError is what a handler's panic becomes: a failure like any other, with
// the panic's value and stack. Observers and logs see it; the process lives on.
type PanicError struct {
	Value any
	Stack []byte
}

// Error gives the panic's value without the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("handler panicked: %v", e.Value) }

// Unwrap returns the panic's value where it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}
