package main

import "testing"

// What is listened to is there: of another topic there is an error, and nothing ahead of it.
func TestAreThere(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.ok(t, "", "topics", "create", "orders")
	bus := b.bus(t)
	if !areThere(t.Context(), bus, []string{"orders"}) || areThere(t.Context(), bus, []string{"orders", "nosuch"}) {
		t.Error("a topic that is there is not, or one that is not is")
	}
}
