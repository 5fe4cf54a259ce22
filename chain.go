package jetbus

import "fmt"

// Chain says behind which event the first one of a chained batch belongs; see
// [BatchOptions]. A publisher that chains its batches is the only one that gets
// anything into the topic: another one, or itself with an old idea of the end, is
// refused. What has been stored is known from the topic's last event.
type Chain struct {
	// AfterID is the ID of the topic's last event. Empty where there is none, or it is
	// not known any more: AfterSeq alone decides then.
	AfterID string `json:"afterId,omitempty"`
	// AfterSeq is the position of that event. 0 where the topic never had one. The
	// server forgets the ID of a last event that has left the topic: without AfterSeq
	// the batch is refused then. A replicated topic always needs it.
	AfterSeq uint64 `json:"afterSeq,omitempty"`
}

// ChainError says what keeps an event of a chained batch from being stored: it
// would not be behind the one before it. It matches [ErrWrongSequence].
type ChainError struct {
	Topic   string
	AfterID string // of the event that should be the last one; empty: not known
	// LastID and LastSeq are those of the topic's last event, as far as they are
	// known; LastID is empty for a message that is no event of this bus.
	LastID  string
	LastSeq uint64
	// Reason is set where there is more to say.
	Reason string
}

// Error names both events.
func (e *ChainError) Error() string {
	text := fmt.Sprintf("topic %s: the last event is %q", e.Topic, e.LastID)
	if e.LastSeq > 0 {
		text += fmt.Sprintf(" at %d", e.LastSeq)
	}
	text += fmt.Sprintf(", not %q: something else publishes to the topic", e.AfterID)
	if e.Reason != "" {
		text += "; " + e.Reason
	}
	return text
}

// Is reports whether target is ErrWrongSequence.
func (e *ChainError) Is(target error) bool { return target == ErrWrongSequence }

// Validate reports an AfterID that no event can have. The error wraps
// [ErrInvalidOption].
func (c Chain) Validate() error {
	if len(c.AfterID) > MaxIDBytes || !printable(c.AfterID) {
		return fmt.Errorf("%w: Chain.AfterID has more than %d bytes or control characters, or is no UTF-8", ErrInvalidOption, MaxIDBytes)
	}
	return nil
}
