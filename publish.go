package jetbus

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Publisher stores events.
type Publisher interface {
	// Publish stores e in its topic and returns what was stored. At most one
	// PublishOptions may be given. It fails before anything is sent when e is not
	// valid ([Event.Validate], [ErrPayloadTooLarge]) or the topic does not exist
	// ([ErrNoTopic]); after that with a [PublishError] that says whether the event
	// may have been stored. While ctx allows it tries again through broker
	// restarts and lost connections, under the same ID.
	Publish(ctx context.Context, e Event, o ...PublishOptions) (Receipt, error)
}

// PublishOptions are instructions to the broker for one event.
type PublishOptions struct {
	// ExpectLastSeq makes the publish conditional: the last event of the same key
	// must have this sequence, 0 meaning that the key has no event. Otherwise
	// nothing is stored and the error is [ErrWrongSequence]. A tombstone is an event,
	// until it ends: a key that was deleted needs its Seq, which ScanLatest tells.
	// The topic needs KeyInSubject ([ErrNeedsKeySubject]). Nil: unconditional.
	ExpectLastSeq *uint64 `json:"expectLastSeq,omitempty"`
	// TTL removes the event from the topic after that time, 1 second to 10 years in
	// whole seconds. Where keys are in subjects, the event before of its key is the
	// last one again then, unless the topic is compacted. Zero: the topic's
	// retention alone decides.
	TTL time.Duration `json:"-"`
	// DeliverAt stores the event now and lets it enter the topic at that time, at
	// most 1 year from now. Its Receipt has no Seq yet, since its position is that
	// of its arrival. It may wait for longer than the topic keeps events: Retention
	// and TTL count from its arrival. Zero, or a time that has passed: at once.
	DeliverAt time.Time `json:"-"`
	// DryRun runs all checks and stores nothing. The call returns the error that Publish
	// would return, or its receipt, with a Seq only if the event is a duplicate. The checks
	// include those of decorators, and those of the broker: size, permission, ExpectLastSeq,
	// duplicates. Observers are not called. There are three differences: the broker finds
	// out that a topic is full ([ErrTopicFull]) only when it stores an event; a topic that
	// Publish would declare is [ErrNoTopic]; permissions are those for the topic, not for
	// single keys. Subscribers of NATS that do not use JetStream, to a wildcard such as
	// "ev.>", receive a message without the attributes and the payload of the event. It
	// would have the subject of the events of an adopted topic (TopicConfig.Subject), so
	// a dry run of that is [ErrUnsupported]. Needs a server 2.12 or newer. Default false:
	// the event is stored.
	DryRun bool `json:"dryRun,omitempty"`
}

// Validate reports a TTL that is not zero and not 1 second to 10 years in whole
// seconds, or a DeliverAt more than 1 year from now. Both may be set. The error
// wraps [ErrInvalidOption].
func (o PublishOptions) Validate() error {
	switch {
	case o.TTL < 0 || o.TTL > maxTTL || o.TTL%time.Second != 0:
		return fmt.Errorf("%w: TTL is %v, use whole seconds from 1s to %v, or 0 for none", ErrInvalidOption, o.TTL, maxTTL)
	case !o.DeliverAt.IsZero() && time.Until(o.DeliverAt) > maxDelay:
		return fmt.Errorf("%w: DeliverAt is %v, use at most 1 year from now", ErrInvalidOption, o.DeliverAt.UTC())
	}
	return nil
}

const (
	maxTTL   = 10 * 365 * 24 * time.Hour
	maxDelay = 365 * 24 * time.Hour
)

type plainPublishOptions PublishOptions

type publishJSON struct {
	plainPublishOptions
	TTLMs     millis `json:"ttlMs,omitempty"`
	DeliverAt *int64 `json:"deliverAt,omitempty"`
}

// MarshalJSON gives the members expectLastSeq, ttlMs, deliverAt (epoch
// milliseconds) and dryRun, leaving out what is zero.
func (o PublishOptions) MarshalJSON() ([]byte, error) {
	return json.Marshal(publishJSON{plainPublishOptions(o), millis(o.TTL), toEpoch(o.DeliverAt)})
}

// UnmarshalJSON reads what MarshalJSON writes. It does not validate.
func (o *PublishOptions) UnmarshalJSON(text []byte) error {
	w, err := unmarshal[publishJSON](text, "publish options")
	if err != nil {
		return err
	}
	*o = PublishOptions(w.plainPublishOptions)
	o.TTL, o.DeliverAt = time.Duration(w.TTLMs), fromEpoch(w.DeliverAt)
	return nil
}

// Receipt says what Publish stored.
type Receipt struct {
	Event Event `json:"event"` // as stored, with ID, Time, SID, Partition and Seq
	// Duplicate: the topic already held an event with this ID, stored within the
	// duplicate window; nothing was stored, and Event.Seq is the position of the first one.
	Duplicate bool `json:"duplicate,omitempty"`
	// Scheduled: the event waits for its DeliverAt.
	Scheduled bool `json:"scheduled,omitempty"`
}

// Batcher stores many events at once.
type Batcher interface {
	// PublishBatch stores events in their order: those of each key where the connection breaks
	// or a cluster loses a leader meanwhile, and all of them with Chain or Atomic. It returns one Receipt an event;
	// where not all were acknowledged the error is a [BatchError], and the receipts
	// of the others have Seq 0. All events are checked before the first is sent.
	// A connection that breaks under a batch can end it with [ErrOvertaken].
	PublishBatch(ctx context.Context, events []Event, o BatchOptions) ([]Receipt, error)
}

// BatchOptions choose how a batch is published.
type BatchOptions struct {
	// Atomic stores all events or none. They must share one stream (one topic, or
	// topics declared with the same TopicConfig.Stream), at most 1,000 of them
	// ([ErrBatchTooLarge]), none of them a duplicate. Needs a server 2.12 or newer. The default pipelines the events: after the
	// first failure nothing more is sent, so that what is stored is a prefix,
	// apart from events already on their way.
	Atomic bool `json:"atomic,omitempty"`
	// ExpectLastSeq holds for the first event of an atomic batch; see PublishOptions.
	ExpectLastSeq *uint64 `json:"expectLastSeq,omitempty"`
	// Each are the options of the events, one an event in their order; the zero value of
	// one asks for nothing. TTL may be set in every batch. ExpectLastSeq may not be in a
	// chained one, whose events expect each other, nor in an atomic one for an event behind
	// another of its key; what it refuses ends a pipelined batch like any failure. DeliverAt and
	// DryRun may not be set ([ErrUnsupported]): use Publish for each such event. Empty: none.
	Each []PublishOptions `json:"-"`
	// Chain stores each event only directly behind the one before it, pipelined: where
	// one is missing or another publisher was faster, everything behind is refused with
	// a [ChainError]. What the topic has already is answered as Duplicate, within the
	// duplicate window, and beyond it where the topic ends with an event of the batch.
	// All events must be of one topic, which has a stream of its own (no
	// TopicConfig.Stream, else [ErrConflict]) and no Delays ([ErrUnsupported]).
	// Excludes Atomic. Nil: not chained.
	Chain *Chain `json:"chain,omitempty"`
}

// Validate reports what does not go together in a batch of n events: an ExpectLastSeq
// without Atomic, which is all it holds for, or beside that of Each, a Chain with Atomic, a
// Chain that is not valid, and an Each that is not one an event, or not valid or possible for one
// of them. The error wraps [ErrInvalidOption], or [ErrUnsupported] for a DeliverAt or a DryRun.
func (o BatchOptions) Validate(n int) error {
	switch {
	case o.ExpectLastSeq != nil && !o.Atomic:
		return fmt.Errorf("%w: ExpectLastSeq needs Atomic; Each says it of single events", ErrInvalidOption)
	case o.Chain != nil && o.Atomic:
		return fmt.Errorf("%w: Atomic and Chain are both set; choose one", ErrInvalidOption)
	case len(o.Each) != 0 && len(o.Each) != n:
		return fmt.Errorf("%w: Each has %d options for %d events", ErrInvalidOption, len(o.Each), n)
	}
	for i, each := range o.Each {
		if err := o.validateEach(i, each); err != nil {
			return fmt.Errorf("event %d: %w", i, err)
		}
	}
	if o.Chain != nil {
		return o.Chain.Validate()
	}
	return nil
}

// Of returns what the options ask for event i: what Each says, with the ExpectLastSeq of the
// batch for the first. The options must be valid for the batch.
func (o BatchOptions) Of(i int) PublishOptions {
	var of PublishOptions
	if len(o.Each) > 0 {
		of = o.Each[i]
	}
	if i == 0 && o.ExpectLastSeq != nil {
		of.ExpectLastSeq = o.ExpectLastSeq
	}
	return of
}

func (o BatchOptions) validateEach(i int, each PublishOptions) error {
	switch {
	case !each.DeliverAt.IsZero():
		return fmt.Errorf("%w: DeliverAt in a batch: Publish takes it", ErrUnsupported)
	case each.DryRun:
		return fmt.Errorf("%w: DryRun in a batch: use Publish for each event", ErrUnsupported)
	case each.ExpectLastSeq != nil && o.Chain != nil:
		return fmt.Errorf("%w: ExpectLastSeq in a chained batch: Chain says what is behind it", ErrInvalidOption)
	case each.ExpectLastSeq != nil && o.ExpectLastSeq != nil && i == 0:
		return fmt.Errorf("%w: ExpectLastSeq of the batch and of its first event are both set; choose one", ErrInvalidOption)
	}
	return each.Validate()
}
