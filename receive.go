package jetbus

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Receiver takes events without a handler, for edges and projectors.
type Receiver interface {
	// Receive joins the group for one request: it returns up to o.Max events, as
	// soon as there is at least one, or none and no error when o.Wait has passed, also
	// where the group holds all it may (SubscribeOptions.GroupMaxInFlight). A broker that does
	// not answer, as while a cluster elects, is asked again until ctx is over; without a
	// deadline, for as long as other calls and Wait together.
	// The caller settles each delivery; the bus extends leases with o.MaxLease only.
	Receive(ctx context.Context, topic, group string, o ReceiveOptions) ([]*Delivery, error)
}

// ReceiveOptions configures Receive.
type ReceiveOptions struct {
	// From is where a new group starts. Defaults to Latest.
	From Start `json:"-"`
	// Max is the maximum number of events returned. Defaults to 100.
	Max int `json:"max,omitempty"`
	// MaxBytes is the maximum size of the events returned, as the broker counts bytes: with
	// headers and subjects. A larger event is returned alone. Defaults to 64 MiB.
	MaxBytes int64 `json:"maxBytes,omitempty"`
	// Wait is how long to wait for the first event. Defaults to 5 seconds; -1 means no wait: an
	// event whose publish was confirmed a moment ago may not have reached the group yet. Events
	// that have arrived are returned once their leases are verified, which in a cluster may take
	// an election.
	Wait time.Duration `json:"-"`
	// AckTimeout is how long the leases last, at least 100 milliseconds. It belongs to the group,
	// as SubscribeOptions.AckTimeout does: if the group's AckTimeout is longer, leases last that
	// long. Defaults to the group's value, and to 30 seconds for a new group.
	AckTimeout time.Duration `json:"-"`
	// MaxLease is how long the bus extends the leases of the returned events until the caller
	// settles them; at least AckTimeout. An event that is not settled by then counts as a failed
	// attempt, at most AckTimeout later. Zero: only [Delivery.Extend] extends leases.
	MaxLease time.Duration `json:"-"`
	// MaxAttempts is carried by the deliveries. Defaults to 5; -1 means no limit.
	MaxAttempts int `json:"maxAttempts,omitempty"`
	// Reserve is called before more than [UnreservedBytes] of events are requested, and reports
	// whether that many more bytes may be held. If it refuses, Receive returns the events that it
	// has, or none if the next event is larger. The caller releases the granted bytes when the
	// events are settled. Nil: MaxBytes is the only bound.
	Reserve func(bytes int64) bool `json:"-"`
}

// Defaults of ReceiveOptions.
const (
	DefaultReceiveMax      = 100             // Max
	DefaultReceiveMaxBytes = 64 << 20        // MaxBytes
	DefaultReceiveWait     = 5 * time.Second // Wait
)

// Normalize returns the options with defaults filled in, but for AckTimeout, where the
// group decides; or an error wrapping [ErrInvalidOption] that names the field.
func (o ReceiveOptions) Normalize() (ReceiveOptions, error) {
	setDefault(&o.Max, DefaultReceiveMax)
	setDefault(&o.MaxBytes, DefaultReceiveMaxBytes)
	setDefault(&o.Wait, DefaultReceiveWait)
	setDefault(&o.MaxAttempts, DefaultMaxAttempts)
	switch {
	case o.Max < 1 || o.Max > maxBatchSize:
		return o, fmt.Errorf("%w: Max is %d, use 1 to %d", ErrInvalidOption, o.Max, maxBatchSize)
	case o.MaxBytes < 1 || o.MaxBytes > maxHeldBytes:
		return o, fmt.Errorf("%w: MaxBytes is %d, use 1 to %d", ErrInvalidOption, o.MaxBytes, maxHeldBytes)
	case o.Wait < -1:
		return o, fmt.Errorf("%w: Wait is %v, use -1 for no wait", ErrInvalidOption, o.Wait)
	case o.AckTimeout != 0 && o.AckTimeout < minAckTimeout:
		return o, fmt.Errorf("%w: AckTimeout is %v, use at least %v, or 0 for that of the group", ErrInvalidOption, o.AckTimeout, minAckTimeout)
	case o.MaxLease != 0 && o.MaxLease < cmp.Or(o.AckTimeout, DefaultAckTimeout):
		return o, fmt.Errorf("%w: MaxLease is %v, use at least AckTimeout (%v), or 0 for no extension",
			ErrInvalidOption, o.MaxLease, cmp.Or(o.AckTimeout, DefaultAckTimeout))
	case o.MaxAttempts < -1:
		return o, fmt.Errorf("%w: MaxAttempts is %d, use 1 or more, or -1 for no end", ErrInvalidOption, o.MaxAttempts)
	}
	return o, o.From.Validate()
}

type plainReceiveOptions ReceiveOptions

type receiveJSON struct {
	startJSON
	plainReceiveOptions
	WaitMs       millis `json:"waitMs,omitempty"`
	AckTimeoutMs millis `json:"ackTimeoutMs,omitempty"`
	MaxLeaseMs   millis `json:"maxLeaseMs,omitempty"`
}

// MarshalJSON gives the members from, ts, afterId, afterSeq, max, maxBytes,
// waitMs, ackTimeoutMs, maxLeaseMs and maxAttempts, leaving out what is zero.
func (o ReceiveOptions) MarshalJSON() ([]byte, error) {
	return json.Marshal(receiveJSON{o.From.wire(), plainReceiveOptions(o), millis(o.Wait), millis(o.AckTimeout), millis(o.MaxLease)})
}

// UnmarshalJSON reads what MarshalJSON writes. It does not validate.
func (o *ReceiveOptions) UnmarshalJSON(text []byte) error {
	w, err := unmarshal[receiveJSON](text, "receive options")
	if err != nil {
		return err
	}
	*o = ReceiveOptions(w.plainReceiveOptions)
	o.Wait, o.AckTimeout, o.MaxLease = time.Duration(w.WaitMs), time.Duration(w.AckTimeoutMs), time.Duration(w.MaxLeaseMs)
	o.From, err = w.start()
	return err
}
