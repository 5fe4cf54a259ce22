// Package headers names headers (BUS005).
package headers

import "github.com/seed-63e9a637/jetbus"

const name = "X-Trace"

var e = jetbus.Event{Headers: map[string]string{
	"x-good":       "1",
	"content-type": "application/json",
	"X-Upper":      "1",          // want `BUS005: .*names of your own start with x-`
	"Content-Type": "text/plain", // want `BUS005`
	name:           "1",          // want `BUS005: .*"X-Trace"`
	"Nats-Msg-Id":  "1",          // want `BUS005`
	"x-jetbus-a":   "1",          // want `BUS005: .*reserved`
}}

var other = map[string]string{"Accept": "of HTTP"}

func set(d *jetbus.Delivery) {
	d.Headers["bad"] = "1" // want `BUS005`
	d.Headers["x-ok"] = "1"
	e.Headers = map[string]string{"Also-Bad": ""} // want `BUS005`
	other["Accept"] = "of HTTP"
}
