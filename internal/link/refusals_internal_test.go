package link

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

func TestRefusals(t *testing.T) {
	nc, heard := &nats.Conn{}, 0
	nc.SetErrorHandler(func(*nats.Conn, *nats.Subscription, error) { heard++ })
	a, b := watchRefusals(nc), watchRefusals(nc)
	began := time.Now()
	refuse := func(text string) {
		nc.ErrorHandler()(nc, nil, fmt.Errorf("%w: %s", nats.ErrPermissionViolation, text))
	}
	refuse(`Permissions Violation for Publish to "ev.Orders._"`)
	refuse(`permissions violation for subscription to "ev.bills._"`)
	nc.ErrorHandler()(nc, nil, errors.New(`publish to "ev.other._"`))
	for subject, want := range map[string]bool{
		"ev.Orders._": true, "ev.orders._": true, "ev.orders.": true, "ev.orders": false, "ev.bills._": false, "ev.other._": false, "": false,
	} {
		if got := a.has(subject, began); got != want {
			t.Errorf("%q is refused: %v", subject, got)
		}
	}
	if b.has("ev.orders._", time.Now().Add(time.Hour)) {
		t.Error("what was refused before counts")
	}
	for i := range maxRefusals {
		refuse(fmt.Sprintf("Publish to %q", fmt.Sprint("s", i)))
	}
	if a.has("ev.orders._", began) || !a.has("s0", began) || !a.has("s63", began) || len(a.latest) != maxRefusals {
		t.Errorf("after many, %d are remembered", len(a.latest))
	}
	if heard != maxRefusals+3 {
		t.Errorf("the owner heard of %d errors", heard)
	}

	a.release(nc)
	refuse(`Publish to "s"`)
	if !b.has("s", began) {
		t.Error("the end of one link ends the other's")
	}
	b.release(nc)
	refuse(`Publish to "t"`)
	if b.has("t", began) || heard != maxRefusals+5 || len(connections.of) != 0 {
		t.Errorf("after the last link the owner heard of %d errors, and %d connections are kept", heard, len(connections.of))
	}
}

// The owner may set another handler meanwhile: it stays.
func TestRefusalsLeaveTheOwnersHandler(t *testing.T) {
	nc, heard := &nats.Conn{}, 0
	r := watchRefusals(nc)
	nc.SetErrorHandler(func(*nats.Conn, *nats.Subscription, error) { heard++ })
	r.release(nc)
	nc.ErrorHandler()(nc, nil, nil)
	if heard != 1 {
		t.Errorf("the owner heard of %d errors", heard)
	}
}

// What was refused on an earlier connection may be allowed on this one.
func TestRefusalsOfAnEarlierConnection(t *testing.T) {
	l := &Link{refusals: &refusals{}}
	l.refusals.note("ev.orders._")
	if !l.Refused("ev.orders._", time.Time{}) {
		t.Error("what was refused on the first connection is not known")
	}
	l.since = time.Now().Add(time.Second)
	if l.Refused("ev.orders._", time.Time{}) {
		t.Error("what was refused on the one before counts")
	}
}
