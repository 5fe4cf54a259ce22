package jetbus

import (
	"encoding/json"
	"fmt"
	"time"
)

// GroupConfig declares a group. The zero value of each field leaves a group that exists as
// it is, and is the default of a new one.
type GroupConfig struct {
	Group string
	// From is where a new group begins. Defaults to Latest.
	From Start
	// AckTimeout is how long a lease lasts, at least 100 milliseconds. It is made longer,
	// never shorter. Defaults to 30 seconds.
	AckTimeout time.Duration
	// MaxInFlight is how many events all members hold at most, as
	// SubscribeOptions.GroupMaxInFlight. Defaults to 10000.
	MaxInFlight int
	// Inactive is how long a group without members stays: after that the broker deletes it,
	// with its position. What is known of failed attempts at events is kept for a day
	// more, and of retries for 30. At least a minute; -1, the default, is for ever. It is for
	// groups that may die with their process. The time begins anew whenever a member asks
	// for events, which one that is paused or disconnected does not, and with each broker
	// that starts. Events of the topic that are held keep the group for as long as their
	// leases last, and for Inactive more.
	Inactive time.Duration
}

const minInactive = time.Minute // more than another member takes to take an ordered group over

// Normalize returns the declaration as a bus takes it, or an error wrapping
// [ErrInvalidOption], [ErrInvalidGroup] that names the field.
func (c GroupConfig) Normalize() (GroupConfig, error) {
	if err := ValidGroup(c.Group); err != nil {
		return c, err
	}
	if err := c.From.Validate(); err != nil {
		return c, err
	}
	switch {
	case c.AckTimeout != 0 && c.AckTimeout < minAckTimeout:
		return c, fmt.Errorf("%w: AckTimeout is %v, use %v or more, or 0 for that of the group", ErrInvalidOption, c.AckTimeout, minAckTimeout)
	case c.MaxInFlight < 0 || c.MaxInFlight > maxInFlight:
		return c, fmt.Errorf("%w: MaxInFlight is %d, use 1 to %d, or 0 for that of the group", ErrInvalidOption, c.MaxInFlight, maxInFlight)
	case c.Inactive != 0 && c.Inactive != -1 && c.Inactive < minInactive:
		return c, fmt.Errorf("%w: Inactive is %v, use %v or more, -1 for ever, or 0 for that of the group", ErrInvalidOption, c.Inactive, minInactive)
	}
	return c, nil
}

// GroupInfo describes a group as it is at the broker.
type GroupInfo struct {
	Topic      string        `json:"topic"`
	Group      string        `json:"group"`
	Created    time.Time     `json:"-"`
	AckTimeout time.Duration `json:"-"`
	// MaxInFlight is how many events all members may hold; of partitions, in each.
	MaxInFlight int `json:"maxInFlight,omitempty"`
	// Inactive is how long it stays without members; 0: for ever.
	Inactive time.Duration `json:"-"`
	Pending  uint64        `json:"pending"`  // events not delivered yet
	Held     int           `json:"held"`     // delivered, not settled
	Retrying int           `json:"retrying"` // of those, delivered more than once
	AckedSeq uint64        `json:"ackedSeq"` // everything up to here is settled
	Waiting  int           `json:"waiting"`  // requests of members waiting for events
	Paused   bool          `json:"paused"`   // by PauseGroup, or while its start is being set
	LastAck  time.Time     `json:"-"`
}

type plainGroupInfo GroupInfo

type groupInfoJSON struct {
	plainGroupInfo
	Created      *int64 `json:"created,omitempty"`
	AckTimeoutMs millis `json:"ackTimeoutMs"`
	InactiveMs   millis `json:"inactiveMs,omitempty"`
	LastAck      *int64 `json:"lastAck,omitempty"`
}

// MarshalJSON gives the members topic, group, created, ackTimeoutMs, maxInFlight,
// inactiveMs, pending, held, retrying, ackedSeq, waiting, paused and lastAck, times in
// epoch milliseconds. Those of times, maxInFlight and inactiveMs are left out when zero.
func (i GroupInfo) MarshalJSON() ([]byte, error) {
	return json.Marshal(groupInfoJSON{plainGroupInfo(i), toEpoch(i.Created), millis(i.AckTimeout), millis(i.Inactive), toEpoch(i.LastAck)})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (i *GroupInfo) UnmarshalJSON(text []byte) error {
	w, err := unmarshal[groupInfoJSON](text, "group info")
	if err != nil {
		return err
	}
	*i = GroupInfo(w.plainGroupInfo)
	i.Created, i.AckTimeout, i.LastAck = fromEpoch(w.Created), time.Duration(w.AckTimeoutMs), fromEpoch(w.LastAck)
	i.Inactive = time.Duration(w.InactiveMs)
	return nil
}
