package intests

import "github.com/seed-63e9a637/jetbus"

var _ = jetbus.Event{Topic: "A"} // want `BUS001`
