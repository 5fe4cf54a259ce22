package schema

import (
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
)

// array makes an array for the schemas.
func (g *generator) array(flat []spot, depth int) any {
	n := g.n(4)
	if l, ok := pick(g, func(h *hints) []int { return h.lengths }); ok && g.chance(.4) {
		n = min(l, 40)
	}
	if depth > 4 || g.keep == 0 && g.chance(.7) {
		n = min(n, 1)
	}
	n = g.within(flat, n, "minItems", "maxItems", 60)
	out := make([]any, 0, n)
	contains := g.contained(flat, n)
	unique := slices.ContainsFunc(flat, func(p spot) bool { return p.object()["uniqueItems"] == true })
	for i := range n {
		schemas, open := itemSchemas(flat, i)
		if !open && g.chance(.98) {
			break
		}
		if p, ok := contains[i]; ok {
			schemas = append(schemas, p)
		}
		v := g.value(schemas, depth+1)
		for try := 0; try < 4 && unique && g.chance(.95) && slices.ContainsFunc(out, func(x any) bool { return same(x, v) }); try++ {
			if v = g.value(schemas, depth+1); len(schemas) == 0 {
				v = json.Number(strconv.Itoa(i + 1))
			}
		}
		out = append(out, v)
	}
	return out
}

// contained chooses the places of those items that contains asks for.
func (g *generator) contained(flat []spot, n int) map[int]spot {
	out := map[int]spot{}
	if n == 0 {
		return out
	}
	for _, p := range flat {
		c, ok := p.under("contains")
		if !ok {
			continue
		}
		times := 1
		if k := p.count("minContains"); k >= 0 {
			times = k
		}
		if k := p.count("maxContains"); k > times && g.chance(.3) {
			times = k
		}
		for range min(times, n) {
			out[g.n(n)] = c
		}
	}
	return out
}

// itemSchemas lists what the schemas ask of item i; open: there may be such an item.
func itemSchemas(flat []spot, i int) (out []spot, open bool) {
	for _, p := range flat {
		first, rest := p.list("prefixItems"), "items"
		if len(first) == 0 {
			if first = p.list("items"); len(first) > 0 {
				rest = "additionalItems"
			}
		}
		if i < len(first) {
			out = append(out, first[i])
			continue
		}
		q, ok := p.under(rest)
		if !ok {
			q, ok = p.under("unevaluatedItems")
		}
		if ok && q.of == false {
			return nil, false
		}
		if ok {
			out = append(out, q)
		}
	}
	return out, true
}

// object makes an object for the schemas.
func (g *generator) object(flat []spot, depth int) any {
	flat, wanted := g.dependent(flat)
	for _, p := range flat {
		for _, n := range p.strings("required") {
			wanted[n] = true
		}
	}
	g.optional(flat, wanted, depth)
	g.extra(flat, wanted, depth)
	for _, p := range flat {
		for _, k := range []string{"dependentRequired", "dependencies"} {
			names, of := p.members(k)
			for _, n := range names {
				if wanted[n] && g.chance(.95) {
					for _, need := range stringsOf(of[n]) {
						wanted[need] = true
					}
				}
			}
		}
	}
	out := map[string]any{}
	for _, n := range sortedKeys(wanted) {
		if !wanted[n] {
			continue
		}
		schemas, open := g.propertySchemas(flat, n)
		if open || g.chance(.05) {
			out[n] = g.value(schemas, depth+1)
		}
	}
	return out
}

// dependent decides for each property that brings a schema with it whether it is there.
func (g *generator) dependent(flat []spot) (all []spot, wanted map[string]bool) {
	all, wanted = slices.Clone(flat), map[string]bool{}
	for _, p := range flat {
		for _, k := range []string{"dependentSchemas", "dependencies"} {
			names, of := p.members(k)
			for _, n := range names {
				if _, isList := of[n].([]any); isList {
					continue
				}
				if wanted[n] = g.chance(.5); wanted[n] {
					all = append(all, g.flatten([]spot{p.child(of[n])})...)
				}
			}
		}
	}
	return all, wanted
}

// optional chooses among the properties that the schemas declare.
func (g *generator) optional(flat []spot, wanted map[string]bool, depth int) {
	room := g.room(flat)
	for _, p := range flat {
		names, of := p.members("properties")
		for _, n := range names {
			if _, decided := wanted[n]; decided || of[n] == false {
				continue
			}
			keep := g.keep
			if slices.Contains(g.hot.names, n) {
				keep = max(keep, .5)
			}
			if depth > 6 {
				keep /= 4
			}
			if len(wanted) < room && g.chance(keep) {
				wanted[n] = true
			}
		}
	}
}

// room is how many properties the schemas let an object have.
func (g *generator) room(flat []spot) int {
	room := 1 << 20
	for _, p := range flat {
		if h := p.count("maxProperties"); h >= 0 {
			room = min(room, h)
		}
	}
	if g.chance(.05) {
		room++
	}
	return room
}

// extra adds properties that the schemas do not name.
func (g *generator) extra(flat []spot, wanted map[string]bool, depth int) {
	count := 0
	if g.chance(.5) {
		count = 1 + g.n(2)
	}
	if depth > 6 {
		count = 0
	}
	least, bounded := 0, false
	for _, p := range flat {
		least = max(least, p.count("minProperties"))
		bounded = bounded || p.object()["minProperties"] != nil || p.object()["maxProperties"] != nil
	}
	if l, ok := pick(g, func(h *hints) []int { return h.lengths }); ok && bounded && g.chance(.5) {
		count = max(count, min(l, 40)-len(wanted))
	}
	count = min(max(count, least-len(wanted)), g.room(flat)-len(wanted), 60)
	for i := range max(count, 0) {
		n := g.nameFor(flat)
		if _, taken := wanted[n]; taken && count > 2 {
			n = "k" + strconv.Itoa(i)
		}
		if _, taken := wanted[n]; !taken {
			wanted[n] = true
		}
	}
}

// nameFor makes a name that the schemas may allow for a further property.
func (g *generator) nameFor(flat []spot) string {
	for _, p := range flat {
		if q, ok := p.under("propertyNames"); ok && g.chance(.8) {
			if s, ok := g.value([]spot{q}, 18).(string); ok {
				return s
			}
		}
		if names, _ := p.members("patternProperties"); len(names) > 0 && g.chance(.6) {
			return g.matching(one(g, names))
		}
	}
	if g.closed { // only what some schema of this object declares is any use
		var declared []string
		for _, p := range flat {
			names, _ := p.members("properties")
			declared = append(declared, names...)
		}
		if len(declared) > 0 && g.chance(.6) {
			return one(g, declared)
		}
	}
	return g.name()
}

// propertySchemas lists what the schemas ask of the property called name; open:
// there may be such a property.
func (g *generator) propertySchemas(flat []spot, name string) (out []spot, open bool) {
	for _, p := range flat {
		spoken := false
		named, _ := p.object()["properties"].(map[string]any) // not members: they are many, and come up often
		if v, ok := named[name]; ok {
			spoken = true
			out = append(out, p.child(v))
		}
		patterns, of := p.members("patternProperties")
		for _, re := range patterns {
			if g.found(re, name) {
				spoken = true
				out = append(out, p.child(of[re]))
			}
		}
		if spoken {
			continue
		}
		rest, ok := p.under("additionalProperties")
		if !ok && p.plain() {
			rest, ok = p.under("unevaluatedProperties")
		}
		if ok && rest.of == false {
			return nil, false
		}
		if ok {
			out = append(out, rest)
		}
	}
	return out, true
}

// found says whether name has a part that the pattern matches. Where that is more work than
// the search has left it says no: a value that is made so is judged like any other.
func (g *generator) found(pattern, name string) bool {
	x, ok := g.regexps[pattern]
	if !ok {
		x.Regexp, _ = regexp.Compile(pattern) // nil: Compile of the schema has refused it
		x.size = textSize(pattern)
		g.regexps[pattern] = x
	}
	g.left.work -= len(name) * x.size / patternUnit
	return g.left.work >= 0 && x.Regexp != nil && x.MatchString(name)
}

// plain says that no part of p but its own keywords speaks of its properties.
func (p spot) plain() bool {
	for _, k := range []string{"$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"} {
		if _, ok := p.object()[k]; ok {
			return false
		}
	}
	return true
}
