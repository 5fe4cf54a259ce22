package schema

import (
	"encoding/json"
	"math/big"
	"slices"
)

// flatten adds to left what it implies in place, and takes from m the types that
// it excludes.
func (p *prover) flatten(left []conj, m mask) ([]conj, mask) {
	if len(left) == 1 {
		if n := left[0].n; n.always == nil && n.ref == nil && n.allOf == nil && len(n.anyOf) != 1 && len(n.oneOf) != 1 && n.dependentSchemas == nil {
			return left, m & n.types
		}
	}
	out := make([]conj, 0, len(left)+4)
	var add func(c conj)
	add = func(c conj) {
		p.steps += len(out) / 16
		c.n = through(c.n) // so that a claim is one, however it is referred to
		if i := slices.IndexFunc(out, func(o conj) bool { return o.n == c.n }); i >= 0 {
			out[i].used |= c.used
			return
		}
		if c.n.always != nil {
			if !*c.n.always {
				m = 0
			}
			return
		}
		m &= c.n.types
		out = append(out, c)
		if c.n.ref != nil {
			add(conj{n: c.n.ref})
		}
		for _, a := range c.n.allOf {
			add(conj{n: a})
		}
		if len(c.n.anyOf) == 1 {
			add(conj{n: c.n.anyOf[0]})
		}
		if len(c.n.oneOf) == 1 {
			add(conj{n: c.n.oneOf[0]})
		}
	}
	for _, c := range left {
		add(c)
	}
	if m != tObj || !slices.ContainsFunc(out, func(c conj) bool { return c.n.dependentSchemas != nil }) {
		return out, m
	}
	// What depends on a property that is always there applies always.
	for before := -1; before != len(out); {
		before = len(out)
		req := requiredBy(out)
		for _, c := range out[:before] {
			for _, k := range sortedKeys(c.n.dependentSchemas) {
				if req[k] {
					add(conj{n: c.n.dependentSchemas[k]})
				}
			}
		}
	}
	return out, m
}

// through follows nodes that are nothing but a reference.
func through(n *node) *node {
	for hops := 0; n.ref != nil && hops < 100 && onlyRef(n); hops++ {
		n = n.ref
	}
	return n
}

// onlyRef: n asks for nothing but what ref does. It may say no where that is so.
func onlyRef(n *node) bool {
	return n.always == nil && len(n.beyond) == 0 && n.types == tAll && !n.integer && n.values == nil &&
		!hasInPlace(n) && n.not == nil &&
		n.minimum == nil && n.exclusiveMinimum == nil && n.maximum == nil && n.exclusiveMaximum == nil && n.multipleOf == nil &&
		n.minLength == 0 && n.maxLength == -1 && n.pattern == nil && n.format == "" &&
		n.minItems == 0 && n.maxItems == -1 && !n.unique && n.prefix == nil && n.items == nil && n.contains == nil && n.unevaluatedItems == nil &&
		n.minProperties == 0 && n.maxProperties == -1 && n.required == nil && n.properties == nil && n.patterns == nil &&
		n.additional == nil && n.names == nil && n.dependentRequired == nil && n.unevaluatedProperties == nil
}

// hasInPlace: n applies other schemas than by ref to the same value.
func hasInPlace(n *node) bool {
	return n.allOf != nil || n.anyOf != nil || n.oneOf != nil || n.cond != nil || n.dependentSchemas != nil
}

// finite lists the values that can be left, if they are few. Some of them may be
// excluded.
func finite(left []conj, m mask) ([]any, bool) {
	var vals []any
	for _, c := range left {
		if v := c.n.values; len(v) > 0 && (vals == nil || len(v) < len(vals)) {
			vals = v
		}
	}
	switch {
	case vals != nil:
		return vals, true
	case m == tNull:
		return nullValues, true
	case m == tBool:
		return boolValues, true
	case m == tNull|tBool:
		return nullOrBoolValues, true
	}
	return nil, false
}

var (
	nullValues       = []any{nil}
	boolValues       = []any{false, true}
	nullOrBoolValues = []any{nil, false, true}
)

// listed judges each of vals. It is decided unless a value's case is unclear.
func (p *prover) listed(left []conj, m mask, right *node, vals []any) (decided, ok bool) {
	if right.always != nil {
		return false, false // said better elsewhere
	}
	var lost []any
	for _, v := range vals {
		if typeOf(v)&m == 0 {
			continue
		}
		// Right first: where all is well, left need not be asked.
		switch p.judge(right, v) {
		case yes:
			continue
		case unclear:
			return false, false
		case no:
		}
		if !p.step() {
			return true, false
		}
		if p.rejected(left, v) {
			continue
		}
		lost = append(lost, v)
		if p.quiet > 0 {
			return true, false
		}
	}
	if len(lost) > 0 {
		return true, p.noteValues(right, lost)
	}
	return true, true
}

// rejected: it is sure that v does not fit left.
func (p *prover) rejected(left []conj, v any) bool {
	return slices.ContainsFunc(left, func(c conj) bool { return p.judge(c.n, v) == no })
}

// A judgment says whether a node accepts a value.
type judgment uint8

const (
	unclear judgment = iota
	no
	yes
)

func judged(ok bool) judgment {
	if ok {
		return yes
	}
	return no
}

// judge asks the library, or for nodes that the proof made, itself. What a node
// accepts from which a dynamic reference can be reached is unclear, and what would
// take too long to judge.
func (p *prover) judge(n *node, v any) judgment {
	if p.steps > maxProofSteps {
		return unclear
	}
	if t := typeOf(v); len(n.values) > 0 && t&(tArr|tObj) == 0 {
		if !p.member(n, v) {
			return no
		}
		if onlyValues(n) && (!n.integer || t == tStr) {
			return judged(n.types&t != 0)
		}
	}
	switch {
	case n.always != nil:
		return judged(*n.always)
	case n.opaque:
		return unclear
	case n.accepts != nil:
		if !p.light(n, v) {
			return unclear
		}
		return judged(n.accepts(v))
	case !p.made.is(n):
		return unclear
	case n.not != nil:
		switch p.judge(n.not, v) {
		case yes:
			return no
		case no:
			return yes
		default:
			return unclear
		}
	case n.anyOf != nil:
		out := no
		for _, b := range n.anyOf {
			switch p.judge(b, v) {
			case yes:
				return yes
			case unclear:
				out = unclear
			case no:
			}
		}
		return out
	case n.pattern != nil: // only textNode and onlyText have one
		if s, ok := v.(string); ok {
			return judged(n.pattern.MatchString(s))
		}
		return judged(n.types&typeOf(v) != 0)
	case len(n.values) > 0:
		return judged(slices.ContainsFunc(n.values, func(x any) bool { return sameValue(x, v) }))
	}
	return unclear
}

// light counts the work of having v judged, and says whether it is to be done.
func (p *prover) light(n *node, v any) bool {
	const most = 100_000 // of one judgment
	work := n.weight.cost
	switch v := v.(type) {
	case string:
		work += len(v) * n.weight.pattern / patternUnit
	case map[string]any, []any:
		e := &effort{left: most}
		if !e.part(map[*node]int{n: 1}, v, place{}) {
			return false
		}
		work = most - e.left
	}
	p.steps += 1 + work/stepWork
	return work <= most && p.steps <= maxProofSteps
}

// onlyValues: of what is neither an array nor an object, n asks for nothing but a
// type and one of its values. It may say no where that is so.
func onlyValues(n *node) bool {
	return n.always == nil && n.ref == nil && !hasInPlace(n) && n.not == nil && len(n.beyond) == 0 &&
		n.minimum == nil && n.exclusiveMinimum == nil && n.maximum == nil && n.exclusiveMaximum == nil && n.multipleOf == nil &&
		n.minLength == 0 && n.maxLength == -1 && n.pattern == nil && n.format == ""
}

// member says whether v, which is neither an array nor an object, is among n's
// values.
func (p *prover) member(n *node, v any) bool {
	if len(n.values) <= 8 {
		return slices.ContainsFunc(n.values, func(x any) bool { return sameValue(x, v) })
	}
	set := p.members[n]
	if set == nil {
		set = make(map[any]struct{}, len(n.values))
		for _, x := range n.values {
			if typeOf(x)&(tArr|tObj) == 0 {
				set[canonicalScalar(x)] = struct{}{}
			}
		}
		if p.members == nil {
			p.members = map[*node]map[any]struct{}{}
		}
		p.members[n] = set
	}
	_, ok := set[canonicalScalar(v)]
	return ok
}

// canonicalScalar is the same for the same value: 1 and 1.0 are one number.
func canonicalScalar(v any) any {
	text, ok := v.(json.Number)
	if !ok {
		return v
	}
	if r, ok := new(big.Rat).SetString(string(text)); ok {
		return json.Number(r.RatString())
	}
	return v
}

// typeOf is the type of a decoded value.
func typeOf(v any) mask {
	switch v.(type) {
	case nil:
		return tNull
	case bool:
		return tBool
	case string:
		return tStr
	case []any:
		return tArr
	case map[string]any, object:
		return tObj
	}
	return tNum
}

// sameValue is equality as JSON Schema has it: 1 and 1.0 are one number.
func sameValue(a, b any) bool {
	switch x := a.(type) {
	case json.Number:
		y, ok := b.(json.Number)
		return ok && (x == y || sameNumber(string(x), string(y)))
	case []any:
		y, ok := b.([]any)
		return ok && slices.EqualFunc(x, y, sameValue)
	case map[string]any:
		y, ok := b.(map[string]any)
		if !ok || len(x) != len(y) {
			return false
		}
		for k, v := range x {
			w, ok := y[k]
			if !ok || !sameValue(v, w) {
				return false
			}
		}
		return true
	case nil, bool, string:
		return a == b
	}
	return false
}

// sameNumber compares numbers that Compile let pass, so that their exponents are
// bounded.
func sameNumber(a, b string) bool {
	x, ok := new(big.Rat).SetString(a)
	if !ok {
		return false
	}
	y, ok := new(big.Rat).SetString(b)
	return ok && x.Cmp(y) == 0
}

// possible are types beyond which n accepts nothing.
func (p *prover) possible(n *node) mask {
	if n.ref == nil && n.allOf == nil && n.anyOf == nil && n.oneOf == nil && n.values == nil {
		if n.always != nil && !*n.always {
			return 0
		}
		return n.types
	}
	if m, ok := p.facts[n]; ok {
		return m
	}
	if p.facts == nil {
		p.facts = map[*node]mask{}
	}
	p.facts[n] = n.types // while under way; a cycle adds nothing
	m := n.types
	if len(n.values) > 0 {
		var of mask
		for _, v := range n.values {
			of |= typeOf(v)
		}
		m &= of
	}
	if n.ref != nil {
		m &= p.possible(n.ref)
	}
	for _, a := range n.allOf {
		m &= p.possible(a)
	}
	for _, union := range [][]*node{n.anyOf, n.oneOf} {
		if len(union) == 0 {
			continue
		}
		var of mask
		for _, b := range union {
			of |= p.possible(b)
		}
		m &= of
	}
	p.facts[n] = m
	return m
}
