package schema

import (
	"math/big"
	"regexp"
	"slices"
)

// equal says whether a and b are known to accept the same, because they ask for
// the same in the same shape. Titles and where things stand do not matter.
//
// Cycles are taken to be equal while they are compared: of two schemas that unfold
// to the same tree, both accept the same values. A difference, once found, is one
// whatever was assumed. From an opaque node a dynamic reference can be reached, so
// that its shape does not say what it accepts, and neither does its identity.
func (p *prover) equal(a, b *node) bool {
	if a.opaque || b.opaque {
		return false
	}
	if a == b {
		return true
	}
	if !alike(a, b) {
		return false
	}
	if len(p.pairs) == 0 && leaf(a) && leaf(b) {
		return true
	}
	if differ, ok := p.differs[[2]*node{a, b}]; ok {
		return !differ
	}
	p.pairs = p.pairs[:0]
	ok := p.same(a, b)
	if ok {
		for _, pair := range p.pairs {
			p.remember(pair, false)
		}
	}
	p.pairs = p.pairs[:0]
	return ok
}

func (p *prover) remember(pair [2]*node, differ bool) {
	if p.differs == nil {
		p.differs = map[[2]*node]bool{}
	}
	p.differs[pair] = differ
}

// same is equal within one comparison.
func (p *prover) same(a, b *node) bool {
	if a == nil || b == nil {
		return a == b
	}
	if a == b {
		return !a.opaque
	}
	if a.opaque || b.opaque || !alike(a, b) {
		return false
	}
	if leaf(a) && leaf(b) {
		return true
	}
	pair := [2]*node{a, b}
	if differ, ok := p.differs[pair]; ok {
		return !differ
	}
	if len(p.pairs) < 64 && slices.Contains(p.pairs, pair) {
		return true
	}
	if !p.step() {
		return false
	}
	p.pairs = append(p.pairs, pair)
	if len(p.pairs) >= 64 { // many: the table finds them faster
		return p.sameMany(pair)
	}
	if p.sameParts(a, b) {
		return true
	}
	p.remember(pair, true)
	return false
}

// sameMany is the rest of same for a large comparison: what is assumed stands in
// the table at once, and is taken back if the comparison fails.
func (p *prover) sameMany(pair [2]*node) bool {
	p.remember(pair, false)
	if p.sameParts(pair[0], pair[1]) {
		return true
	}
	for _, assumed := range p.pairs {
		delete(p.differs, assumed)
	}
	p.remember(pair, true)
	return false
}

// leaf: n applies no other schemas.
func leaf(n *node) bool {
	return n.ref == nil && !hasInPlace(n) && n.not == nil && n.prefix == nil && n.items == nil && n.contains == nil && n.unevaluatedItems == nil &&
		n.properties == nil && n.patterns == nil && n.additional == nil && n.names == nil && n.unevaluatedProperties == nil
}

// alike: a and b ask for the same, but for the schemas that they apply.
func alike(a, b *node) bool {
	if a.always != nil || b.always != nil {
		return a.always != nil && b.always != nil && *a.always == *b.always
	}
	for _, k := range a.beyond {
		// Of these there is one value each that the builder takes note of.
		if k != "contentEncoding" && k != "contentMediaType" {
			return false
		}
	}
	return slices.Equal(a.beyond, b.beyond) &&
		a.types == b.types && a.integer == b.integer &&
		sameRat(a.minimum, b.minimum) && sameRat(a.exclusiveMinimum, b.exclusiveMinimum) &&
		sameRat(a.maximum, b.maximum) && sameRat(a.exclusiveMaximum, b.exclusiveMaximum) && sameRat(a.multipleOf, b.multipleOf) &&
		a.minLength == b.minLength && a.maxLength == b.maxLength && samePattern(a.pattern, b.pattern) && a.format == b.format &&
		a.minItems == b.minItems && a.maxItems == b.maxItems && a.unique == b.unique &&
		len(a.prefix) == len(b.prefix) && a.minContains == b.minContains && a.maxContains == b.maxContains && a.containsEvaluates == b.containsEvaluates &&
		a.minProperties == b.minProperties && a.maxProperties == b.maxProperties &&
		len(a.properties) == len(b.properties) && len(a.patterns) == len(b.patterns) &&
		len(a.allOf) == len(b.allOf) && len(a.anyOf) == len(b.anyOf) && len(a.oneOf) == len(b.oneOf) &&
		len(a.dependentRequired) == len(b.dependentRequired) && len(a.dependentSchemas) == len(b.dependentSchemas) &&
		sameNames(a.required, b.required) && sameNeeds(a.dependentRequired, b.dependentRequired) &&
		slices.EqualFunc(a.values, b.values, sameValue)
}

func sameRat(a, b *big.Rat) bool {
	return a == b || a != nil && b != nil && a.Cmp(b) == 0
}

func samePattern(a, b *regexp.Regexp) bool {
	return a == b || a != nil && b != nil && a.String() == b.String()
}

// sameNames compares as sets.
func sameNames(a, b []string) bool {
	if slices.Equal(a, b) {
		return true
	}
	if len(a) > 16 || len(b) > 16 {
		a, b = slices.Clone(a), slices.Clone(b)
		slices.Sort(a)
		slices.Sort(b)
		return slices.Equal(slices.Compact(a), slices.Compact(b))
	}
	in := func(of []string) func(string) bool {
		return func(s string) bool { return !slices.Contains(of, s) }
	}
	return !slices.ContainsFunc(a, in(b)) && !slices.ContainsFunc(b, in(a))
}

func sameNeeds(a, b map[string][]string) bool {
	for k, needs := range a {
		other, ok := b[k]
		if !ok || !sameNames(needs, other) {
			return false
		}
	}
	return true
}

// sameParts compares the schemas that a and b apply, of which they have as many.
func (p *prover) sameParts(a, b *node) bool {
	both := [...][2]*node{
		{a.ref, b.ref},
		{a.not, b.not},
		{a.cond, b.cond},
		{a.then, b.then},
		{a.els, b.els},
		{a.items, b.items},
		{a.contains, b.contains},
		{a.unevaluatedItems, b.unevaluatedItems},
		{a.additional, b.additional},
		{a.names, b.names},
		{a.unevaluatedProperties, b.unevaluatedProperties},
	}
	for _, pair := range both {
		if !p.same(pair[0], pair[1]) {
			return false
		}
	}
	lists := [...][2][]*node{{a.allOf, b.allOf}, {a.anyOf, b.anyOf}, {a.oneOf, b.oneOf}, {a.prefix, b.prefix}}
	for _, pair := range lists {
		if !slices.EqualFunc(pair[0], pair[1], p.same) {
			return false
		}
	}
	for i, x := range a.patterns {
		if y := b.patterns[i]; x.re.String() != y.re.String() || !p.same(x.of, y.of) {
			return false
		}
	}
	for _, pair := range [...][2]map[string]*node{{a.properties, b.properties}, {a.dependentSchemas, b.dependentSchemas}} {
		for _, k := range sortedKeys(pair[0]) { // sorted, so that the steps are the same each time
			y := pair[1][k]
			if y == nil || !p.same(pair[0][k], y) {
				return false
			}
		}
	}
	return true
}
