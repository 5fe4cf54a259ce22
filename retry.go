package jetbus

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Retrier puts an event before one group again, and before no other. Replays of
// dead letters use it.
type Retrier interface {
	// Retry stores e in the group's queue of retries, which the members of the
	// group read beside the topic with the same handlers. e.Topic names the topic,
	// and e.Seq where the event stands in it. A retry of the same name that was
	// stored before, at any time in the last 30 days, is left as it is: the receipt
	// then says Duplicate. The error is [ErrNoGroup] where nobody would read it.
	Retry(ctx context.Context, group string, e Event, o RetryOptions) (Receipt, error)
	// Retried returns which of the named retries of a group are stored, and since
	// when by the broker's clock. Names of none are missing in the map, and so are all
	// of a group or topic that does not exist.
	Retried(ctx context.Context, topic, group string, names ...string) (map[string]time.Time, error)
}

// RetryOptions say what a retry is.
type RetryOptions struct {
	// Name identifies the retry within its group and topic: 1 to 64 of the
	// characters a-z, 0-9 and '-'. Required. [Replay] names the nth retry of a dead
	// letter by its position: "d17", "d17-2", "d17-3"; do not use these.
	Name string
	// ReplayOf is the position of the dead letter that is replayed; the deliveries
	// show it. 0 where it is no replay.
	ReplayOf uint64
	// Replays counts the replays of this event, this one included; the dead letter
	// it may become shows it.
	Replays int
	// Stream and StreamCreated say where the original is stored. Empty: where the
	// topic is stored now.
	Stream        string
	StreamCreated time.Time
}

// Validate reports a Name that is not valid, or negative Replays. The error
// wraps [ErrInvalidOption].
func (o RetryOptions) Validate() error {
	switch {
	case o.Name == "" || len(o.Name) > 64 || strings.Trim(o.Name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "":
		return fmt.Errorf("%w: Name %.80q of a retry: use 1 to 64 of a-z, 0-9 and '-'", ErrInvalidOption, o.Name)
	case o.Replays < 0:
		return fmt.Errorf("%w: Replays is %d", ErrInvalidOption, o.Replays)
	}
	return nil
}

// Remover removes single events.
type Remover interface {
	// RemoveEvents removes the events at these positions of a topic, for good, and
	// returns how many it removed, also with an error. Positions where the topic has
	// no event, those of other topics in the same stream and those that others have
	// removed among them, are left alone.
	RemoveEvents(ctx context.Context, topic string, seqs ...uint64) (int, error)
}
