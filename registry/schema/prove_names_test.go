package schema

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// longNames is a schema with so many names of 90 bytes, and six patterns that each of them takes
// long to be matched with.
func longNames(count, repeat int, further string) string {
	names, patterns := make([]string, 0, count), make([]string, 0, 6)
	for i := range count {
		names = append(names, fmt.Sprintf(`"%s%03d":{}`, strings.Repeat("a", 87), i))
	}
	for _, end := range "bcdefg" {
		patterns = append(patterns, fmt.Sprintf(`"(?:a?){%d}%c":{}`, repeat, end))
	}
	return `{"properties":{` + strings.Join(names, ",") + `},"patternProperties":{` + strings.Join(patterns, ",") + `}` + further + `}`
}

// usedUp proves with so many steps left, and checks that they do not suffice and that the proof
// ends when they are used up.
func usedUp(t *testing.T, before, after *Schema, m Model, left int) {
	t.Helper()
	const most = 1500 // steps of matching one name with the patterns of one schema
	p := &prover{leant: leant{none, none}, steps: maxProofSteps - left}
	right, at := after.root, (*declaration)(nil)
	if m == Declared {
		right, at = readerOf(t, after), p.declared.describe(before.root)
	}
	ok := p.sub([]conj{{n: before.root}}, at, tAll, right)
	reasons := p.because(right)
	if ok || !slices.ContainsFunc(reasons, func(r Reason) bool { return r.Message == "the schemas are too complex for the proof" }) {
		t.Errorf("%s: proved %v, %d steps left, reasons: %v", m, ok, maxProofSteps-p.steps, reasons)
	}
	if p.steps > maxProofSteps+most {
		t.Errorf("%s: %d steps, and %d are too many", m, p.steps, maxProofSteps)
	}
}

// Matching names with patterns counts as the work that it is: where there is too much of that,
// a proof ends, also one in which all else is trivial, and then proves nothing.
func TestProveCountsNames(t *testing.T) {
	usedUp(t, compiled(t, longNames(600, 600, `,"minProperties":1`)), compiled(t, longNames(600, 600, "")), Strict, maxProofSteps)
	for _, c := range []struct{ old, new string }{
		{`,"minProperties":1`, ""},
		{`,"unevaluatedProperties":true,"minProperties":1`, `,"unevaluatedProperties":true`},
		{`,"additionalProperties":false,"minProperties":1`, `,"additionalProperties":false`},
		{`,"propertyNames":{"minLength":2}`, `,"propertyNames":{"minLength":1}`},
	} {
		before, after := compiled(t, longNames(30, 100, c.old)), compiled(t, longNames(30, 100, c.new))
		for _, m := range []Model{Strict, Declared} {
			usedUp(t, before, after, m, 5000)
		}
	}
	for old, next := range map[string]string{ // the patterns of one side alone
		`{"minProperties":1}`:  longNames(30, 100, ""),
		longNames(30, 100, ""): `{"properties":{"a":{}},"additionalProperties":{}}`,
	} {
		usedUp(t, compiled(t, old), compiled(t, next), Strict, 5000)
	}
}

// The search for a witness takes what it matches names for from what it has left, and matches
// no more when that is used up.
func TestSearchCountsNames(t *testing.T) {
	docs := documentsOf(compiled(t, longNames(1, 600, "")))
	g := newGenerator(docs, docs, false, 1)
	name := strings.Repeat("a", 89) + "b"
	const each = 90 * 1802 / patternUnit // of one of the six patterns, the first of which the name fits
	g.left = &budget{work: 18 * each}
	for i := range 5 {
		schemas, _ := g.propertySchemas([]spot{docs.root}, name)
		if found := len(schemas) > 0; found != (i < 3) {
			t.Errorf("call %d: %d patterns found, with %d left", i, len(schemas), g.left.work)
		}
	}
}

// What the names of a value cost to be judged counts in a search, however few they are.
func TestWorkOfFewNames(t *testing.T) {
	s := compiled(t, longNames(1, 600, ""))
	if w := s.work(map[string]any{strings.Repeat("a", 90): nil}); w < 6*90*1800/patternUnit {
		t.Errorf("the work of one long name is %d", w)
	}
	plain := compiled(t, `{"properties":{"a":{"type":"string"}},"patternProperties":{"^x-":{}}}`)
	if w := plain.work(map[string]any{"a": "some text", "x-b": nil}); w > heavyWork {
		t.Errorf("the work of an ordinary value is %d", w)
	}
}
