package schema

import (
	"reflect"
	"strings"
	"testing"
)

// compiled compiles a schema of a test.
func compiled(t testing.TB, text string) *Schema {
	t.Helper()
	s, err := Compile(text, Options{})
	if err != nil {
		t.Fatalf("Compile(%s): %v", text, err)
	}
	return s
}

// readerOf is the reader's form of a schema of a test.
func readerOf(t testing.TB, s *Schema) *node {
	t.Helper()
	r, err := s.reader()
	if err != nil {
		t.Fatalf("reader of %s: %v", s.Text(), err)
	}
	return r.root
}

func proveStrict(t testing.TB, before, after string) (bool, []Reason) {
	t.Helper()
	return prove(compiled(t, before).root, compiled(t, after).root, Strict)
}

func proveDeclared(t testing.TB, before, after string) (bool, []Reason) {
	t.Helper()
	return prove(compiled(t, before).root, readerOf(t, compiled(t, after)), Declared)
}

// claim is one line of a table: whether it is true that new accepts all that old
// does, and so whether it is proved.
type claim struct {
	old, new string
	want     bool
}

// checkClaims proves each claim, that each schema accepts what itself does, and that a
// failure has reasons, the same each time.
func checkClaims(t *testing.T, claims []claim, ask func(testing.TB, string, string) (bool, []Reason)) {
	t.Helper()
	for _, c := range claims {
		got, reasons := ask(t, c.old, c.new)
		if got != c.want {
			t.Errorf("%s\n -> %s\nproved %v, want %v: %v", c.old, c.new, got, c.want, reasons)
		}
		if got != (len(reasons) == 0) || len(reasons) > maxReasons {
			t.Errorf("%s\n -> %s\nproved %v with reasons %v", c.old, c.new, got, reasons)
		}
		if _, again := ask(t, c.old, c.new); !reflect.DeepEqual(again, reasons) {
			t.Errorf("%s\n -> %s\nreasons differ: %v, %v", c.old, c.new, reasons, again)
		}
		for _, s := range []string{c.old, c.new} {
			if ok, reasons := ask(t, s, s); !ok && !beyond(reasons) {
				t.Errorf("%s does not accept what itself does: %v", s, reasons)
			}
		}
	}
}

func beyond(reasons []Reason) bool {
	for _, r := range reasons {
		if strings.HasPrefix(r.Message, "the proof does not understand ") {
			return true
		}
	}
	return false
}

func checkStrict(t *testing.T, claims []claim) {
	t.Helper()
	checkClaims(t, claims, proveStrict)
}

func TestProveTypes(t *testing.T) {
	checkStrict(t, []claim{
		{`{"type":"string"}`, `{}`, true},
		{`{}`, `true`, true},
		{`{}`, `{"type":["null","boolean","number","string","array","object"]}`, true},
		{`{}`, `{"type":["null","boolean","integer","string","array","object"]}`, false},
		{`{"type":"integer"}`, `{"type":"number"}`, true},
		{`{"type":"number"}`, `{"type":"integer"}`, false},
		{`{"type":"number","multipleOf":1}`, `{"type":"integer"}`, true},
		{`{"type":["string","null"]}`, `{"anyOf":[{"type":"string"},{"type":"null"}]}`, true},
		{`{"type":["string","null"]}`, `{"oneOf":[{"type":"string"},{"type":"null"}]}`, true},
		{`{"type":["string","null","integer"]}`, `{"anyOf":[{"type":"string"},{"type":"null"}]}`, false},
		{`{"type":["integer","null"]}`, `{"oneOf":[{"type":"integer"},{"type":["number","null"]}]}`, false},
		{`false`, `{"type":"string"}`, true},
		{`{"type":"string"}`, `false`, false},
		{`{"allOf":[{"type":"string"},{"type":"null"}]}`, `false`, true},
		{`{"not":{}}`, `false`, true},
	})
}

func TestProveListed(t *testing.T) {
	checkStrict(t, []claim{
		{`{"enum":["a","b"]}`, `{"enum":["b","a","c"]}`, true},
		{`{"enum":["a","b","c"]}`, `{"enum":["b","a"]}`, false},
		{`{"enum":["a",1,null]}`, `{"type":["string","integer","null"]}`, true},
		{`{"enum":["a",1.5,null]}`, `{"type":["string","integer","null"]}`, false},
		{`{"const":1.0}`, `{"enum":[1]}`, true},
		{`{"enum":["a","b",3],"type":"string"}`, `{"enum":["a","b"]}`, true},
		{`{"const":"abc"}`, `{"type":"string","pattern":"^a","maxLength":3}`, true},
		{`{"const":"abc"}`, `{"type":"string","pattern":"^b"}`, false},
		{`{"type":"boolean"}`, `{"enum":[true,false]}`, true},
		{`{"type":"string","pattern":"^(red|green)$"}`, `{"enum":["green","red","blue"]}`, true},
		{`{"type":"string","pattern":"^(red|green)"}`, `{"enum":["green","red","blue"]}`, false},
		{`{"type":"boolean"}`, `{"enum":[true]}`, false},
		{`{"enum":["a","b"]}`, `{"anyOf":[{"const":"a"},{"const":"b"}]}`, true},
		{`{"enum":["a","b"]}`, `{"oneOf":[{"const":"a"},{"enum":["a","b"]}]}`, false},
		{`{"type":"integer","minimum":1,"maximum":3}`, `{"enum":[1,2,3]}`, true},
		{`{"type":"integer","minimum":1,"maximum":4}`, `{"enum":[1,2,3]}`, false},
		{`{"type":"number","minimum":1,"maximum":3}`, `{"enum":[1,2,3]}`, false},
		{`{"type":"object","properties":{"a":{"enum":[{"x":1}]}}}`, `{"type":"object","properties":{"a":{"type":"object","required":["x"]}}}`, true},
		{`{"type":"string"}`, `{"enum":["a"]}`, false},
		{`{"enum":["a"],"const":"b"}`, `false`, true},
	})
}

func TestProveNumbers(t *testing.T) {
	checkStrict(t, []claim{
		{`{"type":"number","minimum":1}`, `{"type":"number","minimum":0}`, true},
		{`{"type":"number","minimum":0}`, `{"type":"number","minimum":1}`, false},
		{`{"type":"number","exclusiveMinimum":1}`, `{"type":"number","minimum":1}`, true},
		{`{"type":"number","minimum":1}`, `{"type":"number","exclusiveMinimum":1}`, false},
		{`{"type":"integer","exclusiveMinimum":0}`, `{"type":"integer","minimum":1}`, true},
		{`{"type":"number","exclusiveMinimum":0}`, `{"type":"number","minimum":1}`, false},
		{`{"type":"integer","minimum":0.5}`, `{"minimum":1}`, true},
		{`{"type":"integer","maximum":-0.5}`, `{"maximum":-1}`, true},
		{`{"type":"integer","exclusiveMaximum":0}`, `{"maximum":-1}`, true},
		{`{"type":"number","maximum":9007199254740993}`, `{"maximum":9007199254740992}`, false},
		{`{"type":"number","multipleOf":6}`, `{"multipleOf":3}`, true},
		{`{"type":"number","multipleOf":3}`, `{"multipleOf":6}`, false},
		{`{"type":"integer"}`, `{"multipleOf":0.5}`, true},
		{`{"type":"integer"}`, `{"multipleOf":2}`, false},
		{`{"allOf":[{"type":"number","multipleOf":4},{"multipleOf":6}]}`, `{"multipleOf":12}`, true},
		{`{"allOf":[{"type":"number","multipleOf":4},{"multipleOf":6}]}`, `{"multipleOf":24}`, false},
		{`{"type":"number","multipleOf":0.1}`, `{"multipleOf":0.01}`, true},
		{`{"type":"number","multipleOf":5,"minimum":1}`, `{"minimum":5}`, true},
		{`{"type":"number","multipleOf":5,"minimum":1}`, `{"minimum":6}`, false},
		{`{"type":"integer","minimum":0,"maximum":100}`, `{"anyOf":[{"type":"integer","maximum":50},{"type":"integer","minimum":51}]}`, true},
		{`{"type":"integer","minimum":0,"maximum":100}`, `{"anyOf":[{"type":"integer","maximum":50},{"type":"integer","minimum":52}]}`, false},
		{`{"type":"number","minimum":0,"maximum":100}`, `{"anyOf":[{"type":"number","maximum":50},{"type":"number","minimum":50}]}`, true},
		{`{"type":"number","minimum":0,"maximum":100}`, `{"oneOf":[{"type":"number","maximum":50},{"type":"number","minimum":50}]}`, false},
		{`{"type":"number"}`, `{"oneOf":[{"type":"number","maximum":50},{"type":"number","exclusiveMinimum":50}]}`, true},
		{`{"type":"number"}`, `{"anyOf":[{"type":"number","exclusiveMaximum":50},{"type":"number","exclusiveMinimum":50}]}`, false},
		{`{"type":"number","minimum":2,"maximum":1}`, `false`, true},
		{`{"type":"integer","minimum":1.2,"maximum":1.8}`, `false`, true},
		{`{"minimum":1}`, `{"minimum":0}`, true},
		{`{"minimum":1}`, `{"minimum":0,"type":"number"}`, false},
	})
}

func TestProveStrings(t *testing.T) {
	checkStrict(t, []claim{
		{`{"type":"string","minLength":2}`, `{"type":"string","minLength":1}`, true},
		{`{"type":"string","minLength":1}`, `{"type":"string","minLength":2}`, false},
		{`{"type":"string","maxLength":2}`, `{"type":"string","maxLength":3}`, true},
		{`{"type":"string"}`, `{"type":"string","maxLength":3}`, false},
		{`{"type":"string","minLength":3,"maxLength":2}`, `false`, true},
		{`{"type":"string","pattern":"^[a-z]+$"}`, `{"type":"string","pattern":"^[a-z0-9]+$"}`, true},
		{`{"type":"string","pattern":"^[a-z0-9]+$"}`, `{"type":"string","pattern":"^[a-z]+$"}`, false},
		{`{"type":"string","pattern":"^[a-z]{3}$"}`, `{"type":"string","minLength":3,"maxLength":3}`, true},
		{`{"type":"string","pattern":"^[a-z]{3}"}`, `{"type":"string","minLength":3,"maxLength":3}`, false},
		{`{"type":"string","pattern":"[a-z]{3}$"}`, `{"type":"string","minLength":3}`, true},
		{`{"type":"string","pattern":"^a"}`, `{"type":"string","pattern":"a"}`, true},
		{`{"type":"string","pattern":"a"}`, `{"type":"string","pattern":"^a"}`, false},
		{`{"type":"string","pattern":"^[a-z]*$","minLength":1}`, `{"type":"string","pattern":"^[a-z]+$"}`, true},
		{`{"type":"string","pattern":"^[a-z]*$"}`, `{"type":"string","pattern":"^[a-z]+$"}`, false},
		{`{"type":"string","format":"uuid"}`, `{"type":"string"}`, true},
		{`{"type":"string"}`, `{"type":"string","format":"uuid"}`, false},
		{`{"type":"string","format":"date-time"}`, `{"type":"string","format":"date"}`, false},
		{`{"type":"string","format":"uri"}`, `{"type":"string","format":"iri"}`, true},
		{`{"type":"string","format":"uri"}`, `{"type":"string","format":"uri-reference"}`, false},
		{`{"type":"string","format":"no-such-format"}`, `{"type":"string","format":"another-one"}`, true},
		{`{"type":"string","pattern":"^a"}`, `{"not":{"type":"string","pattern":"^b"}}`, true},
		{`{"type":"string","pattern":"a"}`, `{"not":{"type":"string","pattern":"^b"}}`, false},
		{`{"type":"string","not":{"pattern":"^b"}}`, `{"type":"string","pattern":"^($|[^b])"}`, true},
	})
}

func TestProveArrays(t *testing.T) {
	checkStrict(t, []claim{
		{`{"type":"array","items":{"type":"integer"}}`, `{"type":"array","items":{"type":"number"}}`, true},
		{`{"type":"array","items":{"type":"number"}}`, `{"type":"array","items":{"type":"integer"}}`, false},
		{`{"type":"array","maxItems":0}`, `{"type":"array","items":{"type":"integer"}}`, true},
		{`{"type":"array","minItems":1}`, `{"type":"array","minItems":2}`, false},
		{`{"type":"array","minItems":2}`, `{"type":"array","minItems":1}`, true},
		{`{"type":"array","maxItems":2}`, `{"type":"array","maxItems":1}`, false},
		{`{"type":"array","prefixItems":[{"type":"string"}],"items":false}`, `{"type":"array","maxItems":1}`, true},
		{`{"type":"array","prefixItems":[{"type":"string"}]}`, `{"type":"array","maxItems":1}`, false},
		{`{"type":"array","prefixItems":[{"type":"string"}],"items":false}`, `{"type":"array","items":{"type":"string"}}`, true},
		{`{"type":"array","prefixItems":[{"type":"string"}],"items":{"type":"integer"}}`, `{"type":"array","prefixItems":[{"type":"string"},{"type":"integer"}]}`, true},
		{`{"type":"array","prefixItems":[{"type":"string"}]}`, `{"type":"array","prefixItems":[{"type":"string"},{"type":"integer"}]}`, false},
		{`{"type":"array","uniqueItems":true}`, `{"type":"array"}`, true},
		{`{"type":"array"}`, `{"type":"array","uniqueItems":true}`, false},
		{`{"type":"array","maxItems":1}`, `{"type":"array","uniqueItems":true}`, true},
		{`{"type":"array","contains":{"type":"integer"}}`, `{"type":"array","contains":{"type":"number"}}`, true},
		{`{"type":"array","contains":{"type":"number"}}`, `{"type":"array","contains":{"type":"integer"}}`, false},
		{`{"type":"array","contains":{"type":"integer"}}`, `{"type":"array","minItems":1}`, true},
		{`{"type":"array","items":{"type":"integer"},"minItems":2}`, `{"type":"array","contains":{"type":"number"},"minContains":2}`, true},
		{`{"type":"array","items":{"type":"integer"},"minItems":1}`, `{"type":"array","contains":{"type":"number"},"minContains":2}`, false},
		{`{"type":"array","items":{"type":"string"}}`, `{"type":"array","contains":{"type":"number"},"minContains":0,"maxContains":1}`, true},
		{`{"type":"array","items":{"type":["string","integer"]}}`, `{"type":"array","contains":{"type":"number"},"minContains":0,"maxContains":1}`, false},
		{`{"type":"array","contains":{"type":"number"},"maxContains":2}`, `{"type":"array","contains":{"type":"integer"},"minContains":0,"maxContains":2}`, true},
		{`{"type":"array","contains":{"type":"integer"},"maxContains":2}`, `{"type":"array","contains":{"type":"number"},"minContains":0,"maxContains":2}`, false},
		{`{"type":"array","items":false,"minItems":1}`, `false`, true},
		{`{"type":"array","contains":false}`, `false`, true},
		{`{"type":"array","contains":false,"minContains":0}`, `false`, false},
		{`{"type":"array","prefixItems":[{"type":"string"}],"unevaluatedItems":false}`, `{"type":"array","maxItems":1}`, true},
		{`{"type":"array","prefixItems":[{"type":"string"}],"contains":{"type":"null"},"unevaluatedItems":false}`, `{"type":"array","maxItems":1}`, false},
		{`{"type":"array","allOf":[{"prefixItems":[{"type":"string"}]}],"unevaluatedItems":false}`, `{"type":"array","prefixItems":[{"type":"string"}],"items":false}`, true},
		{`{"type":"array","anyOf":[{"items":{"type":"string"}},{"maxItems":3}],"unevaluatedItems":false}`, `{"type":"array","items":false}`, false},
		{`{"type":"array","prefixItems":[{"type":"string"}],"items":false}`, `{"type":"array","allOf":[{"prefixItems":[true]}],"unevaluatedItems":false}`, true},
		{`{"type":"array","prefixItems":[{"type":"string"}],"items":false}`, `{"type":"array","anyOf":[{"prefixItems":[{"type":"integer"}]},true],"unevaluatedItems":false}`, false},
	})
}

func TestProveObjects(t *testing.T) {
	checkStrict(t, []claim{
		{`{"type":"object","properties":{"a":{"type":"integer"}}}`, `{"type":"object","properties":{"a":{"type":"number"}}}`, true},
		{`{"type":"object","properties":{"a":{"type":"number"}}}`, `{"type":"object","properties":{"a":{"type":"integer"}}}`, false},
		{`{"type":"object","patternProperties":{"^x-":{"type":"integer"}}}`, `{"type":"object","properties":{"x-a":{"type":"number"}}}`, true},
		{`{"type":"object","patternProperties":{"^x-":{"type":"integer"}}}`, `{"type":"object","properties":{"xa":{"type":"number"}}}`, false},
		{`{"type":"object","additionalProperties":{"type":"integer"}}`, `{"type":"object","additionalProperties":{"type":"number"}}`, true},
		{`{"type":"object","additionalProperties":{"type":"integer"}}`, `{"type":"object","patternProperties":{"^x-":{"type":"string"}}}`, false},
		{`{"type":"object","properties":{"a":{"type":"string"}},"additionalProperties":{"type":"integer"}}`, `{"type":"object","additionalProperties":{"type":["integer","string"]}}`, true},
		{`{"type":"object","properties":{"a":{"type":"string"}},"additionalProperties":{"type":"integer"}}`, `{"type":"object","additionalProperties":{"type":"integer"}}`, false},
		{`{"type":"object","patternProperties":{"^x-":{"type":"integer"}},"additionalProperties":false}`, `{"type":"object","additionalProperties":{"type":"integer"}}`, true},
		{`{"type":"object","patternProperties":{"^x-":{"type":"integer"}},"additionalProperties":false}`, `{"type":"object","patternProperties":{"^x":{"type":"number"}},"additionalProperties":false}`, true},
		{`{"type":"object","patternProperties":{"^x":{"type":"integer"}},"additionalProperties":false}`, `{"type":"object","patternProperties":{"^x-":{"type":"number"}},"additionalProperties":false}`, false},
		{`{"type":"object","patternProperties":{"^a":{"type":"integer"},"^b":{"type":"string"}},"additionalProperties":false}`, `{"type":"object","patternProperties":{"^a":{"type":"number"}},"additionalProperties":{"type":"string"}}`, true},
		{`{"type":"object","patternProperties":{"^a":{"type":"integer"},"b$":{"type":"string"}},"additionalProperties":false}`, `{"type":"object","patternProperties":{"^a":{"type":"number"}},"additionalProperties":{"type":"string"}}`, true},
		{`{"type":"object","patternProperties":{"^a":{"type":"integer"},"b$":{"type":["integer","string"]}},"additionalProperties":false}`, `{"type":"object","patternProperties":{"^a":{"type":"integer"}},"additionalProperties":{"type":"string"}}`, false},
		{`{"type":"object","propertyNames":{"maxLength":3}}`, `{"type":"object","propertyNames":{"maxLength":4}}`, true},
		{`{"type":"object","propertyNames":{"maxLength":4}}`, `{"type":"object","propertyNames":{"maxLength":3}}`, false},
		{`{"type":"object","propertyNames":{"pattern":"^[a-z]+$"}}`, `{"type":"object","patternProperties":{"[A-Z]":false}}`, true},
		{`{"type":"object","propertyNames":{"enum":["a","b"]}}`, `{"type":"object","patternProperties":{"^[ab]$":true},"additionalProperties":false}`, true},
		{`{"type":"object","propertyNames":{"enum":["a","b"]}}`, `{"type":"object","properties":{"a":true,"b":true},"additionalProperties":false}`, true},
		{`{"type":"object","propertyNames":{"enum":["a","b","c"]}}`, `{"type":"object","properties":{"a":true,"b":true},"additionalProperties":false}`, false},
		{`{"type":"object","properties":{"abc":true},"additionalProperties":false}`, `{"type":"object","propertyNames":{"maxLength":3}}`, true},
		{`{"type":"object","properties":{"abcd":true},"additionalProperties":false}`, `{"type":"object","propertyNames":{"maxLength":3}}`, false},
		{`{"type":"object","properties":{"a":true,"b":true},"additionalProperties":false}`, `{"type":"object","maxProperties":2}`, true},
		{`{"type":"object","properties":{"a":true,"b":true,"c":true},"additionalProperties":false}`, `{"type":"object","maxProperties":2}`, false},
		{`{"type":"object","properties":{"a":true,"b":false},"additionalProperties":false}`, `{"type":"object","maxProperties":1}`, true},
		{`{"type":"object","required":["a","b"]}`, `{"type":"object","minProperties":2}`, true},
		{`{"type":"object","required":["a"]}`, `{"type":"object","minProperties":2}`, false},
		{`{"type":"object","required":["a"],"dependentRequired":{"a":["b"]}}`, `{"type":"object","required":["b"]}`, true},
		{`{"type":"object","dependentRequired":{"a":["b"]}}`, `{"type":"object","required":["b"]}`, false},
		{`{"type":"object","required":["b"]}`, `{"type":"object","dependentRequired":{"a":["b"]}}`, true},
		{`{"type":"object"}`, `{"type":"object","dependentRequired":{"a":["b"]}}`, false},
		{`{"type":"object","properties":{"a":false}}`, `{"type":"object","dependentRequired":{"a":["b"]}}`, true},
		{`{"type":"object","dependentSchemas":{"a":{"required":["b"]}}}`, `{"type":"object","dependentRequired":{"a":["b"]}}`, true},
		{`{"type":"object","dependentRequired":{"a":["b"]}}`, `{"type":"object","dependentSchemas":{"a":{"required":["b"]}}}`, true},
		{`{"type":"object","dependentSchemas":{"a":{"properties":{"a":{"type":"string"}}}}}`, `{"type":"object","properties":{"a":{"type":"string"}}}`, true},
		{`{"type":"object","dependentSchemas":{"a":{"properties":{"b":{"type":"string"}}}}}`, `{"type":"object","properties":{"b":{"type":"string"}}}`, false},
		{`{"type":"object","required":["a"],"dependentSchemas":{"a":{"properties":{"b":{"type":"string"}}}}}`, `{"type":"object","properties":{"b":{"type":"string"}}}`, true},
		{`{"type":"object","required":["a"],"properties":{"a":false}}`, `false`, true},
		{`{"type":"object","required":["a"],"propertyNames":{"minLength":2}}`, `false`, true},
		{`{"type":"object","required":["a","b"],"maxProperties":1}`, `false`, true},
		// A pattern is not taken for another that begins with a NUL.
		{`{"type":"object","propertyNames":{"pattern":"a"},"patternProperties":{"\u0000a":{"type":"string"}}}`, `{"type":"object","patternProperties":{"a":{"type":"string"}},"additionalProperties":{"type":"string"}}`, false},
	})
}

func TestProveUnevaluated(t *testing.T) {
	const base = `"$defs":{"base":{"type":"object","properties":{"a":{"type":"string"}}}}`
	checkStrict(t, []claim{
		{`{"type":"object","properties":{"a":true},"unevaluatedProperties":false}`, `{"type":"object","properties":{"a":true,"b":true},"unevaluatedProperties":false}`, true},
		{`{"type":"object","properties":{"a":true,"b":true},"unevaluatedProperties":false}`, `{"type":"object","properties":{"a":true},"unevaluatedProperties":false}`, false},
		{`{` + base + `,"$ref":"#/$defs/base","properties":{"b":true},"unevaluatedProperties":false}`, `{` + base + `,"$ref":"#/$defs/base","properties":{"b":true,"c":true},"unevaluatedProperties":false}`, true},
		{`{` + base + `,"$ref":"#/$defs/base","properties":{"b":true},"unevaluatedProperties":false}`, `{` + base + `,"$ref":"#/$defs/base","unevaluatedProperties":false}`, false},
		{`{"type":"object","properties":{"a":true},"additionalProperties":false}`, `{"type":"object","anyOf":[{"properties":{"a":{"type":"string"}}},true],"unevaluatedProperties":false}`, false},
		{`{"type":"object","anyOf":[{"properties":{"a":true}},{"properties":{"b":true}}],"unevaluatedProperties":false}`, `{"type":"object","properties":{"a":true,"b":true},"additionalProperties":false}`, true},
		{`{"type":"object","anyOf":[{"properties":{"a":true}},{"additionalProperties":true}],"unevaluatedProperties":false}`, `{"type":"object","properties":{"a":true},"additionalProperties":false}`, false},
		{`{"type":"object","allOf":[{"additionalProperties":{"type":"string"}}],"unevaluatedProperties":false}`, `{"type":"object","additionalProperties":false}`, false},
		{`{"type":"object","properties":{"c":true},"anyOf":[{"patternProperties":{"^x":true}},{"required":["c"]}],"unevaluatedProperties":false}`, `{"type":"object","properties":{"c":true},"additionalProperties":false}`, false},
	})
}

// What contains has found counts as evaluated from 2020-12 on.
func TestProveUnevaluatedAcrossDrafts(t *testing.T) {
	const d19, d20 = `"$schema":"https://json-schema.org/draft/2019-09/schema"`, `"$schema":"https://json-schema.org/draft/2020-12/schema"`
	for _, part := range []string{`"contains":{"const":1}`, `"allOf":[{"contains":{"const":1}}]`} {
		before, after := `{`+d20+`,`+part+`,"unevaluatedItems":false}`, `{`+d19+`,`+part+`,"unevaluatedItems":false}`
		checkStrict(t, []claim{{before, after, false}})
		if v := Compare(compiled(t, before), compiled(t, after), Strict); v.Result != Refuted {
			t.Errorf("%s\n -> %s\n%v", before, after, v)
		}
	}
}

func TestProveUnions(t *testing.T) {
	const (
		a = `{"type":"object","properties":{"kind":{"const":"a"},"x":{"type":"integer"}},"required":["kind","x"]}`
		b = `{"type":"object","properties":{"kind":{"const":"b"},"y":{"type":"string"}},"required":["kind"]}`
		c = `{"type":"object","properties":{"kind":{"const":"c"},"z":{"type":"string"}},"required":["kind"]}`
		o = `{"type":"object","properties":{"kind":{"const":"b"},"y":{"type":"string"}}}` // kind is optional
	)
	checkStrict(t, []claim{
		{`{"oneOf":[` + a + `,` + b + `]}`, `{"oneOf":[` + c + `,` + a + `,` + b + `]}`, true},
		{`{"oneOf":[` + a + `,` + b + `,` + c + `]}`, `{"oneOf":[` + a + `,` + b + `]}`, false},
		{`{"oneOf":[` + a + `,` + b + `]}`, `{"anyOf":[` + a + `,` + b + `]}`, true},
		{`{"anyOf":[` + a + `,` + b + `]}`, `{"oneOf":[` + a + `,` + b + `]}`, true},
		{`{"anyOf":[` + b + `,` + c + `]}`, `{"oneOf":[` + b + `,` + c + `]}`, true},
		{`{"anyOf":[` + o + `,{"type":"object","properties":{"kind":{"const":"c"}}}]}`, `{"oneOf":[` + o + `,{"type":"object","properties":{"kind":{"const":"c"}}}]}`, false},
		{`{"oneOf":[{"type":"integer","minimum":0},{"type":"integer","maximum":5}]}`, `{"oneOf":[{"type":"integer","minimum":0},{"type":"integer","maximum":5},{"type":"null"}]}`, true},
		{`{"anyOf":[{"type":"integer","minimum":0},{"type":"integer","maximum":5}]}`, `{"oneOf":[{"type":"integer","minimum":0},{"type":"integer","maximum":5}]}`, false},
		{`{"type":"object","properties":{"kind":{"enum":["a","b"]}},"required":["kind"]}`, `{"oneOf":[{"type":"object","properties":{"kind":{"const":"a"}},"required":["kind"]},{"type":"object","properties":{"kind":{"const":"b"}},"required":["kind"]}]}`, true},
		{`{"type":"object","properties":{"kind":{"enum":["a","b"]}}}`, `{"oneOf":[{"type":"object","properties":{"kind":{"const":"a"}},"required":["kind"]},{"type":"object","properties":{"kind":{"const":"b"}},"required":["kind"]}]}`, false},
		{`{"type":"object","properties":{"kind":{"enum":["a","b"]}},"required":["kind"]}`, `{"oneOf":[{"type":"object","properties":{"kind":{"const":"a"}}},{"type":"object","properties":{"kind":{"enum":["a","b"]}}}]}`, false},
		{`{"type":"object","properties":{"ok":{"type":"boolean"}},"required":["ok"]}`, `{"anyOf":[{"type":"object","properties":{"ok":{"const":true}}},{"type":"object","properties":{"ok":{"const":false}}}]}`, true},
		{`{"type":"object","properties":{"v":{"type":["string","integer"]}},"required":["v"]}`, `{"anyOf":[{"properties":{"v":{"type":"string"}}},{"properties":{"v":{"type":"integer"}}}]}`, true},
		{`{"type":"object","properties":{"v":{"type":["string","number"]}}}`, `{"anyOf":[{"properties":{"v":{"type":"string"}}},{"properties":{"v":{"type":"integer"}}}]}`, false},
		{`{"type":"object","properties":{"a":true,"b":true}}`, `{"anyOf":[{"required":["a"]},{"not":{"required":["a"]}}]}`, true},
		{`{"type":"object"}`, `{"anyOf":[{"required":["a"]},{"not":{"required":["b"]}}]}`, false},
		{`{"allOf":[{"type":"object","properties":{"a":{"type":"string"}}},{"required":["a"]}]}`, `{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}`, true},
		{`{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}`, `{"allOf":[{"type":"object","properties":{"a":{"type":"string"}}},{"required":["a","b"]}]}`, false},
	})
}

func TestProveConditions(t *testing.T) {
	const cond = `"if":{"properties":{"k":{"const":"x"}},"required":["k"]}`
	checkStrict(t, []claim{
		{`{"type":"object",` + cond + `,"then":{"required":["a","b"]}}`, `{"type":"object",` + cond + `,"then":{"required":["a"]}}`, true},
		{`{"type":"object",` + cond + `,"then":{"required":["a"]}}`, `{"type":"object",` + cond + `,"then":{"required":["a","b"]}}`, false},
		{`{"type":"object",` + cond + `,"else":{"required":["a","b"]}}`, `{"type":"object",` + cond + `,"else":{"required":["a"]}}`, true},
		{`{"type":"object",` + cond + `,"else":{"required":["a"]}}`, `{"type":"object",` + cond + `,"else":{"required":["a","b"]}}`, false},
		{`{"type":"object",` + cond + `,"then":{"required":["a"]},"else":{"required":["b"]}}`, `{"anyOf":[{"required":["a"]},{"required":["b"]}]}`, true},
		{`{"type":"object",` + cond + `,"then":{"required":["a"]}}`, `{"type":"object","required":["a"]}`, false},
		{`{"type":"object","required":["a"]}`, `{"type":"object",` + cond + `,"then":{"required":["a"]}}`, true},
		{`{"type":"object","properties":{"k":{"const":"y"}}}`, `{"type":"object",` + cond + `,"then":{"required":["a"]}}`, true},
		{`{"if":{"type":"string"},"then":{"minLength":1},"else":{"type":"null"}}`, `{"type":["string","null"]}`, true},
		{`{"if":{"type":"string"},"then":{"minLength":1}}`, `{"type":["string","null"]}`, false},
		{`{"not":{"type":"string"}}`, `{"not":{"type":"string","minLength":1}}`, true},
		{`{"not":{"type":"string","minLength":1}}`, `{"not":{"type":"string"}}`, false},
		{`{"type":"integer"}`, `{"not":{"type":"string"}}`, true},
		{`{"type":"integer","not":{"minimum":5}}`, `{"maximum":4}`, true},
		{`{"type":"integer","not":{"minimum":5}}`, `{"maximum":3}`, false},
		{`{"type":"number","not":{"minimum":5,"multipleOf":2}}`, `{"maximum":5}`, false},
		{`{"type":"number","not":{"type":"string","minimum":5}}`, `{"maximum":5}`, false},
		{`{"not":{"not":{"type":"string"}}}`, `{"type":"string"}`, true},
		{`{"type":"string"}`, `{"not":{"not":{"type":"string"}}}`, true},
		{`{"type":"string"}`, `{"not":{"not":{"type":"string","minLength":1}}}`, false},
	})
}

func TestProveRecursion(t *testing.T) {
	tree := func(value, further string) string {
		return `{"$ref":"#/$defs/tree","$defs":{"tree":{"type":"object","properties":{"v":` + value + `,"kids":{"type":"array","items":{"$ref":"#/$defs/tree"}}}` + further + `}}}`
	}
	list := func(value, end string) string {
		return `{"$ref":"#/$defs/l","$defs":{"l":{"type":"object","properties":{"v":` + value + `,"next":{"anyOf":[{"$ref":"#/$defs/l"},` + end + `]}},"required":["v","next"]}}}`
	}
	checkStrict(t, []claim{
		{tree(`{"type":"integer"}`, ``), tree(`{"type":"number"}`, ``), true},
		{tree(`{"type":"number"}`, ``), tree(`{"type":"integer"}`, ``), false},
		{tree(`{"type":"number"}`, `,"additionalProperties":false`), tree(`{"type":"number"}`, ``), true},
		{tree(`{"type":"number"}`, ``), tree(`{"type":"number"}`, `,"additionalProperties":false`), false},
		{list(`{"type":"integer"}`, `{"type":"null"}`), list(`{"type":"number"}`, `{"type":"null"}`), true},
		{list(`{"type":"integer"}`, `{"type":"null"}`), list(`{"type":"integer"}`, `{"type":"boolean"}`), false},
		// No value ends such a list, so that nothing fits it.
		{`{"$ref":"#/$defs/l","$defs":{"l":{"type":"object","properties":{"next":{"$ref":"#/$defs/l"}},"required":["next"]}}}`, `false`, true},
		{`{"$ref":"#/$defs/l","$defs":{"l":{"type":"object","properties":{"next":{"$ref":"#/$defs/l"}}}}}`, `false`, false},
		{
			`{"$ref":"#/$defs/a","$defs":{"a":{"type":"object","properties":{"b":{"$ref":"#/$defs/b"}}},"b":{"type":"array","items":{"$ref":"#/$defs/a"}}}}`,
			`{"type":"object","properties":{"b":{"$ref":"#/$defs/c"}},"$defs":{"c":{"items":{"properties":{"b":{"$ref":"#/$defs/c"}}}}}}`, true,
		},
		// An assumption about the whole must not prove it of the whole.
		{`{"type":"object"}`, `{"$ref":"#/$defs/a","$defs":{"a":{"anyOf":[{"type":"string"},{"type":"object","properties":{"a":{"$ref":"#/$defs/a"}}}]}}}`, false},
		// Even and odd depths.
		{
			`{"$ref":"#/$defs/e","$defs":{"e":{"type":"array","items":{"$ref":"#/$defs/o"}},"o":{"type":"array","items":{"$ref":"#/$defs/e"}}}}`,
			`{"$ref":"#/$defs/x","$defs":{"x":{"type":"array","items":{"$ref":"#/$defs/x"}}}}`, true,
		},
		{
			`{"$ref":"#/$defs/x","$defs":{"x":{"type":"array","items":{"$ref":"#/$defs/x"}}}}`,
			`{"$ref":"#/$defs/e","$defs":{"e":{"type":"array","items":{"$ref":"#/$defs/o"}},"o":{"type":"array","maxItems":3,"items":{"$ref":"#/$defs/e"}}}}`, false,
		},
		// That B is within B' leans on A being within A', which fails for z: it must
		// not be remembered when the second branch asks for it.
		{
			`{"$ref":"#/$defs/a","$defs":{"a":{"type":"object","properties":{"x":{"$ref":"#/$defs/b"}}},"b":{"type":"object","properties":{"y":{"$ref":"#/$defs/a"}}}}}`,
			`{"anyOf":[{"$ref":"#/$defs/a"},{"properties":{"x":{"$ref":"#/$defs/b"}}}],"$defs":{"a":{"type":"object","properties":{"x":{"$ref":"#/$defs/b"},"z":{"type":"string"}}},"b":{"type":"object","properties":{"y":{"$ref":"#/$defs/a"}}}}}`, false,
		},
		// That D is not within D' makes a doubt of C, which is proved when it is asked for again: of
		// the names that begin with p, and of no others.
		{
			`{"type":"object","properties":{"w":{"$ref":"#/$defs/c"},"y":{"$ref":"#/$defs/d"}},"$defs":{"c":{"type":"object","properties":{"d":{"$ref":"#/$defs/d"}}},"d":{"type":"object","patternProperties":{"^p":{"$ref":"#/$defs/c"},"^q":{"type":"string"}}}}}`,
			`{"type":"object","properties":{"w":{"anyOf":[{"$ref":"#/$defs/c"},{"type":"object"}]},"y":{"$ref":"#/$defs/d"}},"$defs":{"c":{"type":"object","properties":{"d":{"$ref":"#/$defs/d"}}},"d":{"type":"object","patternProperties":{"^p":{"$ref":"#/$defs/c"},"^q":{"type":"integer"}}}}}`, false,
		},
		// What nothing fits is found within a union as well, and under not.
		{
			`{"anyOf":[{"type":"null"},{"$ref":"#/$defs/l"}],"$defs":{"l":{"type":"object","properties":{"next":{"anyOf":[{"$ref":"#/$defs/l"},{"$ref":"#/$defs/l"}]}},"required":["next"]}}}`,
			`{"type":"null"}`, true,
		},
		{
			`{"type":"object"}`,
			`{"not":{"$ref":"#/$defs/l"},"$defs":{"l":{"type":"object","properties":{"next":{"$ref":"#/$defs/l"}},"required":["next"]}}}`, true,
		},
		{
			`{"type":"object"}`,
			`{"not":{"$ref":"#/$defs/l"},"$defs":{"l":{"type":"object","properties":{"next":{"$ref":"#/$defs/l"}}}}}`, false,
		},
		// A node is one whose kid is none.
		{
			`{"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"k":{"not":{"$ref":"#/$defs/n"}}}}}}`,
			`{"type":"object","properties":{"k":{"not":{"type":"object","properties":{"k":{"not":{"type":"object"}}}}}}}`, true,
		},
		{
			`{"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"k":{"not":{"$ref":"#/$defs/n"}}}}}}`,
			`{"type":"object","properties":{"k":{"not":{"type":"object","properties":{"k":{"not":{"type":"object","required":["k"]}}}}}}}`, false,
		},
	})
}
