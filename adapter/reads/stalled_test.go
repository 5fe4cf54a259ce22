package reads_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

// fill stores n events of that size in a topic, of a key each.
func (r *rig) fill(topic string, n, size int) {
	r.Helper()
	payload := []byte(`"` + strings.Repeat("x", size) + `"`)
	for at := 0; at < n; at += 100 {
		events := make([]jetbus.Event, min(100, n-at))
		for i := range events {
			events[i] = jetbus.Event{Topic: topic, Key: fmt.Sprint(at + i), Payload: payload}
		}
		must(r.Bus.PublishBatch(r.Context(), events, jetbus.BatchOptions{}))(r.T)
	}
}

// TestStalledReadersHoldLittle: a reader whose consumer does not take what it has read holds a fraction of a
// mebibyte, however much there is to read and whatever it did before.
func TestStalledReadersHoldLittle(t *testing.T) {
	const size, n, readers = 16 << 10, 3000, 20 // 48 MB
	for name, read := range map[string]func(b jetbus.Backend, r *rig, each func() bool){
		"follow": func(b jetbus.Backend, r *rig, each func() bool) {
			for _, err := range b.Read(r.Context(), []string{"state"}, jetbus.ReadOptions{From: jetbus.Earliest(), Follow: true}) {
				if r.OK(err); !each() {
					return
				}
			}
		},
		"to the end": func(b jetbus.Backend, r *rig, each func() bool) {
			for _, err := range b.Read(r.Context(), []string{"state"}, jetbus.ReadOptions{}) {
				if r.OK(err); !each() {
					return
				}
			}
		},
		"scan": func(b jetbus.Backend, r *rig, each func() bool) {
			for _, err := range b.Scan(r.Context(), "state", jetbus.ScanQuery{}) {
				if r.OK(err); !each() {
					return
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.compacted("state")
				r.fill("state", n, size)
				nc := bustest.Connect(r.T, r.Broker)
				b := must(adapter.Open(r.Context(), nc, adapter.Config{}))(r.T)
				defer func() { r.OK(b.Close(r.Context())) }()
				before := nc.Stats().InBytes
				stalled, release := make(chan struct{}, readers), make(chan struct{})
				for range readers {
					go read(b, r, func() bool {
						stalled <- struct{}{}
						<-release
						return false
					})
				}
				for range readers {
					<-stalled
				}
				time.Sleep(20 * time.Second)
				if held := (nc.Stats().InBytes - before) / readers; held > 512<<10 {
					r.Errorf("each of the readers holds %d KiB", held>>10)
				}
				close(release)
				time.Sleep(time.Second)
			})
		})
	}
}

// TestReadersThatKeptUpHoldABoundedSum: those that read fast before they stall have read ahead more, but not
// each as much as it likes.
func TestReadersThatKeptUpHoldABoundedSum(t *testing.T) {
	const size, n, readers = 16 << 10, 6000, 12 // 96 MB
	inBubble(t, func(r *rig) {
		r.compacted("state")
		r.fill("state", n, size)
		nc := bustest.Connect(r.T, r.Broker)
		b := must(adapter.Open(r.Context(), nc, adapter.Config{}))(r.T)
		defer func() { r.OK(b.Close(r.Context())) }()
		before := nc.Stats().InBytes
		stalled, release := make(chan struct{}, readers), make(chan struct{})
		for range readers {
			go func() {
				seen := 0
				for _, err := range b.Read(r.Context(), []string{"state"}, jetbus.ReadOptions{From: jetbus.Earliest(), Follow: true}) {
					if r.OK(err); err != nil {
						return
					}
					if seen++; seen == n/2 {
						stalled <- struct{}{}
						<-release
						return
					}
				}
			}()
		}
		for range readers {
			<-stalled
		}
		time.Sleep(20 * time.Second)
		taken := uint64(readers * n / 2 * size)
		if held := (nc.Stats().InBytes - before - taken) >> 20; held > 80 { // 64 MiB, and the headers of what was taken
			r.Errorf("the readers hold %d MiB", held)
		}
		close(release)
		time.Sleep(time.Second)
	})
}

// TestScanOfLatestAsksForWhatFits: large events are not asked for by the hundred.
func TestScanOfLatestAsksForWhatFits(t *testing.T) {
	const size, n = 256 << 10, 100 // 25 MB
	inBubble(t, func(r *rig) {
		r.compacted("state")
		r.fill("state", n, size)
		nc := bustest.Connect(r.T, r.Broker)
		b := must(adapter.Open(r.Context(), nc, adapter.Config{}))(r.T)
		defer func() { r.OK(b.Close(r.Context())) }()
		before, seen, most := nc.Stats().InBytes, uint64(0), uint64(0)
		_, err := b.ScanLatest(r.Context(), "state", jetbus.LatestQuery{}, func(jetbus.Event) error {
			if seen++; seen%10 == 0 {
				time.Sleep(time.Second)
			}
			most = max(most, nc.Stats().InBytes-before-min(seen*size, nc.Stats().InBytes-before))
			return nil
		})
		r.OK(err)
		r.Equal("events", seen, uint64(n))
		if most > 6<<20 {
			r.Errorf("%d KiB were read ahead", most>>10)
		}
	})
}

// TestLatestOfManyLargeEvents: they come by requests of a mebibyte each, and completely.
func TestLatestOfManyLargeEvents(t *testing.T) {
	const size, n = 100 << 10, 64
	inBubble(t, func(r *rig) {
		r.compacted("state")
		r.fill("state", n, size)
		requests := must(r.NC.SubscribeSync("$JS.API.DIRECT.GET.>"))(r.T)
		r.OK(r.NC.Flush())
		keys := make([]string, n)
		for i := range keys {
			keys[i] = fmt.Sprint(i)
		}
		got := must(r.Bus.LatestByKey(r.Context(), "state", keys...))(r.T)
		r.Equal("events", len(got), n)
		r.OK(r.NC.Flush())
		if asked, _, err := requests.Pending(); err != nil || asked < 5 || asked > 10 {
			r.Errorf("%d requests brought %d KiB, %v", asked, n*size>>10, err)
		}
	})
}
