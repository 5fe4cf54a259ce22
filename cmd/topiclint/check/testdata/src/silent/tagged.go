//go:build never

package silent

import "github.com/seed-63e9a637/jetbus"

var _ = jetbus.Event{Topic: "F"}
