package schema

import (
	"bytes"
	"encoding/json"
	"testing"

	js "github.com/santhosh-tekuri/jsonschema/v5"
)

const benchSchema = `{
	"type": "object",
	"properties": {
		"id": {"type": "string", "minLength": 1, "maxLength": 64},
		"host": {"type": "string", "pattern": "^[a-z0-9.-]+$"},
		"pid": {"type": "integer", "minimum": 1},
		"status": {"enum": ["up", "down", "draining"]},
		"load": {"type": "number", "minimum": 0},
		"tags": {"type": "array", "items": {"type": "string"}, "maxItems": 16}
	},
	"required": ["id", "host", "pid", "status"],
	"additionalProperties": false
}`

const benchPayload = `{"id":"0190f7c2-4f6c-7c5e-a111-52bd6c1f1a10","host":"api-1.example.org","pid":4711,"status":"up","load":0.75,"tags":["eu","blue"]}`

// BenchmarkValidate compares validation with what the library alone takes: decoding
// with UseNumber, and judging. The goal is at most 1.3 times its time.
func BenchmarkValidate(b *testing.B) {
	payload := []byte(benchPayload)
	b.Run("library", func(b *testing.B) {
		s := js.MustCompileString("schema:///bench", benchSchema)
		b.ReportAllocs()
		for b.Loop() {
			dec := json.NewDecoder(bytes.NewReader(payload))
			dec.UseNumber()
			var v any
			if err := dec.Decode(&v); err != nil {
				b.Fatal(err)
			}
			if err := s.Validate(v); err != nil {
				b.Fatal(err)
			}
		}
	})
	s, err := Compile(benchSchema, Options{})
	if err != nil {
		b.Fatal(err)
	}
	for name, validate := range map[string]func([]byte) error{"jetbus": s.Validate, "declared": s.ValidateDeclared} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := validate(payload); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
