package schema

import (
	"math/big"
	"slices"
)

// divisible says whether cases can do anything.
func (p *prover) divisible(left []conj, m mask, right *node) bool {
	if m&(m-1) != 0 {
		return true
	}
	if slices.ContainsFunc(left, func(c conj) bool {
		return c.used&usedAny == 0 && len(c.n.anyOf) > 1 || c.used&usedOne == 0 && len(c.n.oneOf) > 1 || c.used&usedIf == 0 && c.n.cond != nil
	}) {
		return true
	}
	return m&(tNum|tObj) != 0 && branches(right)
}

// branches: right asks for something that may hold for each part of the values
// but for no two of them alike.
func branches(right *node) bool {
	return len(right.anyOf) > 1 || len(right.oneOf) > 1 || right.not != nil || right.cond != nil
}

// cases divides the values that fit left into parts, and proves the claim for
// each of them.
func (p *prover) cases(left []conj, at *declaration, m mask, right *node) bool {
	for i := range left {
		if ways := p.ways(left, i); ways != nil {
			return p.each(ways, at, m, right)
		}
	}
	if m&(m-1) != 0 {
		ok := true
		for t := tNull; t <= tObj; t <<= 1 {
			if m&t != 0 && (ok || p.more()) {
				ok = p.sub(left, at, t, right) && ok
			}
		}
		return ok
	}
	var ways [][]conj
	switch m {
	case tNum:
		ways = p.numberCases(left, right)
	case tObj:
		ways = p.propertyCases(left, at, right)
	default:
	}
	if ways == nil { // nothing to divide: what failed before is told now
		return p.quiet == 0 && p.atoms(left, at, m, right)
	}
	return p.each(ways, at, m, right)
}

func (p *prover) each(ways [][]conj, at *declaration, m mask, right *node) bool {
	ok := true
	for _, w := range ways {
		if !ok && !p.more() {
			return false
		}
		ok = p.sub(w, at, m, right) && ok
	}
	return ok
}

// numberCases divides numbers at the bounds that right mentions.
func (p *prover) numberCases(left []conj, right *node) [][]conj {
	if slices.ContainsFunc(left, func(c conj) bool { return c.used&usedCases != 0 }) {
		return nil
	}
	s := spanOf(left)
	var points []*big.Rat
	add := func(r *big.Rat) {
		if r != nil && s.holds(r) && !slices.ContainsFunc(points, func(q *big.Rat) bool { return q.Cmp(r) == 0 }) {
			points = append(points, r)
		}
	}
	mentioned(right, 6, func(n *node) {
		if len(points) < 16 {
			add(n.minimum)
			add(n.exclusiveMinimum)
			add(n.maximum)
			add(n.exclusiveMaximum)
		}
	})
	if len(points) == 0 {
		return nil
	}
	slices.SortFunc(points, (*big.Rat).Cmp)
	var out [][]conj
	part := func(lo, hi *big.Rat) {
		way := with(left, p.made.spanNode(lo, hi))
		way[len(way)-1].used = usedCases
		out = append(out, way)
	}
	var lo *big.Rat
	for _, r := range points {
		part(lo, r)
		part(r, r)
		lo = r
	}
	part(lo, nil)
	return out
}

// mentioned calls f with n and what it applies to the same value, to some depth.
func mentioned(n *node, depth int, f func(*node)) {
	if n == nil || depth == 0 {
		return
	}
	f(n)
	for _, l := range [...][]*node{n.allOf, n.anyOf, n.oneOf, {n.ref, n.not, n.cond, n.then, n.els}} {
		for _, x := range l {
			mentioned(x, depth-1, f)
		}
	}
}

// propertyCases divides objects by a property that right tells its branches apart
// by, where left allows few values for it.
func (p *prover) propertyCases(left []conj, at *declaration, right *node) [][]conj {
	divided := 0
	for _, c := range left {
		if p.made.is(c.n) && (c.n.required != nil || c.n.properties != nil) {
			divided++
		}
	}
	if divided > 6 { // each division multiplies the work
		return nil
	}
	names := map[string]bool{}
	mentioned(right, 6, func(n *node) {
		for _, name := range sortedKeys(n.properties) {
			if q := n.properties[name]; len(names) < 64 && (q.values != nil || through(q).types != tAll) {
				names[name] = true
			}
		}
		for _, name := range n.required {
			if len(names) < 64 {
				names[name] = true
			}
		}
	})
	req := requiredBy(left)
	for _, name := range sortedKeys(names) {
		of, of2 := p.property(left, at, name)
		of, m := p.flatten(of, tAll)
		p.level++
		gone := p.unsat(of, of2, m)
		p.level--
		if gone {
			continue
		}
		ways := p.valueCases(left, of, m, name)
		switch {
		case ways == nil && req[name]:
			continue
		case ways == nil:
			ways = [][]conj{with(left, p.made.needNode(name))}
		case len(ways) == 1 && req[name]:
			continue
		}
		if !req[name] {
			ways = append(ways, with(left, p.made.absentNode(name)))
		}
		return ways
	}
	return nil
}

// valueCases is left once for each value that the property may have, if they are
// few, or for each of its types; of is what left asks of it.
func (p *prover) valueCases(left, of []conj, m mask, name string) [][]conj {
	const few = 64
	var from *node
	for _, c := range of {
		if n := len(c.n.values); n > 0 && n <= few && (from == nil || n < len(from.values)) {
			from = c.n
		}
	}
	need := p.made.needNode(name)
	if from != nil {
		var out [][]conj
		for i := range from.values {
			out = append(out, with(left, need, p.made.propertyNode(name, from, i)))
		}
		return out
	}
	var out [][]conj
	vals, listed := finite(nil, m)
	if !listed && m&(m-1) != 0 && m != tAll {
		for t := tNull; t <= tObj; t <<= 1 {
			if m&t != 0 {
				out = append(out, with(left, need, p.made.typeNode(name, t)))
			}
		}
		return out
	}
	for _, v := range vals {
		out = append(out, with(left, need, p.made.plainNode(name, v)))
	}
	return out
}
