package names

import "github.com/seed-63e9a637/jetbus"

var broken = jetbus.Event{Topic: "In A Test"}
