// Package orders has names, good and bad, for the packages that import it.
package orders

const (
	Base    = "orders"
	Created = Base + ".created"
	Bad     = "Orders"
)
