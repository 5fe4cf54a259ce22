package reads_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
)

// benchKeys is how many keys the topics of these benchmarks have. Half of them
// were written once, in the beginning; the rest of the events is of the others.
const benchKeys = 1000

// BenchmarkState shows what reading state costs where the log behind it is short
// and where it is long: the cost follows the keys.
func BenchmarkState(b *testing.B) {
	for _, stored := range []int{1e3, 1e5, 1e6} {
		b.Run(fmt.Sprintf("stored=%d", stored), func(b *testing.B) {
			bus := benchState(b, stored)
			for _, asked := range []int{10, benchKeys} {
				b.Run(fmt.Sprintf("LatestByKey/keys=%d", asked), func(b *testing.B) {
					keys := make([]string, asked)
					for i, n := range rand.Perm(benchKeys)[:asked] {
						keys[i] = benchKey(n)
					}
					for b.Loop() {
						found, err := bus.LatestByKey(b.Context(), "stock", keys...)
						if err != nil || len(found) != asked {
							b.Fatalf("%d keys, %v", len(found), err)
						}
					}
					perKey(b, asked)
				})
			}
			b.Run(fmt.Sprintf("ScanLatest/keys=%d", benchKeys), func(b *testing.B) {
				for b.Loop() {
					found := 0
					asOf, err := bus.ScanLatest(b.Context(), "stock", jetbus.LatestQuery{}, func(jetbus.Event) error {
						found++
						return nil
					})
					if err != nil || found != benchKeys || asOf != uint64(stored) {
						b.Fatalf("%d keys as of %d, %v", found, asOf, err)
					}
				}
				perKey(b, benchKeys)
			})
		})
	}
}

func perKey(b *testing.B, keys int) {
	b.Helper()
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(keys), "ns/key")
}

func benchKey(n int) string { return fmt.Sprintf("item-%04d", n) }

// benchState makes a log of that many events.
func benchState(b *testing.B, stored int) *adapter.Bus {
	b.Helper()
	ctx := context.Background()
	broker, err := embedded.Start(ctx, embedded.Config{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = broker.Stop(ctx) }) // its folder is a temporary one
	nc, err := broker.Connect()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(nc.Close)
	bus, err := adapter.Open(ctx, nc, adapter.Config{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = bus.Close(ctx) }) // nothing is under way
	if _, err := bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: "stock", KeyInSubject: true}); err != nil {
		b.Fatal(err)
	}
	payload := []byte(`{"sku":"tea","left":120,"place":"north-7","counted":"2024-05-06T07:08:09Z"}`)
	batch := make([]jetbus.Event, 0, 10_000)
	for i := range stored {
		n := i
		if i >= benchKeys {
			n = benchKeys/2 + i%(benchKeys/2)
		}
		batch = append(batch, jetbus.Event{Topic: "stock", Key: benchKey(n), Payload: payload})
		if len(batch) == cap(batch) || i == stored-1 {
			if _, err := bus.PublishBatch(ctx, batch, jetbus.BatchOptions{}); err != nil {
				b.Fatal(err)
			}
			batch = batch[:0]
		}
	}
	return bus
}
