package adapter

import "testing"

// A bus sweeps the keys of streams that it would make itself, whatever its prefix and the topic.
func TestOwnStreamsAreRecognized(t *testing.T) {
	prefixes := []string{"ev", "app", "x", "app.x", "app.x.x", "app.xy"}
	for _, prefix := range prefixes {
		for _, topic := range []string{"x", "orders", "orders.x", "x.orders", "with_underscore"} {
			stream := ownStream(prefix, topic)
			if !isOwnStream(prefix, stream) {
				t.Errorf("prefix %s: %s is not recognized", prefix, stream)
			}
			for _, other := range prefixes[1:] {
				if other != prefix && isOwnStream(other, stream) {
					t.Errorf("prefix %s: %s of prefix %s is taken for its own", other, stream, prefix)
				}
			}
		}
	}
}
