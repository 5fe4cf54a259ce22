package reads_test

import (
	"testing"
	"testing/synctest"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
)

// What one request of a scan brings is in memory until it is over: 8 MiB and one event at
// most, however large the events are.
func TestScanBytes(t *testing.T) {
	inBubble(t, func(r *rig) {
		const events, size = 30, 900 << 10
		r.Ensure(jetbus.TopicConfig{Name: "a", Storage: jetbus.MemoryStorage})
		for range events {
			must(r.Bus.Publish(r.Context(), jetbus.Event{Topic: "a", Payload: make([]byte, size)}))(t)
		}
		requests := 0
		must(r.NC.Subscribe("$JS.API.DIRECT.GET.EV_A", func(*nats.Msg) { requests++ }))(t)
		for _, seq := range [](func(func(jetbus.Event, error) bool)){
			r.Bus.Scan(r.Context(), "a", jetbus.ScanQuery{}),
			r.Bus.Read(r.Context(), []string{"a"}, jetbus.ReadOptions{}),
		} {
			brought, all := map[int]int{}, 0
			for e, err := range seq {
				r.OK(err)
				synctest.Wait() // for the count
				brought[requests] += len(e.Payload)
				all++
			}
			r.Equal("events", all, events)
			for _, bytes := range brought {
				if bytes > 8<<20+size {
					t.Errorf("one request brought %d bytes", bytes)
				}
			}
		}
	})
}
