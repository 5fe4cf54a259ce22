package mongosink_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/metrics"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/projector"
	"github.com/seed-63e9a637/jetbus/projector/mongosink"
)

var million = flag.Bool("million", false, "have TestRebuildMillion rebuild from 1,000,000 events, and not from 12,000")

// maxGrowth is what a rebuild may add to the heap, the broker and the stand-in
// included, which are in this process: what is in hand, and not what there is to read.
const maxGrowth = 128 << 20

// TestRebuildMillion rebuilds a collection from a long log, with progress and in
// bounded memory.
func TestRebuildMillion(t *testing.T) {
	keys, count := 3_000, 12_000 // more than two batches
	if *million {
		keys, count = 10_000, 1_000_000
	}
	alone(t) // the heap is everybody's
	r, ctx := newRig(t), t.Context()
	bus := bustest.Open(t, bustest.Start(t, embedded.Config{}), adapter.Config{Timeout: time.Minute})
	if _, err := bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: "long"}); err != nil {
		t.Fatal(err)
	}
	batch := make([]jetbus.Event, keys)
	for n := 0; n < count; n += keys {
		for i := range batch {
			batch[i] = jetbus.Event{
				Topic: "long", Key: fmt.Sprintf("key-%04d", i),
				Payload: fmt.Appendf(nil, `{"n":%d,"text":"%s"}`, n+i, strings.Repeat("x", 80)),
			}
		}
		if _, err := bus.PublishBatch(ctx, batch, jetbus.BatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	clear(batch) // what it holds is not of the rebuild

	runtime.GC()
	before, peak, began := heap(), watchHeap(), time.Now()
	var phases []projector.RebuildPhase
	var last projector.RebuildStats
	calls := 0
	s, err := projector.Rebuild(ctx, bus, r.sink(mongosink.Options{}), projector.Options{Name: "p", Topic: "long"}, projector.RebuildOptions{
		Progress: func(s projector.RebuildStats) {
			calls++
			if standIn := r.srv.StandIn(); standIn != nil {
				standIn.TruncateOplog() // the history for change streams, 128 MiB, is not what is measured
			}
			if s.Read < last.Read || s.Phase == projector.RebuildFilling && s.Total < uint64(count) { //nolint:gosec // not negative
				t.Errorf("the progress goes from %+v to %+v", last, s)
			}
			if len(phases) == 0 || phases[len(phases)-1] != s.Phase {
				phases = append(phases, s.Phase)
			}
			last = s
		},
	})
	took := time.Since(began)
	most := peak()
	if err != nil {
		t.Fatal(err)
	}
	if s.Read < uint64(count) || s.Phase != projector.RebuildDone || calls < count/projector.DefaultMaxBatch { //nolint:gosec // not negative
		t.Errorf("%d calls, phases %v, in the end %+v", calls, phases, s)
	}
	docs := r.docs("things", mongosink.Live())
	if len(docs) != keys {
		t.Fatalf("%d documents, want %d", len(docs), keys)
	}
	for i, d := range docs {
		if d["n"] != int64(count-keys+i) {
			t.Fatalf("document %d is %v", i, d)
		}
	}
	if most > before+maxGrowth {
		t.Errorf("the heap has grown from %d to %d MiB", before>>20, most>>20)
	}
	t.Logf("%d events of %d keys in %v, %.0f events/s, %d progress reports; live heap before %d MiB, at most %d MiB; peak RSS of it all %s",
		count, keys, took.Round(time.Millisecond), float64(count)/took.Seconds(), calls, before>>20, most>>20, peakRSS())
}

// heap is what the last garbage collection left.
func heap() uint64 {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	return live[0].Value.Uint64()
}

// watchHeap looks at the heap again and again. The function it returns ends that
// and returns the highest value.
func watchHeap() func() uint64 {
	var most atomic.Uint64
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			most.Store(max(most.Load(), heap()))
			select {
			case <-tick.C:
			case <-done:
				return
			}
		}
	})
	return func() uint64 {
		close(done)
		wg.Wait()
		return most.Load()
	}
}

// peakRSS is the most memory that the process has had, where the system says.
func peakRSS() string {
	text, _ := os.ReadFile("/proc/self/status")
	for line := range bytes.Lines(text) {
		if v, ok := bytes.CutPrefix(line, []byte("VmHWM:")); ok {
			return string(bytes.TrimSpace(v))
		}
	}
	return "unknown"
}
