package schema

import (
	"regexp"
	"slices"
)

// maxRegionPatterns bounds the patterns by which unmentioned names are told apart:
// n of them make up to 2^n kinds of names.
const maxRegionPatterns = 6

// region is one kind of names that nobody mentions: those that some of the
// patterns match and the others do not.
type region struct {
	patterns []*regexp.Regexp
	in       uint
}

// has says whether the names of the region are matched by re, which is one of the
// patterns.
func (r region) has(re *regexp.Regexp) bool {
	i := slices.IndexFunc(r.patterns, func(x *regexp.Regexp) bool { return samePattern(x, re) })
	return i >= 0 && r.in&(1<<i) != 0
}

// asked is the function asked for the names of the region.
func (r region) asked(n *node, f func(*node)) {
	found := false
	for _, x := range n.patterns {
		if r.has(x.re) {
			found = true
			f(x.of)
		}
	}
	if !found && n.additional != nil {
		f(n.additional)
	}
}

func (r region) speaksOf(n *node) bool {
	return slices.ContainsFunc(n.patterns, func(x patternNode) bool { return r.has(x.re) })
}

// others proves what right asks of the properties that are not mentioned.
func (p *prover) others(left []conj, at *declaration, right *node) bool {
	if right.patterns == nil && right.names == nil && (right.additional == nil || right.additional.always != nil && *right.additional.always) && right.unevaluatedProperties == nil {
		return true
	}
	patterns, ok := patternsOf(left, at, right)
	if !ok {
		return p.doubt(right, "patternProperties", "there are too many patterns for the proof")
	}
	for in := range uint(1) << len(patterns) {
		r := region{patterns: patterns, in: in}
		p.quiet++
		ok := p.inRegion(left, at, right, r, nil)
		p.quiet--
		if ok {
			continue
		}
		names := p.namesIn(left, r)
		if p.unsat(names, nil, tStr) {
			continue // there are no such names
		}
		if p.quiet > 0 {
			return false
		}
		if !p.inRegion(left, at, right, r, names) { // asked again, it may also be proved: of this region
			return false
		}
	}
	return true
}

// patternsOf are the patterns by which left, at or right tell names apart; ok is
// false if they are too many.
func patternsOf(left []conj, at *declaration, right *node) (out []*regexp.Regexp, ok bool) {
	add := func(n *node) {
		for _, x := range n.patterns {
			if !slices.ContainsFunc(out, func(re *regexp.Regexp) bool { return samePattern(re, x.re) }) {
				out = append(out, x.re)
			}
		}
	}
	add(right)
	if right.unevaluatedProperties != nil {
		reachSurely(right, add)
	}
	for _, c := range left {
		add(c.n)
		if c.n.unevaluatedProperties != nil {
			reachInPlace(c.n, add)
		}
	}
	if at != nil {
		for _, n := range at.of {
			add(n)
		}
	}
	return out, len(out) <= maxRegionPatterns
}

// namesIn is what is known of a name in the region, as a left side.
func (p *prover) namesIn(left []conj, r region) []conj {
	var out []conj
	for _, c := range left {
		if c.n.names != nil {
			out = append(out, conj{n: c.n.names})
		}
	}
	for i, re := range r.patterns {
		out = append(out, conj{n: p.made.textNode(re, r.in&(1<<i) == 0)})
	}
	return out
}

// inRegion proves what right asks of properties whose names are in the region and
// not mentioned.
func (p *prover) inRegion(left []conj, at *declaration, right *node, r region, names []conj) bool {
	if at != nil && at.closed && !slices.ContainsFunc(at.of, r.speaksOf) {
		return true // none is declared
	}
	var of []conj
	for _, c := range left {
		before := len(of)
		r.asked(c.n, func(q *node) { of = append(of, conj{n: q}) })
		if u := c.n.unevaluatedProperties; u != nil && len(of) == before && c.n.additional == nil && !r.mayEvaluate(c.n) {
			of = append(of, conj{n: u})
		}
	}
	there := p.declaredIn(at, r)
	if p.unsat(of, there, tAll) {
		return true
	}
	ok := true
	keyword := "additionalProperties"
	if r.speaksOf(right) {
		keyword = "patternProperties"
	}
	ask := func(q *node) {
		switch {
		case !ok && !p.more():
		case q.always != nil && !*q.always:
			ok = p.note(right, keyword, "further properties are no longer accepted")
		default:
			ok = p.within(of, there, tAll, q, keyword, "what further properties may be is") && ok
		}
	}
	r.asked(right, ask)
	if u := right.unevaluatedProperties; u != nil && right.additional == nil && !r.surelyEvaluates(right) {
		keyword = "unevaluatedProperties"
		ask(u)
	}
	if right.names != nil && (ok || p.more()) {
		if names == nil {
			names = p.namesIn(left, r)
		}
		ok = p.within(names, nil, tStr, right.names, "propertyNames", "every name of a property is") && ok
	}
	return ok
}

// mayEvaluate is mayEvaluateProperty for the names of the region. The names of
// properties are mentioned wherever unevaluatedProperties stands beside them.
func (r region) mayEvaluate(n *node) bool {
	may := false
	reachInPlace(n, func(x *node) {
		may = may || r.speaksOf(x) || x.additional != nil || len(x.beyond) > 0 || x != n && x.unevaluatedProperties != nil
	})
	return may
}

// surelyEvaluates is surelyEvaluatesProperty for the names of the region.
func (r region) surelyEvaluates(n *node) bool {
	sure := false
	reachSurely(n, func(x *node) {
		sure = sure || r.speaksOf(x) || x.additional != nil || x != n && x.unevaluatedProperties != nil
	})
	return sure
}

// declaredIn is the declaration of the properties whose names are in the region.
func (p *prover) declaredIn(at *declaration, r region) *declaration {
	if at == nil {
		return nil
	}
	var roots []*node
	for _, n := range at.of {
		r.asked(n, func(q *node) { roots = append(roots, q) })
	}
	return p.declared.orUnevaluated(at, roots, func(n *node) *node { return n.unevaluatedProperties })
}
