package gateway

import (
	"fmt"
	"testing"

	"github.com/seed-63e9a637/jetbus"
)

// What the clients of a subject hold is bounded in bytes, and that is nobody else's.
func TestPulledBytes(t *testing.T) {
	t.Parallel()
	const quarter = maxPulledBytes / 4
	var p pulls
	p.init()
	room := func(subject string) int {
		n, bytes, err := p.reserve(subject, 1, 1000)
		if err != nil && codeOf(err) != CodeTooManyInFlight {
			t.Fatal(err)
		}
		p.unreserve(subject, n)
		return bytes
	}
	payload := make([]byte, quarter)
	for i := range 4 {
		if got, want := room("ann"), (4-i)*quarter-i*holdOverhead; got != want {
			t.Errorf("with %d events there is room for %d bytes, not %d", i, got, want)
		}
		if _, _, err := p.reserve("ann", 1, 1000); err != nil {
			t.Fatal(err)
		}
		p.mu.Lock()
		p.putLocked(fmt.Sprint(i), &pulled{subject: "ann", d: &jetbus.Delivery{Event: jetbus.Event{Payload: payload}}})
		p.mu.Unlock()
	}
	if ann, bob := room("ann"), room("bob"); ann != 0 || bob != maxPulledBytes {
		t.Errorf("there is room for %d and %d bytes", ann, bob)
	}
	p.drop("0")
	if got, want := room("ann"), quarter-3*holdOverhead; got != want {
		t.Errorf("there is room for %d bytes again, not %d", got, want)
	}
	for i := range 4 {
		p.drop(fmt.Sprint(i))
	}
	if len(p.bytes)+len(p.of)+p.total > 0 {
		t.Errorf("nothing is held, and %v, %v, %d are left", p.bytes, p.of, p.total)
	}
}
