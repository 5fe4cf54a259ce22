package topics_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// TestAdoptedStreamWithoutDirectGets reads an adopted stream that does not allow direct gets in every
// way that a topic is read.
func TestAdoptedStreamWithoutDirectGets(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		must(r.JS.CreateStream(ctx, jetstream.StreamConfig{Name: "LEGACY", Subjects: []string{"legacy.>"}}))(r.T)
		for i := range 6 {
			must(r.JS.Publish(ctx, []string{"legacy.orders", "legacy.bills"}[i%2], fmt.Append(nil, i+1)))(r.T)
			time.Sleep(time.Second)
		}
		info := r.Ensure(jetbus.TopicConfig{Name: "orders", Stream: "LEGACY", Subject: "legacy.orders"})
		r.Equal("events", info.Events, 3)

		for what, c := range map[string]struct {
			from  jetbus.Start
			limit int
			want  []string
		}{
			"all":            {jetbus.Earliest(), 0, []string{"1", "3", "5"}},
			"limited":        {jetbus.Earliest(), 2, []string{"1", "3"}},
			"after sequence": {jetbus.AfterSeq(1), 0, []string{"3", "5"}},
			"after id":       {jetbus.AfterID("LEGACY-3"), 0, []string{"5"}},
			"at time":        {jetbus.AtTime(time.Now().Add(-2500 * time.Millisecond)), 0, []string{"5"}},
		} {
			var scanned, read []string
			for e, err := range r.Bus.Scan(ctx, "orders", jetbus.ScanQuery{From: c.from, Limit: c.limit}) {
				r.OK(err)
				scanned = append(scanned, string(e.Payload))
			}
			r.Equal("scan "+what, scanned, c.want)
			for e, err := range r.Bus.Read(ctx, []string{"orders"}, jetbus.ReadOptions{From: c.from}) {
				r.OK(err)
				read = append(read, string(e.Payload))
				if c.limit > 0 && len(read) == c.limit {
					break
				}
			}
			r.Equal("read "+what, read, c.want)
		}
	})
}

// TestLongReadWithoutDirectGets reads more events than one request brings.
func TestLongReadWithoutDirectGets(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		must(r.JS.CreateStream(ctx, jetstream.StreamConfig{Name: "LEGACY", Subjects: []string{"legacy.>"}}))(r.T)
		var want []uint64
		for range 1200 {
			want = append(want, must(r.JS.Publish(ctx, "legacy.orders", nil))(r.T).Sequence)
		}
		r.Ensure(jetbus.TopicConfig{Name: "orders", Stream: "LEGACY", Subject: "legacy.orders"})
		var got []uint64
		for e, err := range r.Bus.Scan(ctx, "orders", jetbus.ScanQuery{}) {
			r.OK(err)
			got = append(got, e.Seq)
		}
		if !slices.Equal(got, want) {
			r.Errorf("scanned %d events, want %d: %v...", len(got), len(want), got[:min(len(got), 5)])
		}
	})
}

// TestStateWithoutDirectGets: an operator has switched off direct gets of a state topic. The error
// names the setting, and is not one that a retry could cure.
func TestStateWithoutDirectGets(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.Ensure(jetbus.TopicConfig{Name: "state", KeyInSubject: true})
		r.Publish("state", "k", "k2")
		config := r.Stream("EV_STATE").Config
		config.AllowDirect = false
		must(r.JS.UpdateStream(ctx, config))(r.T)
		_, err := r.Bus.LatestByKey(ctx, "state", "k", "k2")
		r.WantErr(err, jetbus.ErrUnsupported)
		if got, want := err.Error(), "latest by key state: not supported: stream EV_STATE does not allow direct gets: set AllowDirect"; got != want {
			r.Errorf("error %q, want %q", got, want)
		}
	})
}

// TestStreamWithoutDirectGetsIsSilent: across a leaf node the server does not report that a direct get has no
// responders; here another subscriber of the subject stands for it.
func TestStreamWithoutDirectGetsIsSilent(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		must(r.JS.CreateStream(ctx, jetstream.StreamConfig{Name: "LEGACY", Subjects: []string{"legacy.>"}}))(r.T)
		must(r.JS.Publish(ctx, "legacy.orders", nil))(r.T)
		r.Ensure(jetbus.TopicConfig{Name: "orders", Stream: "LEGACY", Subject: "legacy.orders"})
		r.Ensure(jetbus.TopicConfig{Name: "state", KeyInSubject: true})
		r.Publish("state", "k", "k2")
		config := r.Stream("EV_STATE").Config
		config.AllowDirect = false
		must(r.JS.UpdateStream(ctx, config))(r.T)
		must(r.NC.SubscribeSync("$JS.API.DIRECT.GET.>"))(r.T)

		scanned := 0
		for _, err := range r.Bus.Scan(ctx, "orders", jetbus.ScanQuery{}) {
			r.OK(err)
			scanned++
		}
		r.Equal("scanned", scanned, 1)
		_, err := r.Bus.LatestByKey(ctx, "state", "k", "k2")
		r.WantErr(err, jetbus.ErrUnsupported)
	})
}
