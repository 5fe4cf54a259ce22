package partition

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// Assignment is who has what in a group, as its bucket has it.
type Assignment struct {
	Group      string          `json:"group"`
	Members    []MemberInfo    `json:"members"`    // sorted by id
	Partitions []PartitionInfo `json:"partitions"` // by number
}

// MemberInfo is a member as others see it.
type MemberInfo struct {
	ID         string    `json:"id"`
	State      string    `json:"state"` // "live", "leaving", or "away": it stopped, and what it had waits for it
	Weight     int       `json:"weight"`
	Static     bool      `json:"static,omitempty"`
	Joined     time.Time `json:"joined"`     // by its own clock
	Partitions []int     `json:"partitions"` // that it has
	// Meta is the member's metadata ([Options].Meta). Nil if it has none.
	Meta map[string]string `json:"meta,omitempty"`
}

// PartitionInfo is a partition and its owner.
type PartitionInfo struct {
	Partition int    `json:"partition"`
	Member    string `json:"member,omitempty"` // "": nobody has it
	// Epoch is that of the owner's turn; 0 while nobody has it.
	Epoch uint64 `json:"epoch,omitempty"`
	// Orphaned: the session of the member that has it is over, or was not seen; somebody
	// will take it in a moment.
	Orphaned bool `json:"orphaned,omitempty"`
}

// Lookup reads who has what in a group. bucket "" is DefaultBucket. The error wraps
// [jetbus.ErrNoGroup] where nobody ever joined a group of that name, or is one of the
// broker.
func Lookup(ctx context.Context, k jetbus.Keys, bucket, group string) (Assignment, error) {
	a, err := lookup(ctx, k, cmp.Or(bucket, DefaultBucket), group)
	if err != nil {
		return Assignment{}, fmt.Errorf("assignment of group %s: %w", group, err)
	}
	return a, nil
}

func lookup(ctx context.Context, k jetbus.Keys, bucket, group string) (Assignment, error) {
	if err := validName(group); err != nil {
		return Assignment{}, err
	}
	v, config := newView(), configValue{}
	for e, err := range k.KeyWatch(ctx, bucket, group+groupKeys) {
		if err != nil {
			return Assignment{}, err
		}
		if e.Synced {
			break
		}
		if strings.TrimPrefix(e.Key, group) == configKey {
			if err := json.Unmarshal(e.Value, &config); err != nil {
				return Assignment{}, fmt.Errorf("key %s: %w", e.Key, err)
			}
		}
		v.apply(e, group, time.Time{}, false, 0)
	}
	if config.Partitions == 0 {
		return Assignment{}, jetbus.ErrNoGroup
	}
	return v.assignment(group, config.Partitions), nil
}

// assignment describes what is known of a group of n partitions.
func (v *view) assignment(group string, n int) Assignment {
	a := Assignment{Group: group, Partitions: make([]PartitionInfo, n)}
	has := map[string][]int{}
	for p := range a.Partitions {
		l := v.leases[p]
		a.Partitions[p] = PartitionInfo{Partition: p, Member: l.Owner}
		if l.Owner == "" {
			continue
		}
		a.Partitions[p].Epoch = l.revision
		if m, there := v.members[l.Owner]; !there || m.Nonce != l.Session {
			a.Partitions[p].Orphaned = true
			continue
		}
		has[l.Owner] = append(has[l.Owner], p)
	}
	for id, m := range v.members {
		a.Members = append(a.Members, MemberInfo{ID: id, State: m.State, Weight: m.Weight, Static: m.Static, Joined: m.Joined, Partitions: has[id], Meta: decodeMeta(m.Meta)})
	}
	slices.SortFunc(a.Members, func(a, b MemberInfo) int { return cmp.Compare(a.ID, b.ID) })
	return a
}
