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

func chain(depth int) []byte {
	return []byte(strings.Repeat(`{"left":`, depth) + "{}" + strings.Repeat("}", depth))
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

func TestWorkIsBounded(t *testing.T) {
	for name, test := range map[string]struct {
		schema  string
		payload []byte
	}{
		"recursive union":    {union, chain(100)},
		"deep union":         {union, chain(MaxPayloadDepth - 1)},
		"levels":             {ladder(60), chain(60)},
		"patterns":           {`{"patternProperties":{"l":{"$ref":"#"},"t$":{"$ref":"#"}}}`, chain(100)},
		"items and contains": {`{"items":{"$ref":"#"},"contains":{"$ref":"#"}}`, []byte(strings.Repeat("[", 100) + strings.Repeat("]", 100))},
		"wide":               {`{"items":` + nested(4) + `}`, []byte("[" + strings.Repeat("1,", 100_000) + "1]")},
		"values":             {`{"items":{"enum":[` + strings.Repeat("10,", 1000) + `1]}}`, []byte("[" + strings.Repeat("2,", 100_000) + "2]")},
		"expression":         {`{"pattern":"^(a{900}b|c)+$"}`, []byte(`"` + strings.Repeat("a", 1_000_000) + `"`)},
		"unique items":       {`{"uniqueItems":true}`, []byte("[" + strings.Join(nestings(11)[:16_000], ",") + "]")},
		"long name":          {`{"additionalProperties":{"items":{"type":"integer"}}}`, []byte(`{"` + strings.Repeat("k", 100_000) + `":[` + strings.Repeat("1,", 200_000) + `1]}`)},
		"long way":           {`{"anyOf":[{"type":"array","items":{"$ref":"#"}},{"const":1}]}`, []byte(strings.Repeat("[", 100) + strings.Repeat("2,", 20_000) + "2" + strings.Repeat("]", 100))},
		"long chain":         {references(1500), []byte("1")},
		"recursive reference": {`{"$recursiveAnchor":true,"$schema":"https://json-schema.org/draft/2019-09/schema","anyOf":[
			{"properties":{"left":{"$recursiveRef":"#"}}},{"properties":{"left":{"$recursiveRef":"#"}}}]}`, chain(100)},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Compile(strings.ReplaceAll(test.schema, "#/$defs", "#/items/$defs"), Options{})
			if err != nil {
				s = compile(t, test.schema)
			}
			var refused *InvalidError
			if err := s.Validate(test.payload); !errors.As(err, &refused) || !strings.Contains(refused.Violations[0].Message, tooMuch) {
				t.Errorf("Validate: %v, want an error for too much work", err)
			}
		})
	}
}

// A verdict does not speak of MaxWork, and the error not of parts that overlap: here none do.
func TestWorkBeyondAVerdict(t *testing.T) {
	var names []string
	for i := range 250 {
		names = append(names, `"e`+itoa(i)+`"`)
	}
	old, next := compile(t, `{"items":{"const":"e0"}}`), compile(t, `{"items":{"enum":[`+strings.Join(names, ",")+`]}}`)
	if v := Compare(old, next, Strict); v.Result != Proved {
		t.Fatalf("Compare: %s, want it proved", v.Result)
	}
	payload := []byte("[" + strings.Repeat(`"e0",`, 10_000) + `"e0"]`)
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
		"union":    {union, chain(8)},
		"levels":   {ladder(60), chain(6)},
		"numbers":  {`{"items":{"type":"integer"}}`, []byte("[" + strings.Repeat("1,", 100_000) + "1]")},
		"deep":     {`{"properties":{"left":{"$ref":"#"},"right":{"$ref":"#"}}}`, chain(MaxPayloadDepth - 1)},
		"distinct": {`{"uniqueItems":true}`, distinct(50_000)},
		"text":     {`{"pattern":"^[a-z]+$"}`, []byte(`"` + strings.Repeat("a", 200_000) + `"`)},
	} {
		t.Run(name, func(t *testing.T) {
			if err := compile(t, test.schema).Validate(test.payload); err != nil {
				t.Errorf("Validate: %v", err)
			}
		})
	}
}

// TestEffortIsTheBound checks the cheap bound against the count: what is light must
// never be more work than is allowed.
func TestEffortIsTheBound(t *testing.T) {
	for _, text := range []string{union, ladder(5), benchSchema, nested(3), `{"patternProperties":{"l":{"$ref":"#"},"t$":{"$ref":"#"}}}`} {
		s := compile(t, text)
		for depth := range 18 {
			payload := chain(depth)
			size, err := scan(payload, payloadLimits)
			if err != nil {
				t.Fatal(err)
			}
			v, err := decode(payload)
			if err != nil {
				t.Fatal(err)
			}
			if s.light(size, len(payload)) && !affordable(s.root, v) {
				t.Errorf("%s: light at depth %d, and yet too much", text, depth)
			}
		}
	}
}
