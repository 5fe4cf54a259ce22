package outrow

import (
	"sync"
	"time"
)

// Refused holds the rows that the database does not let a claim change. They stay due, so every
// claim would return them. Hide hides a row from this process's claims for one lease. The zero
// value is empty.
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
