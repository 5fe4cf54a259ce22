package schema

import (
	"errors"
	"strings"
	"testing"
)

// union is a schema of expressions, as people write them: each level is judged by
// both branches, so that the work doubles with every level of a payload.
const union = `{
	"anyOf": [
		{"properties": {"op": {"const": "not"}, "left": {"$ref": "#"}}},
		{"properties": {"op": {"const": "and"}, "left": {"$ref": "#"}, "right": {"$ref": "#"}}}
	]
}`

// ladder is without recursion: every level of $defs judges the next one twice.
func ladder(levels int) string {
	var b strings.Builder
	b.WriteString(`{"$ref":"#/$defs/l0","$defs":{`)
	for i := range levels {
		next := `{"properties":{"left":{"$ref":"#/$defs/l` + itoa(i+1) + `"}}}`
		b.WriteString(`"l` + itoa(i) + `":{"allOf":[` + next + `,` + next + `]},`)
	}
	b.WriteString(`"l` + itoa(levels) + `":{"type":"object"}}}`)
	return b.String()
}

func chain(depth int) []byte { return chainTo(depth, "{}") }

// chainTo is a chain of so many objects that ends in a value.
func chainTo(depth int, end string) []byte {
	return []byte(strings.Repeat(`{"left":`, depth) + end + strings.Repeat("}", depth))
}

// nestings are the lists that have so many lists in all, themselves among them.
func nestings(lists int) []string {
	var insides func(n int) []string
	insides = func(n int) []string {
		if n == 0 {
			return []string{""}
		}
		var out []string
		for first := 1; first <= n; first++ {
			for _, a := range insides(first - 1) {
				for _, b := range insides(n - first) {
					out = append(out, strings.TrimSuffix("["+a+"],"+b, ","))
				}
			}
		}
		return out
	}
	out := insides(lists - 1)
	for i, inside := range out {
		out[i] = "[" + inside + "]"
	}
	return out
}

// unionOf is a schema of arrays whose items have one of so many kinds.
func unionOf(kinds int) string {
	var branches []string
	for i := range kinds {
		branches = append(branches, `{"type":"object","properties":{"kind":{"const":"k`+itoa(i)+`"},"id":{"type":"string","format":"uuid"},"n":{"type":"integer","minimum":0}},"required":["kind","n"]}`)
	}
	return `{"items":{"oneOf":[` + strings.Join(branches, ",") + `]}}`
}

// distinct is a list of so many names.
func distinct(names int) []byte {
	out := []byte(`["n"`)
	for i := range names {
		out = append(out, `,"n`+itoa(i)+`"`...)
	}
	return append(out, ']')
}

// references is a schema whose way to its last part has so many hops.
func references(hops int) string {
	var b strings.Builder
	b.WriteString(`{"$ref":"#/$defs/0","$defs":{`)
	for i := range hops {
		b.WriteString(`"` + itoa(i) + `":{"$ref":"#/$defs/` + itoa(i+1) + `"},`)
	}
	b.WriteString(`"` + itoa(hops) + `":false}}`)
	return b.String()
}

// What takes exponential time is refused, and not because of its size.
func TestTooMuchWork(t *testing.T) {
	broken := chainTo(100, `{"op":1}`)
	for name, test := range map[string]struct {
		schema  string
		payload []byte
	}{
		"recursive union": {union, broken},
		"deep union":      {union, chainTo(MaxPayloadDepth-1, `{"op":1}`)},
		"oneOf":           {`{"oneOf":[{"type":"null"},{"items":{"$ref":"#"}},{"items":{"$ref":"#"},"minItems":1}]}`, []byte(strings.Repeat("[", 44) + strings.Repeat("]", 44))},
		"levels":          {ladder(60), chain(60)},
		"patterns":        {`{"patternProperties":{"l":{"$ref":"#"},"t$":{"$ref":"#"}}}`, chain(100)},
		"contains":        {`{"items":{"$ref":"#"},"contains":{"$ref":"#"}}`, []byte(strings.Repeat("[", 100) + "0" + strings.Repeat("]", 100))},
		"duration":        {`{"format":"duration"}`, []byte(`"P` + strings.Repeat("1Y", 500_000) + `"`)},
		"recursive reference": {`{"$recursiveAnchor":true,"$schema":"https://json-schema.org/draft/2019-09/schema","anyOf":[
			{"properties":{"left":{"$recursiveRef":"#"},"op":false}},{"properties":{"left":{"$recursiveRef":"#"},"op":false}}]}`, broken},
		"stack": {
			`{"items":{"$ref":"#"},"allOf":[{"$ref":"#/$defs/0"}],"$defs":{` + references(900)[len(`{"$ref":"#/$defs/0","$defs":{`):len(references(900))-len(`false}}`)] + `{"items":{"$ref":"#"}}}}`,
			[]byte(strings.Repeat("[", 500) + strings.Repeat("]", 500)),
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := compile(t, test.schema).Validate(test.payload)
			var refused *InvalidError
			if !errors.Is(err, ErrTooMuchWork) || !errors.Is(err, ErrInvalid) || !errors.As(err, &refused) || !strings.Contains(refused.Violations[0].Message, tooMuch) {
				t.Errorf("Validate: %.300v, want ErrTooMuchWork", err)
			}
		})
	}
}

// A verdict does not speak of MaxWork, and the error not of parts that overlap: here none do.
func TestWorkBeyondAVerdict(t *testing.T) {
	old := compile(t, `{"items":{"const":"e0"}}`)
	next := compile(t, `{"items":{"allOf":[`+copies(8, `{"$ref":"#/$defs/e"}`)+`]},"$defs":{"e":{"enum":["e0","e1"]}}}`)
	if v := Compare(old, next, Strict); v.Result != Proved {
		t.Fatalf("Compare: %s, want it proved", v.Result)
	}
	payload := []byte(array(`"e0"`, 400_000))
	if err := old.Validate(payload); err != nil {
		t.Errorf("the old schema: %v", err)
	}
	want := "too large for this schema: " + tooMuch
	var refused *InvalidError
	if err := next.Validate(payload); !errors.As(err, &refused) || !strings.HasPrefix(refused.Violations[0].Message, want) {
		t.Errorf("the new schema: %v, want %q", err, want)
	}
}

func TestWorkOfOrdinaryPayloads(t *testing.T) {
	for name, test := range map[string]struct {
		schema  string
		payload []byte
	}{
		"union":   {union, chain(8)},
		"levels":  {ladder(60), chain(6)},
		"numbers": {`{"items":{"type":"integer"}}`, []byte("[" + strings.Repeat("1,", 100_000) + "1]")},
		"deep":    {`{"properties":{"left":{"$ref":"#"},"right":{"$ref":"#"}}}`, chain(MaxPayloadDepth - 1)},
		"1 MiB of objects": {
			`{"items":{"type":"object","properties":{"id":{"type":"integer"},"name":{"type":"string","maxLength":20},"ok":{"type":"boolean"}},"required":["id","name","ok"],"additionalProperties":false}}`,
			[]byte(array(`{"id":123,"name":"abc","ok":true}`, 1<<20)),
		},
		"1 MiB of heartbeats": {`{"items":` + benchSchema + `}`, []byte(array(benchPayload, 1<<20))},
		"1 MiB of a union":    {unionOf(8), []byte(array(`{"kind":"k5","id":"0190f7c2-4f6c-7c5e-a111-52bd6c1f1a10","n":12}`, 1<<20))},
		"1 MiB of numbers":    {`{"items":{"type":"integer","minimum":0}}`, []byte(array("12345", 1<<20))},
		"1 MiB of text":       {`{"type":"string","pattern":"^[A-Za-z0-9+/]*={0,2}$"}`, []byte(`"` + strings.Repeat("QUJD", 1<<18-1) + `"`)},
		"distinct":            {`{"uniqueItems":true}`, distinct(50_000)},
		"text":                {`{"pattern":"^[a-z]+$"}`, []byte(`"` + strings.Repeat("a", 200_000) + `"`)},
	} {
		t.Run(name, func(t *testing.T) {
			if err := compile(t, test.schema).Validate(test.payload); err != nil {
				t.Errorf("Validate: %v", err)
			}
		})
	}
}
