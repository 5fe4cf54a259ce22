package gateway

import (
	"fmt"
	"testing"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway/internal/budget"
)

// What the clients of a subject hold counts in its budget, and in nobody else's.
func TestPulledBytes(t *testing.T) {
	t.Parallel()
	const size = 1 << 20
	limit := budget.Limit{Bytes: 4 * size, Calls: 1, Scans: 1}
	all := budget.New(budget.Limit{Bytes: 16 * size, Calls: 1, Scans: 1}, limit, limit)
	ann, bob := all.Account("ann"), all.Account("bob")
	var p pulls
	p.init()
	for i := range 4 {
		if !ann.HasRoom(budget.Bytes, int64(4-i)*size) || i > 0 && ann.HasRoom(budget.Bytes, int64(4-i)*size+1) {
			t.Errorf("with %d events there is not room for %d more", i, 4-i)
		}
		if _, err := p.reserve("ann", 1, 1000); err != nil {
			t.Fatal(err)
		}
		p.mu.Lock()
		p.putLocked(fmt.Sprint(i), &pulled{subject: "ann", d: &jetbus.Delivery{Event: jetbus.Event{Payload: make([]byte, size-eventOverhead)}}}, all)
		p.mu.Unlock()
	}
	if ann.HasRoom(budget.Bytes, 1) || !bob.HasRoom(budget.Bytes, 4*size) {
		t.Error("ann has room, or bob has not")
	}
	p.drop("0")
	if !ann.HasRoom(budget.Bytes, size) {
		t.Error("there is no room again")
	}
	for i := range 4 {
		p.drop(fmt.Sprint(i))
	}
	if n := all.Used(budget.Bytes); n > 0 || len(p.account)+len(p.of)+p.total > 0 {
		t.Errorf("nothing is held, and %d bytes, %v, %v, %d are left", n, p.account, p.of, p.total)
	}
}
