package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

var fuzzSchemas = []string{
	`true`, `{}`, benchSchema, union, `{"$ref":"#"}`, `{"maximum":1e400,"enum":[1,2.50,null]}`, `{"pattern":"^(a|b)*$"}`,
	`{"$schema":"http://json-schema.org/draft-04/schema#","minimum":3,"exclusiveMinimum":true,"id":"x"}`,
	`{"$schema":"http://json-schema.org/draft-07/schema#","items":[{"$ref":"#/definitions/a"}],"additionalItems":false,"definitions":{"a":{"contentMediaType":"application/json"}}}`,
	`{"$schema":"https://json-schema.org/draft/2019-09/schema","$recursiveAnchor":true,"properties":{"a":{"$recursiveRef":"#"}},"unevaluatedProperties":false}`,
	`{"$defs":{"n":{"$dynamicAnchor":"n"}},"prefixItems":[{"$dynamicRef":"#n"}],"contains":{"not":{"const":{"a":[]}}},"uniqueItems":true}`,
	`{"$ref":"file:///etc/hostname"}`, `{"a":1,"a":2}`, `{"regexProperties":true}`, `{"dependencies":{"a":["b"],"c":{"if":{},"then":false}}}`,
	`{"$id":"schema://x/1","$ref":"2"}`, `{"patternProperties":{"(?=x)":{}},"propertyNames":{"format":"regex"}}`, `{"$vocabulary":{"x":true}}`,
}

// FuzzCompile: no text panics, and what is compiled can be used.
func FuzzCompile(f *testing.F) {
	for _, s := range fuzzSchemas {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Compile(text, Options{})
		if err != nil {
			var ce *CompileError
			if !errors.As(err, &ce) || !errors.Is(err, ErrInvalidSchema) || !strings.HasPrefix(ce.Path, "#") && !strings.Contains(ce.Path, "#") {
				t.Fatalf("Compile: %#v", err)
			}
			if strings.Contains(err.Error(), "file:///work") || strings.Contains(err.Error(), "runtime error") {
				t.Fatalf("Compile tells too much: %v", err)
			}
			return
		}
		canonical, err := Canonical(text)
		if err != nil {
			t.Fatalf("Canonical of a schema: %v", err)
		}
		again, err := Compile(canonical, Options{})
		if err != nil || again.Fingerprint() != s.Fingerprint() {
			t.Fatalf("the canonical form of %s is another schema: %v", text, err)
		}
		if _, err := References(text); err != nil {
			t.Fatalf("References of a schema: %v", err)
		}
		for _, payload := range []string{`{"a":[1,"b",{"c":null}]}`, `[[],{},1e400,"x"]`, `"1e1000001"`, `0.5`} {
			same := (s.Validate([]byte(payload)) == nil) == (again.Validate([]byte(payload)) == nil)
			if err := s.ValidateDeclared([]byte(payload)); !same || err != nil && !errors.Is(err, ErrInvalid) {
				t.Fatalf("%s and its canonical form judge %s in two ways, or %v", text, payload, err)
			}
		}
	})
}

// FuzzValidate: no payload panics, and what is not JSON is accepted by no schema.
func FuzzValidate(f *testing.F) {
	var schemas []*Schema
	for _, text := range fuzzSchemas {
		if s, err := Compile(text, Options{}); err == nil {
			schemas = append(schemas, s)
		}
	}
	for _, p := range []string{
		benchPayload, `1e1000001`, `{"a":{"a":{}}}`, `[1,1.0,"x",null,[[]]]`, `"\ud800"`, `{"left":{"left":{}}}`, `{"c":1,"a":2}`, "\"\xff\"", `[`, `1 2`,
		`-0`, `01`, `"` + "\x00" + `"`, `{"":0}`, `"1e1000001"`,
	} {
		f.Add([]byte(p))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		for _, s := range schemas {
			err := s.Validate(payload)
			if err == nil && !json.Valid(payload) {
				t.Fatalf("%s accepts what is no JSON", s.Text())
			}
			var refused *InvalidError
			if err != nil && (!errors.As(err, &refused) || len(refused.Violations) == 0) {
				t.Fatalf("Validate: %#v", err)
			}
			if declared := s.ValidateDeclared(payload); declared == nil && err != nil {
				t.Fatalf("%s: ValidateDeclared accepts what Validate does not: %v", s.Text(), err)
			}
			if err == nil {
				var b bytes.Buffer
				if json.Compact(&b, payload) != nil || s.Validate(b.Bytes()) != nil {
					t.Fatalf("%s: space changes the verdict", s.Text())
				}
			}
		}
	})
}
