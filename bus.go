package jetbus

import (
	"context"
	"iter"
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
	// PublishBatch stores events in their order. It returns one Receipt an event;
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
	// another of its key; what it refuses ends a pipelined batch like any failure. DeliverAt may
	// not be set ([ErrUnsupported]): what is to come later is published by itself. Empty: none.
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

// Handler processes one delivery. Returning nil acknowledges the event; an error
// makes it come back after a backoff, to this or another member of the group.
// A panic is recovered and counts as an error. The context has the values of
// Subscribe's context but is not canceled with it: it is canceled when the lease
// is lost (cause [ErrLeaseExpired]) or when the subscription has waited
// ShutdownTimeout for the handler (cause [ErrStopped]).
type Handler func(ctx context.Context, d *Delivery) error

// Subscriber delivers events to groups.
type Subscriber interface {
	// Subscribe joins the group and returns when the group exists at the broker:
	// events published after that are not missed. The members of a group share its
	// events. Canceling ctx is a graceful Stop. A group that exists goes on where
	// it was; o.From is for a new one.
	Subscribe(ctx context.Context, topic, group string, h Handler, o SubscribeOptions) (Subscription, error)
}

// Subscription is one member of a group.
type Subscription interface {
	// Stop ends the subscription: it stops fetching, gives back what no handler
	// has started (others get it at once), lets running handlers finish and settle,
	// cancels them after ShutdownTimeout or when ctx ends meanwhile, and returns when nothing
	// of the subscription runs any more. A ctx that was canceled before the call
	// shortens nothing: programs stop because their context has ended. Its deadline holds
	// all the same. It may be called twice, and
	// concurrently.
	//
	// From inside a handler it does not wait if ctx is the handler's context or one made
	// from it. Given another one it waits for the handler that waits for it: for
	// ShutdownTimeout, or until ctx ends, and for 10 seconds more.
	Stop(ctx context.Context) error
	// Done is closed when the subscription has ended, for whatever reason.
	Done() <-chan struct{}
	// Err returns why it ended: nil while it runs and after Stop. It wraps [ErrClosed] where
	// the connection was closed, [ErrNoGroup] or [ErrNoTopic] where that was deleted, and
	// [ErrDenied] where the broker does not let this member fetch or settle events.
	Err() error
	// Pause stops fetching for this member until Resume; what it holds goes on. In an
	// ordered group the topic goes to another member, if there is one. It may wait a
	// moment for what is on its way. Of Pause and Resume at once one comes after the
	// other; both may be called from inside a handler, and Stop waits for neither.
	Pause()
	// Resume ends a Pause.
	Resume()
	// Stats returns the counters of this member.
	Stats() SubscriptionStats
}

// SubscriptionStats count what one member did since it subscribed.
type SubscriptionStats struct {
	Delivered   uint64 `json:"delivered"`   // events handed to handlers
	Acked       uint64 `json:"acked"`       // acknowledged, filtered ones included
	Nacked      uint64 `json:"nacked"`      // refused: failed attempts
	Snoozed     uint64 `json:"snoozed"`     // put off without an attempt
	DeadLetters uint64 `json:"deadLetters"` // given up
	Filtered    uint64 `json:"filtered"`    // acknowledged unseen
	GivenBack   uint64 `json:"givenBack"`   // returned without an attempt
	LeasesLost  uint64 `json:"leasesLost"`  // leases that ran out here
	Held        int    `json:"held"`        // in hand now
	Running     int    `json:"running"`     // handlers running now
	Paused      bool   `json:"paused"`
	Active      bool   `json:"active"`   // with an Order: this member is the one that gets events
	Retrying    int    `json:"retrying"` // with an Order: events that failed and wait here for their next attempt
	// BlockedKey is, with PerKey, the key that the failed event which holds back the
	// most others belongs to, and Blocked how many those are.
	BlockedKey string `json:"blockedKey,omitempty"`
	Blocked    int    `json:"blocked,omitempty"`
}

// Settler settles events by id. It knows the leases that this process holds and
// no others ([ErrNotHeld]). Where it holds several events of one id, which publishers
// gave them, it settles none ([ErrConflict]): their deliveries do.
type Settler interface {
	// Ack acknowledges the event. The errors are those of [Delivery.Ack].
	Ack(ctx context.Context, topic, group, id string) error
	// Nack refuses the event; it comes back after the subscription's backoff. The
	// reason goes to observers and logs.
	Nack(ctx context.Context, topic, group, id, reason string) error
}

// Cursor is a group's position in a topic.
type Cursor struct {
	Topic string `json:"topic"`
	// LastSeq is the position up to which everything is settled. SetCursor goes by
	// it where it is set; 0 with no other field set means before the first event.
	LastSeq uint64 `json:"lastSeq,omitempty"`
	// LastID is the id of the event at LastSeq while the topic still has it.
	LastID string `json:"lastId,omitempty"`
	// LastTime is when the broker stored that event, by its clock, and not the event's own
	// Time; zero where that is not known. SetCursor with nothing else in its cursor goes
	// on directly behind the event. In JSON it has whole milliseconds: what was stored in
	// the same one comes again, the event too.
	LastTime time.Time `json:"-"`
}

// Cursors read and move the positions of groups.
type Cursors interface {
	// Cursor returns the group's position: the event up to which all are settled,
	// whatever was settled after it. With replicas it is the one that most of them know
	// of, which may be moments behind. [ErrNoGroup] if the group never subscribed.
	Cursor(ctx context.Context, topic, group string) (Cursor, error)
	// SetCursor moves the group: the next event is the first behind c. It goes by
	// c.LastSeq, else c.LastID ([ErrPositionUnknown]), else c.LastTime (the first event stored after it),
	// else to the beginning. It pauses the group and waits for the events its members hold; see SeekOptions.
	SetCursor(ctx context.Context, topic, group string, c Cursor, o SeekOptions) error
}

// SeekOptions say how SetCursor treats events that members hold.
type SeekOptions struct {
	// Wait is how long to wait for held events to be settled before the error is a
	// [GroupBusyError] and nothing has changed. Defaults to the group's AckTimeout.
	Wait time.Duration `json:"-"`
	// Force moves without waiting. What members hold at that moment is lost to
	// them: their later acknowledgements have no effect.
	Force bool `json:"force,omitempty"`
	// ToLatest moves behind the last event; the cursor's other fields must be empty.
	ToLatest bool `json:"toLatest,omitempty"`
}

// Bus is what most programs need.
type Bus interface {
	Publisher
	Subscriber
	Settler
	Cursors
}

// Receiver takes events without a handler, for edges and projectors.
type Receiver interface {
	// Receive joins the group for one request: it returns up to o.Max events, as
	// soon as there is at least one, or none and no error when o.Wait has passed, also
	// where the group holds all it may (SubscribeOptions.GroupMaxInFlight).
	// The caller settles each delivery; the bus extends leases with o.MaxLease only.
	Receive(ctx context.Context, topic, group string, o ReceiveOptions) ([]*Delivery, error)
}

// ReceiveOptions say what Receive asks for.
type ReceiveOptions struct {
	// From is where a group that does not exist yet begins. Defaults to Latest.
	From Start `json:"-"`
	// Max is how many events are returned at most. Defaults to 100.
	Max int `json:"max,omitempty"`
	// MaxBytes is how many bytes of events are returned at most, as the broker counts them:
	// with headers and subjects. An event that is larger is returned alone. Defaults to 64 MiB.
	MaxBytes int64 `json:"maxBytes,omitempty"`
	// Wait is how long to wait for the first event. Defaults to 5 seconds, -1 means not at all.
	Wait time.Duration `json:"-"`
	// AckTimeout is how long the leases last, at least 100 milliseconds. It belongs to the
	// group, as SubscribeOptions.AckTimeout does: where that of the group is longer, they
	// last that long. Defaults to that of the group, and to 30 seconds where there is none yet.
	AckTimeout time.Duration `json:"-"`
	// MaxLease is how long the bus extends the leases of what it returned, until the caller
	// settles them; at least AckTimeout. What is not settled by then is a failed attempt, at
	// most AckTimeout later. Zero: they are not extended, but by [Delivery.Extend].
	MaxLease time.Duration `json:"-"`
	// MaxAttempts is carried by the deliveries. Defaults to 5, -1 means without end.
	MaxAttempts int `json:"maxAttempts,omitempty"`
}

// Reader reads topics without a group.
type Reader interface {
	// Read returns the events of one or more topics, in the order of each topic
	// (there is none between topics). It ends with the last event present when it
	// began, or goes on with new ones (o.Follow) until ctx ends or the caller
	// stops. An error is the last pair; events before it are valid. To go on later,
	// pass the last Seq seen of each topic in o.After, and in another process what the
	// topic was in o.Created. With o.Follow a topic that is deleted and made anew meanwhile
	// ends it, [ErrPositionUnknown] or [ErrNoTopic].
	Read(ctx context.Context, topics []string, o ReadOptions) iter.Seq2[Event, error]
}

// ReadOptions say what Read returns.
type ReadOptions struct {
	From  Start             `json:"-"`               // where to begin; defaults to Earliest, and with Follow to Latest
	After map[string]uint64 `json:"after,omitempty"` // per topic: begin behind this sequence, whatever From says
	// Created is per topic the [TopicInfo] Created of the topic that After is a position in, to
	// the millisecond. One that has been deleted and made anew since, which counts from 1 again,
	// is [ErrPositionUnknown]. Of a topic that is left out After is taken for one of what there is.
	Created map[string]time.Time `json:"-"`
	Follow  bool                 `json:"follow,omitempty"` // go on with new events
	Filter  Filter               `json:"filter,omitzero"`  // defaults to all events
}

// Store reads what a topic holds.
type Store interface {
	// Scan returns the events of a topic in its order, up to the last one present
	// when it began. Its cost follows what is read.
	Scan(ctx context.Context, topic string, q ScanQuery) iter.Seq2[Event, error]
	StateStore
}

// ScanQuery selects what Scan returns.
type ScanQuery struct {
	From   Start  `json:"-"`               // where to begin; defaults to Earliest
	Limit  int    `json:"limit,omitempty"` // events at most; 0: no limit
	Filter Filter `json:"filter,omitzero"` // applied before Limit
}

// Backend is everything a bus can do; decorators take and return one.
type Backend interface {
	Bus
	Batcher
	Receiver
	Reader
	Store
	Topics
	Partitions
	Keys
	Retrier
	Burier
	Remover
}
