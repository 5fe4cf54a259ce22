package partition

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// configTrial is how long the first value of what a group agrees on is kept: it is
// written to see whether keys of the bucket can expire, as sessions must.
const configTrial = 10 * time.Minute

// configValue is what the members of a group agree on.
type configValue struct {
	Partitions int          `json:"partitions"`
	Order      jetbus.Order `json:"order,omitempty"` // of a topic's group
	Trial      bool         `json:"trial,omitempty"` // it expires, since its writer has not come to write it for good
}

// terms are on what a subscription by partition joins a group.
type terms struct {
	anew  bool         // without members it may have another number of partitions: the topic is what all go by
	order jetbus.Order // "": there is none, the group is no topic's
}

// with is what the group agrees on once a member has joined on those terms.
func (on terms) with(partitions int) configValue {
	return configValue{Partitions: partitions, Order: on.order}
}

// agree makes sure that the group has that many partitions, and that order: it may be
// given others while it has no members, where the terms say so.
func agree(ctx context.Context, k jetbus.Keys, group string, o Options, on terms) error {
	want := on.with(o.Partitions)
	text, err := json.Marshal(want)
	if err != nil {
		return err
	}
	trial, err := json.Marshal(configValue{want.Partitions, want.Order, true})
	if err != nil {
		return err
	}
	for {
		there, revision, err := readConfig(ctx, k, o.Bucket, group)
		kept := !there.Trial
		there.Trial = false
		switch {
		case err != nil || there == want && kept:
			return err
		case there == want:
		case revision == 0:
			revision, err = k.KeySet(ctx, o.Bucket, group+configKey, trial, 0, configTrial)
		case !on.anew:
			return differs(group, there, want)
		default:
			var a Assignment
			if a, err = lookup(ctx, k, o.Bucket, group); err == nil && a.isAlive() {
				return differs(group, there, want)
			}
		}
		if err == nil {
			_, err = k.KeySet(ctx, o.Bucket, group+configKey, text, revision, 0)
		}
		if !errors.Is(err, jetbus.ErrWrongSequence) { // otherwise another one was first
			return err
		}
	}
}

func readConfig(ctx context.Context, k jetbus.Keys, bucket, group string) (there configValue, revision uint64, err error) {
	entry, err := k.KeyGet(ctx, bucket, group+configKey)
	if err != nil || entry.Revision == 0 {
		return there, 0, err
	}
	if err := json.Unmarshal(entry.Value, &there); err != nil {
		return there, 0, fmt.Errorf("key %s%s of bucket %s: %w", group, configKey, bucket, err)
	}
	return there, entry.Revision, nil
}

// isAlive reports whether there are members that are not away: what is left of a process
// that was stopped must not keep it from coming back with other options.
func (a *Assignment) isAlive() bool {
	return slices.ContainsFunc(a.Members, func(m MemberInfo) bool { return m.State != stateAway })
}

// agreeOnOrder refuses another order than that of the members that a group has: those of
// a generation that joins would not know.
func agreeOnOrder(ctx context.Context, k jetbus.Keys, bucket, group string, order jetbus.Order) error {
	there, _, err := readConfig(ctx, k, bucket, group)
	if err != nil || there.Order == "" || there.Order == order {
		return err
	}
	a, err := lookup(ctx, k, bucket, group)
	if err == nil && a.isAlive() {
		err = differs(group, there, configValue{Partitions: there.Partitions, Order: order})
	}
	return err
}

// differs is the error of a member that wants something else than its group has.
func differs(group string, have, want configValue) error {
	conflict := &jetbus.ConflictError{What: "group " + group}
	if have.Partitions != want.Partitions {
		conflict.Differences = append(conflict.Differences, jetbus.Difference{Field: "Partitions", Have: strconv.Itoa(have.Partitions), Want: strconv.Itoa(want.Partitions)})
		conflict.Hint = "all members of a group have the same number"
	}
	if have.Order != want.Order {
		conflict.Differences = append(conflict.Differences, jetbus.Difference{Field: orderField, Have: string(have.Order), Want: string(want.Order)})
		conflict.Hint = "stop its members, or use another group"
	}
	return conflict
}

const orderField = "Order"

// isOtherOrder reports whether an error is about a group of another order.
func isOtherOrder(err error) bool {
	c, ok := errors.AsType[*jetbus.ConflictError](err)
	return ok && slices.ContainsFunc(c.Differences, func(d jetbus.Difference) bool { return d.Field == orderField })
}

// checkConfig ends the membership where the group has another number of partitions
// by now, or another order: it had no members, as far as somebody saw who wants that one.
func (m *Membership) checkConfig(e jetbus.KeyEntry) {
	var there configValue
	want := m.on.with(m.o.Partitions)
	if e.Deleted || json.Unmarshal(e.Value, &there) != nil {
		return
	}
	if there.Trial = false; there != want {
		m.fail(differs(m.group, there, want))
	}
}
