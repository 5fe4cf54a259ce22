package adapter

import (
	"errors"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/deadline/deadlinetest"
)

// What is held while a machine sleeps is another's when it wakes up, although its
// monotonic clock stood still.
func TestLeaseAfterSleep(t *testing.T) {
	t.Parallel()
	_, nc, _ := directStream(t)
	bus := openBus(t, nc, Config{})
	h := &leaseSet{b: bus, ackTimeout: time.Hour, maxLease: time.Hour, keeping: true} // no keeper
	h.init()
	defer h.end()
	hold := func(slot *slot) *lease {
		l := &lease{t: &topic{config: jetbus.TopicConfig{Name: "a"}}, slot: slot}
		h.add(l, time.Now())
		return l
	}
	asleep := func(at time.Time) time.Time { return deadlinetest.Slept(t, at, -2*time.Hour) }

	l := hold(nil)
	if l.deadline = asleep(l.deadline); l.extended(time.Now()) {
		t.Error("an answer revived a lease that was lost in the sleep")
	}
	if err := l.Ack(t.Context()); !errors.Is(err, jetbus.ErrLeaseExpired) {
		t.Errorf("an event of a lease that was lost in the sleep is settled: %v", err)
	}
	l = hold(nil)
	l.deadline = asleep(l.deadline)
	if expired, more := h.inspect(time.Now()); len(expired) != 1 || more || l.state != leaseLost {
		t.Errorf("the keeper takes %d leases away, and is to go on: %t", len(expired), more)
	}

	s := &slot{}
	s.lease = hold(s)
	s.turn = &turn{l: s.lease}
	s.beginLocked(time.Now())
	s.turn.deadline = asleep(s.turn.deadline)
	if err := s.turn.take("ack"); !errors.Is(err, jetbus.ErrLeaseExpired) {
		t.Errorf("a turn that was over in the sleep is taken: %v", err)
	}
	if !s.overdueLocked(time.Now()) {
		t.Error("a turn that was over in the sleep goes on")
	}
}
