package schema

import (
	"encoding/binary"
	"slices"
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

// declaration combines the schemas that describe one part of a value. A nil declaration, or one
// without schemas, allows every property in the part and in all parts below it.
type declaration struct {
	of     []*node // all schemas, sorted by id
	closed bool
	names  map[string]bool // the names in properties and required
	at     string          // the keyword to name in a violation

	longest    int      // length of the longest prefix
	properties sync.Map // string to *declaration, for the names in names
	items      sync.Map // int to *declaration, for the indexes up to longest
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
		is.longest = max(is.longest, len(n.prefix))
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

// matchName reports whether a name matches pattern k of the patternProperties of n.
type matchName func(n *node, k int, name string) bool

func matchPlainly(n *node, k int, name string) bool { return n.patterns[k].re.MatchString(name) }

// declares reports whether the property is declared, or the part is open.
func (is *declaration) declares(name string, match matchName) bool {
	if is == nil || !is.closed || is.names[name] {
		return true
	}
	for _, n := range is.of {
		for k := range n.patterns {
			if match(n, k, name) {
				return true
			}
		}
	}
	return false
}

// property returns the declaration of the part's property of this name.
func (d *declarations) property(is *declaration, name string) *declaration {
	return d.propertyBy(is, name, matchPlainly)
}

func (d *declarations) propertyBy(is *declaration, name string, match matchName) *declaration {
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
		for k, p := range n.patterns {
			if match(n, k, name) {
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
	if is == nil {
		return 0
	}
	return is.longest
}

// declares reports whether all properties of v are declared.
func declares(d *declarations, is *declaration, v any) bool {
	ok, err := (&evaluation{left: MaxWork}).declares(d, is, v)
	return ok && err == nil
}

// declares reports whether all properties of v are declared. Its errors are those of accepts.
func (e *evaluation) declares(d *declarations, is *declaration, v any) (ok bool, err error) {
	defer e.recover(&err)
	return e.undeclared(d, is, v), nil
}

// undeclared returns false if v has a property that is not declared. While the evaluation reports,
// it records a violation for each.
func (e *evaluation) undeclared(d *declarations, is *declaration, v any) bool {
	if is == nil {
		return true
	}
	ok := true
	part := func(is *declaration, v any, s step) {
		switch v.(type) {
		case object, []any:
			e.path = append(e.path, s)
			ok = e.undeclared(d, is, v) && ok
			e.path = e.path[:len(e.path)-1]
		}
	}
	switch v := v.(type) {
	case object:
		for _, m := range v {
			if !is.declares(m.name, e.matchesName) {
				ok = false
				if e.reporting {
					e.record(is.at, "the property "+excerpt(m.name)+" is not declared")
				}
			} else {
				part(e.declarationOf(d, is, m), m.value, step{m.name, -1})
			}
			if !ok && !e.reporting {
				return false
			}
		}
	case []any:
		rest := e.itemDeclaration(d, is, is.longest)
		for i, x := range v {
			at := rest
			if i < is.longest {
				at = e.itemDeclaration(d, is, i)
			}
			if part(at, x, step{"", i}); !ok && !e.reporting {
				return false
			}
		}
	}
	return ok
}

// matchesName is a matchName that counts its work.
func (e *evaluation) matchesName(n *node, k int, name string) bool {
	e.spend(2)
	return e.matches(n.matchers[k], name)
}

// declarationOf returns the declaration of a member, and counts its work. It returns nil if the member
// is neither an object nor an array.
func (e *evaluation) declarationOf(d *declarations, is *declaration, m member) *declaration {
	switch m.value.(type) {
	case object, []any:
	default:
		return nil
	}
	if is.names[m.name] {
		if known, ok := is.properties.Load(m.name); ok {
			return known.(*declaration)
		}
	}
	e.spend(10 * len(is.of))
	p := d.propertyBy(is, m.name, e.matchesName)
	e.spend(10 * p.size())
	return p
}

// itemDeclaration is like declarations.item, but counts its work.
func (e *evaluation) itemDeclaration(d *declarations, is *declaration, i int) *declaration {
	if known, ok := is.items.Load(i); ok {
		return known.(*declaration)
	}
	e.spend(10 * len(is.of))
	p := d.item(is, i)
	e.spend(10 * p.size())
	is.items.Store(i, p)
	return p
}

func (is *declaration) size() int {
	if is == nil {
		return 0
	}
	return len(is.of)
}
