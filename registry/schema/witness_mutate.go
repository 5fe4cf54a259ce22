package schema

import (
	"encoding/json"
	"maps"
	"math/big"
	"slices"
)

// mutated changes one thing somewhere in v: a copy of it, v stays.
func (g *generator) mutated(v any) any {
	switch t := v.(type) {
	case map[string]any:
		return g.mutatedObject(t)
	case []any:
		return g.mutatedArray(t)
	}
	if g.chance(.4) {
		return g.mutatedScalar(v)
	}
	return g.hole(3)
}

func (g *generator) mutatedObject(t map[string]any) any {
	out := maps.Clone(t)
	if out == nil {
		out = map[string]any{}
	}
	if len(t) == 0 || g.chance(.2) {
		out[g.name()] = g.hole(2)
		return out
	}
	k := one(g, sortedKeys(t))
	if hot := slices.DeleteFunc(slices.Clone(g.hot.names), func(n string) bool { _, ok := t[n]; return !ok }); len(hot) > 0 && g.chance(.6) {
		k = one(g, hot)
	}
	switch g.n(10) {
	case 0, 1, 2:
		delete(out, k)
	case 3, 4, 5, 6:
		out[k] = g.mutated(t[k])
	default:
		out[k] = g.hole(2)
	}
	return out
}

func (g *generator) mutatedArray(t []any) any {
	if len(t) == 0 || g.chance(.2) {
		return append(slices.Clone(t), g.hole(2))
	}
	i := g.n(len(t))
	out := slices.Clone(t)
	switch g.n(6) {
	case 0:
		return append(out, t[i])
	case 1:
		return slices.Delete(out, i, i+1)
	default:
		out[i] = g.mutated(t[i])
	}
	return out
}

func (g *generator) mutatedScalar(v any) any {
	switch t := v.(type) {
	case bool:
		return !t
	case string:
		r := []rune(t)
		if len(r) == 0 || g.chance(.4) {
			return t + g.text(1)
		}
		i := g.n(len(r))
		if g.chance(.5) {
			return string(slices.Delete(r, i, i+1))
		}
		r[i] = []rune(g.text(1))[0]
		return string(r)
	case json.Number:
		r, ok := rational(t)
		if !ok {
			return v
		}
		by := one(g, []*big.Rat{big.NewRat(1, 1), big.NewRat(-1, 1), big.NewRat(1, 2), big.NewRat(1, 10), big.NewRat(-1, 100)})
		if n, ok := exactly(r.Add(r, by)); ok {
			return n
		}
	}
	return v
}
