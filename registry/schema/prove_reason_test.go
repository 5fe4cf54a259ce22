package schema

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Reasons are for people who have not read the schemas.
func TestProveReasons(t *testing.T) {
	object := func(properties, more string) string {
		return `{"type":"object","properties":{` + properties + `}` + more + `}`
	}
	const kinds = `{"type":"object","properties":{"kind":{"const":"%s"}},"required":["kind"]}`
	kind := func(of ...string) string {
		var out []string
		for _, k := range of {
			out = append(out, fmt.Sprintf(kinds, k))
		}
		return `{"oneOf":[` + strings.Join(out, ",") + `]}`
	}
	for _, c := range []struct {
		old, new string
		want     []string // "keyword path: message"
	}{
		{object(`"email":true`, ``), object(`"email":true`, `,"required":["email"]`), []string{"required #: property email is required now"}},
		{object(`"n":{"minimum":0}`, ``), object(`"n":{"minimum":1}`, ``), []string{"minimum #/properties/n: minimum raised from 0 to 1"}},
		{object(`"n":{"type":"number"}`, ``), object(`"n":{"type":"number","maximum":0.5}`, ``), []string{"maximum #/properties/n: maximum 0.5 is new"}},
		{`{"type":"number","minimum":0}`, `{"type":"number","exclusiveMinimum":0}`, []string{"exclusiveMinimum #: exclusiveMinimum 0 itself is no longer accepted"}},
		{object(`"a":{"type":["string","null","integer"]}`, ``), object(`"a":{"type":"string"}`, ``), []string{"type #/properties/a: values of type null and integer are no longer accepted"}},
		{`{"type":"number"}`, `{"type":"integer"}`, []string{"type #: numbers must be integers now"}},
		{object(`"s":{"enum":["on","gone","off"]}`, ``), object(`"s":{"enum":["on"]}`, ``), []string{`const #/properties/s: "gone" and "off" are no longer accepted`}},
		{`{"enum":["a","b","c"]}`, `{"enum":["a","b"]}`, []string{`enum #: "c" is no longer accepted`}},
		{`{"type":"string"}`, `{"enum":["a","b"]}`, []string{`enum #: only "a" and "b" are accepted now`}},
		{`{"type":"string","maxLength":5}`, `{"type":"string","maxLength":4,"minLength":1}`, []string{"minLength #: minLength 1 is new", "maxLength #: maxLength lowered from 5 to 4"}},
		{`{"type":"string","pattern":"^a"}`, `{"type":"string","pattern":"^ab"}`, []string{"pattern #: pattern changed from ^a to ^ab, which does not match all that the old one did"}},
		{`{"type":"string","format":"date"}`, `{"type":"string","format":"time"}`, []string{"format #: format changed from date to time"}},
		{object(`"a":true,"b":true`, `,"additionalProperties":false`), object(`"a":true`, `,"additionalProperties":false`), []string{"additionalProperties #: property b is no longer accepted"}},
		{object(`"a":true`, ``), object(`"a":true`, `,"additionalProperties":false`), []string{"additionalProperties #: further properties are no longer accepted"}},
		{object(`"a":true`, ``), object(`"a":true,"b":{"type":"string"}`, ``), []string{"properties #/properties/b: property b was not declared before and could have any value; it is restricted now"}},
		{
			`{"oneOf":[{"type":"object","properties":{"card":{"type":"string"}},"required":["card"]},{"type":"object","properties":{"iban":{"type":"string"}},"required":["iban"]}]}`,
			`{"oneOf":[{"type":"object","properties":{"card":{"type":"string"}},"required":["card"]}]}`,
			[]string{"oneOf #: objects that have iban are no longer accepted: no branch of oneOf is for them"},
		},
		{kind("a", "b"), kind("a"), []string{`oneOf #: objects with kind "b" are no longer accepted: no branch of oneOf is for them`}},
		{`{"type":"array","items":{"type":"string"}}`, `{"type":"array","items":{"type":"string"},"uniqueItems":true,"minItems":1}`, []string{"minItems #: minItems 1 is new", "uniqueItems #: items must differ from one another now"}},
		{
			object(`"a":true,"b":true,"c":true,"d":true,"e":true,"f":true,"g":true`, ``), object(`"a":true`, `,"required":["a","b","c","d","e","f","g"]`),
			[]string{"required #: property a is required now", "required #: property b is required now", "required #: property c is required now", "required #: property d is required now", "required #: property e is required now", "required #: property f is required now"},
		},
	} {
		_, reasons := proveStrict(t, c.old, c.new)
		var got []string
		for _, r := range reasons {
			got = append(got, r.Keyword+" "+r.Path+": "+r.Message)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s\n -> %s\n got %q\nwant %q", c.old, c.new, got, c.want)
		}
	}
}

// A proof that takes too long ends, and says so.
func TestProveTooComplex(t *testing.T) {
	unions := func(branches int) string {
		var all []string
		for j := range 5 {
			var of []string
			for i := range branches {
				of = append(of, fmt.Sprintf(`{"type":"object","properties":{"p%d":{"const":%d}},"required":["p%d"]}`, j, i, j))
			}
			all = append(all, `{"anyOf":[`+strings.Join(of, ",")+`]}`)
		}
		return `{"allOf":[` + strings.Join(all, ",") + `]}`
	}
	ok, reasons := proveStrict(t, unions(10), unions(11))
	if ok || !slices.ContainsFunc(reasons, func(r Reason) bool { return r.Message == "the schemas are too complex for the proof" }) {
		t.Errorf("proved %v, reasons: %v", ok, reasons)
	}
}

// A fault of the proof is no panic of the caller, and proves nothing.
func TestCompareBreaksOff(t *testing.T) {
	next := compile(t, `{"multipleOf":2}`)
	next.root.multipleOf.SetInt64(0) // which Compile refuses
	v := Compare(compile(t, `{"type":"integer"}`), next, Strict)
	if v.Result != Unproved || len(v.Reasons) != 1 || !strings.Contains(v.Reasons[0].Message, "broke off") {
		t.Errorf("Compare: %+v, want it unproved, and why", v)
	}
	if text := v.Explain(Backward); !strings.Contains(text, "broke off") {
		t.Errorf("Explain does not say why: %s", text)
	}
}
