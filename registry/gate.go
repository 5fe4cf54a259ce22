package registry

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/caller"
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

// gate bounds how many expensive validations run concurrently: at most half of GOMAXPROCS. Each holds a slot. Validations of ordinary events do not need one.
//
// Each caller has its own line, and the callers take turns: one with many expensive events delays
// another by at most one validation for each slot.
type gate struct {
	slots int

	mu    sync.Mutex // guards the fields below
	taken int
	lines map[string][]chan struct{} // waiting validations by caller; one is closed when it gets a slot
	turns []string                   // the callers in lines, the next one first
}

func newGate() *gate {
	return &gate{slots: min(max(runtime.GOMAXPROCS(0)/2, 1), maxSlots), lines: map[string][]chan struct{}{}}
}

// validate validates a payload on the writer's side of the model m. If the payload is large or the
// validation expensive, it waits for a slot until ctx ends.
func (g *gate) validate(ctx context.Context, s *schema.Schema, m schema.Model, payload []byte) error {
	if len(payload) <= lightPayload {
		if err := s.ValidateWritten(payload, m, lightSteps); !errors.Is(err, schema.ErrTooMuchWork) {
			return err
		}
	}
	if !g.enter(ctx) {
		return fmt.Errorf("%w: other validations are still running: %w", jetbus.ErrUnavailable, context.Cause(ctx))
	}
	defer g.leave()
	return s.ValidateWritten(payload, m, schema.MaxWork)
}

// enter waits for a slot. It reports false if ctx ends first.
func (g *gate) enter(ctx context.Context) bool {
	who := caller.Of(ctx)
	g.mu.Lock()
	if g.taken < g.slots {
		g.taken++
		g.mu.Unlock()
		return true
	}
	if len(g.lines[who]) == 0 {
		g.turns = append(g.turns, who)
	}
	ready := make(chan struct{})
	g.lines[who] = append(g.lines[who], ready)
	g.mu.Unlock()
	select {
	case <-ready:
		return true
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	at := slices.Index(g.lines[who], ready)
	if at < 0 {
		return true // it got a slot concurrently
	}
	g.setLineLocked(who, slices.Delete(g.lines[who], at, at+1))
	return false
}

// leave passes the slot on to the caller whose turn it is.
func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.turns) == 0 {
		g.taken--
		return
	}
	who := g.turns[0]
	g.turns = append(g.turns[1:], who)
	line := g.lines[who]
	close(line[0])
	g.setLineLocked(who, line[1:])
}

// setLineLocked sets the line of a caller. A caller with an empty line loses its turn.
func (g *gate) setLineLocked(who string, line []chan struct{}) {
	if g.lines[who] = line; len(line) > 0 {
		return
	}
	delete(g.lines, who)
	g.turns = slices.DeleteFunc(g.turns, func(other string) bool { return other == who })
}
