package outrow

import (
	"sync"
	"time"
)

// Refused are rows that the database refuses to let a claim change. They stay due, so each claim
// would return them again: claims of the same process pass over them until the lease ends that
// they would have had. The zero value has none.
type Refused struct {
	mu    sync.Mutex
	until map[string]time.Time // by Ref
}

// Hide hides a row for a lease.
func (r *Refused) Hide(ref string, lease time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.until == nil {
		r.until = map[string]time.Time{}
	}
	r.until[ref] = time.Now().Add(lease)
}

// Hidden returns the Refs of the hidden rows.
func (r *Refused) Hidden() map[string]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	hidden := map[string]bool{}
	for ref, until := range r.until {
		if time.Now().Before(until) {
			hidden[ref] = true
		} else {
			delete(r.until, ref)
		}
	}
	return hidden
}
