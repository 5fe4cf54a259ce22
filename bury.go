package jetbus

import (
	"context"
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
