package topics_test

import (
	"fmt"
	"testing"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

// BenchmarkPublish shows what storing an event costs: one at a time, and in a
// batch of a thousand, on a plain topic, one with its keys in its subjects, and one
// with partitions.
func BenchmarkPublish(b *testing.B) {
	broker := bustest.Start(b, embedded.Config{})
	bus, err := adapter.Open(b.Context(), bustest.Connect(b, broker), adapter.Config{Storage: jetbus.MemoryStorage})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := bus.Close(b.Context()); err != nil {
			b.Error(err)
		}
	}()
	for _, c := range []jetbus.TopicConfig{
		{Name: "plain"},
		{Name: "keyed", KeyInSubject: true},
		{Name: "spread", Partitions: 32},
	} {
		c.MaxEvents = 10_000
		if _, err := bus.EnsureTopic(b.Context(), c); err != nil {
			b.Fatal(err)
		}
		events := make([]jetbus.Event, 1000)
		for i := range events {
			events[i] = jetbus.Event{Topic: c.Name, Key: fmt.Sprint("key-", i), Payload: make([]byte, 200)}
		}
		b.Run(c.Name+"/One", func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if _, err := bus.Publish(b.Context(), events[i%len(events)]); err != nil {
					b.Fatal(err)
				}
				i++
			}
		})
		b.Run(c.Name+"/Batch", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := bus.PublishBatch(b.Context(), events, jetbus.BatchOptions{}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N*len(events))/b.Elapsed().Seconds(), "events/s")
		})
	}
}
