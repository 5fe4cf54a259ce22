package gateway

import (
	"sync"

	"github.com/seed-63e9a637/jetbus/gateway/internal/budget"
)

// readAhead is about how many bytes a read of the bus holds, and one event, while nothing takes them.
const readAhead = 64 << 10

// readPlace is one of budget.Reads that is held. It bounds the memory of reads whose client does not read. While the
// client is waited for, the account can be charged for that memory instead, so that others can read.
type readPlace struct {
	account *budget.Account

	mu       sync.Mutex
	lent     int64 // bytes that are charged instead of the place; 0: the place is held
	released bool
}

// lend gives the place to others if there is room for the memory of the read and of an event of size bytes.
func (p *readPlace) lend(size int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := int64(readAhead + size); p.lent == 0 && !p.released && p.account.TryAdd(budget.Bytes, n) {
		p.lent = n
		p.account.Release(budget.Reads, 1)
	}
}

// isLent reports whether others have the place. The read must end then.
func (p *readPlace) isLent() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lent > 0
}

// release releases the place, or what is charged instead. The read must have ended.
func (p *readPlace) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.released = true
	if p.lent == 0 {
		p.account.Release(budget.Reads, 1)
	}
	p.account.Release(budget.Bytes, p.lent)
}
