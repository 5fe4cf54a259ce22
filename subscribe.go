package jetbus

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// Handler processes one delivery. Returning nil acknowledges the event; an error
// makes it come back after a backoff, to this or another member of the group.
// A panic is recovered and counts as an error. The context has the values of
// Subscribe's context but is not canceled with it: it is canceled when the lease
// is lost (cause [ErrLeaseExpired]) or when the subscription has waited
// ShutdownTimeout for the handler (cause [ErrStopped]).
type Handler func(ctx context.Context, d *Delivery) error

// Subscriber delivers events to groups.
type Subscriber interface {
	// Subscribe joins the group and returns when the group exists at the broker: the group
	// misses no event that is published after that. The members of a group share its events.
	// Canceling ctx is a graceful Stop. An existing group resumes; o.From is for a new one.
	Subscribe(ctx context.Context, topic, group string, h Handler, o SubscribeOptions) (Subscription, error)
}

// SubscribeOptions configures one member of a group. Each field's zero value selects its
// documented default.
//
// AckTimeout and GroupMaxInFlight belong to the group: zero keeps the value of an existing
// group and selects the default for a new one. A nonzero GroupMaxInFlight replaces the group's
// value. AckTimeout replaces the group's value only if it is longer, because other members,
// including absent ones, rely on the existing value. To shorten it, delete the group, which
// then starts over.
type SubscribeOptions struct {
	// From is where a new group starts. Defaults to Latest.
	From Start `json:"-"`
	// Topics are further topics of the same subscription, in addition to the topic of the
	// call. There is no order between topics. Topics with events take turns, and so do their
	// retries; a turn is as many events as the member handles in 10 ms, at least one.
	Topics []string `json:"topics,omitempty"`
	// Concurrency is the number of concurrent handlers. Defaults to 1.
	Concurrency int `json:"concurrency,omitempty"`
	// BatchSize is the maximum number of events that one request asks the broker for. Defaults
	// to 100.
	BatchSize int `json:"batchSize,omitempty"`
	// MaxInFlight is the maximum number of events that this member holds, running or waiting
	// for a handler. The topics have equal shares of it. Defaults to 1000, or to Concurrency
	// or 100 for each topic if that is more.
	MaxInFlight int `json:"maxInFlight,omitempty"`
	// MaxInFlightBytes is the maximum size of the events that this member holds, running or
	// waiting for a handler, as the broker counts bytes: with headers and subjects. The topics
	// have equal shares of it; an eighth of each share is for the retries of the group. An
	// event that is larger than its share is delivered when nothing else of that share is
	// held. Defaults to 64 MiB.
	MaxInFlightBytes int64 `json:"maxInFlightBytes,omitempty"`
	// GroupMaxInFlight is the maximum number of events that all members of the group hold,
	// including delayed retries. Defaults to the group's value, and to 10000 for a new group.
	GroupMaxInFlight int `json:"groupMaxInFlight,omitempty"`
	// AckTimeout is how long the lease on an event lasts unless it is extended, at least 100
	// milliseconds. If the group's AckTimeout is longer, leases last that long, and this
	// member extends them each third of its own. Defaults to the group's value, and to 30
	// seconds for a new group.
	AckTimeout time.Duration `json:"-"`
	// MaxLease is how long the bus keeps extending the lease of a running handler, counted
	// from its start, at least AckTimeout (30 seconds if that is zero). Defaults to 10
	// minutes, or to the group's AckTimeout if that is longer; -1 means that leases are never
	// extended.
	MaxLease time.Duration `json:"-"`
	// MaxAttempts is the number of attempts after which an event becomes a dead letter.
	// Defaults to 5; -1 means no limit. With a limit, events that are redelivered after a
	// process died are tried one at a time, to find an event that kills its process. Without a
	// limit they are handled like all others.
	MaxAttempts int `json:"maxAttempts,omitempty"`
	// Order is the order in which the group's events are handled. Defaults to NoOrder. It
	// belongs to the group: a member with another order is refused while other members are
	// subscribed.
	Order Order `json:"order,omitempty"`
	// Backoff is the wait between attempts. Defaults to Backoff{}.
	Backoff Backoff `json:"backoff,omitzero"`
	// ShutdownTimeout is how long Stop lets running handlers finish before it
	// cancels them. Defaults to 30 seconds.
	ShutdownTimeout time.Duration `json:"-"`
	// Filter selects events; the others are acknowledged unseen.
	Filter Filter `json:"filter,omitzero"`
	// FilterFunc selects further, in Go only. It must be quick and must not block.
	FilterFunc func(*Event) bool `json:"-"`
	// Reserve lets several members share one memory bound. The bus calls it for each topic and
	// its retries, before a member requests more than [UnreservedBytes] of events. It reports
	// whether the member may hold that many more bytes. If it refuses, the member requests
	// less, or waits for a second if the next event is larger. A negative number gives bytes
	// back. The bus calls Reserve with locks held: it must not block, and must not call the
	// bus. Nil: MaxInFlightBytes is the only bound.
	Reserve func(bytes int64) bool `json:"-"`
	// ManualAck leaves settling to the handler, or to other code that knows the delivery or
	// the ID. If the handler returns an error, the event is still refused.
	ManualAck bool `json:"manualAck,omitempty"`
}

// Order is the order in which a group's events are handled.
type Order string

// The orders.
const (
	// NoOrder gives events to any free handler. A failed event is redelivered after later
	// ones.
	NoOrder Order = ""
	// PerKey handles the events of a key one at a time, across members, crashes and restarts.
	// A failed event is retried in place: it blocks later events of its key, and nothing else,
	// until it is settled or dead-lettered. Events without a key have no order. One member is
	// active, with Concurrency handlers; the others stand by.
	PerKey Order = "per_key"
	// Total handles all events of a topic one at a time, as PerKey handles the events of a
	// single key.
	Total Order = "total"
)

// Defaults of SubscribeOptions; a group and its AckTimeout are the same for Receive.
const (
	DefaultConcurrency      = 1
	DefaultBatchSize        = 100
	DefaultMaxInFlight      = 1000
	DefaultMaxInFlightBytes = 64 << 20
	DefaultGroupMaxInFlight = 10000
	DefaultAckTimeout       = 30 * time.Second
	DefaultMaxLease         = 10 * time.Minute
	DefaultMaxAttempts      = 5
	DefaultShutdownTimeout  = 30 * time.Second

	// UnreservedBytes is the size that a member requests without calling
	// SubscribeOptions.Reserve.
	UnreservedBytes = 16 << 10

	minAckTimeout  = 100 * time.Millisecond
	maxConcurrency = 10_000
	maxBatchSize   = 10_000
	maxInFlight    = 1_000_000
	maxHeldBytes   = 1 << 40
)

// Normalize returns the options with defaults filled in, but for AckTimeout and
// GroupMaxInFlight, where the group decides; or an error wrapping [ErrInvalidOption] or
// [ErrInvalidTopic] that names the field.
func (o SubscribeOptions) Normalize() (SubscribeOptions, error) {
	setDefault(&o.Concurrency, DefaultConcurrency)
	setDefault(&o.BatchSize, DefaultBatchSize)
	setDefault(&o.MaxInFlight, max(DefaultMaxInFlight, o.Concurrency, min(DefaultBatchSize*(len(o.Topics)+1), maxInFlight)))
	setDefault(&o.MaxInFlightBytes, DefaultMaxInFlightBytes)
	setDefault(&o.MaxLease, max(DefaultMaxLease, o.AckTimeout))
	setDefault(&o.MaxAttempts, DefaultMaxAttempts)
	setDefault(&o.ShutdownTimeout, DefaultShutdownTimeout)
	if err := o.validate(); err != nil {
		return o, err
	}
	var err error
	o.Backoff, err = o.Backoff.Normalize()
	o.BatchSize = min(o.BatchSize, o.MaxInFlight)
	return o, err
}

func (o *SubscribeOptions) validate() error {
	if err := o.From.Validate(); err != nil {
		return err
	}
	if err := o.Filter.Validate(); err != nil {
		return err
	}
	switch {
	case o.Concurrency < 1 || o.Concurrency > maxConcurrency:
		return fmt.Errorf("%w: Concurrency is %d, use 1 to %d", ErrInvalidOption, o.Concurrency, maxConcurrency)
	case o.BatchSize < 1 || o.BatchSize > maxBatchSize:
		return fmt.Errorf("%w: BatchSize is %d, use 1 to %d", ErrInvalidOption, o.BatchSize, maxBatchSize)
	case o.MaxInFlight < 1 || o.MaxInFlight > maxInFlight:
		return fmt.Errorf("%w: MaxInFlight is %d, use 1 to %d", ErrInvalidOption, o.MaxInFlight, maxInFlight)
	case o.MaxInFlightBytes < 1 || o.MaxInFlightBytes > maxHeldBytes:
		return fmt.Errorf("%w: MaxInFlightBytes is %d, use 1 to %d", ErrInvalidOption, o.MaxInFlightBytes, maxHeldBytes)
	case o.GroupMaxInFlight < 0 || o.GroupMaxInFlight > maxInFlight:
		return fmt.Errorf("%w: GroupMaxInFlight is %d, use 1 to %d, or 0 for that of the group", ErrInvalidOption, o.GroupMaxInFlight, maxInFlight)
	case o.Concurrency > o.MaxInFlight:
		return fmt.Errorf("%w: Concurrency %d is above MaxInFlight %d: some handlers would never run", ErrInvalidOption, o.Concurrency, o.MaxInFlight)
	case o.AckTimeout != 0 && o.AckTimeout < minAckTimeout:
		return fmt.Errorf("%w: AckTimeout is %v, use at least %v, or 0 for that of the group", ErrInvalidOption, o.AckTimeout, minAckTimeout)
	case o.MaxLease < -1 || o.MaxLease > 0 && o.MaxLease < cmp.Or(o.AckTimeout, DefaultAckTimeout):
		return fmt.Errorf("%w: MaxLease is %v, use at least AckTimeout (%v), or -1 for no extension",
			ErrInvalidOption, o.MaxLease, cmp.Or(o.AckTimeout, DefaultAckTimeout))
	case o.MaxAttempts < -1:
		return fmt.Errorf("%w: MaxAttempts is %d, use 1 or more, or -1 for no end", ErrInvalidOption, o.MaxAttempts)
	case o.Order != NoOrder && o.Order != PerKey && o.Order != Total:
		return fmt.Errorf("%w: Order is %q, use %q, %q or none", ErrInvalidOption, o.Order, PerKey, Total)
	case o.Order == Total && o.Concurrency > 1:
		return fmt.Errorf("%w: Order total runs one handler at a time, Concurrency is %d", ErrInvalidOption, o.Concurrency)
	case o.Order != NoOrder && o.MaxLease < 0:
		return fmt.Errorf("%w: Order %s retries in place and needs its leases extended, MaxLease is -1", ErrInvalidOption, o.Order)
	case o.ShutdownTimeout < 0:
		return fmt.Errorf("%w: ShutdownTimeout is negative", ErrInvalidOption)
	}
	for i, topic := range o.Topics {
		if err := ValidTopic(topic); err != nil {
			return err
		}
		if slices.Contains(o.Topics[:i], topic) {
			return fmt.Errorf("%w: Topics names %s twice", ErrInvalidOption, topic)
		}
	}
	return nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

type plainSubscribeOptions SubscribeOptions

type subscribeJSON struct {
	startJSON
	plainSubscribeOptions
	AckTimeoutMs      millis `json:"ackTimeoutMs,omitempty"`
	MaxLeaseMs        millis `json:"maxLeaseMs,omitempty"`
	ShutdownTimeoutMs millis `json:"shutdownTimeoutMs,omitempty"`
}

// MarshalJSON gives the members from, ts, afterId, afterSeq, topics,
// concurrency, batchSize, maxInFlight, maxInFlightBytes, groupMaxInFlight, ackTimeoutMs,
// maxLeaseMs, maxAttempts, order, backoff, shutdownTimeoutMs, filter and manualAck,
// leaving out what is zero. FilterFunc has no JSON form.
func (o SubscribeOptions) MarshalJSON() ([]byte, error) {
	return json.Marshal(subscribeJSON{
		o.From.wire(), plainSubscribeOptions(o),
		millis(o.AckTimeout), millis(o.MaxLease), millis(o.ShutdownTimeout),
	})
}

// UnmarshalJSON reads what MarshalJSON writes. It does not validate.
func (o *SubscribeOptions) UnmarshalJSON(text []byte) error {
	w, err := unmarshal[subscribeJSON](text, "subscribe options")
	if err != nil {
		return err
	}
	*o = SubscribeOptions(w.plainSubscribeOptions)
	o.AckTimeout, o.MaxLease = time.Duration(w.AckTimeoutMs), time.Duration(w.MaxLeaseMs)
	o.ShutdownTimeout = time.Duration(w.ShutdownTimeoutMs)
	o.From, err = w.start()
	return err
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
	// the connection was closed, [ErrNoGroup] or [ErrNoTopic] where that was deleted,
	// [ErrDenied] where the broker does not let this member fetch or settle events,
	// [ErrConflict] where the group was given another order while this member was paused, and
	// [ErrUnsupported] where the keys of the buckets for the locks of an ordered group cannot expire.
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
