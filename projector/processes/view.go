package processes

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// Headers of a state event: the position of the heartbeat it came from.
const (
	headerSeq   = "x-heartbeat-seq"   // its sequence
	headerEpoch = "x-heartbeat-epoch" // when its topic was created, in nanoseconds: sequences of another epoch are not comparable
)

// position orders the heartbeats of one process.
type position struct {
	epoch int64
	seq   uint64
	ts    int64 // epoch milliseconds
}

// after reports whether a heartbeat at p is newer than one at q: by the order
// of the log, or by time where one of them is not of this log (the topic was
// created anew, or somebody else published the state).
func (p position) after(q position) bool {
	if p.epoch == q.epoch && p.epoch != 0 && p.seq != 0 && q.seq != 0 {
		return p.seq > q.seq
	}
	return p.ts > q.ts
}

// entry is the last state event of one process.
type entry struct {
	Process
	seq   uint64 // of the state event; 0: there is none
	known bool   // the event was a state; false: a tombstone or no state at all
	beat  string // id of the heartbeat
	at    position
	// seen is LastSeen, or the moment this process learned of it where LastSeen
	// was still to come: a publisher's fast clock does not keep its process alive.
	seen time.Time
}

// readEntry reads a state event. What is no state gives an entry that is not known, which
// the next heartbeat of that key replaces.
func readEntry(e jetbus.Event, now time.Time) entry {
	n := entry{seq: e.Seq}
	if json.Unmarshal(e.Payload, &n.Process) != nil || n.ProcessID != e.Key || n.Status != Alive && n.Status != Stale {
		return entry{seq: e.Seq}
	}
	n.known = true
	n.at.ts = n.LastSeen
	n.at.epoch, _ = strconv.ParseInt(e.Headers[headerEpoch], 10, 64)
	n.at.seq, _ = strconv.ParseUint(e.Headers[headerSeq], 10, 64)
	if len(e.CausedBy) > 0 {
		n.beat = e.CausedBy[0]
	}
	n.seen = time.UnixMilli(n.LastSeen)
	if n.seen.After(now) {
		n.seen = now
	}
	return n
}

// view is what the state topic says of each key. It may lag behind, which
// costs a refused publish and a look at the topic, never a wrong state.
type view struct {
	mu      sync.Mutex
	entries map[string]entry
}

// get returns the entry of a key, the zero one where there is none.
func (v *view) get(key string) entry {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.entries[key]
}

// apply takes a state event in unless the view already has it or a newer one.
func (v *view) apply(e jetbus.Event, now time.Time) {
	if e.Key == "" {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if have := v.entries[e.Key]; e.Seq > have.seq {
		v.put(e, now)
	}
}

// put replaces an entry. The mutex is held.
func (v *view) put(e jetbus.Event, now time.Time) {
	n := readEntry(e, now)
	if have := v.entries[e.Key]; have.known && have.LastSeen == n.LastSeen {
		n.seen = have.seen // the same heartbeat: seen when it was first
	}
	v.entries[e.Key] = n
}

// replace sets keys to what the topic says of them, older than the view's or
// not: the topic is right. Keys that it does not have are forgotten.
func (v *view) replace(keys []string, latest map[string]jetbus.Event, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, key := range keys {
		if e, ok := latest[key]; ok {
			v.put(e, now)
		} else {
			delete(v.entries, key)
		}
	}
}

// clear forgets everything.
func (v *view) clear() {
	v.mu.Lock()
	defer v.mu.Unlock()
	clear(v.entries)
}

// silent returns the keys that are alive and not seen since the given time, sorted.
func (v *view) silent(since time.Time) []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	var keys []string
	for key, e := range v.entries {
		if e.isSilent(since) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

func (e *entry) isSilent(since time.Time) bool {
	return e.known && e.Status == Alive && e.seen.Before(since)
}

// forget drops what nothing waits for: processes stale since the given time,
// and keys that are no states. The topic still has them.
func (v *view) forget(since time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	maps.DeleteFunc(v.entries, func(_ string, e entry) bool {
		return !e.known || e.Status == Stale && e.seen.Before(since)
	})
}

// processes returns the states, sorted by id.
func (v *view) processes() []Process {
	v.mu.Lock()
	defer v.mu.Unlock()
	list := make([]Process, 0, len(v.entries))
	for _, e := range v.entries {
		if e.known {
			list = append(list, e.Process)
		}
	}
	slices.SortFunc(list, func(a, b Process) int { return cmp.Compare(a.ProcessID, b.ProcessID) })
	return list
}
