package schema

import "slices"

// unsat proves that no value of m fits all of left. It gives no reasons.
func (p *prover) unsat(left []conj, at *declaration, m mask) bool {
	if !p.step() {
		return false
	}
	left, m = p.flatten(left, m)
	if m == 0 {
		return true
	}
	p.quiet++
	defer func() { p.quiet-- }()
	if m&(tArr|tObj) == 0 && !slices.ContainsFunc(left, func(c conj) bool { return c.n.not != nil || hasInPlace(c.n) }) {
		return p.contradiction(left, at, m) // it ends by itself
	}
	key, outer, verdict, known := p.begin(left, at, m, nil)
	if known {
		return verdict
	}
	ok := p.contradiction(left, at, m)
	p.end(key, outer, ok)
	return ok
}

// contradiction is unsat of a flat left side.
func (p *prover) contradiction(left []conj, at *declaration, m mask) bool {
	if vals, ok := finite(left, m); ok {
		if !slices.ContainsFunc(vals, func(v any) bool { return typeOf(v)&m != 0 && !p.rejected(left, v) }) {
			return true
		}
		if m&(tNum|tStr|tArr|tObj) == 0 && !slices.ContainsFunc(left, func(c conj) bool { return c.n.opaque || c.n.accepts == nil }) {
			return false
		}
	}
	if m&(m-1) != 0 {
		for t := tObj; t > 0; t >>= 1 {
			if m&t != 0 && !p.unsat(left, at, t) {
				return false
			}
		}
		return true
	}
	switch m {
	case tNum:
		if spanOf(left).empty() {
			return true
		}
	case tStr:
		if p.noText(left) {
			return true
		}
	case tArr:
		if p.noArray(left, at) {
			return true
		}
	case tObj:
		if p.noObject(left, at) {
			return true
		}
	default:
	}
	return p.contradictedNot(left, at, m) || p.noBranch(left, at, m)
}

// contradictedNot: left fits what one of its own parts says it does not.
func (p *prover) contradictedNot(left []conj, at *declaration, m mask) bool {
	for i, c := range left {
		if c.n.not == nil || c.used&usedNot != 0 {
			continue
		}
		rest := slices.Clone(left)
		rest[i].used |= usedNot
		if p.sub(rest, at, m, c.n.not) {
			return true
		}
	}
	return false
}

// noBranch: one of the unions on the left has no branch that fits the rest.
func (p *prover) noBranch(left []conj, at *declaration, m mask) bool {
	for i := range left {
		if ways := p.ways(left, i); ways != nil && !slices.ContainsFunc(ways, func(w []conj) bool { return !p.unsat(w, at, m) }) {
			return true
		}
	}
	return false
}

// ways are the cases of a union that the i-th of left has, as left sides. Every
// value that fits left fits one of them. Nil: there is none that was not used.
func (p *prover) ways(left []conj, i int) [][]conj {
	c := left[i]
	mark := func(f flags) []conj {
		out := slices.Clone(left)
		out[i].used |= f
		return out
	}
	switch {
	case c.used&usedAny == 0 && len(c.n.anyOf) > 1:
		out := make([][]conj, 0, len(c.n.anyOf))
		for _, b := range c.n.anyOf {
			out = append(out, with(mark(usedAny), b))
		}
		return out
	case c.used&usedOne == 0 && len(c.n.oneOf) > 1:
		out := make([][]conj, 0, len(c.n.oneOf))
		for j, b := range c.n.oneOf {
			out = append(out, with(mark(usedOne), b, p.made.noOther(c.n, j)))
		}
		return out
	case c.used&usedIf == 0 && c.n.cond != nil && (c.n.then != nil || c.n.els != nil):
		return [][]conj{
			with(mark(usedIf), c.n.cond, c.n.then),
			with(mark(usedIf), p.made.notNode(c.n.cond), c.n.els),
		}
	}
	return nil
}
