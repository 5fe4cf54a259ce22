package gateway

import (
	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway/internal/budget"
)

// A member of a group is charged for the events that it has taken from the bus, until they are
// settled. With flow push the bus does that: what it holds for a member is what it has reserved. With
// flow credit the gateway charges each event.

// unreserved is what the bus may hold for a member without reserving it.
func (s *sub) unreserved() int64 { return int64(len(s.topics)) * jetbus.UnreservedBytes }

// reserve is [jetbus.SubscribeOptions.Reserve] of a member.
func (s *sub) reserve(bytes int64) bool {
	if bytes < 0 {
		s.member.Release(budget.Bytes, -bytes)
		return true
	}
	return reserveMore(s.member, s.unreserved(), bytes) == nil
}

// reserveMore takes bytes for an account that has held others since its beginning. Where it has nothing else, it may
// have more than its limit, so that a large event comes alone instead of never.
func reserveMore(a *budget.Account, had, bytes int64) error {
	a.Release(budget.Bytes, had)
	err := a.TryAcquire(budget.Bytes, had+bytes)
	if err != nil {
		a.Add(budget.Bytes, had)
	}
	return err
}

// reservation is [jetbus.ReceiveOptions.Reserve] of one call.
type reservation struct {
	account *budget.Account
	had     int64 // by the account, all the time
	granted int64
	refused error // why not more
}

func (r *reservation) reserve(bytes int64) bool {
	if r.refused = reserveMore(r.account, r.had, bytes); r.refused == nil {
		r.granted += bytes
	}
	return r.refused == nil
}

// charge counts events in place of what was granted for them.
func (r *reservation) charge(events []*jetbus.Delivery) {
	for _, d := range events {
		r.account.Add(budget.Bytes, int64(sizeOf(d)))
	}
	r.account.Release(budget.Bytes, r.granted)
	r.granted = 0
}

// discharge ends what was charged for an event that was taken with credit.
func (s *sub) discharge(size int) {
	if s.o.Gateway.Flow == "credit" {
		s.member.Release(budget.Bytes, int64(size))
	}
}
