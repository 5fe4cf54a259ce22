package jetbus

import (
	"context"
	"fmt"
)

// Burier stores dead letters of events that no delivery holds. What a group is
// delivered becomes a dead letter by [Delivery.Reject]; this is for those who read
// without a group.
type Burier interface {
	// Bury stores d in the dead letters of d.Event.Topic. One that has the same
	// [DeadLetter.Key] is stored once, however often it is buried. Left open, Stream and
	// StreamCreated are those of the topic as it is now, Reason is [DeadRejected],
	// and the times are now; ID, Seq, Time and Replayed are not used. It returns when
	// the dead letter is stored. The errors are those of [DeadLetter.Validate] and of Publish.
	Bury(ctx context.Context, d DeadLetter) error
}

// Validate reports a dead letter that could not be read again: an Event that is
// not valid or has no Seq, one of a topic of dead letters, which has none of its own, a
// Group that is no name, or counts below 0. The error wraps that of [Event.Validate],
// [ErrInvalidTopic], [ErrInvalidGroup] or [ErrInvalidOption].
func (d *DeadLetter) Validate() error {
	if err := d.Event.Validate(); err != nil {
		return err
	}
	if err := ValidGroup(d.Group); err != nil {
		return err
	}
	switch {
	case IsDeadLetterTopic(d.Event.Topic):
		return fmt.Errorf("%w: %s holds dead letters, which have none of their own", ErrInvalidTopic, d.Event.Topic)
	case d.Event.Seq == 0:
		return fmt.Errorf("%w: the event of a dead letter has no Seq, which says where it stands in %s", ErrInvalidOption, d.Event.Topic)
	case d.Attempts < 0 || d.Replays < 0:
		return fmt.Errorf("%w: Attempts is %d and Replays is %d, use 0 or more", ErrInvalidOption, d.Attempts, d.Replays)
	case (d.Stream == "") != d.StreamCreated.IsZero():
		return fmt.Errorf("%w: Stream is %q and StreamCreated is %v: set both or none", ErrInvalidOption, d.Stream, d.StreamCreated)
	}
	return nil
}
