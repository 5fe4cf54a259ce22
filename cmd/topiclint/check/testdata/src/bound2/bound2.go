// Package bound2 binds and uses what another package has bound (BUS009, BUS016). // want package:`topics\(orders orders\)`
package bound2

import (
	"bound"

	"github.com/seed-63e9a637/jetbus"
)

type mine struct{ ID string }

var (
	_ = jetbus.Topic[mine]{Name: bound.Orders.Name}
	_ = jetbus.Topic[bound.Order]{Name: "orders"}
	_ = jetbus.Topic[mine]{Name: "orders"} // want `BUS009: topic orders carries bound.Order`
	_ = jetbus.Event{Topic: "refunds"}     // want `BUS016: topic refunds is deprecated: use refunds.v2, which has the amount.`
)
