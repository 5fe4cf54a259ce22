package registry

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/registry/schema"
)

const (
	// lightSteps is how many steps a validation may take without a slot: about 1 ms.
	lightSteps = schema.MaxWork / 50
	// lightPayload is up to how many bytes a payload is first tried with lightSteps.
	lightPayload = 64 << 10
	// maxSlots bounds the memory of the validations that hold slots: 64 MiB each.
	maxSlots = 4
)

// gate bounds how many dear validations run at the same time, so that they leave processors
// to others. Validations of ordinary events do not wait for a slot.
type gate struct{ slots chan struct{} }

func newGate() *gate {
	return &gate{slots: make(chan struct{}, min(max(runtime.GOMAXPROCS(0)/2, 1), maxSlots))}
}

// validate validates a payload as its writer's in the model m. Within ctx it waits for a slot
// if the validation is dear.
func (g *gate) validate(ctx context.Context, s *schema.Schema, m schema.Model, payload []byte) error {
	if len(payload) <= lightPayload {
		if err := s.ValidateWritten(payload, m, lightSteps); !errors.Is(err, schema.ErrTooMuchWork) {
			return err
		}
	}
	select {
	case g.slots <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("%w: other validations are under way: %w", jetbus.ErrUnavailable, context.Cause(ctx))
	}
	defer func() { <-g.slots }()
	return s.ValidateWritten(payload, m, schema.MaxWork)
}
