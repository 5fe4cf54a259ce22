package schema

import (
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
)

// documents is what the witness search reads of one schema: its documents, as JSON. It
// does not use the nodes of the proof, so that what those lose the search can show.
type documents struct {
	root spot
	by   map[string]spot    // documents, embedded resources and anchors, by URI
	refs map[[2]string]spot // what a reference came to, by its base and itself
}

// spot is a schema within documents: a JSON value, and the base of its references.
type spot struct {
	of   any
	base string
	in   *documents
}

// documentsOf reads what Compile has parsed.
func documentsOf(s *Schema) *documents {
	docs := &documents{by: map[string]spot{}, refs: map[[2]string]spot{}}
	docs.root = docs.document(baseURI, s.doc)
	for _, uri := range sortedKeys(s.references) {
		docs.document(uri, s.references[uri].doc)
	}
	return docs
}

func (docs *documents) document(uri string, doc any) spot {
	p := spot{of: doc, base: uri, in: docs}
	docs.by[uri] = p
	docs.index(p)
	return p
}

// index finds the resources and anchors below p.
func (docs *documents) index(p spot) {
	switch t := p.of.(type) {
	case map[string]any:
		p = p.rebased()
		docs.name(p, p.base)
		for _, k := range []string{"$anchor", "$dynamicAnchor"} {
			if a, ok := t[k].(string); ok {
				docs.name(p, p.base+"#"+a)
			}
		}
		for _, k := range []string{"$id", "id"} {
			if a, ok := t[k].(string); ok && strings.HasPrefix(a, "#") {
				docs.name(p, p.base+a)
			}
		}
		for _, k := range sortedKeys(t) {
			docs.index(spot{of: t[k], base: p.base, in: docs})
		}
	case []any:
		for _, x := range t {
			docs.index(spot{of: x, base: p.base, in: docs})
		}
	}
}

// name gives a spot its URI, unless another has it already.
func (docs *documents) name(p spot, uri string) {
	if _, ok := docs.by[uri]; !ok {
		docs.by[uri] = p
	}
}

// rebased is p with the base that its own $id sets.
func (p spot) rebased() spot {
	m, _ := p.of.(map[string]any)
	for _, k := range []string{"$id", "id"} {
		if id, ok := m[k].(string); ok && id != "" && !strings.HasPrefix(id, "#") {
			p.base = strings.TrimSuffix(absolute(p.base, id), "#")
		}
	}
	return p
}

// child is the schema v, a part of p.
func (p spot) child(v any) spot {
	return spot{of: v, base: p.base, in: p.in}.rebased()
}

// resolve finds what ref names, seen from p.
func (p spot) resolve(ref string) (spot, bool) {
	key := [2]string{p.base, ref}
	if to, ok := p.in.refs[key]; ok {
		return to, true
	}
	to, ok := p.find(ref)
	if ok {
		p.in.refs[key] = to
	}
	return to, ok
}

func (p spot) find(ref string) (spot, bool) {
	uri, fragment, _ := strings.Cut(absolute(p.base, ref), "#")
	if fragment != "" && !strings.HasPrefix(fragment, "/") {
		to, ok := p.in.by[uri+"#"+fragment]
		return to, ok
	}
	to, ok := p.in.by[uri]
	if !ok && strings.HasPrefix(ref, "#") {
		to, ok = p.in.root, true
	}
	if !ok || fragment == "" {
		return to, ok
	}
	for token := range strings.SplitSeq(fragment[1:], "/") {
		if to, ok = to.step(token); !ok {
			return spot{}, false
		}
	}
	return to, true
}

// step follows one token of a JSON pointer.
func (p spot) step(token string) (spot, bool) {
	if u, err := url.PathUnescape(token); err == nil {
		token = u
	}
	token = strings.NewReplacer("~1", "/", "~0", "~").Replace(token)
	switch t := p.of.(type) {
	case map[string]any:
		v, ok := t[token]
		return p.child(v), ok
	case []any:
		if i, err := strconv.Atoi(token); err == nil && i >= 0 && i < len(t) {
			return p.child(t[i]), true
		}
	}
	return spot{}, false
}

func absolute(base, ref string) string {
	b, err := url.Parse(base)
	if err != nil {
		return ref
	}
	r, err := b.Parse(ref)
	if err != nil {
		return ref
	}
	return r.String()
}

// object returns p's members; none for the schemas true and false.
func (p spot) object() map[string]any {
	m, _ := p.of.(map[string]any)
	return m
}

// under returns the schema that keyword holds.
func (p spot) under(keyword string) (spot, bool) {
	switch v := p.object()[keyword].(type) {
	case map[string]any, bool:
		return p.child(v), true
	}
	return spot{}, false
}

// list returns the schemas that keyword holds as an array.
func (p spot) list(keyword string) []spot {
	a, _ := p.object()[keyword].([]any)
	out := make([]spot, 0, len(a))
	for _, v := range a {
		out = append(out, p.child(v))
	}
	return out
}

// members returns what keyword holds as an object, in the order of the names.
func (p spot) members(keyword string) (names []string, of map[string]any) {
	of, _ = p.object()[keyword].(map[string]any)
	return sortedKeys(of), of
}

// strings returns the strings of keyword's array.
func (p spot) strings(keyword string) []string { return stringsOf(p.object()[keyword]) }

func stringsOf(v any) []string {
	a, _ := v.([]any)
	var out []string
	for _, x := range a {
		if s, ok := x.(string); ok {
			out = append(out, s)
		}
	}
	return out
}

// count returns keyword's value where it is a small number, and -1 where it is none.
func (p spot) count(keyword string) int {
	n, ok := p.object()[keyword].(json.Number)
	if !ok {
		return -1
	}
	f, err := n.Float64()
	if err != nil || f < 0 || f > 1e6 {
		return -1
	}
	return int(f)
}
