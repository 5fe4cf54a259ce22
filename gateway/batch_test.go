package gateway

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// allocated returns how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestBatchOfManyElements: a batch with too many elements is refused before they take memory.
func TestBatchOfManyElements(t *testing.T) {
	body := append(append([]byte("["), bytes.Repeat([]byte("1,"), 4<<20)...), "1]"...)
	var err error
	if n := allocated(func() { _, err = split(body, true, 256) }); codeOf(err) != CodeTooLarge || n > 1<<20 {
		t.Errorf("%v, %d bytes are allocated", err, n)
	}
}

// TestBatchOfLargeEvents: an event of a batch that is too large, or none, takes no memory.
func TestBatchOfLargeEvents(t *testing.T) {
	g := idleGateway(t, Config{})
	var members strings.Builder
	for i := range 200_000 {
		fmt.Fprintf(&members, `,"%05x":1`, i)
	}
	var headers strings.Builder
	for i := range 50_000 {
		fmt.Fprintf(&headers, `,"%05x":""`, i)
	}
	for _, clouds := range []bool{false, true} {
		large, bad := `{"payload":1`+members.String()+`}`, `{"payload":1,"headers":{"a":""`+headers.String()+`}}`
		body := large + "\n" + bad + "\n" + `{"payload":1}`
		if clouds {
			bad = `{"specversion":"1.0","id":"1","source":"/","type":"a","data":1` + strings.ReplaceAll(headers.String(), `"":`, `:`) + `}`
			body = "[" + large + "," + bad + `,{"specversion":"1.0","id":"2","source":"/","type":"a","data":1}]`
		}
		b, err := g.parseBatch([]byte(body), nil, "orders", clouds)
		if err != nil || codeOf(b.bad[0]) != CodeTooLarge || b.bad[1] == nil || b.bad[2] != nil {
			t.Fatalf("%v, %v", err, b.bad)
		}
		for i := range 2 {
			if e := &b.events[i]; e.ID == "" || e.Topic != "" || len(e.Headers) > 0 || len(e.Payload) > 0 {
				t.Errorf("event %d keeps %d headers and %d bytes", i, len(e.Headers), len(e.Payload))
			}
		}
	}
}
