package schema

import (
	"runtime"
	"strings"
	"testing"
)

// costly is a schema and a payload that took far more time or memory than their sizes suggest.
type costly struct{ name, schema, payload string }

// array returns an array of copies of an element, in about so many bytes.
func array(element string, bytes int) string {
	n := max(1, bytes/(len(element)+1))
	return "[" + strings.Repeat(element+",", n-1) + element + "]"
}

// names returns the names n0, n1, ... as JSON strings, separated by commas.
func names(n int) string {
	out := make([]string, n)
	for i := range out {
		out[i] = `"n` + itoa(i) + `"`
	}
	return strings.Join(out, ",")
}

// copies returns so many copies of an element, separated by commas.
func copies(n int, element string) string {
	return strings.TrimSuffix(strings.Repeat(element+",", n), ",")
}

// costlyCases returns attacks on the time and the memory of validation.
func costlyCases() []costly {
	const mib = 1 << 20
	draft7 := `"$schema":"http://json-schema.org/draft-07/schema",`
	branch := func(i int) string {
		return `{"type":"object","properties":{"kind":{"const":"k` + itoa(i) + `"},"n":{"type":"integer"}},"required":["kind","n"]}`
	}
	return []costly{
		{"20 required members", `{"type":"array","items":{"type":"object","required":[` + names(20) + `]}}`, array("{}", mib)},
		{"2000 required members", `{"type":"array","items":{"type":"object","required":[` + names(2000) + `]}}`, array("{}", mib)},
		{"dependentRequired", `{"items":{"dependentRequired":{"a":[` + names(2000) + `]}}}`, array(`{"a":0}`, mib)},
		{"dependencies", `{` + draft7 + `"items":{"dependencies":{"a":[` + names(2000) + `]}}}`, array(`{"a":0}`, mib)},
		{"long const", `{"items":{"const":"` + strings.Repeat("c", 60_000) + `"}}`, array(`0`, mib)},
		{"const list", `{"items":{"const":[` + copies(20_000, "1") + `]}}`, array(`[1]`, mib)},
		{"long enum", `{"items":{"enum":[` + names(7000) + `]}}`, array(`"n"`, mib)},
		{"enum of numbers", `{"items":{"enum":[` + copies(10_000, "1e300") + `]}}`, array(`2`, mib)},
		{"enum of objects", `{"items":{"enum":[` + copies(2900, `{"a":1}`) + `]}}`, array(`{"a":2}`, mib)},
		{"anyOf of 4", `{"items":{"anyOf":[` + branch(0) + `,` + branch(1) + `,` + branch(2) + `,` + branch(3) + `]}}`, array(`{"kind":"k9","n":"x"}`, 200_000)},
		{"oneOf of 40", `{"items":{"oneOf":[` + copies(40, branch(0)) + `]}}`, array(`{"kind":"k9","n":"x"}`, mib)},
		{"recursive oneOf", `{"oneOf":[{"type":"null"},{"items":{"$ref":"#"}},{"items":{"$ref":"#"},"minItems":1}]}`, strings.Repeat("[", 44) + strings.Repeat("]", 44)},
		{"recursive union", union, string(chain(MaxPayloadDepth - 1))},
		{"false items", `{"items":false}`, array("0", mib)},
		{"false properties", `{"additionalProperties":{"additionalProperties":false}}`, `{"a":{` + strings.TrimSuffix(strings.Repeat(`"":0,`, mib/5), ",") + `}}`},
		{"property names", `{"items":{"propertyNames":{"maxLength":0}}}`, array(`{"a":0,"b":0,"c":0}`, mib)},
		{"contains", `{"items":{"contains":{"const":9}}}`, array(array("0", 100), mib)},
		{"unevaluated", `{"items":{"anyOf":[{"properties":{"a":true}},{"properties":{"b":true}}],"unevaluatedProperties":false}}`, array(`{"a":0,"b":0,"c":0}`, mib)},
		{"not", `{"items":{"not":{"not":{"type":"string"}}}}`, array("0", mib)},
		{"deep errors", `{"items":{"$ref":"#"},"type":"array"}`, strings.Repeat("[", 500) + strings.TrimSuffix(strings.Repeat("0,", mib/2-600), ",") + strings.Repeat("]", 500)},
		{"long name", `{"additionalProperties":{"items":{"type":"string"}}}`, `{"` + strings.Repeat("k", mib/2) + `":` + array("0", mib/2-10) + `}`},
		{"nested objects", `{"items":{"type":"object"}}`, array(strings.Repeat(`{"":`, 500)+"0"+strings.Repeat("}", 500), mib)},
		{"big numbers", `{"items":{"multipleOf":1e-300,"minimum":1e300}}`, array("9e399", mib)},
		{"unique numbers", `{"items":{"uniqueItems":true}}`, array(array("1e300,1e301,1e302,1e303,1e304,1e305,1e306,1e307", 1), mib)},
		{"unique lists", `{"uniqueItems":true}`, "[" + strings.Join(nestings(11)[:16_000], ",") + "]"},
		{"pattern", `{"pattern":"^(a{900}b|c)+$"}`, `"` + strings.Repeat("a", mib-2) + `"`},
		{"patterns of names", `{"items":{"patternProperties":{"(a|b|c|d)*e":true,"(f|g)*h{50}":true}}}`, array(`{"`+strings.Repeat("abcd", 50)+`":0}`, mib)},
		{"duration", `{"format":"duration"}`, `"P` + strings.Repeat("1Y", mib/2-2) + `"`},
		{"period", `{"format":"period"}`, `"2020-01-01T00:00:00Z/P` + strings.Repeat("1Y", mib/2-20) + `"`},
		{"regex", `{"format":"regex"}`, `"` + strings.Repeat(`\\pL`, mib/4-1) + `"`},
		{"addresses", `{"items":{"anyOf":[` + copies(50, `{"format":"ipv4"}`) + `]}}`, array(`"`+strings.Repeat(".", 10_000)+`"`, mib)},
		{"content", `{` + draft7 + `"anyOf":[` + copies(100, `{"contentMediaType":"application/json","maxLength":1}`) + `]}`, `"` + array("{}", mib-2) + `"`},
		{"base64", `{` + draft7 + `"allOf":[` + copies(100, `{"contentEncoding":"base64"}`) + `]}`, `"` + strings.Repeat("A", mib-4) + `"`},
		{"escapes", `{"items":{"type":"integer"}}`, array(`"\n"`, mib)},
		{"not JSON", `{}`, array("{}", mib) + "}"},
		{"frames", `{"items":{"$ref":"#/$defs/0"},"$defs":{` + references(1500)[strings.Index(references(1500), `"0":`):len(references(1500))-2] + `}}`, strings.Repeat("[", 511) + strings.Repeat("]", 511)},
		{"recursive reference", `{"$recursiveAnchor":true,"$schema":"https://json-schema.org/draft/2019-09/schema","anyOf":[
			{"properties":{"left":{"$recursiveRef":"#"}},"required":["x"]},{"properties":{"left":{"$recursiveRef":"#"}},"required":["y"]}]}`, string(chain(100))},
		{"undeclared names", `{"properties":{"a":true}}`, `{` + strings.TrimSuffix(strings.Repeat(`"":0,`, 10), ",") + `,"` + strings.Repeat(`x":0,"y`, mib/8) + `":0}`},
		{"undeclared parts", `{"items":{"$ref":"#"},"allOf":[` + copies(500, `{"properties":{"a":true}}`) + `]}`, array("[]", mib)},
		{"undeclared under a long name", `{"additionalProperties":{"items":{"properties":{"a":true}}}}`, `{"` + strings.Repeat("k", mib/2) + `":` + array(`{"b":0}`, mib/2) + `}`},
	}
}

// maxAllocated is how much memory one validation may allocate.
const maxAllocated = 64 << 20

func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestAttacksAreBounded(t *testing.T) {
	for _, a := range costlyCases() {
		t.Run(a.name, func(t *testing.T) {
			s := compile(t, a.schema)
			for model, validate := range map[string]func([]byte) error{"strict": s.Validate, "declared": s.ValidateDeclared} {
				var err error
				bytes := allocated(func() { err = validate([]byte(a.payload)) })
				if bytes > maxAllocated {
					t.Errorf("%s: validation allocates %d MiB, want at most %d (%.200v)", model, bytes>>20, maxAllocated>>20, err)
				}
			}
		})
	}
}
