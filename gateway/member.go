package gateway

import (
	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway/internal/budget"
)

// A member of a group is charged for its events from their delivery until they are settled. With flow
// push the bus reserves the bytes that it holds for the member. With flow credit the gateway charges
// each event.

// unreserved returns how many bytes the bus may hold for a member without reserving them.
func (s *sub) unreserved() int64 { return int64(len(s.topics)) * jetbus.UnreservedBytes }

// reserve is the [jetbus.SubscribeOptions.Reserve] of a member.
func (s *sub) reserve(bytes int64) bool {
	if bytes < 0 {
		s.member.Release(budget.Bytes, -bytes)
		return true
	}
	return reserveMore(s.member, s.unreserved(), bytes) == nil
}

// reserveMore acquires bytes for an account that always holds had bytes. If the account holds nothing else,
// the sum may exceed its limit, so that a large event is delivered alone instead of never.
func reserveMore(a *budget.Account, had, bytes int64) error {
	a.Release(budget.Bytes, had)
	err := a.TryAcquire(budget.Bytes, had+bytes)
	if err != nil {
		a.Add(budget.Bytes, had)
	}
	return err
}

// reservation implements the [jetbus.ReceiveOptions.Reserve] of one call.
type reservation struct {
	account *budget.Account
	had     int64 // bytes that the account always holds
	granted int64
	refused error // of the last call of reserve
}

func (r *reservation) reserve(bytes int64) bool {
	if r.refused = reserveMore(r.account, r.had, bytes); r.refused == nil {
		r.granted += bytes
	}
	return r.refused == nil
}

// charge replaces the granted bytes with the size of the events that arrived.
func (r *reservation) charge(events []*jetbus.Delivery) {
	for _, d := range events {
		r.account.Add(budget.Bytes, int64(sizeOf(&d.Event)))
	}
	r.account.Release(budget.Bytes, r.granted)
	r.granted = 0
}

// discharge releases the bytes of an event that was delivered with flow credit.
func (s *sub) discharge(size int) {
	if s.o.Gateway.Flow == "credit" {
		s.member.Release(budget.Bytes, int64(size))
	}
}
