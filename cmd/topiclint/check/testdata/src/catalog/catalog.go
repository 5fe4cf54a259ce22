// Package catalog says that it declares all topics. // want package:`topics\(orders.created payments\)`
package catalog

import "github.com/seed-63e9a637/jetbus"

//topiclint:catalog

var (
	_ = jetbus.TopicConfig{Name: "orders.created"}
	_ = jetbus.Topic[int]{Name: "payments"}
)
