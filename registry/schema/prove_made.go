package schema

import (
	"math/big"
	"regexp"
)

// made are the nodes that the proof makes itself, each once, so that one claim
// has one key.
type made struct {
	all    map[*node]bool
	nots   map[*node]*node
	others map[otherKey]*node
	needs  map[string]*node
	absent map[string]*node
	names  map[string]*node
	values map[valueKey]*node
	spans  map[string]*node
	texts  map[textKey]*node
}

type otherKey struct {
	of    *node
	index int
}

type valueKey struct {
	of   *node // whose values; nil: of a type, or null and the booleans
	kind byte
	name string
	at   int
}

type textKey struct {
	pattern string
	only    bool // strings alone
}

// is says whether n was made by the proof.
func (m *made) is(n *node) bool { return m.all[n] }

// blank is a node that accepts all.
func (m *made) blank() *node {
	n := &node{at: "#", types: tAll, maxLength: -1, maxItems: -1, maxContains: -1, maxProperties: -1}
	if m.all == nil {
		m.all = map[*node]bool{}
	}
	m.all[n] = true
	return n
}

// keep is table[key], made by fill if it is not there.
func keep[K comparable](m *made, table *map[K]*node, key K, fill func(n *node)) *node {
	if n, ok := (*table)[key]; ok {
		return n
	}
	if *table == nil {
		*table = map[K]*node{}
	}
	n := m.blank()
	fill(n)
	(*table)[key] = n
	return n
}

// notNode accepts what x does not.
func (m *made) notNode(x *node) *node {
	return keep(m, &m.nots, x, func(n *node) { n.not = x })
}

// noOther accepts what no branch of the oneOf of x but the i-th does.
func (m *made) noOther(x *node, i int) *node {
	return keep(m, &m.others, otherKey{x, i}, func(n *node) {
		others := m.blank()
		others.anyOf = append(append([]*node{}, x.oneOf[:i]...), x.oneOf[i+1:]...)
		n.not = others
	})
}

// needNode accepts objects that have the property, and all that is no object.
func (m *made) needNode(name string) *node {
	return keep(m, &m.needs, name, func(n *node) { n.required = []string{name} })
}

// absentNode accepts objects that lack the property, and all that is no object.
func (m *made) absentNode(name string) *node {
	return keep(m, &m.absent, name, func(n *node) { n.properties = map[string]*node{name: never} })
}

// nameNode accepts the one string.
func (m *made) nameNode(name string) *node {
	return keep(m, &m.names, name, func(n *node) { n.values = []any{name} })
}

// valueNode accepts one value of those of x.
func (m *made) valueNode(x *node, at int) *node {
	return keep(m, &m.values, valueKey{of: x, kind: 'v', at: at}, func(n *node) { n.values = x.values[at : at+1] })
}

// propertyNode accepts objects whose property, if it is there, is the one value
// of those of x.
func (m *made) propertyNode(name string, x *node, at int) *node {
	return keep(m, &m.values, valueKey{of: x, kind: 'p', name: name, at: at}, func(n *node) {
		n.properties = map[string]*node{name: m.valueNode(x, at)}
	})
}

// plainNode accepts objects whose property, if it is there, is null, or false, or true.
func (m *made) plainNode(name string, v any) *node {
	at := 0
	if b, ok := v.(bool); ok {
		at = 1
		if b {
			at = 2
		}
	}
	return keep(m, &m.values, valueKey{kind: 'b', name: name, at: at}, func(n *node) {
		value := m.blank()
		value.values = nullOrBoolValues[at : at+1]
		n.properties = map[string]*node{name: value}
	})
}

// typeNode accepts objects whose property, if it is there, is of the type.
func (m *made) typeNode(name string, t mask) *node {
	return keep(m, &m.values, valueKey{kind: 't', name: name, at: int(t)}, func(n *node) {
		value := m.blank()
		value.types = t
		n.properties = map[string]*node{name: value}
	})
}

// spanNode accepts numbers in the open interval, or the number if both are one;
// nil is no bound.
func (m *made) spanNode(lo, hi *big.Rat) *node {
	text := func(r *big.Rat) string {
		if r == nil {
			return ""
		}
		return r.String()
	}
	return keep(m, &m.spans, text(lo)+" "+text(hi), func(n *node) {
		if lo != nil && hi != nil && lo.Cmp(hi) == 0 {
			n.minimum, n.maximum = lo, hi
			return
		}
		n.exclusiveMinimum, n.exclusiveMaximum = lo, hi
	})
}

// textNode accepts strings that the pattern matches, or with not those that it
// does not, and all that is no string.
func (m *made) textNode(re *regexp.Regexp, not bool) *node {
	n := keep(m, &m.texts, textKey{pattern: re.String()}, func(n *node) { n.pattern = re })
	if !not {
		return n
	}
	return m.notNode(m.onlyText(n))
}

// onlyText accepts of what n does the strings.
func (m *made) onlyText(n *node) *node {
	return keep(m, &m.texts, textKey{n.pattern.String(), true}, func(x *node) { x.pattern, x.types = n.pattern, tStr })
}

// never accepts nothing.
var never = func() *node { f := false; return &node{at: "#", always: &f, types: tAll} }()
