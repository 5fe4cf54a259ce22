package schema

import (
	"encoding/binary"
	"slices"
	"strconv"
	"sync"
)

// What the declared model calls declared is defined here, once: ValidateDeclared
// enforces it and the proof relies on it, through the same functions.
//
// A part of a value is described by schemas: the value itself by its schema, and
// with a schema by all that it applies in place (describing: ref, allOf, anyOf, oneOf,
// if, then, else, dependentSchemas), whichever of the branches the value takes. The
// property a of a part is described by what any of the part's schemas has for it
// (properties, patternProperties, else additionalProperties, and where none of them
// has any, unevaluatedProperties), and an item likewise. not, contains and
// propertyNames describe nothing.
//
// The properties that a part may have are those that the schemas which describe it
// name, in properties, required or patternProperties. There is no such bound, the
// part is open, where none of them names any, where one speaks of further
// properties (additionalProperties or unevaluatedProperties, and not false), and
// where one has a dynamic reference.
//
// A value is accepted in the declared model if its schema accepts it and no part
// of it has a property that is not declared. Note what follows for a proof: the
// schemas that it knows to hold for a part (one branch of an anyOf, say) are in
// general fewer than those that describe the part, and closed by themselves would
// forbid what ValidateDeclared lets pass. A proof has to carry the declaration of
// the part beside what it knows to hold.
//
// That is the writer's side. On the reader's, new's additionalProperties and
// unevaluatedProperties that are false let everything pass; see [Schema.reader].

// declaration is the schemas that describe one part of a value, together. The nil
// declaration, and that of no schemas, says nothing: open, as are all parts below.
type declaration struct {
	of     []*node // all of them, sorted by id
	closed bool
	names  map[string]bool // those of properties and required
	at     string          // of the keyword to name in a violation

	properties sync.Map // string to *declaration, for the names in names
}

// declarations makes and remembers the declarations of one compiled schema. It
// may be used by several goroutines at once.
type declarations struct {
	mu    sync.Mutex
	known map[string]*declaration
}

// maxDeclarations bounds how many are remembered: sets of schemas can be many.
const maxDeclarations = 10_000

// describe returns the declaration of a part to which these schemas apply.
func (d *declarations) describe(roots ...*node) *declaration {
	if len(roots) == 0 {
		return nil
	}
	seen := make(map[*node]bool, 2*len(roots))
	var of []*node
	var add func(n *node)
	add = func(n *node) {
		if !seen[n] {
			seen[n] = true
			of = append(of, n)
			n.describing(add)
		}
	}
	for _, n := range roots {
		add(n)
	}
	slices.SortFunc(of, func(a, b *node) int { return a.id - b.id })
	key := make([]byte, 0, 2*len(of))
	for _, n := range of {
		key = binary.AppendUvarint(key, uint64(n.id)) //nolint:gosec // an index is not negative
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if is, ok := d.known[string(key)]; ok {
		return is
	}
	is := newDeclaration(of)
	if d.known == nil {
		d.known = map[string]*declaration{}
	}
	if len(d.known) < maxDeclarations {
		d.known[string(key)] = is
	}
	return is
}

func newDeclaration(of []*node) *declaration {
	is := &declaration{of: of, names: map[string]bool{}}
	open, patterns := false, 0
	for _, n := range of {
		for name := range n.properties {
			is.names[name] = true
		}
		for _, name := range n.required {
			is.names[name] = true
		}
		patterns += len(n.patterns)
		open = open || n.dynamic != nil || speaks(n.additional) || speaks(n.unevaluatedProperties)
		if is.at == "" && n.properties != nil {
			is.at = n.at + "/properties"
		}
	}
	is.closed = !open && len(is.names)+patterns > 0
	if is.at == "" {
		is.at = of[0].at
	}
	return is
}

// speaks says whether a schema for further properties lets there be some.
func speaks(further *node) bool {
	return further != nil && (further.always == nil || *further.always)
}

// declares says whether the part may have the property.
func (is *declaration) declares(name string) bool {
	if is == nil || !is.closed || is.names[name] {
		return true
	}
	for _, n := range is.of {
		for _, p := range n.patterns {
			if p.re.MatchString(name) {
				return true
			}
		}
	}
	return false
}

// property returns the declaration of the part's property of this name.
func (d *declarations) property(is *declaration, name string) *declaration {
	if is == nil {
		return nil
	}
	listed := is.names[name]
	if listed {
		if p, ok := is.properties.Load(name); ok {
			return p.(*declaration)
		}
	}
	var roots []*node
	for _, n := range is.of {
		before := len(roots)
		if p := n.properties[name]; p != nil {
			roots = append(roots, p)
		}
		for _, p := range n.patterns {
			if p.re.MatchString(name) {
				roots = append(roots, p.of)
			}
		}
		if len(roots) == before && n.additional != nil {
			roots = append(roots, n.additional)
		}
	}
	p := d.orUnevaluated(is, roots, func(n *node) *node { return n.unevaluatedProperties })
	if listed {
		is.properties.Store(name, p)
	}
	return p
}

// other returns the declaration of the properties that no properties names and no
// patternProperties matches.
func (d *declarations) other(is *declaration) *declaration {
	if is == nil {
		return nil
	}
	var roots []*node
	for _, n := range is.of {
		if n.additional != nil {
			roots = append(roots, n.additional)
		}
	}
	return d.orUnevaluated(is, roots, func(n *node) *node { return n.unevaluatedProperties })
}

// item returns the declaration of the part's item i. All items behind the longest
// prefix have one declaration.
func (d *declarations) item(is *declaration, i int) *declaration {
	if is == nil {
		return nil
	}
	var roots []*node
	for _, n := range is.of {
		switch {
		case i < len(n.prefix):
			roots = append(roots, n.prefix[i])
		case n.items != nil:
			roots = append(roots, n.items)
		}
	}
	return d.orUnevaluated(is, roots, func(n *node) *node { return n.unevaluatedItems })
}

func (d *declarations) orUnevaluated(is *declaration, roots []*node, unevaluated func(*node) *node) *declaration {
	if len(roots) == 0 {
		for _, n := range is.of {
			if u := unevaluated(n); u != nil {
				roots = append(roots, u)
			}
		}
	}
	return d.describe(roots...)
}

// prefixes returns the length of the longest prefix.
func (is *declaration) prefixes() int {
	longest := 0
	if is != nil {
		for _, n := range is.of {
			longest = max(longest, len(n.prefix))
		}
	}
	return longest
}

// undeclared calls f with each property of v that is not declared, until f
// returns false. path is the JSON pointer of v.
func (d *declarations) undeclared(is *declaration, v any, path string, f func(is *declaration, path, name string) bool) bool {
	if is == nil {
		return true
	}
	switch v := v.(type) {
	case map[string]any:
		for name, x := range v {
			if !is.declares(name) {
				if !f(is, path, name) {
					return false
				}
				continue
			}
			switch x.(type) {
			case map[string]any, []any:
				if !d.undeclared(d.property(is, name), x, path+"/"+escape(name), f) {
					return false
				}
			}
		}
	case []any:
		longest := is.prefixes()
		rest := d.item(is, longest)
		for i, x := range v {
			switch x.(type) {
			case map[string]any, []any:
				at := rest
				if i < longest {
					at = d.item(is, i)
				}
				if !d.undeclared(at, x, path+"/"+strconv.Itoa(i), f) {
					return false
				}
			}
		}
	}
	return true
}
