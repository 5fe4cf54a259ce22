package partition

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// Conditions, for errors.Is.
var (
	// ErrMemberExists: another process is a member of the group under the same id.
	ErrMemberExists = errors.New("a member with this id is there already")
	// ErrExpelled is the cause of a turn's canceled context when this member could
	// not renew its session in time, or somebody removed it: its partitions may pass
	// to others at any moment.
	ErrExpelled = errors.New("the member lost its session")
)

// Options say how a process is a member of a group. The zero value of each field is
// its default; Partitions has none.
type Options struct {
	// Partitions is how many there are, 1 to [jetbus.MaxPartitions]. It is the group's: a member
	// that says another number than the first one did is refused.
	Partitions int
	// Member names this process within the group: a name as [jetbus.ValidGroup] takes it.
	// Two processes must not have one name at a time. Defaults to a random one.
	Member string
	// Static keeps the partitions of a member that stops reserved for it until TTL has
	// passed, so that a deploy that restarts it moves nothing. It needs Member.
	Static bool
	// Weight is how large the member's share is beside the others'. Defaults to 1, at
	// most MaxWeight.
	Weight int
	// Meta describes the member to operators, for example by host, version and zone. [Lookup] and [Status] return
	// it; it does not affect the assignment. Each renewal of the member's session contains it, and all members
	// receive the renewals: keep it short. Names are not empty, names and values are UTF-8 without control
	// characters, and the map has at most MaxMetaBytes as JSON. Do not put secrets in it: gateway clients with ops:read
	// and NATS clients that may read the bucket see it. It is copied. Defaults to none.
	Meta map[string]string
	// Bucket is where members meet. Defaults to DefaultBucket.
	Bucket string
	// TTL is how long the partitions of a member that dies stand still: whole seconds, from
	// 3 seconds to an hour. A member that cannot reach the broker stops after four fifths of it.
	// Defaults to 15 seconds.
	TTL time.Duration
	// JoinDelay is how long a new member waits before it gets partitions, so that of
	// many that start at once each gets its own at the first go. Defaults to 500
	// milliseconds, -1 means none.
	JoinDelay time.Duration
	// Log gets what nobody can be returned. Defaults to nothing.
	Log *slog.Logger
}

// Defaults and bounds of Options.
const (
	DefaultBucket    = "JETBUS_GROUPS"
	DefaultTTL       = 15 * time.Second
	DefaultJoinDelay = 500 * time.Millisecond

	minTTL        = 3 * time.Second
	maxTTL        = time.Hour               // a lost bucket is reported for that long
	maxGroupBytes = jetbus.MaxKeyBytes - 96 // room for what members and partitions add
)

// Normalize returns the options with defaults filled in, or an error wrapping
// [jetbus.ErrInvalidOption] that names the field.
func (o Options) Normalize() (Options, error) {
	if o.Member == "" && o.Static {
		return o, fmt.Errorf("%w: Static needs Member, a name that is the same after a restart", jetbus.ErrInvalidOption)
	}
	setDefault(&o.Member, jetbus.NewID())
	setDefault(&o.Weight, 1)
	setDefault(&o.Bucket, DefaultBucket)
	setDefault(&o.TTL, DefaultTTL)
	setDefault(&o.JoinDelay, DefaultJoinDelay)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Meta = maps.Clone(o.Meta) // the caller may change its own
	if _, err := encodeMeta(o.Meta); err != nil {
		return o, err
	}
	switch {
	case o.Partitions < 1 || o.Partitions > jetbus.MaxPartitions:
		return o, fmt.Errorf("%w: Partitions is %d, use 1 to %d", jetbus.ErrInvalidOption, o.Partitions, jetbus.MaxPartitions)
	case jetbus.ValidGroup(o.Member) != nil || len(o.Member) > 64:
		return o, fmt.Errorf("%w: Member is %.100q, use at most 64 bytes of what names of groups are made of", jetbus.ErrInvalidOption, o.Member)
	case o.Weight < 1 || o.Weight > MaxWeight:
		return o, fmt.Errorf("%w: Weight is %d, use 1 to %d", jetbus.ErrInvalidOption, o.Weight, MaxWeight)
	case o.TTL < minTTL || o.TTL > maxTTL || o.TTL%time.Second != 0:
		return o, fmt.Errorf("%w: TTL is %v, use whole seconds, from %v to %v", jetbus.ErrInvalidOption, o.TTL, minTTL, maxTTL)
	case o.JoinDelay < -1:
		return o, fmt.Errorf("%w: JoinDelay is %v, use -1 for none", jetbus.ErrInvalidOption, o.JoinDelay)
	}
	return o, nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func validName(group string) error {
	if group == "" || len(group) > maxGroupBytes || jetbus.ValidKey(group) != nil || strings.HasSuffix(group, "/") || strings.Contains(group, groupKeys) {
		return fmt.Errorf("%w: the group's name is %.300q, use 1 to %d bytes of UTF-8 without control characters, without %q and without a slash at the end", jetbus.ErrInvalidOption, group, maxGroupBytes, groupKeys)
	}
	return nil
}

// Own is what a member does with a partition. It is called when the partition is
// the member's, each time on a goroutine of its own, and returns when it has given
// the partition up: soon after Turn.Revoked is closed, at once when ctx ends. What ctx
// tells is that the partition may be another member's by now (the cause is
// [ErrExpelled]), or that there is no more time to stop in order ([jetbus.ErrStopped]).
//
// clean says that everything is left in order; the next owner is told. With an error,
// or a panic, the membership ends: it is Membership.Err. One that returns before it
// has to gets the partition again after a second, if it is still its own.
type Own func(ctx context.Context, t *Turn) (clean bool, err error)

// Turn is a partition in the hands of a member.
type Turn struct {
	// Partition is its number, from 0.
	Partition int
	// Epoch ascends from turn to turn of the partition. What is written with it can be
	// refused once something with a higher one has been seen.
	Epoch uint64
	// Clean: the turn before ended in order, with Own saying so. It is false of the first
	// turn, and where the owner before died, lost its session or failed.
	Clean bool

	revoked  chan struct{}
	asked    bool // revoked is closed; guarded by Membership.mu
	lost     bool // it is not the member's any more; guarded by Membership.mu
	ended    bool // Own has returned; guarded by Membership.mu
	session  *session
	revision uint64 // of the lease
	cancel   context.CancelCauseFunc
}

// Revoked is closed when the partition is to pass to another member, or the member
// stops: what runs may end, nothing new should begin.
func (t *Turn) Revoked() <-chan struct{} { return t.revoked }
