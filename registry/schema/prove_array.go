package schema

import (
	"fmt"
	"slices"
)

// itemsOf appends what left asks of the i-th item, and is where it stands.
func (p *prover) itemsOf(left []conj, i int) []conj {
	out := make([]conj, 0, len(left))
	for _, c := range left {
		if q := itemAt(c.n, i); q != nil {
			out = append(out, conj{n: q})
		}
		if u := c.n.unevaluatedItems; u != nil {
			if upTo, known := mayEvaluate(c.n); known && i >= upTo {
				out = append(out, conj{n: u})
			}
		}
	}
	return out
}

// itemAt is what prefix and items of n ask of the i-th item; nil: nothing.
func itemAt(n *node, i int) *node {
	if i < len(n.prefix) {
		return n.prefix[i]
	}
	return n.items
}

// mayEvaluate is the index from which on no item can be evaluated by n or by what
// n applies to the same array, so that unevaluatedItems speaks of it. known is
// false if there is none to be sure of.
func mayEvaluate(n *node) (upTo int, known bool) {
	upTo, known = 0, true
	reachInPlace(n, func(x *node) {
		upTo = max(upTo, len(x.prefix))
		if x.items != nil || x.contains != nil || len(x.beyond) > 0 || x != n && x.unevaluatedItems != nil {
			known = false
		}
	})
	return upTo, known
}

// surelyEvaluates is the index up to which all items of an array that n accepts
// are evaluated; all: every one of them is.
func surelyEvaluates(n *node) (upTo int, all bool) {
	reachSurely(n, func(x *node) {
		upTo = max(upTo, len(x.prefix))
		if x.items != nil || x != n && x.unevaluatedItems != nil {
			all = true
		}
	})
	return upTo, all
}

// reachInPlace calls f with n and all that it may apply to the same value.
func reachInPlace(n *node, f func(*node)) {
	reach(n, (*node).inPlace, f)
}

// reachSurely calls f with n and with what must accept a value that n accepts.
func reachSurely(n *node, f func(*node)) {
	reach(n, func(x *node, f func(*node)) {
		if x.ref != nil {
			f(x.ref)
		}
		for _, a := range x.allOf {
			f(a)
		}
	}, f)
}

func reach(n *node, next func(*node, func(*node)), f func(*node)) {
	seen := map[*node]bool{}
	var walk func(*node)
	walk = func(x *node) {
		if !seen[x] {
			seen[x] = true
			f(x)
			next(x, walk)
		}
	}
	walk(n)
}

// tuples is the index from which on left and right ask the same of all items.
func tuples(left []conj, at *declaration, right *node) int {
	k := at.prefixes()
	of := func(n *node) {
		k = max(k, len(n.prefix))
		if n.unevaluatedItems != nil {
			upTo, _ := mayEvaluate(n)
			sure, _ := surelyEvaluates(n)
			k = max(k, upTo, sure)
		}
	}
	for _, c := range left {
		of(c.n)
	}
	if right != nil {
		of(right)
	}
	return k
}

// itemBounds are the bounds of the number of items; hi is -1 where there is none.
func itemBounds(left []conj) (lo, hi int) {
	lo, hi = bounds(left, itemCounts)
	for _, c := range left {
		if c.n.contains != nil {
			lo = max(lo, c.n.minContains)
		}
		if x := c.n.items; x != nil && x.always != nil && !*x.always && (hi < 0 || len(c.n.prefix) < hi) {
			hi = len(c.n.prefix)
		}
	}
	return lo, hi
}

// noArray proves that no array fits left.
func (p *prover) noArray(left []conj, at *declaration) bool {
	lo, hi := itemBounds(left)
	if hi >= 0 && lo > hi {
		return true
	}
	if lo == 0 {
		return false
	}
	p.level++
	defer func() { p.level-- }()
	k := tuples(left, at, nil)
	for i := 0; i < lo && i <= k; i++ {
		if p.unsat(p.itemsOf(left, i), p.declared.item(at, i), tAll) {
			return true
		}
	}
	for _, c := range left {
		if c.n.contains != nil && c.n.minContains > 0 && p.unsat([]conj{{n: c.n.contains}}, nil, tAll) {
			return true
		}
	}
	return false
}

// array proves what right asks of arrays.
func (p *prover) array(left []conj, at *declaration, right *node) bool {
	if right.minItems == 0 && right.maxItems == -1 && !right.unique && right.prefix == nil && right.items == nil && right.contains == nil && right.unevaluatedItems == nil {
		return true
	}
	lo, hi := itemBounds(left)
	ok := true
	if lo < right.minItems {
		ok = p.noteCount(right, "minItems", "raised", lo, right.minItems)
	}
	k := tuples(left, at, right)
	p.level++
	defer func() { p.level-- }()
	if right.maxItems != -1 && (hi < 0 || hi > right.maxItems) {
		// An index at which nothing fits ends every array.
		if end := right.maxItems; end < 0 || !p.unsat(p.itemsOf(left, min(end, k)), p.declared.item(at, min(end, k)), tAll) {
			ok = p.noteCount(right, "maxItems", "lowered", hi, right.maxItems)
		}
	}
	if right.unique && (hi < 0 || hi > 1) && !slices.ContainsFunc(left, func(c conj) bool { return c.n.unique }) {
		ok = p.note(right, "uniqueItems", "items must differ from one another now")
	}
	upTo, all := surelyEvaluates(right)
	for i := 0; i <= k && (hi < 0 || i < hi) && (ok || p.more()); i++ {
		q := itemAt(right, i)
		u := right.unevaluatedItems
		if all || i < upTo {
			u = nil
		}
		if q == nil && u == nil {
			continue
		}
		of, there := p.itemsOf(left, i), p.declared.item(at, i)
		switch {
		case q == nil:
		case q.always == nil || *q.always:
			ok = p.within(of, there, tAll, q, "items", "every item is") && ok
		case !p.unsat(of, there, tAll):
			ok = p.note(right, "items", fmt.Sprintf("item %d is no longer accepted", i+1))
		}
		if u != nil && !p.sub(of, there, tAll, u) {
			ok = p.doubt(right, "unevaluatedItems", "it is not proved that unevaluatedItems lets pass all that it did")
		}
	}
	return (right.contains == nil || p.contains(left, at, right, lo, hi, k)) && ok
}

// contains proves what right's contains asks of arrays of lo to hi items; from
// the k-th on all items are asked the same.
func (p *prover) contains(left []conj, at *declaration, right *node, lo, hi, k int) bool {
	p.quiet++
	enough := right.minContains == 0 || p.enough(left, at, right, lo, k)
	few := right.maxContains == -1 || hi >= 0 && hi <= right.maxContains || p.few(left, at, right, k)
	p.quiet--
	switch {
	case !enough:
		return p.doubt(right, "contains", "it is not proved that every array still has the items that contains asks for")
	case !few:
		return p.doubt(right, "maxContains", "it is not proved that no array has more items for contains than maxContains allows")
	}
	return true
}

func (p *prover) enough(left []conj, at *declaration, right *node, lo, k int) bool {
	for _, c := range left {
		if c.n.contains == nil || c.n.minContains < right.minContains {
			continue
		}
		items, there := []conj{}, (*declaration)(nil)
		if k == 0 { // then the items that are found are as all items are
			items, there = p.itemsOf(left, 0), p.declared.item(at, 0)
		}
		if p.sub(with(items, c.n.contains), there, tAll, right.contains) {
			return true
		}
	}
	if lo < right.minContains {
		return false
	}
	for i := 0; i < right.minContains && i <= k; i++ {
		if !p.sub(p.itemsOf(left, i), p.declared.item(at, i), tAll, right.contains) {
			return false
		}
	}
	return true
}

func (p *prover) few(left []conj, at *declaration, right *node, k int) bool {
	items, there := []conj{}, (*declaration)(nil)
	if k == 0 {
		items, there = p.itemsOf(left, 0), p.declared.item(at, 0)
	}
	items = with(items, right.contains)
	if k == 0 && p.unsat(items, there, tAll) {
		return true
	}
	return slices.ContainsFunc(left, func(c conj) bool {
		return c.n.contains != nil && c.n.maxContains != -1 && c.n.maxContains <= right.maxContains && p.sub(items, there, tAll, c.n.contains)
	})
}
