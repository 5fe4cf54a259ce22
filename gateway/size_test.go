package gateway

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/seed-63e9a637/jetbus"
)

// TestSizeOf: an event counts for what it takes in memory at least, whichever of its parts is large.
func TestSizeOf(t *testing.T) {
	text := strings.Repeat("x", 16<<10)
	many := func(n int) (list []string) {
		for i := range n {
			list = append(list, fmt.Sprintf("%03d", i))
		}
		return list
	}
	headers := func(n int, value string) map[string]string {
		all := map[string]string{}
		for i := range n {
			all[fmt.Sprintf("x-%03d", i)] = value
		}
		return all
	}
	for name, e := range map[string]jetbus.Event{
		"empty":        {},
		"id":           {ID: text[:jetbus.MaxIDBytes], SID: text[:500]},
		"key":          {Key: text[:jetbus.MaxKeyBytes], Topic: text[:200]},
		"payload":      {Payload: []byte(`"` + text[2:] + `"`)},
		"tags":         {Tags: slices.Repeat([]string{text[:4<<10]}, 4)},
		"many tags":    {Tags: many(256)},
		"causes":       {CausedBy: slices.Repeat([]string{text[:4<<10]}, 4)},
		"many causes":  {CausedBy: many(256)},
		"header":       {Headers: headers(1, "1")},
		"headers":      {Headers: headers(4, text[:8<<10])},
		"many headers": {Headers: headers(jetbus.MaxHeaders, "1")},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := e.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			events := make([]*jetbus.Event, 500)
			before := heapNow()
			for i := range events {
				events[i] = new(jetbus.Event)
				if err := events[i].UnmarshalJSON(text); err != nil {
					t.Fatal(err)
				}
			}
			if grown := (heapNow() - before) / len(events); grown > sizeOf(events[0]) {
				t.Errorf("an event takes %d bytes and counts for %d", grown, sizeOf(events[0]))
			}
			runtime.KeepAlive(events)
		})
	}
}

// heapNow returns the number of bytes in use.
func heapNow() int {
	runtime.GC()
	runtime.GC() // sync.Pools keep their objects for two cycles
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc) //nolint:gosec // far below
}
