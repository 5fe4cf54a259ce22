package schema

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	js "github.com/santhosh-tekuri/jsonschema/v5"
)

// The library's own validation is the reference: evaluation accepts what it accepts, and
// finds the same violations.
func TestEvaluationAgreesWithLibrary(t *testing.T) {
	const pairs = 500
	corpus := corpusDocuments(t)
	for i := range uint64(pairs) {
		m := newMaker(7, i)
		a, b := m.pair(corpus)
		old, err := Compile(string(textOf(a)), Options{})
		if err != nil {
			continue
		}
		next, err := Compile(string(textOf(b)), Options{})
		if err != nil {
			continue
		}
		oldBy, nextBy := ofLibrary(t, old), ofLibrary(t, next)
		g := newGenerator(documentsOf(old), documentsOf(next), false, i)
		for try := range 40 {
			v := g.try(try)
			agree(t, old, oldBy, v)
			agree(t, next, nextBy, v)
		}
	}
}

// Keywords that the maker of schemas does not know.
func TestEvaluationAgreesOnRareKeywords(t *testing.T) {
	const d7, d19 = `"$schema":"http://json-schema.org/draft-07/schema",`, `"$schema":"https://json-schema.org/draft/2019-09/schema",`
	values := []any{}
	for _, text := range []string{
		`null`, `true`, `0`, `1`, `1.0`, `1e2`, `-0.5`, `9007199254740993`, `""`, `"a"`, `"é"`, `"2020-01-01"`, `"AA=="`, `"{}"`, `"("`, `[]`, `[1]`, `[1,1.0]`, `[1,"a",null]`,
		`[[],[[]]]`, `[{"a":1},{"a":1.0}]`, `{}`, `{"a":1}`, `{"a":1,"b":2}`, `{"a":{"a":{"b":[]}}}`, `{"b":"x","c":null}`, `{"(":1}`, `{"left":{"left":{},"x":1}}`,
		`{"data":[{"data":1}]}`, `{"children":[{"daat":1}]}`, `{"children":[{"data":1}]}`, `{"a":[1,2,{"b":3}],"aa":{"a":1}}`,
	} {
		v, err := decode([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		values = append(values, v)
	}
	for _, text := range append([]string{
		`{"unevaluatedProperties":false,"properties":{"a":true}}`,
		`{"unevaluatedProperties":false,"anyOf":[{"properties":{"a":true}},{"properties":{"b":true},"required":["b"]}]}`,
		`{"unevaluatedProperties":{"type":"integer"},"allOf":[{"patternProperties":{"^a":true}}],"not":{"required":["x"]}}`,
		`{"unevaluatedProperties":false,"if":{"properties":{"a":{"const":1}},"required":["a"]},"then":{"properties":{"b":true}},"else":{"properties":{"c":true}}}`,
		`{"unevaluatedProperties":false,"oneOf":[{"required":["a"],"properties":{"a":true}},{"required":["b"],"properties":{"b":true}}]}`,
		`{"unevaluatedProperties":false,"dependentSchemas":{"a":{"properties":{"a":true,"b":true}}}}`,
		`{"unevaluatedProperties":false,"allOf":[{"additionalProperties":{"type":"integer"}}]}`,
		`{"unevaluatedProperties":false,"allOf":[{"unevaluatedProperties":{"type":"integer"}}]}`,
		`{"unevaluatedItems":false,"prefixItems":[true]}`,
		`{"unevaluatedItems":false,"contains":{"type":"integer"}}`,
		`{"unevaluatedItems":{"type":"string"},"anyOf":[{"prefixItems":[true,true]},{"contains":{"const":null}},{"items":{"type":"integer"}}]}`,
		`{` + d19 + `"unevaluatedItems":false,"items":[true],"contains":{"type":"string"}}`,
		`{` + d19 + `"unevaluatedItems":false,"anyOf":[{"items":[true,true],"additionalItems":{"type":"null"}},{"items":{"type":"array"}}]}`,
		`{"contains":{"type":"integer"},"minContains":2}`, `{"contains":{"type":"integer"},"minContains":0,"maxContains":0}`, `{"contains":{"required":["a"]},"maxContains":1}`,
		`{` + d7 + `"items":[{"type":"integer"}],"additionalItems":false}`, `{` + d7 + `"items":[true],"additionalItems":{"type":"string"}}`,
		`{` + d7 + `"dependencies":{"a":["b","c"],"b":{"required":["c"]}}}`, `{"dependentRequired":{"a":["b"],"b":["c","d"]},"dependencies":{"a":{"minProperties":2}},"dependentSchemas":{"a":{"maxProperties":1}}}`,
		`{` + d7 + `"contentEncoding":"base64"}`, `{` + d7 + `"contentMediaType":"application/json"}`, `{` + d7 + `"contentEncoding":"base64","contentMediaType":"application/json"}`,
		`{"propertyNames":{"pattern":"^[ab]$","maxLength":1}}`, `{"propertyNames":false}`, `{"format":"regex"}`, `{"format":"date"}`, `{"propertyNames":{"format":"regex"}}`,
		`{"regexProperties":true}`, `{"const":1.00}`, `{"enum":[{"a":1.0},[1,1],null]}`, `{"const":{"a":1},"enum":[{"a":1},2]}`, `{"uniqueItems":true}`, `{"multipleOf":0.5,"exclusiveMaximum":100}`,
		`{"type":["integer","string"]}`, `{"$ref":"#/$defs/n","$defs":{"n":{"not":{"type":"object"}}}}`,
		// The trees of the specification.
		`{` + d19 + `"$recursiveAnchor":true,"properties":{"a":{"$recursiveRef":"#"}},"unevaluatedProperties":false}`,
		`{` + d19 + `"$id":"https://x.example/strict","$recursiveAnchor":true,"$ref":"tree","unevaluatedProperties":false,"$defs":{"t":{"$id":"tree","$recursiveAnchor":true,"properties":{"data":true,"a":true,"children":{"items":{"$recursiveRef":"#"}}}}}}`,
		`{"$id":"https://x.example/strict","$dynamicAnchor":"node","$ref":"tree","unevaluatedProperties":false,"$defs":{"t":{"$id":"tree","$dynamicAnchor":"node","properties":{"data":true,"a":true,"children":{"items":{"$dynamicRef":"#node"}}}}}}`,
		`{"$dynamicAnchor":"n","properties":{"a":{"$dynamicRef":"#/$defs/p"}},"$defs":{"p":{"$dynamicAnchor":"n","type":"integer"}}}`,
		`{"properties":{"a":{"$dynamicRef":"#n"}},"$defs":{"p":{"$dynamicAnchor":"n","type":"integer"}}}`,
		`{"if":{"$dynamicRef":"#n"},"then":{"properties":{"a":{"$dynamicRef":"#n"}}},"$defs":{"p":{"$dynamicAnchor":"n","type":"object"}}}`,
		`{"$ref":"https://json-schema.org/draft/2020-12/schema"}`, `{"properties":{"a":{"$ref":"http://json-schema.org/draft-07/schema#"}}}`, `{"$ref":"http://json-schema.org/draft-04/schema#"}`,
	}, fuzzSchemas...) {
		s, err := Compile(text, Options{})
		if err != nil {
			continue
		}
		by := ofLibrary(t, s)
		for _, v := range values {
			agree(t, s, by, v)
		}
	}
}

// ofLibrary compiles a schema for the library.
func ofLibrary(t *testing.T, s *Schema) *library {
	t.Helper()
	docs, err := s.gather(s.references)
	if err != nil {
		t.Fatal(err)
	}
	l, err := compileLibrary(s.draft, docs)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// agree compares evaluation with the library.
func agree(t *testing.T, s *Schema, l *library, v any) {
	t.Helper()
	verdict := l.root.Validate(v)
	ok, err := accepts(s.root, v)
	if errors.Is(err, ErrTooMuchWork) {
		return
	}
	if err != nil || ok != (verdict == nil) {
		t.Fatalf("%s\n%s: evaluation: %v, %v, the library: %v", s.Text(), textOf(v), ok, err, verdict)
	}
	if ok || strings.Contains(string(textOf(v)), `"":`) { // of which the library gives the wrong location
		return
	}
	var want, got []string
	var walk func(ve *js.ValidationError)
	walk = func(ve *js.ValidationError) {
		at := l.at(ve.AbsoluteKeywordLocation)
		contains := strings.HasSuffix(at, "/minContains")
		for _, c := range ve.Causes {
			if !contains {
				walk(c)
			}
		}
		if len(ve.Causes) == 0 || contains {
			want = append(want, plain(ve.InstanceLocation)+" "+strings.TrimSuffix(at, "/minContains"))
		}
	}
	var ve *js.ValidationError
	if !errors.As(verdict, &ve) {
		t.Fatal(verdict)
	}
	walk(ve)
	for _, x := range violations(s.root, objectsOf(v), MaxWork) {
		at := strings.TrimSuffix(x.KeywordPath, "/minContains")
		if strings.Contains(x.Message, "as contains describes") {
			at = strings.TrimSuffix(at, "/contains")
		}
		got = append(got, x.InstancePath+" "+at)
	}
	slices.Sort(want)
	slices.Sort(got)
	want, got = slices.Compact(want), slices.Compact(got)
	if len(got) < MaxViolations && !slices.Equal(got, want) {
		t.Fatalf("%s\n%s: violations\n%q\nof the library\n%q", s.Text(), textOf(v), got, want)
	}
}

// The automaton matches as package regexp does.
func FuzzMatcher(f *testing.F) {
	for _, p := range []string{`^[a-z0-9.-]+$`, `(a|b)*c`, `\bfoo\b`, `(?i)straße|ſ`, `^$`, `(?m)^a$`, `(?s).`, `.`, `[^a]`, `a{2,5}b?`, `\pL+\d`, `x*`, `^(a+)+$`, `(?-s)a.c`, `\z`, `\Ba`} {
		for _, s := range []string{"", "a", "foo bar", "api-1.example.org", "STRASSE ſ", "a\nb", "aaab", "\n", "é1", "日本語", "abc\x00"} {
			f.Add(p, s)
		}
	}
	f.Fuzz(func(t *testing.T, pattern, s string) {
		re, err := regexp.Compile(pattern)
		if err != nil || textSize(pattern) > MaxPattern {
			return
		}
		s = strings.ToValidUTF8(s, "?")
		m := newMatcher(re)
		if m.compile(); m.prog == nil {
			return
		}
		e := &evaluation{left: 1 << 40}
		u := &matching{}
		u.machine = newMachineOf(m.prog, &u.work)
		if got := e.run(u, m, s); got != re.MatchString(s) {
			t.Fatalf("%q matches %q: %v", pattern, s, got)
		}
		if got := e.run(u, m, s); got != re.MatchString(s) {
			t.Fatalf("%q matches %q again: %v", pattern, s, got)
		}
	})
}
