package jetbus

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// Defaults and bounds of the options beside SubscribeOptions.
const (
	DefaultReceiveMax      = 100             // ReceiveOptions.Max
	DefaultReceiveMaxBytes = 64 << 20        // ReceiveOptions.MaxBytes
	DefaultReceiveWait     = 5 * time.Second // ReceiveOptions.Wait

	maxTTL   = 10 * 365 * 24 * time.Hour
	maxDelay = 365 * 24 * time.Hour
)

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

// Validate reports what does not go together in a batch of n events: an ExpectLastSeq
// without Atomic, which is all it holds for, or beside that of Each, a Chain with Atomic, a
// Chain that is not valid, and an Each that is not one an event, or not valid or possible for one
// of them. The error wraps [ErrInvalidOption], or [ErrUnsupported] for a DeliverAt.
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
	case each.ExpectLastSeq != nil && o.Chain != nil:
		return fmt.Errorf("%w: ExpectLastSeq in a chained batch: Chain says what is behind it", ErrInvalidOption)
	case each.ExpectLastSeq != nil && o.ExpectLastSeq != nil && i == 0:
		return fmt.Errorf("%w: ExpectLastSeq of the batch and of its first event are both set; choose one", ErrInvalidOption)
	}
	return each.Validate()
}

// Validate reports a negative Wait, or ToLatest beside a cursor that names a
// position itself. The error wraps [ErrInvalidOption].
func (o SeekOptions) Validate(c Cursor) error {
	switch {
	case o.Wait < 0:
		return fmt.Errorf("%w: Wait is %v, use 0 for the default, or Force to move without waiting", ErrInvalidOption, o.Wait)
	case o.ToLatest && (c.LastSeq != 0 || c.LastID != "" || !c.LastTime.IsZero()):
		return fmt.Errorf("%w: ToLatest is set and so is a position of the cursor; choose one", ErrInvalidOption)
	}
	return nil
}

// Validate reports a negative Delay, or one beside AtOnce. The error wraps [ErrInvalidOption].
func (o NackOptions) Validate() error {
	switch {
	case o.Delay < 0:
		return fmt.Errorf("%w: Delay is %v, use 0 for the backoff, or AtOnce", ErrInvalidOption, o.Delay)
	case o.Delay > 0 && o.AtOnce:
		return fmt.Errorf("%w: Delay is %v and AtOnce is set; choose one", ErrInvalidOption, o.Delay)
	}
	return nil
}

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

// Validate reports a From, After, Created or Filter that is not valid. The error wraps
// [ErrInvalidOption] or [ErrInvalidTopic].
func (o ReadOptions) Validate() error {
	if err := o.From.Validate(); err != nil {
		return err
	}
	for topic := range o.After {
		if err := ValidTopic(topic); err != nil {
			return fmt.Errorf("option After: %w", err)
		}
	}
	for topic, at := range o.Created {
		if err := ValidTopic(topic); err != nil {
			return fmt.Errorf("option Created: %w", err)
		}
		if at.IsZero() {
			return fmt.Errorf("%w: Created of topic %s is zero: leave it out where it is not known", ErrInvalidOption, topic)
		}
	}
	return o.Filter.Validate()
}

// Validate reports a From or Filter that is not valid, or a negative Limit. The
// error wraps [ErrInvalidOption].
func (q ScanQuery) Validate() error {
	if err := q.From.Validate(); err != nil {
		return err
	}
	if q.Limit < 0 {
		return fmt.Errorf("%w: Limit is %d, use 1 or more, or 0 for no limit", ErrInvalidOption, q.Limit)
	}
	return q.Filter.Validate()
}

// Validate reports a filter that can select nothing: a Key that does not start
// with KeyPrefix. The error wraps [ErrInvalidOption].
func (f *Filter) Validate() error {
	if f.Key != "" && !strings.HasPrefix(f.Key, f.KeyPrefix) {
		return fmt.Errorf("%w: Filter selects nothing: key %q does not start with %q", ErrInvalidOption, f.Key, f.KeyPrefix)
	}
	return nil
}
