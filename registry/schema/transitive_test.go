package schema

import (
	"maps"
	"slices"
	"testing"
)

// What is proved in the strict model is transitive: if b accepts all of a, and c all
// of b, no value shows that c refuses something of a. (The declared model is not, see
// Declared.)
func TestStrictIsTransitive(t *testing.T) {
	corpus := corpusDocuments(t)
	triples := 0
	for i := range uint64(max(*pairs, 1)) {
		m := newMaker(*pairSeed+1, i)
		a, b := m.pair(corpus)
		c := m.changed(b, 0)
		schemas, ok := compileAll(a, b, c)
		if !ok || !proved(schemas[0], schemas[1]) || !proved(schemas[1], schemas[2]) {
			continue
		}
		triples++
		attack(t, schemas[0], schemas[2], Strict, *instances, i)
	}
	if triples < *pairs/20 {
		t.Errorf("only %d triples of %d are chains", triples, *pairs)
	}
}

func proved(old, next *Schema) bool {
	ok, _ := prove(old.root, next.root, Strict)
	return ok
}

func compileAll(docs ...any) ([]*Schema, bool) {
	var out []*Schema
	for _, d := range docs {
		s, err := Compile(string(textOf(d)), Options{})
		if err != nil {
			return nil, false
		}
		out = append(out, s)
	}
	return out, true
}

// The declared model is not transitive, as its documentation says.
func TestDeclaredIsNotTransitive(t *testing.T) {
	a := compileWith(t, `{"type":"object","properties":{"id":{},"a":{"type":"string"}}}`, nil)
	b := compileWith(t, `{"type":"object","properties":{"id":{}}}`, nil)
	c := compileWith(t, `{"type":"object","properties":{"id":{},"a":{"type":"integer"}}}`, nil)
	for _, step := range []struct {
		old, new *Schema
		want     Result
	}{{a, b, Proved}, {b, c, Proved}, {a, c, Refuted}} {
		if v := Compare(step.old, step.new, Declared); v.Result != step.want {
			t.Errorf("%s, then %s: %s, want %s", step.old.Text(), step.new.Text(), v.Result, step.want)
		}
	}
}

// Titles, descriptions, defaults and the order of members make no difference.
func TestAnnotationsNeverMatter(t *testing.T) {
	for i, doc := range corpusDocuments(t) {
		noted := annotated(doc)
		schemas, ok := compileAll(doc, noted)
		if !ok {
			t.Errorf("%s does not compile with annotations", textOf(doc))
			continue
		}
		for _, m := range []Model{Strict, Declared} {
			for _, pair := range [][2]*Schema{{schemas[0], schemas[1]}, {schemas[1], schemas[0]}, {schemas[0], schemas[0]}} {
				v := Compare(pair[0], pair[1], m)
				if v.Result != Proved && !slices.ContainsFunc(v.Reasons, func(r Reason) bool { return r.Keyword == "$recursiveRef" }) {
					t.Errorf("schema %d, %s: %s\nold %s\nnew %s", i, m, v.Explain(Backward), pair[0].Text(), pair[1].Text())
				}
			}
		}
	}
}

// annotated gives every schema of a document a title, and its lists without order
// another order.
func annotated(doc any) any {
	s, ok := doc.(map[string]any)
	if !ok {
		return doc
	}
	s = maps.Clone(s)
	for k, v := range s {
		switch k {
		case "enum", "required":
			if list, ok := v.([]any); ok {
				list = slices.Clone(list)
				slices.Reverse(list)
				s[k] = list
			}
		case "properties", "patternProperties", "dependentSchemas", "$defs", "definitions":
			if members, ok := v.(map[string]any); ok {
				members = maps.Clone(members)
				for name, x := range members {
					members[name] = annotated(x)
				}
				s[k] = members
			}
		case "allOf", "anyOf", "oneOf", "prefixItems":
			if list, ok := v.([]any); ok {
				list = slices.Clone(list)
				for i, x := range list {
					list[i] = annotated(x)
				}
				s[k] = list
			}
		case "items", "additionalProperties", "not", "if", "then", "else", "contains":
			s[k] = annotated(v)
		}
	}
	s["title"], s["description"], s["default"], s["$comment"] = "T", "D", "d", "c"
	return s
}
