package adapter

import (
	"sync"
	"time"
)

// catalog is what is remembered of topics, so that not each event has the server asked for
// its topic. What it says may be old: see refresh and asDeclared.
type catalog struct {
	*server

	began time.Time // topics count from then when they were looked at

	topicsMu sync.Mutex
	topics   map[string]*topic // guarded by topicsMu
}

func newCatalog(srv *server) *catalog {
	return &catalog{server: srv, began: time.Now(), topics: map[string]*topic{}}
}

// remembered returns a topic as it was seen last, nil for one that was not.
func (cat *catalog) remembered(name string) *topic {
	cat.topicsMu.Lock()
	defer cat.topicsMu.Unlock()
	return cat.topics[name]
}

func (cat *catalog) put(t *topic) {
	cat.topicsMu.Lock()
	defer cat.topicsMu.Unlock()
	cat.topics[t.name()] = t
}

// drop forgets a topic that is no more.
func (cat *catalog) drop(t *topic) {
	cat.topicsMu.Lock()
	defer cat.topicsMu.Unlock()
	delete(cat.topics, t.name())
}

// isAdopted reports whether this bus has adopted a topic.
func (cat *catalog) isAdopted(name string) bool {
	t := cat.remembered(name)
	return t != nil && t.adopted()
}

// allAdopted names the topics that this bus has adopted.
func (cat *catalog) allAdopted() []string {
	cat.topicsMu.Lock()
	defer cat.topicsMu.Unlock()
	var names []string
	for name, t := range cat.topics {
		if t.adopted() {
			names = append(names, name)
		}
	}
	return names
}
