package schema

import (
	"encoding/json"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
)

// generator makes JSON values that fit a schema, or nearly. Values that it has made
// are never changed in spot: they share parts with each other and the schemas.
type generator struct {
	r        *rand.Rand
	old, new *documents
	all, hot hints // of both schemas; hot: of their differences alone
	closed   bool  // undeclared properties are no use: see Declared

	regexps map[string]expression
	left    *budget // of the search: what names are matched for is taken from it

	// Of the value being made.
	fuel    int     // how many more values it may be made of
	keep    float64 // the chance of an optional property
	compact bool    // prefer the simple over the various
}

// expression is a pattern with its size; nil is one that Compile refuses.
type expression struct {
	*regexp.Regexp

	size int
}

// fuelOf bounds the size of one value.
const fuelOf = 100

func newGenerator(old, next *documents, closed bool, seed uint64) *generator {
	g := &generator{r: rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15)), old: old, new: next, closed: closed, regexps: map[string]expression{}, left: &budget{maxTries, maxSearchWork}}
	g.hot.differ(old.root, next.root)
	g.all.all(old.root)
	g.all.all(next.root)
	for _, docs := range []*documents{old, next} {
		for _, uri := range sortedKeys(docs.by) {
			if p := docs.by[uri]; p.base == uri && uri != baseURI {
				g.all.all(p)
			}
		}
	}
	return g
}

func (g *generator) n(k int) int           { return g.r.IntN(k) }
func (g *generator) chance(p float64) bool { return g.r.Float64() < p }

// pick chooses one of the hints, rather among what differs.
func pick[T any](g *generator, of func(*hints) []T) (v T, ok bool) {
	list := of(&g.hot)
	if len(list) == 0 || g.chance(.3) {
		list = of(&g.all)
	}
	if len(list) == 0 {
		return v, false
	}
	return list[g.n(len(list))], true
}

func one[T any](g *generator, list []T) T { return list[g.n(len(list))] }

// aimed makes a value for the schema at p.
func (g *generator) aimed(p spot) any {
	g.fuel = fuelOf
	g.keep = one(g, []float64{0, .1, .5, .9})
	g.compact = g.chance(.6)
	return g.value([]spot{p}, 0)
}

// value makes a value for all of the schemas at once.
func (g *generator) value(all []spot, depth int) any {
	if g.fuel--; g.fuel < 0 || depth > 24 {
		return nil
	}
	flat := g.flatten(all)
	if len(flat) == 0 {
		return g.hole(depth)
	}
	for _, p := range flat {
		if p.of == false {
			return g.hole(depth)
		}
	}
	if v, ok := g.listed(flat); ok {
		return v
	}
	switch g.kind(flat) {
	case "null":
		return nil
	case "boolean":
		return g.chance(.5)
	case "integer":
		return g.numberFor(flat, true)
	case "number":
		return g.numberFor(flat, false)
	case "string":
		return g.stringFor(flat)
	case "array":
		return g.array(flat, depth)
	case "object":
		return g.object(flat, depth)
	}
	return g.hole(depth)
}

// flatten follows references and allOf, and takes one way through each union.
func (g *generator) flatten(all []spot) []spot {
	var out []spot
	left := 200
	var walk func(p spot)
	walk = func(p spot) {
		m := p.object()
		if left--; left < 0 || m == nil && p.of != false {
			return
		}
		out = append(out, p)
		for _, k := range []string{"$ref", "$dynamicRef", "$recursiveRef"} {
			if ref, ok := m[k].(string); ok {
				if to, ok := p.resolve(ref); ok {
					walk(to)
				}
			}
		}
		for _, q := range p.list("allOf") {
			walk(q)
		}
		for _, k := range []string{"anyOf", "oneOf"} {
			if l := p.list(k); len(l) > 0 {
				walk(one(g, l))
			}
		}
		if cond, ok := p.under("if"); ok {
			then, hasThen := p.under("then")
			els, hasElse := p.under("else")
			switch {
			case g.chance(.5):
				walk(cond)
				if hasThen {
					walk(then)
				}
			case hasElse:
				walk(els)
			}
		}
	}
	for _, p := range all {
		walk(p)
	}
	return out
}

// listed takes a value of const or enum, if there is one.
func (g *generator) listed(flat []spot) (any, bool) {
	for _, p := range flat {
		if c, ok := p.object()["const"]; ok && g.chance(.98) {
			return c, true
		}
		e, ok := p.object()["enum"].([]any)
		if !ok || len(e) == 0 {
			continue
		}
		// a value that is on one list alone is worth more than the others
		if v, ok := pick(g, func(h *hints) []any { return h.values }); ok && g.chance(.5) && slices.ContainsFunc(e, func(x any) bool { return same(x, v) }) {
			return v, true
		}
		if g.chance(.98) {
			return one(g, e), true
		}
	}
	return nil, false
}

// kind chooses a type that all of the schemas allow; "" is any.
func (g *generator) kind(flat []spot) string {
	var kinds []string
	said := false
	for _, p := range flat {
		var t []string
		switch v := p.object()["type"].(type) {
		case string:
			t = []string{v}
		case []any:
			t = stringsOf(v)
		default:
			continue
		}
		if !said {
			kinds, said = t, true
			continue
		}
		kinds = bothKinds(kinds, t)
	}
	if said && len(kinds) > 0 {
		return one(g, kinds)
	}
	kinds = implied(flat)
	if len(kinds) == 0 || g.chance(.15) {
		return ""
	}
	return one(g, kinds)
}

func bothKinds(a, b []string) []string {
	var out []string
	for _, k := range a {
		switch {
		case slices.Contains(b, k), k == "integer" && slices.Contains(b, "number"):
			out = append(out, k)
		case k == "number" && slices.Contains(b, "integer"):
			out = append(out, "integer")
		}
	}
	return out
}

// kindOf tells of which type of value a keyword speaks.
var kindOf = map[string]string{
	"properties": "object", "required": "object", "additionalProperties": "object", "patternProperties": "object",
	"minProperties": "object", "maxProperties": "object", "propertyNames": "object", "dependencies": "object",
	"dependentRequired": "object", "dependentSchemas": "object", "unevaluatedProperties": "object",
	"items": "array", "prefixItems": "array", "additionalItems": "array", "minItems": "array", "maxItems": "array",
	"uniqueItems": "array", "contains": "array", "unevaluatedItems": "array",
	"minLength": "string", "maxLength": "string", "pattern": "string", "format": "string",
	"minimum": "number", "maximum": "number", "exclusiveMinimum": "number", "exclusiveMaximum": "number", "multipleOf": "number",
}

// implied lists the types that the schemas' keywords speak of.
func implied(flat []spot) []string {
	seen := map[string]bool{}
	for _, p := range flat {
		for k := range p.object() {
			if kind, ok := kindOf[k]; ok {
				seen[kind] = true
			}
		}
	}
	return sortedKeys(seen)
}

// hole fills a place that no schema speaks of, with what another may dislike.
func (g *generator) hole(depth int) any {
	if g.fuel--; g.fuel < 0 {
		return nil
	}
	if list := g.hot.schemas; len(list) > 0 && depth < 6 && g.chance(.3) {
		return g.value([]spot{one(g, list)}, depth+3)
	}
	if list := g.all.schemas; !g.compact && len(list) > 0 && depth < 6 && g.chance(.2) {
		return g.value([]spot{one(g, list)}, depth+3)
	}
	return g.anything(depth)
}

// anything makes a value of any type.
func (g *generator) anything(depth int) any {
	kinds := 8
	if depth > 4 || g.compact && g.chance(.7) {
		kinds = 6
	}
	switch g.n(kinds) {
	case 0:
		return nil
	case 1:
		return g.chance(.5)
	case 2:
		return json.Number(strconv.Itoa(g.n(100) - 50))
	case 3:
		return g.numberFor(nil, false)
	case 4:
		return g.stringFor(nil)
	case 5:
		if v, ok := pick(g, func(h *hints) []any { return h.values }); ok {
			return v
		}
		return one(g, []any{map[string]any{}, []any{}, "", json.Number("0")})
	case 6:
		m := map[string]any{}
		for range g.n(4) {
			m[g.name()] = g.hole(depth + 1)
		}
		return m
	default:
		a := make([]any, g.n(4))
		for i := range a {
			a[i] = g.hole(depth + 1)
		}
		return a
	}
}

// name makes the name of a property.
func (g *generator) name() string {
	if g.chance(.8) {
		if s, ok := pick(g, func(h *hints) []string { return h.names }); ok {
			return s
		}
	}
	if p, ok := pick(g, func(h *hints) []string { return h.patterns }); ok && g.chance(.5) {
		return g.matching(p)
	}
	return one(g, []string{"x", "y", "other", "", "_", "a1", "9"})
}
