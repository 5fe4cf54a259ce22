package reads_test

import (
	"encoding/json"
	"fmt"
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

// A scan that is to give a few events brings no more of them than that: what looks for the
// next event of a topic does not pay for a page. With a filter it cannot know how many it
// needs.
func TestScanLimitIsWhatComes(t *testing.T) {
	inBubble(t, func(r *rig) {
		const events = 1200
		r.Ensure(jetbus.TopicConfig{Name: "a", Storage: jetbus.MemoryStorage})
		for range events {
			must(r.Bus.Publish(r.Context(), jetbus.Event{Topic: "a", Key: "k", Payload: []byte("1")}))(t)
		}
		var batches []int
		must(r.NC.Subscribe("$JS.API.DIRECT.GET.EV_A", func(m *nats.Msg) {
			var q struct{ Batch int }
			if err := json.Unmarshal(m.Data, &q); err != nil {
				t.Error(err)
			}
			batches = append(batches, q.Batch)
		}))(t)
		for _, tt := range []struct {
			q    jetbus.ScanQuery
			want string
			got  int
		}{
			{jetbus.ScanQuery{Limit: 1}, "[1]", 1},
			{jetbus.ScanQuery{From: jetbus.AfterSeq(7), Limit: 3}, "[3]", 3},
			{jetbus.ScanQuery{Limit: 700}, "[500 500]", 700},
			{jetbus.ScanQuery{Limit: 1, Filter: jetbus.Filter{Key: "k"}}, "[500]", 1},
			{jetbus.ScanQuery{}, "[500 500 500]", events},
		} {
			batches = nil
			next := tt.q.From.Seq + 1
			for e, err := range r.Bus.Scan(r.Context(), "a", tt.q) {
				r.OK(err)
				r.Equal("event", e.Seq, next)
				next++
			}
			synctest.Wait()
			r.Equal("events", int(next-tt.q.From.Seq-1), tt.got)
			r.Equal("asked for", fmt.Sprint(batches), tt.want)
		}
	})
}
