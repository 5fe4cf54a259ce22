package partition

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// Bus is what Subscribe needs of a bus.
type Bus interface {
	jetbus.Partitions
	jetbus.Keys
}

// SubscribeOptions say how a process takes part in a group of a topic with partitions.
// The zero value is the documented default.
type SubscribeOptions struct {
	// PerPartition says how the events of each partition are handled: Concurrency,
	// MaxInFlight and the like count for one partition, of which the process may have
	// many. Order is [jetbus.PerKey], the default, or [jetbus.Total], for which all
	// events of a partition go one by one. Topics must be empty.
	PerPartition jetbus.SubscribeOptions
	// Member, Static, Weight, Meta, Bucket, TTL and JoinDelay have the same meaning as in [Options].
	Member    string
	Static    bool
	Weight    int
	Meta      map[string]string
	Bucket    string
	TTL       time.Duration
	JoinDelay time.Duration
	// OnAssigned is called when a partition is this process's, before the first event of
	// it is handled, which waits until it returns: the time to load what goes with the
	// partition. Its context is that of the turn: it is canceled when the partition may be
	// another's ([ErrExpelled]), or Stop is out of time ([jetbus.ErrStopped]). Calls for several
	// partitions go side by side. A panic ends the subscription. Nil: not called.
	OnAssigned func(ctx context.Context, a Assigned)
	// OnRevoked is called when no handler of a partition runs here any more, and before it
	// passes on to another member, unless it was lost: the time to save what goes with it. Its
	// context is that of OnAssigned, which has ended where the partition was lost. Each
	// call of OnAssigned is followed by one of OnRevoked. Nil: not called.
	OnRevoked func(ctx context.Context, r Revoked)
	// Log gets what nobody can be returned. Defaults to nothing.
	Log *slog.Logger
}

// Assigned is a partition that has become a process's own.
type Assigned struct {
	jetbus.Partition
	// Epoch is that of the deliveries of this turn ([jetbus.Delivery].Epoch).
	Epoch uint64
}

// Revoked is a partition that was a process's own.
type Revoked struct {
	jetbus.Partition
	Epoch uint64
	// Clean: everything was handed over. Otherwise the partition was lost, and another
	// member may have begun with it already.
	Clean bool
}

// normalize returns the options with defaults filled in.
func (o SubscribeOptions) normalize() (SubscribeOptions, error) {
	o.PerPartition.Order = cmp.Or(o.PerPartition.Order, jetbus.PerKey)
	if len(o.PerPartition.Topics) > 0 {
		return o, fmt.Errorf("%w: Topics is set: one subscription has the partitions of one topic", jetbus.ErrInvalidOption)
	}
	var err error
	if o.PerPartition, err = o.PerPartition.Normalize(); err != nil {
		return o, err
	}
	join, err := o.join(1).Normalize()
	if err != nil {
		return o, err
	}
	o.Member, o.Weight, o.Meta, o.Bucket, o.TTL, o.JoinDelay, o.Log = join.Member, join.Weight, join.Meta, join.Bucket, join.TTL, join.JoinDelay, join.Log
	return o, nil
}

// join are the options of the membership in a generation of n partitions.
func (o *SubscribeOptions) join(n int) Options {
	return Options{
		Partitions: n, Member: o.Member, Static: o.Static, Weight: o.Weight, Meta: o.Meta,
		Bucket: o.Bucket, TTL: o.TTL, JoinDelay: o.JoinDelay, Log: o.Log,
	}
}
