package metrics

import (
	"container/list"
	"maps"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// flight names a delivery: a group has an event in one hand only.
type flight struct{ topic, group, id string }

// delivery is what is kept of an event that a handler has.
type delivery struct {
	of     pair          // in the labels
	stored time.Time     // when the event was stored, by this process's clock
	begun  *list.Element // of inflight.begun
}

// inflight follows deliveries to their end.
type inflight struct {
	most int

	mu     sync.Mutex
	events map[flight]delivery
	begun  list.List    // of flight, the oldest first
	held   map[pair]int // how many of events, by group
}

// begin notes that a handler gets an event. Of too many the oldest goes: its end may never
// be told, as that of one whose acknowledgement could not be sent.
func (f *inflight) begin(o jetbus.Observation, of pair) {
	stored := time.Now().Add(-max(o.Duration, 0))
	f.mu.Lock()
	defer f.mu.Unlock()
	at := flight{o.Topic, o.Group, o.ID}
	f.dropLocked(at)
	if len(f.events) == f.most {
		oldest, _ := f.begun.Front().Value.(flight)
		f.dropLocked(oldest)
	}
	f.events[at] = delivery{of, stored, f.begun.PushBack(at)}
	f.held[of]++
}

// end notes that the event is in its hands no more. It reports whether it was: what
// was given back unseen, or received without a handler, was not.
func (f *inflight) end(o jetbus.Observation) (delivery, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.dropLocked(flight{o.Topic, o.Group, o.ID})
}

// dropLocked forgets a delivery, if there is one.
func (f *inflight) dropLocked(at flight) (delivery, bool) {
	d, known := f.events[at]
	if known {
		delete(f.events, at)
		f.begun.Remove(d.begun)
		f.held[d.of]--
	}
	return d, known
}

// held counts what is in flight, by group.
func (m *Metrics) held() map[pair]int {
	out := map[pair]int{}
	m.mu.RLock()
	for _, s := range m.groups {
		out[s.pair] = 0
	}
	m.mu.RUnlock()
	m.inflight.mu.Lock()
	defer m.inflight.mu.Unlock()
	maps.Copy(out, m.inflight.held)
	return out
}
