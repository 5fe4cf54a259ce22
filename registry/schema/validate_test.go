package schema

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
)

func violationsOf(t *testing.T, err error) []Violation {
	t.Helper()
	var refused *InvalidError
	if !errors.As(err, &refused) || !errors.Is(err, ErrInvalid) {
		t.Fatalf("%v, want an InvalidError", err)
	}
	return refused.Violations
}

func TestViolations(t *testing.T) {
	long := strings.Repeat("x", 1000)
	for _, test := range []struct{ schema, payload, keyword, message string }{
		{`{"type":["integer","null"]}`, `"a"`, "#/type", "must be null or integer but is string"},
		{`{"type":"integer"}`, `1.5`, "#/type", "must be integer but is number"},
		{`{"const":"a"}`, `"b"`, "#/const", `must be "a" but is "b"`},
		{`{"const":{"a":1}}`, `[1]`, "#/const", `must be {"a":1} but is [1]`},
		{`{"enum":["a",1,null]}`, `2`, "#/enum", `must be one of "a", 1, null but is 2`},
		{`{"enum":[1,2,3,4,5,6,7,8,9,10]}`, `11`, "#/enum", `must be one of 1, 2, 3, 4, 5, 6, 7, 8 and 2 more but is 11`},
		{`{"enum":[1,2],"const":1}`, `2`, "#/const", `must be 1 but is 2`},
		{`{"format":"email"}`, `"x"`, "#/format", `"x" is not a valid email`},
		{`{"minimum":0.1}`, `0.01`, "#/minimum", "must be >= 0.1 but found 0.01"},
		{`{"maximum":9007199254740992}`, `9007199254740993`, "#/maximum", "must be <= 9007199254740992 but found 9007199254740993"},
		{`{"exclusiveMinimum":0}`, `0`, "#/exclusiveMinimum", "must be > 0 but found 0"},
		{`{"exclusiveMaximum":1e300}`, `1e300`, "#/exclusiveMaximum", "must be < 1e+300 but found 1e300"},
		{`{"multipleOf":0.01}`, `19.999`, "#/multipleOf", "must be a multiple of 0.01 but found 19.999"},
		{`{"minLength":1}`, `""`, "#/minLength", "must have at least 1 character but has 0"},
		{`{"maxLength":1}`, `"äö"`, "#/maxLength", "must have at most 1 character but has 2"},
		{`{"pattern":"^a$"}`, `"b"`, "#/pattern", `"b" does not match the pattern "^a$"`},
		{`{"const":1}`, `"` + long + `"`, "#/const", `must be 1 but is "` + long[:maxExcerpt] + `"...`},
		{`{"const":1}`, `["` + long + `"]`, "#/const", "must be 1 but is an array"},
		{`{"minItems":2}`, `[1]`, "#/minItems", "must have at least 2 items but has 1"},
		{`{"uniqueItems":true}`, `[1,2,1.0]`, "#/uniqueItems", "must not have equal items: items at index 0 and 2 are equal"},
		{`{"contains":{"type":"null"}}`, `[1,2]`, "#/contains", "must have at least 1 item as contains describes, but has 0"},
		{`{"contains":{},"minContains":3}`, `[1,2]`, "#/minContains", "must have at least 3 items as contains describes, but has 2"},
		{`{"contains":{},"maxContains":1}`, `[1,2]`, "#/maxContains", "must have at most 1 item as contains describes, but has 2"},
		{`{"$schema":"http://json-schema.org/draft-07/schema","items":[{}],"additionalItems":false}`, `[1,2]`, "#/additionalItems", "must have at most 1 item but has 2"},
		{`{"minProperties":1}`, `{}`, "#/minProperties", "must have at least 1 property but has 0"},
		{`{"required":["a"]}`, `{}`, "#/required", `lacks the required property "a"`},
		{`{"additionalProperties":false}`, `{"a b":1}`, "#/additionalProperties", `the property "a b" is not allowed`},
		{`{"properties":{"a":false}}`, `{"a":1}`, "#/properties/a", "is not allowed"},
		{`{"dependentRequired":{"a":["b"]}}`, `{"a":1}`, "#/dependentRequired/a/0", "property 'b' is required, if 'a' property exists"},
		{`{"propertyNames":{"maxLength":1}}`, `{"ab":1}`, "#/propertyNames/maxLength", "the name of the property must have at most 1 character but has 2"},
		{`{"not":{"const":"root"}}`, `"root"`, "#/not", `must not be "root"`},
		{`{"not":{"type":"null"}}`, `null`, "#/not", "must not fit the schema of not, and does: null"},
		{`{"oneOf":[{},true]}`, `1`, "#/oneOf", "fits the alternatives 0 and 1 of oneOf, counted from 0, and may fit only one"},
		{`{"$ref":"#/$defs/a~1b","$defs":{"a/b":{"type":"null"}}}`, `1`, "#/$defs/a~1b/type", "must be null but is number"},
	} {
		t.Run(test.schema, func(t *testing.T) {
			got := violationsOf(t, compile(t, test.schema).Validate([]byte(test.payload)))
			if len(got) != 1 || got[0].KeywordPath != test.keyword || got[0].Message != test.message {
				t.Errorf("%+v, want %q at %s", got, test.message, test.keyword)
			}
		})
	}
}

func TestViolationsAreSorted(t *testing.T) {
	s := compile(t, `{"required":["z","y"],"properties":{"a":{"minimum":1,"multipleOf":2},"b/c":{"items":{"type":"null"}}},"additionalProperties":false}`)
	want := []Violation{
		{"", "#/additionalProperties", `the property "p" is not allowed`},
		{"", "#/additionalProperties", `the property "q" is not allowed`},
		{"", "#/required", `lacks the required property "y"`},
		{"", "#/required", `lacks the required property "z"`},
		{"/a", "#/properties/a/minimum", "must be >= 1 but found -1"},
		{"/a", "#/properties/a/multipleOf", "must be a multiple of 2 but found -1"},
		{"/b~1c/0", "#/properties/b~1c/items/type", "must be null but is number"},
		{"/b~1c/1", "#/properties/b~1c/items/type", "must be null but is string"},
	}
	for range 20 { // the library's order is that of a map
		got := violationsOf(t, s.Validate([]byte(`{"q":1,"p":1,"b/c":[1,"x"],"a":-1}`)))
		if !slices.Equal(got, want) {
			t.Fatalf("violations\n%+v\nwant\n%+v", got, want)
		}
	}
	many := violationsOf(t, compile(t, `{"items":{"type":"null"}}`).Validate([]byte("["+strings.Repeat("1,", 500)+"1]")))
	if len(many) != MaxViolations {
		t.Errorf("%d violations, want %d", len(many), MaxViolations)
	}
}

func TestBadPayloads(t *testing.T) {
	all := compile(t, `{}`)
	for _, test := range []struct{ payload, message string }{
		{``, "not JSON: it ends early"},
		{"\ufeff{}", "not JSON: it begins with a byte order mark"},
		{`{"a":`, "not JSON: it ends early"},
		{`{"a" 1}`, "not JSON: invalid character"},
		{`01`, "not JSON"},
		{`{} {}`, "more text behind the value, at offset 3"},
		{`{}}`, "more text behind the value, at offset 2"},
		{"\"\xff\"", "not UTF-8"},
		{`1e1000001`, "exponent beyond 400"},
		{`{"a":[-1E+401]}`, "exponent beyond 400"},
		{`1e-1000000000000000000000000`, "exponent beyond 400"},
		{strings.Repeat("1", 101), "more than 100 digits"},
		{`0.` + strings.Repeat("0", 100), "more than 100 digits"},
		{strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000), "nested deeper than 512"},
		{strings.Repeat(`{"a":`, 10_000), "nested deeper than 512"},
	} {
		got := violationsOf(t, all.Validate([]byte(test.payload)))
		if len(got) != 1 || got[0].KeywordPath != "#" || !strings.Contains(got[0].Message, test.message) {
			t.Errorf("Validate(%.40s): %+v, want %q", test.payload, got, test.message)
		}
	}
	for _, payload := range []string{
		`1e400`, strings.Repeat("1", 100), " \t\r\n{} \n", `{"1e1000001":"1e1000001 [[[\\"}`, `"\\\"[["`,
		strings.Repeat("[", MaxPayloadDepth) + strings.Repeat("]", MaxPayloadDepth),
	} {
		if err := all.Validate([]byte(payload)); err != nil {
			t.Errorf("Validate(%.40s): %v", payload, err)
		}
	}
}

// TestContentIsScanned: a string that is JSON is judged too, in draft-07.
func TestContentIsScanned(t *testing.T) {
	const draft7 = `{"$schema":"http://json-schema.org/draft-07/schema",`
	s := compile(t, draft7+`"contentMediaType":"application/json","contentSchema":{"minimum":1}}`)
	for payload, valid := range map[string]bool{`"1"`: true, `"0"`: true, `"{"`: false, `"1e1000001"`: false, `1`: true} {
		if err := s.Validate([]byte(payload)); (err == nil) != valid {
			t.Errorf("Validate(%s): %v, want valid: %v", payload, err, valid)
		}
	}
	s = compile(t, draft7+`"contentEncoding":"base64","contentMediaType":"text/x","contentSchema":{"minimum":1}}`)
	if err := s.Validate([]byte(`"MWUxMDAwMDAx"`)); err != nil { // 1e1000001
		t.Errorf("Validate: %v", err)
	}
}

func TestDigitsAreKept(t *testing.T) {
	for _, test := range []struct {
		schema, payload string
		valid           bool
	}{
		{`{"maximum":9007199254740992}`, `9007199254740993`, false},
		{`{"multipleOf":0.01}`, `19.99`, true},
		{`{"const":1.0}`, `1`, true},
		{`{"type":"integer"}`, `1e2`, true},
		{`{"const":9007199254740993}`, `9007199254740992`, false},
		{`{"uniqueItems":true}`, `[9007199254740993,9007199254740992]`, true},
	} {
		if err := compile(t, test.schema).Validate([]byte(test.payload)); (err == nil) != test.valid {
			t.Errorf("%s: Validate(%s): %v, want valid: %v", test.schema, test.payload, err, test.valid)
		}
	}
}

func TestLastMemberCounts(t *testing.T) {
	s := compile(t, `{"properties":{"a":{"type":"null"}}}`)
	if err := s.Validate([]byte(`{"a":1,"a":null}`)); err != nil {
		t.Errorf("Validate: %v", err)
	}
	if err := s.Validate([]byte(`{"a":null,"a":1}`)); err == nil {
		t.Error("Validate accepts a last member that is wrong")
	}
}

func TestConcurrentUse(t *testing.T) {
	s := compile(t, benchSchema)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				if err := s.ValidateDeclared([]byte(benchPayload)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func TestInvalidErrorMessage(t *testing.T) {
	err := compile(t, `{"items":{"type":"null"}}`).Validate([]byte(`[1,2,3,4,5]`))
	want := "invalid payload: /0: must be null but is number; /1: must be null but is number; /2: must be null but is number; and 2 more"
	if err.Error() != want {
		t.Errorf("%v\nwant\n%s", err, want)
	}
}
