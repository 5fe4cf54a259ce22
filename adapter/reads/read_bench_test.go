package reads_test

import (
	"testing"

	"github.com/seed-63e9a637/jetbus"
)

// BenchmarkRead shows what an event costs that is read without a group: up to
// the end, from the end of the log on, and with a filter at the reader.
func BenchmarkRead(b *testing.B) {
	const stored = 100_000
	bus := benchState(b, stored)
	for _, c := range []struct {
		name string
		o    jetbus.ReadOptions
		want int
	}{
		{"ToEnd", jetbus.ReadOptions{}, stored},
		{"Follow", jetbus.ReadOptions{From: jetbus.Earliest(), Follow: true}, stored},
		{"Last500", jetbus.ReadOptions{From: jetbus.AfterSeq(stored - 500)}, 500},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				n := 0
				for _, err := range bus.Read(b.Context(), []string{"stock"}, c.o) {
					if err != nil {
						b.Fatal(err)
					}
					if n++; n == c.want {
						break
					}
				}
				if n != c.want {
					b.Fatalf("%d events were read, want %d", n, c.want)
				}
			}
			b.ReportMetric(float64(b.N*c.want)/b.Elapsed().Seconds(), "events/s")
		})
	}
}
