package registry

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/registry/schema"
)

// A dear validation waits for a slot, within its context; an ordinary one does not.
func TestGateBoundsDearValidations(t *testing.T) {
	s, err := schema.Compile(`{"oneOf":[{"type":"object"},{"type":"array","items":{"$ref":"#"}},{"type":"array","items":{"$ref":"#"},"minItems":1}]}`, schema.Options{})
	if err != nil {
		t.Fatal(err)
	}
	g := newGate()
	ctx, cancel := context.WithCancel(t.Context())
	nested := []byte(strings.Repeat("[", 44) + strings.Repeat("]", 44))
	large := []byte(`[` + strings.Repeat(" ", lightPayload) + `]`)
	for range cap(g.slots) {
		g.slots <- struct{}{}
	}
	cancel()
	for name, payload := range map[string][]byte{"nested": nested, "large": large} {
		if err := g.validate(ctx, s, schema.Strict, payload); !errors.Is(err, jetbus.ErrUnavailable) || !errors.Is(err, context.Canceled) || errors.Is(err, schema.ErrInvalid) {
			t.Errorf("%s, while all slots are taken: %v, want ErrUnavailable and context.Canceled", name, err)
		}
	}
	if err := g.validate(ctx, s, schema.Strict, []byte(`{"ordinary":true}`)); err != nil {
		t.Errorf("an ordinary payload, while all slots are taken: %v", err)
	}
	for range cap(g.slots) {
		<-g.slots
	}
	for range 2 * cap(g.slots) { // each gives its slot back
		err := g.validate(t.Context(), s, schema.Strict, nested)
		if !errors.Is(err, schema.ErrTooMuchWork) || !errors.Is(judgment("t", 1, err), schema.ErrTooMuchWork) || !errors.Is(judgment("t", 1, err), jetbus.ErrSchema) {
			t.Fatalf("nested: %v, want ErrTooMuchWork", err)
		}
	}
}
