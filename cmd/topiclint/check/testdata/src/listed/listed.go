// Package listed uses topics of a catalog and others (BUS002, BUS003, BUS009, BUS016). // want package:`topics\(new.one\)`
package listed

import (
	"github.com/seed-63e9a637/jetbus"

	_ "catalog"
)

var (
	_ = jetbus.Event{Topic: "orders.created"}
	_ = jetbus.Event{Topic: "dlq.orders.created"}
	_ = jetbus.Event{Topic: "orders.craeted"} // want `BUS002: no topic orders.craeted is declared, did you mean orders.created\?`
	_ = jetbus.Event{Topic: "unlike.any"}     // want `BUS002: no topic unlike.any is declared$`
	_ = jetbus.Event{Topic: "unlike.any.v2"}  // its version speaks for it
	_ = jetbus.Event{Topic: "unlike.any.v1"}
	_ = jetbus.TopicConfig{Name: "new.one"}
)
