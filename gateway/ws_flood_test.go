package gateway_test

import (
	"strings"
	"testing"

	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// TestConnectionKeepsNoHeader: the header and the query of a handshake take no memory while its connection lasts.
func TestConnectionKeepsNoHeader(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		large := strings.Repeat("x", 500<<10)
		before := heap()
		var last *wsClient
		for range 20 {
			last = r.dial("X-Large", large)
			last.next(frame.Hello)
		}
		if grown := heap() - before; grown > 5<<20 {
			r.Errorf("memory grew by %d KiB", grown>>10)
		}
		last.ask(`{"op":"AUTH","token":""}`, frame.OK)
	})
}
