package schema

import (
	"strings"
	"testing"
)

// The table of the content models: what adding and removing properties does to
// the two directions, for each way to speak of further properties.
func TestProveModels(t *testing.T) {
	const (
		base     = `{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]%s}`
		optional = `{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"integer"}},"required":["a"]%s}`
		required = `{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"integer"}},"required":["a","b"]%s}`
		filled   = `{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"integer","default":0}},"required":["a","b"]%s}`
	)
	const y, n = true, false
	type row struct {
		name, old, new string
		backward       bool
		forward        bool
		whenOpen       [2]bool // backward, forward: additionalProperties absent in strict; true in both models
		whenClosed     [2]bool // false in strict
	}
	rows := []row{
		{name: "add optional", old: base, new: optional, backward: y, forward: y, whenOpen: [2]bool{n, y}, whenClosed: [2]bool{y, n}},
		{name: "add required", old: base, new: required, backward: n, forward: y, whenOpen: [2]bool{n, y}, whenClosed: [2]bool{n, n}},
		{name: "add required with default", old: base, new: filled, backward: n, forward: y, whenOpen: [2]bool{n, y}, whenClosed: [2]bool{n, n}},
		{name: "remove optional", old: optional, new: base, backward: y, forward: y, whenOpen: [2]bool{y, n}, whenClosed: [2]bool{n, y}},
		{name: "remove required", old: required, new: base, backward: y, forward: n, whenOpen: [2]bool{y, n}, whenClosed: [2]bool{n, n}},
		{name: "optional to required", old: optional, new: required, backward: n, forward: y, whenOpen: [2]bool{n, y}, whenClosed: [2]bool{n, y}},
		{name: "required to optional", old: required, new: optional, backward: y, forward: n, whenOpen: [2]bool{y, n}, whenClosed: [2]bool{y, n}},
	}
	for _, r := range rows {
		for _, further := range []string{``, `,"additionalProperties":false`, `,"additionalProperties":true`} {
			strict, declared := r.whenOpen, [2]bool{r.backward, r.forward}
			switch {
			case strings.HasSuffix(further, "false"):
				strict = r.whenClosed
			case strings.HasSuffix(further, "true"):
				declared = r.whenOpen
			}
			before, after := strings.ReplaceAll(r.old, "%s", further), strings.ReplaceAll(r.new, "%s", further)
			for i, pair := range [][2]string{{before, after}, {after, before}} {
				if got, reasons := proveStrict(t, pair[0], pair[1]); got != strict[i] {
					t.Errorf("%s, %q, strict, direction %d: %v, want %v: %v", r.name, further, i, got, strict[i], reasons)
				}
				if got, reasons := proveDeclared(t, pair[0], pair[1]); got != declared[i] {
					t.Errorf("%s, %q, declared, direction %d: %v, want %v: %v", r.name, further, i, got, declared[i], reasons)
				}
			}
		}
	}
}

// What the proof does not understand is never a reason to say yes.
func TestProveBeyond(t *testing.T) {
	const tree = `{"$schema":"https://json-schema.org/draft/2020-12/schema","$id":"schema://tree/1","$dynamicAnchor":"node","type":"object","properties":{"v":%s,"kids":{"type":"array","items":{"$dynamicRef":"#node"}}}}`
	narrow, wide := strings.ReplaceAll(tree, "%s", `{"type":"integer"}`), strings.ReplaceAll(tree, "%s", `{"type":"number"}`)
	for _, pair := range [][2]string{{narrow, wide}, {wide, narrow}, {`{"const":{"kids":[{}]}}`, wide}} {
		ok, reasons := proveStrict(t, pair[0], pair[1])
		if ok {
			t.Errorf("%s\n -> %s\nis proved", pair[0], pair[1])
		}
		if len(reasons) == 0 {
			t.Errorf("%s\n -> %s\nno reasons", pair[0], pair[1])
		}
	}
	if ok, reasons := proveStrict(t, wide, `{"type":"object","properties":{"v":{"type":"number"}}}`); !ok {
		t.Errorf("what is understood is not used: %v", reasons)
	}
	if ok, _ := proveStrict(t, `{"$schema":"http://json-schema.org/draft-07/schema#","type":"string"}`, `{"$schema":"http://json-schema.org/draft-07/schema#","type":"string","contentEncoding":"base64"}`); ok {
		t.Error("contentEncoding is passed over")
	}
}

func TestProveDeclared(t *testing.T) {
	checkClaims(t, []claim{
		{`{"type":"object","properties":{"a":{"type":"string"}}}`, `{"type":"object","properties":{"a":{"type":"integer"}}}`, false},
		{`{"allOf":[{"properties":{"a":{"type":"string"}}},{"properties":{"b":{"type":"string"}}}]}`, `{"properties":{"a":{"type":"string"},"b":{"type":"string"},"c":{"type":"integer"}}}`, true},
		{`{"allOf":[{"properties":{"a":{"type":"string"}}},{"properties":{"b":{"type":"string"}}}]}`, `{"properties":{"a":{"type":"string"},"b":{"type":"integer"}}}`, false},
		{`{"type":"object"}`, `{"type":"object","properties":{"a":{"type":"string"}}}`, false},
		{`{"type":"object","properties":{"n":{"type":"object","properties":{"x":{"type":"string"}}}}}`, `{"type":"object","properties":{"n":{"type":"object","properties":{"x":{"type":"string"},"y":{"type":"string"}},"additionalProperties":false}}}`, true},
		{`{"type":"object","properties":{"n":{"type":"object"}}}`, `{"type":"object","properties":{"n":{"type":"object","properties":{"y":{"type":"string"}}}}}`, false},
		// What any branch declares, a value of another branch may have.
		{
			`{"anyOf":[{"properties":{"k":{"const":"a"},"n":{"properties":{"x":{"type":"string"}}}},"required":["k"]},{"properties":{"k":{"const":"b"},"n":{"properties":{"y":true}}}}]}`,
			`{"properties":{"k":true,"n":{"properties":{"y":{"type":"string"}}}}}`, false,
		},
		{
			`{"anyOf":[{"properties":{"n":{"properties":{"x":{"type":"string"}}}}},{"properties":{"n":{"properties":{"x":{"type":"string"}}}}}]}`,
			`{"properties":{"n":{"properties":{"x":{"type":"string"},"y":{"type":"string"}}}}}`, true,
		},
		{`{"type":"object","additionalProperties":{"type":"object","properties":{"x":{"type":"string"}}}}`, `{"type":"object","additionalProperties":{"type":"object","properties":{"x":{"type":"string"},"y":{"type":"string"}}}}`, true},
		{`{"type":"object","patternProperties":{"^k":{"type":"object","properties":{"x":{"type":"string"}}}}}`, `{"type":"object","patternProperties":{"^k":{"type":"object","properties":{"x":{"type":"string"},"y":{"type":"string"}}}}}`, true},
		{`{"type":"array","items":{"type":"object","properties":{"x":{"type":"string"}}}}`, `{"type":"array","items":{"type":"object","properties":{"x":{"type":"string"},"y":{"type":"string"}}}}`, true},
		// A property that contains alone speaks of is not declared by it.
		{`{"type":"array","items":{"type":"object","properties":{"x":true}},"contains":{"required":["y"]}}`, `{"type":"array","maxItems":0}`, false},
		{`{"type":"array","contains":{"type":"object","properties":{"x":true}}}`, `{"type":"array","contains":{"type":"object","properties":{"y":{"type":"string"}}}}`, false},
		{`{"type":"object","properties":{"a":true},"required":["b"]}`, `{"type":"object","properties":{"b":{"type":"string"}}}`, false},
		{
			`{"$ref":"#/$defs/t","$defs":{"t":{"type":"object","properties":{"kids":{"type":"array","items":{"$ref":"#/$defs/t"}}}}}}`,
			`{"$ref":"#/$defs/t","$defs":{"t":{"type":"object","properties":{"label":{"type":"string"},"kids":{"type":"array","items":{"$ref":"#/$defs/t"}}},"additionalProperties":false}}}`, true,
		},
		{`{"type":"object","properties":{"a":true,"b":true}}`, `{"type":"object","properties":{"a":true},"unevaluatedProperties":false}`, true},
		{ // as in TestProveRecursion
			`{"type":"object","properties":{"w":{"$ref":"#/$defs/c"},"y":{"$ref":"#/$defs/d"}},"$defs":{"c":{"type":"object","properties":{"d":{"$ref":"#/$defs/d"}}},"d":{"type":"object","patternProperties":{"^p":{"$ref":"#/$defs/c"},"^q":{"type":"string"}}}}}`,
			`{"type":"object","properties":{"w":{"anyOf":[{"$ref":"#/$defs/c"},{"type":"object"}]},"y":{"$ref":"#/$defs/d"}},"$defs":{"c":{"type":"object","properties":{"d":{"$ref":"#/$defs/d"}}},"d":{"type":"object","patternProperties":{"^p":{"$ref":"#/$defs/c"},"^q":{"type":"integer"}}}}}`, false,
		},
	}, proveDeclared)
	// What is forbidden on the reader's side passes, under not as well.
	if ok, _ := proveDeclared(t, `{"type":"object","properties":{"a":true,"b":true},"required":["b"]}`, `{"not":{"type":"object","properties":{"a":true},"additionalProperties":false}}`); ok {
		t.Error("a reader's not is taken as it is written")
	}
}

// Proved is transitive in the strict model: it is inclusion.
func TestProveTransitive(t *testing.T) {
	chain := []string{
		`{"type":"object","properties":{"a":{"const":"x"},"b":{"type":"integer","minimum":3}},"required":["a","b"],"additionalProperties":false}`,
		`{"type":"object","properties":{"a":{"enum":["x","y"]},"b":{"type":"integer","minimum":1}},"required":["a"],"additionalProperties":false}`,
		`{"type":"object","properties":{"a":{"type":"string","minLength":1},"b":{"type":"number"},"c":{"type":"null"}},"additionalProperties":false}`,
		`{"type":"object","properties":{"a":{"type":["string","null"]},"b":{"type":"number"}}}`,
		`{"type":["object","null"]}`,
		`{}`,
	}
	for i, a := range chain {
		for _, b := range chain[i:] {
			if ok, reasons := proveStrict(t, a, b); !ok {
				t.Errorf("%s\n -> %s: %v", a, b, reasons)
			}
		}
		for _, b := range chain[:i] {
			if ok, _ := proveStrict(t, a, b); ok {
				t.Errorf("%s\n -> %s is proved", a, b)
			}
		}
	}
}

// Two documents and their references.
func TestProveAcrossDocuments(t *testing.T) {
	item := func(value string) *Schema {
		s, err := Compile(`{"$id":"schema://item/1","type":"object","properties":{"v":`+value+`},"required":["v"]}`, Options{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	order := func(i *Schema) *node {
		s, err := Compile(`{"type":"object","properties":{"items":{"type":"array","items":{"$ref":"schema://item/1"}}}}`, Options{References: map[string]*Schema{"schema://item/1": i}})
		if err != nil {
			t.Fatal(err)
		}
		return s.root
	}
	narrow, wide := order(item(`{"type":"integer"}`)), order(item(`{"type":"number"}`))
	if ok, reasons := prove(narrow, wide, Strict); !ok {
		t.Errorf("wider: %v", reasons)
	}
	if ok, reasons := prove(wide, narrow, Strict); ok || len(reasons) != 1 || reasons[0].Path != "schema://item/1#/properties/v" {
		t.Errorf("narrower: %v %v", ok, reasons)
	}
}

// Events of a strict time, read by a program that passes over what it does not know.
func TestCompareModels(t *testing.T) {
	a, ab := compile(t, `{"type":"object","properties":{"a":{}}}`), compile(t, `{"type":"object","properties":{"a":{},"b":{"type":"integer"}}}`)
	closed := compile(t, `{"type":"object","properties":{"a":{}},"additionalProperties":false}`)
	for _, test := range []struct {
		name          string
		old, next     *Schema
		written, read Model
		want          Result
	}{
		{"a new property", a, ab, Declared, Declared, Proved},
		{"a new property that was written before", a, ab, Strict, Declared, Refuted},
		{"a new property that was forbidden", closed, ab, Strict, Declared, Proved},
		{"properties that are passed over", ab, closed, Strict, Declared, Proved},
		{"properties that are forbidden", ab, closed, Strict, Strict, Refuted},
		{"properties that nobody wrote, forbidden", a, closed, Declared, Strict, Proved},
	} {
		v := CompareModels(test.old, test.next, test.written, test.read)
		if v.Result != test.want {
			t.Errorf("%s: %s, want %s", test.name, v.Result, test.want)
		}
		if v.Result == Refuted && (test.old.Validate(v.Witness) != nil || len(v.Violations) == 0) {
			t.Errorf("%s: the witness %s shows nothing", test.name, v.Witness)
		}
	}
}
