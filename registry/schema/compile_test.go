package schema

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCompileErrors(t *testing.T) {
	const d4 = `"$schema":"http://json-schema.org/draft-04/schema#",`
	for _, test := range []struct{ text, path, message string }{
		{``, "#", "the schema is empty"},
		{`nul`, "#", "not JSON"},
		{"{\n\"a\" 1}", "#", "(line 2, column 5)"},
		{`{"a":1} {}`, "#", "more text behind the schema (line 1, column 9)"},
		{`{"a":1,]`, "#", "not JSON"},
		{"{\"title\":\"\xff\"}", "#", "not UTF-8"},
		{`{"x":{"a":1,"a":1}}`, "#/x/a", `"a" stands twice`},
		{`5`, "#", "must be a schema: an object, true or false"},
		{`{"properties":{"a":5}}`, "#/properties/a", "must be a schema"},
		{`{"items":{"items":{"type":"text"}}}`, "#/items/items/type", "must be one of array, boolean"},
		{`{"type":["string","text"]}`, "#/type/1", "must be one of array, boolean"},
		{`{"items":[{}]}`, "#/items", "prefixItems in draft 2020-12"},
		{`{"properties":{"a":{"required":true}}}`, "#/properties/a/required", "list of property names"},
		{`{"minLength":-1}`, "#/minLength", "whole number"},
		{`{"exclusiveMinimum":true}`, "#/exclusiveMinimum", "must be a number (true and false are draft-04)"},
		{`{` + d4 + `"minimum":1,"exclusiveMinimum":1}`, "#/exclusiveMinimum", "true or false in draft-04"},
		{`{"multipleOf":0}`, "#/multipleOf", "above 0"},
		{`{"enum":[]}`, "#/enum", "at least one value"},
		// The library finds schemas in this place, and the metaschema of the draft does not know it.
		{`{"type":"number","minimum":0,"maximum":10,"$ref":"#/additionalItems","additionalItems":{"multipleOf":-2}}`, "#/additionalItems/multipleOf", "above 0"},
		{`{"$ref":"#/additionalItems","additionalItems":{"multipleOf":0}}`, "#/additionalItems/multipleOf", "above 0"},
		{`{"$ref":"#/additionalItems/$defs/a","additionalItems":{"$defs":{"a":{"multipleOf":0}}}}`, "#/additionalItems/$defs/a/multipleOf", "above 0"},
		{`{"$ref":"#/additionalItems","additionalItems":{"type":"text"}}`, "#/additionalItems/type", "must be one of array, boolean"},
		{`{"$ref":"#/additionalItems","additionalItems":{"type":["string","text"]}}`, "#/additionalItems/type", "must be one of array, boolean"},
		{`{"$ref":"#/additionalItems","additionalItems":{"minLength":-2}}`, "#/additionalItems/minLength", "whole number"},
		{`{"anyOf":[]}`, "#/anyOf", "at least one schema"},
		{`{"$ref":5}`, "#/$ref", "must be a string"},
		{`{` + d4 + `"properties":{"a":{"$ref":5}}}`, "#/properties/a/$ref", "must be a string"},
		{`{"regexProperties":5}`, "#/regexProperties", "true or false"},
		{`{"$schema":5}`, "#/$schema", "must be a string"},
		{`{"$schema":"https://example.org/mine"}`, "#/$schema", `"https://example.org/mine" is not known`},
		{`{"pattern":"a(?=b)"}`, "#/pattern", "lookahead (?= is not supported: patterns are RE2"},
		{`{"pattern":"(?<!a)b"}`, "#/pattern", "lookbehind (?<"},
		{`{"pattern":"(a)\\1"}`, "#/pattern", `the backreference \1 is not supported`},
		{`{"pattern":"\\u0041"}`, "#/pattern", `the escape \u is not supported`},
		{`{"pattern":"a{1001}"}`, "#/pattern", "the repetition {1001} (at most 1000)"},
		{`{"properties":{"p":{"patternProperties":{"(?!x)":{}}}}}`, "#/properties/p/patternProperties/(?!x)", "lookahead (?!"},
		{`{` + d4 + `"patternProperties":{"(?!x)":{}}}`, "#/patternProperties", "lookahead (?!"},
		{`{"properties":{"a":{"$ref":"#/$defs/x"}}}`, "#/properties/a", `$ref "#/$defs/x": there is no such part`},
		{`{"properties":{"a":{"$ref":"#x"}}}`, "#/properties/a", `$ref "#x": there is no such part`},
		{`{"$ref":"schema://orders/1"}`, "#", `$ref "schema://orders/1": there is no such schema`},
		{`{"items":{"$ref":"other.json"}}`, "#/items", onlyRegistered},
		{`{"items":{"$ref":"http://example.org/a.json"}}`, "#/items", onlyRegistered},
		{`{"items":{"$ref":"schema:///"}}`, "#/items", onlyRegistered},
		{`{"$ref":"https://json-schema.org/draft-07/schema#/definitions/x"}`, "#", "only the whole"},
		{`{"$ref":"#"}`, "#", "never end"},
		{`{"allOf":[{"$ref":"#/$defs/a"}],"$defs":{"a":{"not":{"$ref":"#/$defs/a"}}}}`, "", "never end"},
		// The library itself does not see this one.
		{`{"$ref":"#/$defs/x","$defs":{"x":{"properties":{"p":{"$ref":"#/$defs/y"}},"if":{"$ref":"#/$defs/y"}},"y":{"$ref":"#/$defs/x"}}}`, "#/$defs/x", "never end"},
		{`{"$dynamicAnchor":"n","allOf":[{"$dynamicRef":"#n"}]}`, "", "never end"},
	} {
		t.Run(test.text, func(t *testing.T) {
			_, err := Compile(test.text, Options{})
			var ce *CompileError
			if !errors.As(err, &ce) || !errors.Is(err, ErrInvalidSchema) || errors.Is(err, ErrTooLarge) {
				t.Fatalf("Compile: %v, want a CompileError that is ErrInvalidSchema", err)
			}
			if test.path != "" && ce.Path != test.path || !strings.Contains(ce.Message, test.message) {
				t.Errorf("at %q: %q, want at %q: ...%s...", ce.Path, ce.Message, test.path, test.message)
			}
			if strings.Contains(err.Error(), "file:") && !strings.Contains(test.text, "file:") || strings.Contains(err.Error(), "jsonschema") || strings.Contains(err.Error(), "\n") {
				t.Errorf("the message is the library's: %v", err)
			}
		})
	}
	if _, err := Compile(`{}`, Options{Draft: "draft-03"}); !errors.Is(err, ErrInvalidSchema) {
		t.Errorf("Compile as draft-03: %v, want ErrInvalidSchema", err)
	}
}

// nested is a schema of a thousand bytes that takes seconds to judge a number:
// every level judges the next one four times.
func nested(levels int) string {
	var b strings.Builder
	b.WriteString(`{"$ref":"#/$defs/l0","$defs":{`)
	for i := range levels {
		next := `{"$ref":"#/$defs/l` + itoa(i+1) + `"}`
		b.WriteString(`"l` + itoa(i) + `":{"anyOf":[` + strings.Repeat(next+",", 3) + next + `]},`)
	}
	b.WriteString(`"l` + itoa(levels) + `":{"type":"string"}}}`)
	return b.String()
}

func TestCompileLimits(t *testing.T) {
	deep := func(n int) string { return strings.Repeat(`{"not":`, n) + "{}" + strings.Repeat("}", n) }
	for name, text := range map[string]string{
		"text":           `{"title":"` + strings.Repeat("x", MaxText) + `"}`,
		"depth":          deep(MaxDepth),
		"10,000 deep":    `{"not":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + "}",
		"exponent":       `{"maximum":1e1000001}`,
		"small exponent": `{"maximum":1e-401}`,
		"digits":         `{"const":` + strings.Repeat("1", MaxDigits+1) + `}`,
		"count":          `{"maxLength":1e30}`,
		"parts":          `{"properties":{` + strings.Repeat(`"a":{`, 30) + `"enum":[` + strings.Repeat("{},", MaxParts) + `{}]` + strings.Repeat("}", 32),
		"flags":          `{"enum":[` + strings.Repeat("true,", MaxParts) + `null]}`,
		"pattern":        `{"pattern":"(abcdefghij){900}"}`,
		"patterns":       `{"allOf":[` + strings.Repeat(`{"pattern":"a{900}"},`, 30) + `{}]}`,
		"hidden pattern": `{"default":{"patternProperties":{"(abcdefghij){900}":{}}},"$ref":"#/default"}`,
		"expansion":      nested(10),
		"alternatives":   `{"anyOf":[` + strings.Repeat("{},", MaxExpansion) + `{}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Compile(text, Options{}) // without a bound some would take for ever
			if !errors.Is(err, ErrTooLarge) || !errors.Is(err, ErrInvalidSchema) {
				t.Errorf("Compile: %v, want ErrTooLarge", err)
			}
		})
	}
	for name, text := range map[string]string{
		"depth":     deep(MaxDepth - 1),
		"exponent":  `{"maximum":1e400}`,
		"expansion": nested(4),
		"in text":   `{"title":"1e1000001 [[[[ \" 1e1000001"}`,
	} {
		if _, err := Compile(text, Options{}); err != nil {
			t.Errorf("%s: Compile at the limit: %v", name, err)
		}
	}
}

// TestNothingIsLoaded gives the library a file with a secret in it.
func TestNothingIsLoaded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret.json")
	if err := os.WriteFile(file, []byte(`{"const":"TOP-SECRET"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		`{"$ref":"file://` + file + `"}`,
		`{"$ref":"file://` + file + `#/const"}`,
		`{"$ref":"` + file + `"}`,
		`{"$id":"file://` + filepath.Dir(file) + `/","$ref":"secret.json"}`,
		`{"$schema":"file://` + file + `"}`,
		`{"$ref":"compile.go"}`,
		`{"$id":"x","$ref":"y"}`,
		`{"$ref":"//example.org/a.json"}`,
	} {
		_, err := Compile(text, Options{})
		if !errors.Is(err, ErrInvalidSchema) {
			t.Fatalf("Compile(%s): %v, want ErrInvalidSchema", text, err)
		}
		if strings.Contains(err.Error(), "TOP-SECRET") || strings.Contains(err.Error(), here) {
			t.Errorf("Compile(%s) tells too much: %v", text, err)
		}
	}
	s := compile(t, `{"$id":"relative","type":"string"}`)
	if err := s.Validate([]byte("1")); err == nil || strings.Contains(err.Error(), here) || strings.Contains(err.Error(), "file:") {
		t.Errorf("Validate: %v, want an error without a path", err)
	}
}

func TestDrafts(t *testing.T) {
	for _, test := range []struct {
		draft    Draft
		uri      string
		schema   string
		yes, not string
	}{
		{Draft4, "http://json-schema.org/draft-04/schema#", `"minimum":3,"exclusiveMinimum":true`, `4`, `3`},
		{Draft6, "http://json-schema.org/draft-06/schema#", `"const":3`, `3.0`, `4`},
		{Draft7, "http://json-schema.org/draft-07/schema", `"if":{"type":"string"},"then":{"format":"date"}`, `"2024-02-29"`, `"2023-02-29"`},
		{Draft2019, "https://json-schema.org/draft/2019-09/schema", `"properties":{"a":{}},"unevaluatedProperties":false`, `{"a":1}`, `{"b":1}`},
		{Draft2020, "https://json-schema.org/draft/2020-12/schema", `"prefixItems":[{"type":"null"}],"items":false`, `[null]`, `[null,1]`},
	} {
		for name, o := range map[string]Options{"by $schema": {}, "by default": {Draft: test.draft}} {
			text := `{` + test.schema + `}`
			if name == "by $schema" {
				text = `{"$schema":"` + test.uri + `",` + test.schema + `}`
			}
			s, err := Compile(text, o)
			if err != nil {
				t.Fatalf("%s %s: %v", test.draft, name, err)
			}
			if s.Draft() != test.draft || s.Text() != text {
				t.Errorf("%s %s: Draft %s, Text %s", test.draft, name, s.Draft(), s.Text())
			}
			if err := s.Validate([]byte(test.yes)); err != nil {
				t.Errorf("%s %s: Validate(%s): %v", test.draft, name, test.yes, err)
			}
			if err := s.Validate([]byte(test.not)); !errors.Is(err, ErrInvalid) {
				t.Errorf("%s %s: Validate(%s): %v, want ErrInvalid", test.draft, name, test.not, err)
			}
		}
	}
}

func TestMetaschemas(t *testing.T) {
	for _, d := range []Draft{Draft4, Draft6, Draft7, Draft2019, Draft2020} {
		s, err := Compile(`{"$ref":"`+draftURI(d)+`"}`, Options{Draft: d})
		if err != nil {
			t.Fatalf("%s: %v", d, err)
		}
		if err := s.Validate([]byte(`{"properties":{"a":{"type":"string"}}}`)); err != nil {
			t.Errorf("%s: %v", d, err)
		}
		if err := s.Validate([]byte(`{"properties":{"a":{"type":"text"}}}`)); err == nil {
			t.Errorf("%s: the type text was accepted", d)
		}
	}
}

func TestReferencesBetweenSchemas(t *testing.T) {
	id, err := Compile(`{"definitions":{"id":{"type":"string","minLength":2}},"items":[{"type":"null"}]}`, Options{Draft: Draft7})
	if err != nil {
		t.Fatal(err)
	}
	order, err := Compile(`{"properties":{"id":{"$ref":"schema://ids/1#/definitions/id"},"l":{"$ref":"schema://ids/1"}}}`, Options{References: map[string]*Schema{"schema://ids/1": id}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := Compile(`{"allOf":[{"$ref":"schema://orders/2"}]}`, Options{References: map[string]*Schema{"schema://orders/2": order, "schema://ids/1": id, "schema://unused/1": id}})
	if err != nil {
		t.Fatal(err)
	}
	var refused *InvalidError
	// That the list of items is judged as draft-07 has it shows that the draft came along.
	if err := s.Validate([]byte(`{"id":"x","l":[1]}`)); !errors.As(err, &refused) || len(refused.Violations) != 2 {
		t.Fatalf("Validate: %v, want two violations", err)
	}
	if v := refused.Violations[0]; v.InstancePath != "/id" || v.KeywordPath != "schema://ids/1#/definitions/id/minLength" || v.Message != "must have at least 2 characters but has 1" {
		t.Errorf("violation %+v", v)
	}
	other, err := Compile(`{"definitions":{"id":{"type":"string","minLength":3}}}`, Options{Draft: Draft7})
	if err != nil {
		t.Fatal(err)
	}
	changed, err := Compile(order.Text(), Options{References: map[string]*Schema{"schema://ids/1": other}})
	if err != nil {
		t.Fatal(err)
	}
	if changed.Fingerprint() == order.Fingerprint() {
		t.Error("the fingerprint is the same with another referenced schema")
	}
}

func TestCompileReferencesLimit(t *testing.T) {
	refs := map[string]*Schema{}
	var b strings.Builder
	for i := range MaxReferences + 1 {
		uri := "schema://a/" + itoa(i+1)
		refs[uri] = compile(t, `{}`)
		b.WriteString(`{"$ref":"` + uri + `"},`)
	}
	if _, err := Compile(`{"allOf":[`+b.String()+`{}]}`, Options{References: refs}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("Compile: %v, want ErrTooLarge", err)
	}
}

func TestCompileNamesByteOrderMark(t *testing.T) {
	t.Parallel()
	var refused *CompileError
	if _, err := Compile("\ufeff{}", Options{}); !errors.As(err, &refused) || !strings.Contains(err.Error(), "byte order mark") {
		t.Errorf("Compile: %v", err)
	}
}
