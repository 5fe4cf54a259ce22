package schema

import (
	"encoding/json"
	"net/url"
	"regexp"
)

// A proof and the search for a witness validate many small values. Before each validation they compute
// an upper bound of its work: every schema at every place of the value, as if nothing failed early. If
// two schemas of a place describe the property a, the parts of a.a.a are counted eight times.

// weight bounds the work of a schema at one place of a value, including all schemas that it applies in
// place.
type weight struct {
	expansion int // number of schemas that judge the place
	cost      int // the same, and the values that they compare with
	pattern   int // size of their expressions
	ways      int // number of schemas that judge the same part below the place
	chain     int // longest chain of schemas that apply each other
	named     int // length of the longest expression in patternProperties, expanded
	unique    int // number of schemas with uniqueItems
}

// heaviest is the weights of a schema, the largest of each.
type heaviest = weight

// patternUnit is how many steps of a regular expression are one unit of work.
const patternUnit = 256

// weigh computes the weights of all nodes. A schema that refers to itself without
// looking into a part of the value would never end.
func weigh(all []*node) (heaviest, error) {
	var most heaviest
	state := make([]uint8, len(all)) // 1: begun, 2: done
	var visit func(n *node) error
	visit = func(n *node) error {
		switch state[n.id] {
		case 1:
			return invalid(n.at, endless)
		case 2:
			return nil
		}
		state[n.id] = 1
		w := n.ownWeight()
		n.own = w.cost
		var failed error
		n.applied(func(x *node) {
			if failed == nil {
				failed = visit(x)
			}
			w.add(x.weight)
			w.chain = max(w.chain, x.weight.chain+1)
		})
		var dynamic weight
		for _, x := range n.dynamic {
			if failed == nil {
				failed = visit(x)
			}
			dynamic.atLeast(x.weight)
		}
		if failed != nil {
			return failed
		}
		w.add(dynamic)
		if n.dynamic != nil {
			w.chain = max(w.chain, dynamic.chain+1)
		}
		if w.expansion > MaxExpansion {
			return tooLarge(n.at, "too many schemas come to judge one value: $ref, allOf, anyOf, oneOf, not, if and dependentSchemas multiply here to more than "+itoa(MaxExpansion))
		}
		n.weight, state[n.id] = w, 2
		most.atLeast(w)
		return nil
	}
	for _, n := range all {
		if err := visit(n); err != nil {
			return most, err
		}
	}
	return most, nil
}

// ownWeight is that of the node without what it applies in place.
func (n *node) ownWeight() weight {
	w := weight{expansion: 1, cost: n.ownCost()}
	if n.unique {
		w.unique = 1
	}
	if n.pattern != nil {
		w.pattern = expressionSize(n.pattern)
	}
	for _, p := range n.patterns {
		w.pattern += expressionSize(p.re)
		w.named = max(w.named, 3*len(p.re.String()))
	}
	object := len(n.patterns)
	if n.properties != nil || n.additional != nil && object == 0 {
		object++
	}
	if n.unevaluatedProperties != nil {
		object++
	}
	array := 0
	if n.prefix != nil || n.items != nil {
		array++
	}
	if n.contains != nil {
		array++
	}
	if n.unevaluatedItems != nil {
		array++
	}
	w.ways = max(object, array)
	if n.names != nil {
		w.ways = max(w.ways, 1)
	}
	return w
}

// ownCost is that of judging a value by this node alone. Numbers are slow to
// compare, and what fails in a branch leaves an error behind, which says where the
// schema stands.
func (n *node) ownCost() int {
	cost := 1 + 3*(len(n.anyOf)+len(n.oneOf)) + len(n.at)/pathUnit
	for _, v := range n.values {
		if _, ok := v.(json.Number); ok {
			cost += 3
		}
		cost++
	}
	return cost
}

func (w *weight) add(o weight) {
	w.expansion = min(w.expansion+o.expansion, MaxExpansion+1)
	w.cost += o.cost
	w.pattern += o.pattern
	w.ways += o.ways
	w.unique += o.unique
}

func (w *weight) atLeast(o weight) {
	w.expansion, w.cost = max(w.expansion, o.expansion), max(w.cost, o.cost)
	w.pattern, w.ways, w.chain = max(w.pattern, o.pattern), max(w.ways, o.ways), max(w.chain, o.chain)
	w.named, w.unique = max(w.named, o.named), max(w.unique, o.unique)
}

const (
	// pathUnit is how many bytes of a JSON pointer are one unit of work.
	pathUnit = 1024
	// wayUnit is how many hops times bytes of a way through the schemas are one.
	wayUnit = 8192
	// hopBytes is about the length of a keyword on such a way.
	hopBytes = 12
)

// place is where a part of a value lies: the bytes of its JSON pointer, which is
// written for each part, and how many hops the way to it through the schemas has and
// how many bytes, which are put together hop by hop for each error.
type place struct{ path, hops, bytes int }

// factor is how much longer than at the top judging takes there by n.
func (at place) factor(n weight) int {
	hops, bytes := at.hops+n.chain, at.bytes+hopBytes*n.chain
	return 1 + at.path/pathUnit + hops*bytes/wayUnit
}

// part is the place of a part that has a name of so many bytes, written out, and
// comes by way of a keyword with so many more.
func (at place) part(chain, name, keyword int) place {
	return place{at.path + 1 + name, at.hops + chain + 1, at.bytes + hopBytes*(chain+1) + keyword}
}

// expressionSize is about the number of instructions of an expression.
func expressionSize(re *regexp.Regexp) int {
	return textSize(re.String())
}

// effort counts the work of a decoded value.
type effort struct {
	left int
}

func (e *effort) spend(times, each int) bool {
	if each > 0 && times > e.left/each {
		e.left = 0
		return false
	}
	e.left -= times * each
	return true
}

// part counts one part of the value, which each of the schemas judges so many times.
func (e *effort) part(by map[*node]int, v any, at place) bool {
	size, chain := 1, 0
	switch v := v.(type) {
	case map[string]any:
		size += len(v)
	case []any:
		size += len(v)
	case string:
		for n, times := range by {
			if !e.spend(times, at.factor(n.weight)*n.weight.cost+len(v)*n.weight.pattern/patternUnit) {
				return false
			}
		}
		return true
	default:
		for n, times := range by {
			if !e.spend(times, at.factor(n.weight)*n.weight.cost) {
				return false
			}
		}
		return true
	}
	all := map[*node]int{}
	for n, times := range by {
		if !e.spread(all, n, times, size, at.factor(n.weight)) {
			return false
		}
		chain = max(chain, n.weight.chain)
	}
	switch v := v.(type) {
	case map[string]any:
		for name, x := range v {
			if !e.member(all, name, x, at, chain) {
				return false
			}
		}
	case []any:
		for i, x := range v {
			if !e.element(all, i, x, at.part(chain, len(itoa(i)), 0)) {
				return false
			}
		}
	}
	return true
}

// spread adds to all what n applies in place.
func (e *effort) spread(all map[*node]int, n *node, times, size, factor int) bool {
	if !e.spend(times, size-1+factor*n.own) {
		return false
	}
	all[n] += times
	ok := true
	n.inPlace(func(x *node) { ok = ok && e.spread(all, x, times, size, factor) })
	return ok
}

func (e *effort) member(all map[*node]int, name string, v any, at place, chain int) bool {
	next := map[*node]int{}
	written := len(url.PathEscape(name))
	keyword := written
	below := at.part(chain, written, keyword)
	for n, times := range all {
		if n.names != nil && !e.part(map[*node]int{n.names: times}, name, below) {
			return false
		}
		listed := n.properties[name]
		if listed != nil {
			next[listed] += times
		}
		for _, p := range n.patterns {
			if !e.spend(times, 1+len(name)*n.weight.pattern/patternUnit) {
				return false
			}
			if p.re.MatchString(name) {
				listed = p.of
				keyword = max(keyword, 3*len(p.re.String()))
				next[p.of] += times
			}
		}
		if listed == nil && n.additional != nil {
			next[n.additional] += times
		}
		if n.unevaluatedProperties != nil {
			next[n.unevaluatedProperties] += times
		}
	}
	return len(next) == 0 || e.part(next, v, at.part(chain, written, keyword))
}

func (e *effort) element(all map[*node]int, i int, v any, at place) bool {
	next := map[*node]int{}
	for n, times := range all {
		switch {
		case i < len(n.prefix):
			next[n.prefix[i]] += times
		case n.items != nil:
			next[n.items] += times
		}
		if n.contains != nil {
			next[n.contains] += times
		}
		if n.unevaluatedItems != nil {
			next[n.unevaluatedItems] += times
		}
	}
	return len(next) == 0 || e.part(next, v, at)
}
