package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/caller"
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
	for range g.slots {
		g.enter(t.Context())
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
	for range g.slots {
		g.leave()
	}
	for range 2 * g.slots { // each gives its slot back
		err := g.validate(t.Context(), s, schema.Strict, nested)
		if !errors.Is(err, schema.ErrTooMuchWork) || !errors.Is(judgment("t", 1, err), schema.ErrTooMuchWork) || !errors.Is(judgment("t", 1, err), jetbus.ErrSchema) {
			t.Fatalf("nested: %v, want ErrTooMuchWork", err)
		}
	}
}

// A caller with many expensive validations leaves others their turn, and one that gives up leaves nothing behind.
func TestCallersTakeTurnsAtTheGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		for range g.slots {
			g.enter(t.Context())
		}
		order := make(chan string, 20)
		wait := func(ctx context.Context, who string) {
			go func() {
				if g.enter(caller.With(ctx, who)) {
					order <- who
				}
			}()
			synctest.Wait()
		}
		gone, cancel := context.WithCancel(t.Context())
		for i, who := range []string{"zoe", "ann", "ann", "ann", "ann", "eve", "bob", "ann", "bob"} {
			ctx := t.Context()
			if i%4 == 0 { // zoe, an ann and the last bob
				ctx = gone
			}
			wait(ctx, who)
		}
		cancel()
		synctest.Wait()
		var got []string
		for range 6 {
			g.leave()
			got = append(got, <-order)
		}
		if want := []string{"ann", "eve", "bob", "ann", "ann", "ann"}; !slices.Equal(got, want) {
			t.Errorf("served were %v, want %v", got, want)
		}
		for range g.slots {
			g.leave()
		}
		if left := fmt.Sprint(g.taken, g.lines, g.turns); left != "0 map[] []" {
			t.Errorf("left is %s", left)
		}
	})
}
