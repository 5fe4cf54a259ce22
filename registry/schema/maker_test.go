package schema

import (
	"bytes"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// maker makes pairs of schemas that have something to do with each other. Its names,
// numbers and patterns are few, so that they meet.
type maker struct {
	r      *rand.Rand
	motifs []any
}

func newMaker(seed, i uint64) *maker {
	m := &maker{r: rand.New(rand.NewPCG(seed, i))}
	for _, text := range motifs {
		if doc, err := decode([]byte(text)); err == nil {
			m.motifs = append(m.motifs, doc)
		}
	}
	return m
}

// motifs are where keywords work together, which chance alone brings about too
// seldom.
var motifs = []string{
	`{"type":"array","contains":{"type":"integer"},"minContains":1,"maxContains":2}`,
	`{"type":"array","items":{"type":"integer"},"contains":{"minimum":1},"maxContains":1,"maxItems":3}`,
	`{"type":"array","prefixItems":[{"type":"string"}],"contains":{"type":"integer"},"minContains":2,"maxItems":3}`,
	`{"type":"array","prefixItems":[true],"contains":{"type":"integer"},"unevaluatedItems":false}`,
	`{"type":"array","allOf":[{"prefixItems":[{"type":"string"}]}],"unevaluatedItems":{"type":"integer"}}`,
	`{"type":"array","items":{"enum":["a","b",1]},"uniqueItems":true,"minItems":2}`,
	`{"type":"array","items":{"type":"integer"},"maxItems":2,"uniqueItems":true}`,
	`{"type":"object","properties":{"a":{"type":"string"}},"allOf":[{"properties":{"b":true}}],"unevaluatedProperties":false}`,
	`{"type":"object","properties":{"a":true},"dependentSchemas":{"a":{"properties":{"b":{"type":"integer"}}}},"unevaluatedProperties":{"type":"string"}}`,
	`{"type":"object","anyOf":[{"properties":{"a":{"const":1}},"required":["a"]},{"properties":{"b":{"const":1}},"required":["b"]}],"unevaluatedProperties":false}`,
	`{"type":"object","properties":{"a":true},"patternProperties":{"^b":{"type":"integer"}},"additionalProperties":{"type":"string"},"propertyNames":{"maxLength":2}}`,
	`{"type":"object","patternProperties":{"^a":{"minimum":1},"b$":{"maximum":2}},"additionalProperties":false,"minProperties":1}`,
	`{"type":"object","properties":{"a":{"anyOf":[{"$ref":"#"},{"type":"null"}]},"b":{"type":"integer"}},"required":["b"]}`,
	`{"type":["array","integer"],"items":{"$ref":"#"},"not":{"const":[]}}`,
	`{"not":{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}}`,
	`{"oneOf":[{"type":"integer"},{"type":"object","properties":{"a":{"$ref":"#"},"b":{"$ref":"#"}},"required":["a"]}]}`,
	`{"$ref":"#/$defs/d","$defs":{"d":{"type":"object","properties":{"a":{"$ref":"#/$defs/e"},"b":{"type":"string"}}},"e":{"type":"object","properties":{"a":{"$ref":"#/$defs/d"}}}}}`,
	`{"anyOf":[{"$ref":"#/$defs/d"},{"$ref":"#/$defs/e"}],"$defs":{"d":{"type":"object","properties":{"a":{"$ref":"#/$defs/e"},"b":{"type":"string"}}},"e":{"type":"object","properties":{"a":{"$ref":"#/$defs/d"}}}}}`,
	`{"type":"object","properties":{"a":{"anyOf":[{"$ref":"#/$defs/d"},{"type":"object"}]},"b":{"$ref":"#/$defs/e"}},"$defs":{"d":{"type":"object","properties":{"a":{"$ref":"#/$defs/e"}}},"e":{"type":"object","patternProperties":{"^a":{"$ref":"#/$defs/d"},"^b":{"type":"string"}}}}}`,
	`{"type":"object","required":["a"],"properties":{"a":{"enum":["a","b",1,null]}},"oneOf":[{"properties":{"a":{"const":"a"}}},{"properties":{"a":{"const":"b"},"b":{"type":"integer"}},"required":["b"]}]}`,
	`{"if":{"required":["a"]},"then":{"required":["b"]},"else":{"properties":{"c":{"type":"integer"}}},"properties":{"a":{"type":"string"}}}`,
	`{"type":"string","minLength":1,"maxLength":3,"pattern":"^[a-c]*$","not":{"enum":["ab","a"]}}`,
	`{"type":"number","minimum":0,"exclusiveMaximum":10,"multipleOf":0.5,"not":{"multipleOf":2}}`,
	`{"type":"integer","anyOf":[{"maximum":2},{"minimum":3,"maximum":5},{"minimum":6}]}`,
}

func (m *maker) n(k int) int           { return m.r.IntN(k) }
func (m *maker) chance(p float64) bool { return m.r.Float64() < p }

func choose[T any](m *maker, list ...T) T { return list[m.n(len(list))] }

// pair makes a schema and another, mostly the same with some changes.
func (m *maker) pair(corpus []any) (a, b any) {
	for same(a, b) {
		a, b = m.related(corpus)
	}
	return a, b
}

func (m *maker) related(corpus []any) (a, b any) {
	switch {
	case m.chance(.35):
		a = choose(m, corpus...)
	case m.chance(.25):
		a = choose(m, m.motifs...)
	default:
		a = m.document()
	}
	if b = a; m.chance(.05) {
		b = m.document()
	}
	for range 1 + m.n(3) {
		b = m.changed(b, 0)
	}
	if m.chance(.3) {
		a = m.changed(a, 0)
	}
	if m.chance(.5) {
		a, b = b, a
	}
	return a, b
}

// document makes a schema with definitions that its references name.
func (m *maker) document() any {
	d, ok := m.schema(0).(map[string]any)
	if !ok {
		d = map[string]any{}
	}
	if bytes.Contains(textOf(d), []byte("#/$defs")) {
		d["$defs"] = map[string]any{"d": m.schema(2), "e": m.schema(2)}
	}
	switch m.n(12) {
	case 0:
		d["$schema"] = "http://json-schema.org/draft-07/schema#"
	case 1:
		d["$schema"] = "https://json-schema.org/draft/2019-09/schema"
	case 2:
		d["$schema"] = "http://json-schema.org/draft-04/schema#"
	case 3:
		d["$schema"] = "http://json-schema.org/draft-06/schema#"
	}
	m.anchor(d)
	return d
}

// anchor makes what a document has of references that go by where they are reached from such
// that they name something.
func (m *maker) anchor(d map[string]any) {
	text := textOf(d)
	if bytes.Contains(text, []byte(`"$dynamicRef"`)) {
		delete(d, "$schema")
		d["$dynamicAnchor"] = "node"
		if defs, ok := d["$defs"].(map[string]any); ok && m.chance(.5) {
			if def, ok := defs["d"].(map[string]any); ok {
				def["$dynamicAnchor"] = "node"
				def["$id"] = "schema://inner"
			}
		}
	} else if bytes.Contains(text, []byte(`"$recursiveRef"`)) {
		d["$schema"] = "https://json-schema.org/draft/2019-09/schema"
		d["$recursiveAnchor"] = m.chance(.7)
	}
}

func (m *maker) schema(depth int) any {
	if m.chance(.06) {
		return m.chance(.7)
	}
	out := map[string]any{}
	kind := choose(m, "object", "object", "object", "array", "string", "number", "integer", "boolean", "null", "")
	if depth > 3 {
		kind = choose(m, "string", "number", "integer", "boolean", "null")
	}
	switch {
	case kind != "" && m.chance(.8):
		out["type"] = kind
	case m.chance(.3):
		out["type"] = []any{choose[any](m, "string", "object", "array", "null"), choose[any](m, "integer", "number", "boolean")}
	}
	for range m.n(4) {
		k := choose(m, keywordsOf(kind)...)
		out[k] = m.keyword(k, depth)
	}
	if m.chance(.25) && depth < 4 {
		k := choose(m, keywordsOf("")...)
		out[k] = m.keyword(k, depth)
		if k == "if" {
			out["then"], out["else"] = m.schema(depth+2), m.schema(depth+2)
		}
	}
	return out
}

func (m *maker) schemas(depth int) []any {
	out := []any{}
	for range 1 + m.n(3) {
		out = append(out, m.schema(depth+1))
	}
	return out
}

func keywordsOf(kind string) []string {
	switch kind {
	case "object":
		return []string{
			"properties", "properties", "properties", "required", "required", "additionalProperties", "additionalProperties", "patternProperties",
			"propertyNames", "minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties",
		}
	case "array":
		return []string{"items", "items", "prefixItems", "additionalItems", "contains", "minContains", "maxContains", "minItems", "maxItems", "uniqueItems", "unevaluatedItems"}
	case "string":
		return []string{"minLength", "maxLength", "pattern", "pattern", "format", "enum"}
	case "number", "integer":
		return []string{"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "enum"}
	}
	return []string{"anyOf", "oneOf", "allOf", "not", "if", "then", "else", "$ref", "enum", "const", "type", "$dynamicRef", "$recursiveRef"}
}

var everyKeyword = slices.Concat(keywordsOf("object"), keywordsOf("array"), keywordsOf("string"), keywordsOf("number"), keywordsOf(""))

// keyword makes a value for a keyword.
func (m *maker) keyword(k string, depth int) any {
	switch k {
	case "properties", "dependentSchemas":
		return m.members(depth, "a", "b", "c", "ab")
	case "patternProperties":
		return m.members(depth, "^a", "b$", "^[a-b]$", "c")
	case "required":
		return m.names()
	case "dependentRequired":
		return map[string]any{choose(m, "a", "b", "c"): m.names()}
	case "dependencies":
		return map[string]any{choose(m, "a", "b", "c"): choose(m, m.names(), m.schema(depth+1))}
	case "additionalProperties", "unevaluatedProperties", "additionalItems", "unevaluatedItems":
		return choose(m, any(false), any(false), any(true), m.schema(depth+1))
	case "items":
		if m.chance(.15) { // for the drafts that have no prefixItems
			return m.schemas(depth)
		}
		return m.schema(depth + 1)
	case "contains", "not", "if", "then", "else":
		return m.schema(depth + 1)
	case "propertyNames":
		return choose(m, any(map[string]any{"pattern": choose(m, patternPool...)}), any(map[string]any{"maxLength": m.count()}),
			any(map[string]any{"enum": m.names()}), m.schema(depth+2))
	case "prefixItems", "anyOf", "oneOf", "allOf":
		return m.schemas(depth)
	case "$dynamicRef":
		return choose[any](m, "#node", "#node", "#/$defs/d")
	case "$recursiveRef":
		return "#"
	case "$ref":
		return choose[any](m, "#/$defs/d", "#/$defs/e", "#")
	case "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum":
		if strings.HasPrefix(k, "exclusive") && m.chance(.15) { // of draft 4
			return m.chance(.7)
		}
		return choose[any](m, json.Number("0"), json.Number("1"), json.Number("2"), json.Number("10"), json.Number("0.5"), json.Number("-1"), json.Number("1.5"))
	case "multipleOf":
		return choose[any](m, json.Number("1"), json.Number("2"), json.Number("3"), json.Number("0.5"), json.Number("6"))
	case "uniqueItems":
		return m.chance(.8)
	case "pattern":
		return choose(m, patternPool...)
	case "format":
		return choose[any](m, "date", "date-time", "email", "ipv4", "uuid", "uri", "none")
	case "enum":
		out := []any{}
		for range 1 + m.n(4) {
			if v := m.constant(); !slices.ContainsFunc(out, func(x any) bool { return same(x, v) }) {
				out = append(out, v)
			}
		}
		return out
	case "const":
		return m.constant()
	case "type":
		return choose[any](m, "object", "string", "integer", "number", "array", []any{"string", "null"}, []any{"integer", "object"})
	}
	return m.count() // min*, max*
}

var patternPool = []any{"^a", "b$", "^[a-z]+$", "^[a-z0-9]*$", "^(a|b)$", "^a{1,3}$", "a.c", "^\\d+$", "", "^[^a]", "^a*b?$", "\\bab\\b"}

func (m *maker) count() any { return json.Number(strconv.Itoa(choose(m, 0, 1, 1, 2, 2, 3, 5))) }

func (m *maker) names() any {
	out := []any{}
	for _, n := range []string{"a", "b", "c"} {
		if m.chance(.4) {
			out = append(out, n)
		}
	}
	if len(out) == 0 {
		out = append(out, "a")
	}
	return out
}

func (m *maker) members(depth int, names ...string) any {
	out := map[string]any{}
	for range 1 + m.n(3) {
		out[choose(m, names...)] = m.schema(depth + 1)
	}
	return out
}

func (m *maker) constant() any {
	return choose[any](m, nil, true, false, json.Number("0"), json.Number("1"), json.Number("2"), json.Number("1.5"), "", "a", "b", "ab", "2024-01-02",
		[]any{}, []any{json.Number("1")}, map[string]any{}, map[string]any{"a": "a"}, map[string]any{"a": json.Number("1"), "b": "b"})
}

// changed makes one change somewhere in a schema's document; doc stays as it is.
func (m *maker) changed(doc any, depth int) any {
	s, ok := doc.(map[string]any)
	if !ok {
		return m.schema(depth + 1)
	}
	s = maps.Clone(s)
	if below := m.inner(s); len(below) > 0 && m.chance(.65) {
		k := choose(m, below...)
		s[k] = m.changedBelow(k, s[k], depth+1)
		return s
	}
	keys := slices.DeleteFunc(sortedKeys(s), func(k string) bool { return k == "$defs" || k == "definitions" || k == "$schema" })
	numbers := slices.DeleteFunc(slices.Clone(keys), func(k string) bool { _, ok := s[k].(json.Number); return !ok })
	if len(numbers) > 0 && m.chance(.4) {
		k := choose(m, numbers...)
		s[k] = m.tweaked(k, s[k], depth)
		return s
	}
	switch m.n(12) {
	case 0, 1:
		if len(keys) > 0 {
			delete(s, choose(m, keys...))
		}
	case 2, 3, 4:
		if len(keys) > 0 {
			k := choose(m, keys...)
			s[k] = m.tweaked(k, s[k], depth)
		}
	case 5, 6:
		k := choose(m, everyKeyword...)
		s[k] = m.keyword(k, depth+1)
	case 7:
		if t, ok := s["type"].(string); ok {
			k := choose(m, keywordsOf(t)...)
			s[k] = m.keyword(k, depth+1)
		}
	default:
		return m.wrapped(s, depth)
	}
	return s
}

// inner lists the keywords of s that hold schemas.
func (m *maker) inner(s map[string]any) []string {
	var out []string
	for _, k := range sortedKeys(s) {
		switch k {
		case "enum", "const", "required", "type", "dependentRequired", "$schema", "$ref", "default", "examples":
			continue
		}
		switch s[k].(type) {
		case map[string]any, []any:
			out = append(out, k)
		}
	}
	return out
}

func (m *maker) changedBelow(k string, v any, depth int) any {
	switch t := v.(type) {
	case []any:
		t = slices.Clone(t)
		switch i := m.n(len(t) + 1); {
		case i == len(t) || m.chance(.15):
			return append(t, m.schema(depth+1))
		case m.chance(.15):
			return slices.Delete(t, i, min(i+1, max(len(t), 2)))
		default:
			t[i] = m.changed(t[i], depth)
			return t
		}
	case map[string]any:
		switch k {
		case "properties", "patternProperties", "dependentSchemas", "$defs", "definitions", "dependencies":
			t = maps.Clone(t)
			names := sortedKeys(t)
			switch {
			case k != "$defs" && k != "definitions" && (len(names) == 0 || m.chance(.2)):
				maps.Copy(t, m.keyword(k, depth+1).(map[string]any))
			case k != "$defs" && k != "definitions" && m.chance(.2):
				delete(t, choose(m, names...))
			case len(names) > 0:
				n := choose(m, names...)
				t[n] = m.changed(t[n], depth)
			}
			return t
		}
	}
	return m.changed(v, depth)
}

// tweaked changes a keyword's value a little where it can be.
func (m *maker) tweaked(k string, v any, depth int) any {
	switch t := v.(type) {
	case json.Number:
		if r, ok := rational(t); ok && m.chance(.7) {
			step, _ := rational(choose[json.Number](m, "1", "-1", "0.5", "2"))
			if n, ok := exactly(r.Add(r, step)); ok {
				return n
			}
		}
	case []any:
		if k == "enum" || k == "required" || k == "type" {
			t = slices.Clone(t)
			if len(t) > 1 && m.chance(.5) {
				i := m.n(len(t))
				return slices.Delete(t, i, i+1)
			}
			if more, ok := m.keyword(k, depth).([]any); ok {
				return append(t, more...)
			}
			return t
		}
	case bool:
		return !t
	case string:
		if k == "type" {
			return []any{t, choose[any](m, "null", "string", "object", "number")}
		}
	}
	return m.keyword(k, depth+1)
}

// wrapped says the same as s in other words, or nearly.
func (m *maker) wrapped(s map[string]any, depth int) any {
	if depth == 0 { // the definitions stay at the root
		k := choose(m, keywordsOf("")...)
		s[k] = m.keyword(k, 2)
		return s
	}
	other := m.schema(depth + 1)
	switch m.n(8) {
	case 0:
		return map[string]any{"anyOf": []any{s, other}}
	case 1:
		return map[string]any{"allOf": []any{s}}
	case 2:
		return map[string]any{"oneOf": []any{other, s}}
	case 3:
		return map[string]any{"not": map[string]any{"not": s}}
	case 4:
		return map[string]any{"allOf": []any{other, s}}
	case 5:
		return map[string]any{"anyOf": []any{s, map[string]any{"type": "null"}}}
	case 6:
		return map[string]any{"if": other, "then": s, "else": s}
	}
	return map[string]any{"$ref": choose(m, "#/$defs/d", "#/$defs/e")}
}
