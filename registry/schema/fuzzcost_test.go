package schema

import (
	"errors"
	"runtime/debug"
	"strings"
	"testing"
)

// grow makes a payload of at most so many bytes of a small one: in copies side by side, in a
// name, or one in the other.
func grow(payload string, how byte, bytes int) string {
	n := max(1, bytes/(len(payload)+1))
	switch how % 4 {
	case 0:
		return array(payload, bytes)
	case 1: // arrays in arrays
		depth := min(n, MaxPayloadDepth-8)
		return strings.Repeat("[", depth) + payload + strings.Repeat("]", depth)
	case 2: // the payload takes its own place below itself
		if before, after, ok := strings.Cut(payload, "0"); ok {
			depth := min(n, MaxPayloadDepth/4)
			return strings.Repeat(before, depth) + "0" + strings.Repeat(after, depth)
		}
		return payload
	default: // long texts
		at := strings.LastIndexByte(payload, '"')
		if at < 0 {
			return payload
		}
		return payload[:at] + strings.Repeat(strings.Trim(payload, `{}[]",:\`), n) + payload[at:]
	}
}

// FuzzCost searches for a schema and a payload of up to 512 KiB whose validation allocates more
// than half of what 1 MiB may.
func FuzzCost(f *testing.F) {
	for _, c := range costlyCases() {
		if len(c.schema) > 4096 {
			continue
		}
		payload := c.payload
		if len(payload) > 256 {
			payload = "{\"a\":[0,\"x\",{\"b\":0}]}"
		}
		for how := range byte(4) {
			f.Add(c.schema, payload, how)
		}
	}
	for _, text := range fuzzSchemas {
		f.Add(text, benchPayload, byte(0))
		f.Add(text, `{"left":0}`, byte(2))
	}
	f.Fuzz(func(t *testing.T, text, payload string, how byte) {
		s, err := Compile(text, Options{})
		if err != nil || len(payload) > 4096 {
			return
		}
		defer debug.SetGCPercent(debug.SetGCPercent(400))
		grown := []byte(grow(payload, how, 1<<18))
		if len(grown) > 1<<19 {
			return
		}
		const most = maxAllocated / 2
		for _, validate := range []func([]byte) error{s.Validate, s.ValidateDeclared} {
			var err error
			if bytes := allocated(func() { err = validate(grown) }); bytes > most {
				t.Fatalf("%s\n%q, grown by %d to %d bytes, allocates %d MiB: %.200v", text, payload, how, len(grown), bytes>>20, err)
			}
			if err != nil && !errors.Is(err, ErrInvalid) {
				t.Fatalf("%s: %v", text, err)
			}
		}
	})
}
