package adapter

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// known is a bus without a connection that knows a topic.
func known() (b *Bus, now time.Time) {
	now = time.Now()
	t := &topic{config: jetbus.TopicConfig{Name: "orders.created"}, looked: new(atomic.Int64)}
	b = &Bus{streams: &streams{durables: newDurables(&server{})}}
	b.began = now
	b.put(t)
	return b, now
}

// Knowing how old it is what a bus knows of a topic costs next to nothing.
func TestLookupDoesNotAllocate(t *testing.T) {
	b, now := known()
	n := testing.AllocsPerRun(100, func() {
		if _, err := b.lookupAt(t.Context(), "orders.created", now.Add(freshFor-1), true); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// What turned out to be wrong is forgotten also by who looked at it before others
// did; what has been made anew since is not.
func TestForget(t *testing.T) {
	b, now := known()
	old := b.topics["orders.created"]
	old.stream, old.created = "EV_T", now
	for what, c := range map[string]struct {
		have *topic
		gone bool
	}{
		"the same":     {old, true},
		"looked again": {&topic{config: old.config, stream: "EV_T", created: now}, true},
		"made anew":    {&topic{config: old.config, stream: "EV_T", created: now.Add(1)}, false},
		"moved":        {&topic{config: old.config, stream: "S", created: now}, false},
		"adopted":      {&topic{config: jetbus.TopicConfig{Name: "orders.created", Subject: "o"}, stream: "EV_T", created: now}, false},
	} {
		b.topics["orders.created"] = c.have
		b.forget(old)
		if _, there := b.topics["orders.created"]; there == c.gone {
			t.Errorf("%s: there %v", what, there)
		}
	}
}

func BenchmarkLookup(b *testing.B) {
	bus, now := known()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := bus.lookupAt(b.Context(), "orders.created", now, true); err != nil {
			b.Fatal(err)
		}
	}
}
