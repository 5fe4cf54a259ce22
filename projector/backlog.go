package projector

import (
	"context"
	"sync"

	"github.com/seed-63e9a637/jetbus"
)

// Bounds of a backlog.
const (
	maxBacklog      = 256
	maxBacklogBytes = jetbus.DefaultMaxInFlightBytes // as much as a member of a group holds
)

// backlog is what an exclusive projection has read and not taken yet. It is bounded in
// bytes as well: events may be large, and the sink may be away for long.
type backlog struct {
	events chan jetbus.Event // closed by whoever puts
	freed  chan struct{}     // signaled when an event was taken; capacity 1

	mu    sync.Mutex
	bytes int // of what waits, and of what is being put
}

func newBacklog() *backlog {
	return &backlog{events: make(chan jetbus.Event, maxBacklog), freed: make(chan struct{}, 1)}
}

// put waits until there is room for an event, and adds it. One goroutine puts.
func (b *backlog) put(ctx context.Context, e jetbus.Event) error {
	for !b.reserve(sizeOf(&e)) {
		select {
		case <-b.freed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	select {
	case b.events <- e:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// reserve counts an event in, if there is room for it. One that is larger than all
// the room has it alone.
func (b *backlog) reserve(size int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bytes > 0 && b.bytes+size > maxBacklogBytes {
		return false
	}
	b.bytes += size
	return true
}

// took counts out an event that was taken from events.
func (b *backlog) took(e *jetbus.Event) {
	b.mu.Lock()
	b.bytes -= sizeOf(e)
	b.mu.Unlock()
	select {
	case b.freed <- struct{}{}:
	default:
	}
}

// sizeOf is about what an event takes.
func sizeOf(e *jetbus.Event) int {
	const fields = 512 // the short ones
	n := fields + len(e.Payload)
	for name, value := range e.Headers {
		n += len(name) + len(value)
	}
	return n
}
