package client_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway"
)

// TestLatestOfLargeEvents: keys whose events are more than one answer has are asked for in several.
func TestLatestOfLargeEvents(t *testing.T) {
	l := limits()
	l.QueueBytes = 4 << 10
	r := start(t, gateway.Config{Limits: l})
	bus := dial(t, r.config())
	var keys []string
	for i := range 11 {
		e := jetbus.Event{Topic: "orders", Key: fmt.Sprint(i), Payload: []byte(`"` + strings.Repeat("x", i<<8) + `"`)}
		if _, err := bus.Publish(t.Context(), e); err != nil {
			t.Fatal(err)
		}
		keys = append(keys, e.Key)
	}
	got, err := bus.LatestByKey(t.Context(), "orders", keys...)
	if err != nil || len(got) != len(keys) {
		t.Errorf("%d of %d keys: %v", len(got), len(keys), err)
	}
}
