// Package silent says where it knows better.
package silent

import "github.com/seed-63e9a637/jetbus"

var (
	_ = jetbus.Event{Topic: "A"} //nolint:topiclint // it is refused on purpose
	//nolint:errcheck,topiclint // of several
	_ = jetbus.Event{Topic: "B"}
	_ = jetbus.Event{Topic: "C"} //nolint:errcheck // another linter // want `BUS001`
	_ = jetbus.Event{Topic: "D"} // want `BUS001`
)
