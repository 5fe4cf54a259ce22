package jetbus

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// SubscribeOptions say how a member of a group receives. The zero value is the
// documented default. AckTimeout and GroupMaxInFlight belong to the group: when
// they differ from what the group has, the newest subscriber's stand.
type SubscribeOptions struct {
	// From is where a group that does not exist yet begins. Defaults to Latest.
	From Start
	// Topics are further topics of the same subscription, besides the one named
	// in the call. There is no order between topics.
	Topics []string
	// Concurrency is how many handlers run at once. Defaults to 1.
	Concurrency int
	// BatchSize is how many events one request to the broker asks for at most. Defaults to 100.
	BatchSize int
	// MaxInFlight is how many events this member holds at most, running or
	// waiting for a handler. Defaults to 1000.
	MaxInFlight int
	// GroupMaxInFlight is how many events all members of the group hold at most,
	// delayed retries included. Defaults to 10000.
	GroupMaxInFlight int
	// AckTimeout is how long the lease on an event lasts unless it is extended.
	// Defaults to 30 seconds, at least 100 milliseconds.
	AckTimeout time.Duration
	// MaxLease is how long the bus keeps extending the lease of a running handler,
	// counted from its start. Defaults to 10 minutes; -1 means never extended.
	MaxLease time.Duration
	// MaxAttempts is how often a handler is meant to try an event. Defaults to 5,
	// -1 means without end. Deliveries carry it.
	MaxAttempts int
	// Backoff is the wait between attempts. Defaults to Backoff{}.
	Backoff Backoff
	// ShutdownTimeout is how long Stop lets running handlers finish before it
	// cancels them. Defaults to 30 seconds.
	ShutdownTimeout time.Duration
	// Filter selects events; the others are acknowledged unseen.
	Filter Filter
	// FilterFunc selects further, in Go only. It must be quick and must not block.
	FilterFunc func(*Event) bool
	// ManualAck leaves settling to the handler or to others who know the delivery
	// or the id. A handler that returns an error still refuses the event.
	ManualAck bool
}

// Defaults of SubscribeOptions and ReceiveOptions.
const (
	DefaultConcurrency      = 1
	DefaultBatchSize        = 100
	DefaultMaxInFlight      = 1000
	DefaultGroupMaxInFlight = 10000
	DefaultAckTimeout       = 30 * time.Second
	DefaultMaxLease         = 10 * time.Minute
	DefaultMaxAttempts      = 5
	DefaultShutdownTimeout  = 30 * time.Second

	minAckTimeout  = 100 * time.Millisecond
	maxConcurrency = 10_000
	maxBatchSize   = 10_000
	maxInFlight    = 1_000_000
)

// Normalize returns the options with defaults filled in, or an error wrapping
// [ErrInvalidOption] or [ErrInvalidTopic] that names the field.
func (o SubscribeOptions) Normalize() (SubscribeOptions, error) {
	setDefault(&o.Concurrency, DefaultConcurrency)
	setDefault(&o.BatchSize, DefaultBatchSize)
	setDefault(&o.MaxInFlight, DefaultMaxInFlight)
	setDefault(&o.GroupMaxInFlight, DefaultGroupMaxInFlight)
	setDefault(&o.AckTimeout, DefaultAckTimeout)
	setDefault(&o.MaxLease, DefaultMaxLease)
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
	switch {
	case o.Concurrency < 1 || o.Concurrency > maxConcurrency:
		return fmt.Errorf("%w: Concurrency is %d, use 1 to %d", ErrInvalidOption, o.Concurrency, maxConcurrency)
	case o.BatchSize < 1 || o.BatchSize > maxBatchSize:
		return fmt.Errorf("%w: BatchSize is %d, use 1 to %d", ErrInvalidOption, o.BatchSize, maxBatchSize)
	case o.MaxInFlight < 1 || o.MaxInFlight > maxInFlight:
		return fmt.Errorf("%w: MaxInFlight is %d, use 1 to %d", ErrInvalidOption, o.MaxInFlight, maxInFlight)
	case o.GroupMaxInFlight < 1 || o.GroupMaxInFlight > maxInFlight:
		return fmt.Errorf("%w: GroupMaxInFlight is %d, use 1 to %d", ErrInvalidOption, o.GroupMaxInFlight, maxInFlight)
	case o.Concurrency > o.MaxInFlight:
		return fmt.Errorf("%w: Concurrency %d is above MaxInFlight %d: some handlers would never run", ErrInvalidOption, o.Concurrency, o.MaxInFlight)
	case o.AckTimeout < minAckTimeout:
		return fmt.Errorf("%w: AckTimeout is %v, use at least %v", ErrInvalidOption, o.AckTimeout, minAckTimeout)
	case o.MaxLease < -1 || o.MaxLease > 0 && o.MaxLease < o.AckTimeout:
		return fmt.Errorf("%w: MaxLease is %v, use at least AckTimeout (%v), or -1 for no extension", ErrInvalidOption, o.MaxLease, o.AckTimeout)
	case o.MaxAttempts < -1:
		return fmt.Errorf("%w: MaxAttempts is %d, use 1 or more, or -1 for no end", ErrInvalidOption, o.MaxAttempts)
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

// subscribeJSON is the JSON form of SubscribeOptions, durations in milliseconds.
type subscribeJSON struct {
	startJSON
	Topics            []string `json:"topics,omitempty"`
	Concurrency       int      `json:"concurrency,omitempty"`
	BatchSize         int      `json:"batchSize,omitempty"`
	MaxInFlight       int      `json:"maxInFlight,omitempty"`
	GroupMaxInFlight  int      `json:"groupMaxInFlight,omitempty"`
	AckTimeoutMs      int64    `json:"ackTimeoutMs,omitempty"`
	MaxLeaseMs        int64    `json:"maxLeaseMs,omitempty"`
	MaxAttempts       int      `json:"maxAttempts,omitempty"`
	Backoff           *Backoff `json:"backoff,omitempty"`
	ShutdownTimeoutMs int64    `json:"shutdownTimeoutMs,omitempty"`
	Filter            *Filter  `json:"filter,omitempty"`
	ManualAck         bool     `json:"manualAck,omitempty"`
}

// MarshalJSON gives the members from, ts, afterId, afterSeq, topics,
// concurrency, batchSize, maxInFlight, groupMaxInFlight, ackTimeoutMs,
// maxLeaseMs, maxAttempts, backoff, shutdownTimeoutMs, filter and manualAck,
// leaving out what is zero. FilterFunc has no JSON form.
func (o SubscribeOptions) MarshalJSON() ([]byte, error) {
	w := subscribeJSON{
		startJSON: o.From.wire(), Topics: o.Topics, Concurrency: o.Concurrency, BatchSize: o.BatchSize,
		MaxInFlight: o.MaxInFlight, GroupMaxInFlight: o.GroupMaxInFlight, AckTimeoutMs: toMillis(o.AckTimeout),
		MaxLeaseMs: toMillis(o.MaxLease), MaxAttempts: o.MaxAttempts, ShutdownTimeoutMs: toMillis(o.ShutdownTimeout),
		ManualAck: o.ManualAck,
	}
	if o.Backoff != (Backoff{}) {
		w.Backoff = &o.Backoff
	}
	if !o.Filter.IsZero() {
		w.Filter = &o.Filter
	}
	return json.Marshal(w)
}

// UnmarshalJSON reads what MarshalJSON writes. It does not validate.
func (o *SubscribeOptions) UnmarshalJSON(text []byte) error {
	var w subscribeJSON
	if err := json.Unmarshal(text, &w); err != nil {
		return fmt.Errorf("unmarshal subscribe options: %w", err)
	}
	*o = SubscribeOptions{
		From: w.start(), Topics: w.Topics, Concurrency: w.Concurrency, BatchSize: w.BatchSize,
		MaxInFlight: w.MaxInFlight, GroupMaxInFlight: w.GroupMaxInFlight, AckTimeout: fromMillis(w.AckTimeoutMs),
		MaxLease: fromMillis(w.MaxLeaseMs), MaxAttempts: w.MaxAttempts, ShutdownTimeout: fromMillis(w.ShutdownTimeoutMs),
		ManualAck: w.ManualAck,
	}
	if w.Backoff != nil {
		o.Backoff = *w.Backoff
	}
	if w.Filter != nil {
		o.Filter = *w.Filter
	}
	return nil
}

// toMillis and fromMillis keep -1, which stands for "never" and is no duration.
func toMillis(d time.Duration) int64 {
	if d == -1 {
		return -1
	}
	return d.Milliseconds()
}

func fromMillis(ms int64) time.Duration {
	if ms == -1 {
		return -1
	}
	return time.Duration(ms) * time.Millisecond
}
