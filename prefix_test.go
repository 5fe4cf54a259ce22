package jetbus_test

import (
	"context"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

// TestPrefixesShareNoLock: what works for one prefix does not stand by for what has the same names in
// another one.
func TestPrefixesShareNoLock(t *testing.T) {
	inBubble(t, func(r *rig) {
		other := &rig{T: r.T, broker: r.broker, bus: bustest.Open(r.T, r.broker, adapter.Config{Prefix: "other"})}
		for _, one := range []*rig{r, other} {
			one.declareOrders()
			one.compactor(byCustomer, one.bus)
			one.settled(one.order(1, "ann"))
			one.wantCustomers("ann:1")
		}

		_, end := r.hold(r.bus)
		ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
		defer cancel()
		r.ok(testLock.Hold(ctx, other.bus, func(context.Context, jetbus.Held) (bool, error) { return true, nil }))
		r.ok(end())
	})
}
