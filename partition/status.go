package partition

import (
	"context"
	"errors"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// Status returns the partitions of a topic's group, ordered by generation and number: the member that has each, and
// the lag of the group in it. It reads the group first and its members afterwards, so a partition that moves in
// the meantime is returned with its new owner. bucket is where the members meet, "" means [DefaultBucket]; members
// that meet elsewhere are not found. A group that no member has joined yet has partitions without members.
//
// The error wraps [jetbus.ErrNoTopic], [jetbus.ErrNoPartitions], [jetbus.ErrNoGroup] or [jetbus.ErrConflict] (the
// group has members without partitions), or is an error of the broker.
func Status(ctx context.Context, bus Bus, bucket, topic, group string) ([]jetbus.PartitionStatus, error) {
	parts, err := bus.GroupPartitions(ctx, topic, group)
	if err != nil {
		return nil, err
	}
	who, err := LookupTopic(ctx, bus, bucket, topic, group)
	if err != nil && !errors.Is(err, jetbus.ErrNoGroup) {
		return nil, err
	}
	out := make([]jetbus.PartitionStatus, len(parts))
	at := make(map[jetbus.Partition]*jetbus.PartitionStatus, len(parts))
	for i, p := range parts {
		out[i] = jetbus.PartitionStatus{Name: p.String(), PartitionInfo: p, LagEvents: p.Pending + uint64(max(p.Held, 0)), LagSeconds: secondsSince(p.Oldest)}
		at[p.Partition] = &out[i]
	}
	for _, g := range who.Generations {
		for _, p := range g.Partitions {
			if s := at[jetbus.Partition{Generation: g.Generation, Number: p.Partition}]; s != nil {
				s.Member, s.Epoch, s.Orphaned = p.Member, p.Epoch, p.Orphaned
			}
		}
		for _, m := range g.Members {
			for _, p := range m.Partitions {
				if s := at[jetbus.Partition{Generation: g.Generation, Number: p}]; s != nil {
					s.Owned, s.State, s.Meta = m.State != stateAway, m.State, m.Meta
				}
			}
		}
	}
	return out, nil
}

// secondsSince returns how long ago t was, at least a millisecond; 0 if t is zero.
func secondsSince(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return max(time.Since(t).Round(time.Millisecond), time.Millisecond).Seconds()
}
