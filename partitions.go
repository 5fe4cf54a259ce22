package jetbus

import (
	"context"
	"fmt"
	"time"
)

// Partition names one partition of a topic: the Number-th of a generation.
type Partition struct {
	Generation int `json:"generation"` // counts from 1; each Repartition begins one
	Number     int `json:"number"`     // 0 to the generation's Partitions-1
}

// String is the partition as it stands in subjects: P1.3.
func (p Partition) String() string { return fmt.Sprintf("P%d.%d", p.Generation, p.Number) }

// Generation is a number of partitions that a topic has, or had. Events stay in the
// partition they were published to; those published since a generation began are in its.
type Generation struct {
	Generation int `json:"generation"`
	Partitions int `json:"partitions"`
	// Stream is the topic's, which no other has: buses of different prefixes may have topics
	// of one name. Empty where a bus has no streams.
	Stream string `json:"stream,omitempty"`
}

// Partitions hands the partitions of a topic out. Package partition is built on it:
// services use [Subscriber]-like partition.Subscribe, which sees to it that no partition
// has two owners, and not these methods.
type Partitions interface {
	// Generations returns the generations of a topic as the broker has them now, oldest
	// first: the last is the present one. The error is [ErrNoTopic] or [ErrNoPartitions].
	Generations(ctx context.Context, topic string) ([]Generation, error)
	// Repartition gives a topic more partitions, for events from now on: it begins a
	// generation. Publishers that do not know of it yet are turned away by the broker, look,
	// and publish again; an event of a key is handled by a group when all of that key in
	// older generations are settled, provided that its members use package partition. A
	// topic that has n partitions already is left as it is, so that a call may be repeated.
	// Fewer partitions are refused, and any change of a topic that is compacted, has a
	// snapshot or Delays ([ErrConflict]). What reads the topic as a whole goes on in its
	// order; ScanLatest gives a key once for each generation in which it has events, the last
	// one last. The errors are [ErrNoTopic], [ErrNoPartitions], and [ErrInvalidOption] where n is
	// not from 1 to MaxPartitions.
	Repartition(ctx context.Context, topic string, n int) ([]Generation, error)

	// JoinPartitions makes sure that a group exists on all partitions of a topic, those
	// of older generations included. A new group begins at o.From, at the same event of
	// the log in each of them. A group that has members without partitions is refused
	// ([ErrConflict]); it stays what it was first.
	JoinPartitions(ctx context.Context, topic, group string, o SubscribeOptions) error
	// SubscribePartition handles the events of one partition until ctx ends, upon which
	// everything is given up at once, or the subscription is stopped, which hands over.
	// No two turns of a partition may go on at a time: the caller sees to it. o.Order is
	// PerKey or Total, and o.Topics is empty.
	SubscribePartition(ctx context.Context, topic, group string, turn PartitionTurn, h Handler, o SubscribeOptions) (PartitionSubscription, error)
	// GroupPartitions describes a group in each partition it has, ordered by generation
	// and number. The error is [ErrNoGroup] where it has none.
	GroupPartitions(ctx context.Context, topic, group string) ([]PartitionInfo, error)
}

// PartitionTurn is the time in which a partition is one process's own.
type PartitionTurn struct {
	Partition Partition
	// Epoch ascends from turn to turn of the partition; handlers get it with each
	// [Delivery], so that a database can refuse what comes late of an owner that was.
	Epoch uint64
	// Clean: the turn before handed over ([PartitionSubscription.Clean]), or there was
	// none. Otherwise what its process may have been handling is looked at with care.
	Clean bool
	// Move is that of the [PartitionInfo] by which the turn was found ready to begin, after
	// older partitions. Where the group has been moved since, the subscription ends without
	// an error, before it handles an event: those partitions may have to go first again.
	// "": nothing depends on that.
	Move string
}

// PartitionSubscription is a member of a group in one partition.
type PartitionSubscription interface {
	Subscription
	// Clean reports, once Done is closed, whether the partition was handed over: the next
	// turn may begin with Clean. Of a member that has not begun it is the Clean of its turn.
	Clean() bool
	// Began reports, once Done is closed, whether the member has asked for events.
	Began() bool
}

// PartitionInfo describes a group in one partition as it is at the broker.
type PartitionInfo struct {
	Partition
	Pending  uint64    `json:"pending"`  // events not delivered yet
	Held     int       `json:"held"`     // delivered, not settled
	AckedSeq uint64    `json:"ackedSeq"` // everything of the partition up to here is settled
	Retries  uint64    `json:"retries"`  // replays of dead letters that wait or are held
	LastAck  time.Time `json:"-"`
	// Oldest is when the oldest event was stored that is not settled; zero: there is none.
	Oldest time.Time `json:"-"`
	// Move tells the SetCursor that has put the group where it is from others, and a group
	// from one of its name that was deleted.
	Move string `json:"-"`
}

// PartitionStatus describes one partition of a group: its lag, and the member that has it. Package partition
// manages the members.
type PartitionStatus struct {
	// Name is the partition as it stands in subjects: P1.3.
	Name string `json:"partition"`
	// PartitionInfo describes the group at the broker. LastAck, Oldest and Move are not in JSON.
	PartitionInfo
	// LagEvents is how many events the group has not settled: Pending and Held together.
	LagEvents uint64 `json:"lagEvents"`
	// LagSeconds is how long ago the oldest of them was stored, in seconds. 0: there is none.
	LagSeconds float64 `json:"lagSeconds"`
	// Owned reports whether a running member has the partition: its session is valid, and it has not stopped. The
	// session of a member that died is valid until it expires.
	Owned bool `json:"owned"`
	// Member is the ID of the member that has the partition. "": none has it.
	Member string `json:"member,omitempty"`
	// State is the member's state: "live", "leaving", or "away" if it stopped and the partition is reserved for it.
	// "" if Member is "" or Orphaned is set.
	State string `json:"state,omitempty"`
	// Meta is the member's metadata, for example its host, version and zone. Nil if it has none, or Orphaned is set.
	Meta map[string]string `json:"meta,omitempty"`
	// Epoch is the fencing token of the member's turn ([Delivery].Epoch). 0 if Member is "".
	Epoch uint64 `json:"epoch,omitempty"`
	// Orphaned reports that the member's session expired or was deleted: another member will take the partition.
	Orphaned bool `json:"orphaned,omitempty"`
}

// Drained reports whether the group is done with all that the partition has.
func (i PartitionInfo) Drained() bool { return i.Pending == 0 && i.Held == 0 }
