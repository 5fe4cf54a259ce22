// Package bound binds topics to types (BUS009). // want package:`topics\(orders orders orders refunds\)`
package bound

import "github.com/seed-63e9a637/jetbus"

type Order struct{ ID string }

var Orders = jetbus.Topic[Order]{Name: "orders"}

var (
	_ = jetbus.Topic[*Order]{Name: "orders"}
	_ = jetbus.Topic[string]{Name: "orders"} // want `BUS009: topic orders carries bound.Order by bound.go:8, here string`
)

// Refunds is old.
//
// Deprecated: use refunds.v2, which has
// the amount.
var Refunds = jetbus.Topic[Order]{Name: "refunds"}
