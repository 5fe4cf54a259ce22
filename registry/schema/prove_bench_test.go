package schema

import "testing"

const (
	benchOld = `{"type":"object","properties":{"pid":{"type":"integer","minimum":0},"name":{"type":"string","minLength":1},"host":{"type":"string"},"cpu_pct":{"type":"number","minimum":0},"mem_mb":{"type":"number","minimum":0},"status":{"enum":["alive","stale"]}},"required":["pid","name","host","cpu_pct","mem_mb","status"],"additionalProperties":false}`
	benchNew = `{"type":"object","properties":{"pid":{"type":"integer","minimum":0},"name":{"type":"string","minLength":1},"host":{"type":"string"},"cpu_pct":{"type":"number","minimum":0},"mem_mb":{"type":"number","minimum":0},"sid":{"type":"string"},"status":{"enum":["alive","stale","gone"]}},"required":["pid","name","host","cpu_pct","mem_mb","status"],"additionalProperties":false}`
	benchOne = `{"pid":4711,"name":"indexer","host":"node-3","cpu_pct":12.5,"mem_mb":812.25,"status":"alive"}`
)

// BenchmarkProve compares the proof of an ordinary change with one validation of
// an ordinary event.
func BenchmarkProve(b *testing.B) {
	before, after := compiled(b, benchOld), compiled(b, benchNew)
	reader := readerOf(b, after)
	b.Run("validate", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := before.Validate([]byte(benchOne)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("strict", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if ok, why := prove(before.root, after.root, Strict); !ok {
				b.Fatal(why)
			}
		}
	})
	b.Run("declared", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if ok, why := prove(before.root, reader, Declared); !ok {
				b.Fatal(why)
			}
		}
	})
	b.Run("refused", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if ok, _ := prove(after.root, before.root, Strict); ok {
				b.Fatal("proved")
			}
		}
	})
}
