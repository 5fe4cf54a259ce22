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
	// lightPayload is the size in bytes of the largest payload that is validated without a slot first.
	lightPayload = 64 << 10
	// maxSlots bounds the memory of concurrent expensive validations, each of which may take 64 MiB.
	maxSlots = 4
)

// gate bounds how many expensive validations run concurrently, so that they do not occupy all
// processors. Each holds a slot. Validations of ordinary events do not need one.
type gate struct{ slots chan struct{} }

func newGate() *gate {
	return &gate{slots: make(chan struct{}, min(max(runtime.GOMAXPROCS(0)/2, 1), maxSlots))}
}

// validate validates a payload on the writer's side of the model m. If the payload is large or the
// validation expensive, it waits for a slot until ctx ends.
func (g *gate) validate(ctx context.Context, s *schema.Schema, m schema.Model, payload []byte) error {
	if len(payload) <= lightPayload {
		if err := s.ValidateWritten(payload, m, lightSteps); !errors.Is(err, schema.ErrTooMuchWork) {
			return err
		}
	}
	select {
	case g.slots <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("%w: other validations are still running: %w", jetbus.ErrUnavailable, context.Cause(ctx))
	}
	defer func() { <-g.slots }()
	return s.ValidateWritten(payload, m, schema.MaxWork)
}
