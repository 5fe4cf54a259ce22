package schema

import (
	"math/big"
	"regexp"
)

// mask is a set of the types of JSON.
type mask uint8

const (
	tNull mask = 1 << iota
	tBool
	tNum
	tStr
	tArr
	tObj
	tAll = tNull | tBool | tNum | tStr | tArr | tObj
)

// typesOf reads the keyword type; known says that each of them is one.
func typesOf(names []string) (m mask, integer, known bool) {
	number := false
	known = true
	for _, t := range names {
		switch t {
		case "null":
			m |= tNull
		case "boolean":
			m |= tBool
		case "number":
			m |= tNum
			number = true
		case "integer":
			m |= tNum
			integer = true
		case "string":
			m |= tStr
		case "array":
			m |= tArr
		case "object":
			m |= tObj
		default:
			known = false
		}
	}
	return m, integer && !number, known
}

// node is one schema, independent of the spelling of the drafts. Compile makes the nodes, and they do
// not change. A recursive schema is a cycle of nodes. A schema is one node, however many references
// lead to it.
type node struct {
	at string // location: the JSON pointer as a fragment, "#/properties/a", with the URI of other documents in front

	// accepts is the library's judgment of a decoded value (numbers are
	// json.Number). Nil in nodes that the proof makes itself.
	accepts func(v any) bool
	// opaque is set if a dynamic or recursive reference can be reached from this node. Then
	// accepts, called for this node alone, may give another result than within its schema.
	opaque bool
	// dynamic has the schemas that the dynamic or recursive reference of this node may refer
	// to. The proof has the keyword in beyond.
	dynamic []*node
	evaluated
	weight weight   // see weigh
	own    int      // the part of weight.cost that is this node's own
	id     int      // index among the nodes of its Schema
	beyond []string // keywords of this node that the proof does not understand, sorted

	always *bool // the schemas true and false

	types   mask // tAll without the keyword type
	integer bool // type has integer and not number

	values []any // enum, or the one of const; nil: neither. A node with both has const in allOf.

	ref                 *node
	allOf, anyOf, oneOf []*node
	not                 *node
	cond, then, els     *node // then and els only with cond

	minimum, exclusiveMinimum, maximum, exclusiveMaximum *big.Rat // nil: none
	multipleOf                                           *big.Rat // above 0; nil: none

	minLength, maxLength int // in code points; 0 and -1: none
	pattern              *regexp.Regexp
	format               string // only those that are asserted

	minItems, maxItems       int // 0 and -1: none
	unique                   bool
	prefix                   []*node // of the first items
	items                    *node   // of those behind prefix; nil: any
	contains                 *node
	minContains, maxContains int  // with contains; maxContains -1: none
	containsEvaluates        bool // with contains: what it finds, unevaluatedItems passes over
	unevaluatedItems         *node

	minProperties, maxProperties int // 0 and -1: none
	required                     []string
	properties                   map[string]*node
	patterns                     []patternNode // sorted by pattern
	additional                   *node         // nil: any
	names                        *node         // propertyNames
	dependentRequired            map[string][]string
	dependentSchemas             map[string]*node
	unevaluatedProperties        *node
}

// evaluated has the fields of a node that only the evaluation of payloads reads.
type evaluated struct {
	applies     bool            // the node applies other schemas to the same value
	constant    bool            // values has the value of const
	allowed     map[string]bool // the keys of values, see appendKey
	longestKey  int             // length of the longest key in allowed
	isFormat    func(v any) bool
	matcher     *matcher   // of pattern
	matchers    []*matcher // of patterns
	base64      bool       // strings must be base64
	json        bool       // strings must be JSON, after decoding if base64 is set
	expressions bool       // names of members must be regular expressions

	sorted    []namedNode // properties, sorted by name
	constants []namedNode // the properties in sorted that have a const
	needs     []need      // dependentRequired, sorted by name
	dependent []namedNode // dependentSchemas, sorted by name

	// A dynamic reference refers to the schema with the same anchor in the outermost schema that is
	// being evaluated, or to target if none has the anchor. The anchor of recursive references is "".
	target  *node
	anchor  string
	anchors []namedNode // the dynamic anchors of this schema and of the schemas within it
}

type namedNode struct {
	name string
	of   *node
}

// need is one member of dependentRequired or dependencies.
type need struct {
	keyword, name string
	names         []string
}

// patternNode is one of patternProperties.
type patternNode struct {
	re *regexp.Regexp
	of *node
}

// inPlace calls f with the schemas that this one applies to the same value.
func (n *node) inPlace(f func(*node)) {
	n.applied(f)
	for _, x := range n.dynamic {
		f(x)
	}
}

// applied is inPlace without what is not known before there is a value: dynamic.
func (n *node) applied(f func(*node)) {
	n.describing(f)
	if n.not != nil {
		f(n.not)
	}
}

// describing is applied without what a value that is accepted does not fit: not.
func (n *node) describing(f func(*node)) {
	for _, x := range [...]*node{n.ref, n.cond, n.then, n.els} {
		if x != nil {
			f(x)
		}
	}
	for _, l := range [...][]*node{n.allOf, n.anyOf, n.oneOf} {
		for _, x := range l {
			f(x)
		}
	}
	for _, name := range sortedKeys(n.dependentSchemas) {
		f(n.dependentSchemas[name])
	}
}

// below calls f with the schemas that this one applies to parts of the value.
func (n *node) below(f func(*node)) {
	for _, x := range n.prefix {
		f(x)
	}
	for _, name := range sortedKeys(n.properties) {
		f(n.properties[name])
	}
	for _, p := range n.patterns {
		f(p.of)
	}
	for _, x := range [...]*node{n.items, n.contains, n.unevaluatedItems, n.additional, n.names, n.unevaluatedProperties} {
		if x != nil {
			f(x)
		}
	}
}

// markOpaque sets opaque on all from which a dynamic reference can be reached.
func markOpaque(all []*node) {
	from := make(map[*node][]*node, len(all))
	var next []*node
	for _, n := range all {
		add := func(to *node) { from[to] = append(from[to], n) }
		n.inPlace(add)
		n.below(add)
		if n.dynamic != nil {
			n.opaque = true
			next = append(next, n)
		}
	}
	for len(next) > 0 {
		n := next[len(next)-1]
		next = next[:len(next)-1]
		for _, p := range from[n] {
			if !p.opaque {
				p.opaque = true
				next = append(next, p)
			}
		}
	}
}
