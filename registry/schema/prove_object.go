package schema

import "slices"

// nameSet are names that a value must have.
type nameSet struct {
	list []string
	set  map[string]bool // instead of a long list
}

func (s nameSet) has(name string) bool {
	if s.set != nil {
		return s.set[name]
	}
	return slices.Contains(s.list, name)
}

// needed are the properties that an object which fits left must have.
func needed(left []conj) nameSet {
	if len(left) == 1 && left[0].n.dependentRequired == nil && len(left[0].n.required) <= 12 {
		return nameSet{list: left[0].n.required}
	}
	return nameSet{set: requiredBy(left)}
}

// requiredBy is needed as a set, what depends on required properties included.
func requiredBy(left []conj) map[string]bool {
	out := map[string]bool{}
	var queue []string
	add := func(names []string) {
		for _, n := range names {
			if !out[n] {
				out[n] = true
				queue = append(queue, n)
			}
		}
	}
	for _, c := range left {
		add(c.n.required)
	}
	for len(queue) > 0 {
		name := queue[0]
		queue = queue[1:]
		for _, c := range left {
			add(c.n.dependentRequired[name])
		}
	}
	return out
}

// property is what left asks of the property of this name if it is there, and the
// declaration of it.
//
// Where the steps are used up it is nothing, so that nothing is concluded from it.
func (p *prover) property(left []conj, at *declaration, name string) ([]conj, *declaration) {
	if !p.readsDeclared(at, name) {
		return nil, nil
	}
	if !at.declares(name, matchPlainly) {
		return []conj{{n: never}}, nil
	}
	if slices.ContainsFunc(left, func(c conj) bool { return c.n.dependentSchemas[name] != nil }) {
		more := left
		for _, c := range left { // applies, as the property is there
			more = with(more, c.n.dependentSchemas[name])
		}
		left, _ = p.flatten(more, tAll)
	}
	out := make([]conj, 0, len(left))
	for _, c := range left {
		if q := c.n.properties[name]; q != nil && len(c.n.patterns) == 0 && c.n.names == nil {
			out = append(out, conj{n: q})
			continue
		}
		if !p.reads(c.n, name) {
			return nil, nil
		}
		before := len(out)
		asked(c.n, name, func(q *node) { out = append(out, conj{n: q}) })
		if u := c.n.unevaluatedProperties; u != nil && len(out) == before && c.n.additional == nil && !p.mayEvaluateProperty(c.n, name) {
			out = append(out, conj{n: u})
		}
		if c.n.names != nil && p.judge(c.n.names, name) == no {
			return []conj{{n: never}}, nil
		}
	}
	return out, p.declared.property(at, name)
}

// reads counts the work of matching a name with the patterns of n, as [effort] does for
// those of a value, and says whether it is to be done.
func (p *prover) reads(n *node, name string) bool {
	if len(n.patterns) == 0 {
		return true
	}
	if p.steps > maxProofSteps { // it is not done, and does not count
		return false
	}
	p.steps += 1 + len(n.patterns)*(1+len(name)*n.weight.pattern/patternUnit)/stepWork
	return p.steps <= maxProofSteps
}

// readsDeclared is reads of all patterns by which at knows the declaration of a property.
func (p *prover) readsDeclared(at *declaration, name string) bool {
	if at == nil {
		return true
	}
	if _, known := at.properties.Load(name); known {
		return true
	}
	for _, n := range at.of {
		if !p.reads(n, name) {
			return false
		}
	}
	return true
}

// asked calls f with what properties, patternProperties and else
// additionalProperties of n ask of the property.
func asked(n *node, name string, f func(*node)) {
	found := false
	if q := n.properties[name]; q != nil {
		found = true
		f(q)
	}
	for _, x := range n.patterns {
		if x.re.MatchString(name) {
			found = true
			f(x.of)
		}
	}
	if !found && n.additional != nil {
		f(n.additional)
	}
}

// names: n itself, in properties or patternProperties, speaks of the property.
func speaksOf(n *node, name string) bool {
	return n.properties[name] != nil || slices.ContainsFunc(n.patterns, func(x patternNode) bool { return x.re.MatchString(name) })
}

// mayEvaluateProperty: n, or what it applies to the same object, may evaluate the
// property, so that unevaluatedProperties of n need not speak of it.
func (p *prover) mayEvaluateProperty(n *node, name string) bool {
	may := false
	reachInPlace(n, func(x *node) {
		may = may || x.additional != nil || len(x.beyond) > 0 || x != n && x.unevaluatedProperties != nil || !p.reads(x, name) || speaksOf(x, name)
	})
	return may
}

// surelyEvaluatesProperty: in an object that n accepts, the property is evaluated
// by something else than unevaluatedProperties of n.
func (p *prover) surelyEvaluatesProperty(n *node, name string) bool {
	sure := false
	reachSurely(n, func(x *node) {
		sure = sure || x.additional != nil || x != n && x.unevaluatedProperties != nil || p.reads(x, name) && speaksOf(x, name)
	})
	return sure
}

// closedTo is how many properties left lets an object have; -1 if it does not say.
func closedTo(left []conj, at *declaration) int {
	most := -1
	add := func(n int) {
		if most < 0 || n < most {
			most = n
		}
	}
	for _, c := range left {
		if a := c.n.additional; a == nil || a.always == nil || *a.always || len(c.n.patterns) > 0 {
			continue
		}
		n := 0
		for _, q := range c.n.properties {
			if q.always == nil || *q.always {
				n++
			}
		}
		add(n)
	}
	if at != nil && at.closed && !slices.ContainsFunc(at.of, func(n *node) bool { return len(n.patterns) > 0 }) {
		add(len(at.names))
	}
	return most
}

// noObject proves that no object fits left.
func (p *prover) noObject(left []conj, at *declaration) bool {
	req := requiredBy(left)
	lo, hi := bounds(left, propertyCounts)
	lo = max(lo, len(req))
	if n := closedTo(left, at); n >= 0 && (hi < 0 || n < hi) {
		hi = n
	}
	if hi >= 0 && lo > hi {
		return true
	}
	p.level++
	defer func() { p.level-- }()
	for _, name := range sortedKeys(req) {
		of, there := p.property(left, at, name)
		if p.unsat(of, there, tAll) {
			return true
		}
	}
	return false
}

// object proves what right asks of objects.
func (p *prover) object(left []conj, at *declaration, right *node) bool {
	ok := true
	req := needed(left)
	for _, name := range right.required {
		if !req.has(name) {
			ok = p.note(right, "required", "property "+name+" is required now")
			if !p.more() {
				return false
			}
		}
	}
	if right.minProperties > 0 || right.maxProperties != -1 {
		ok = p.counts(left, at, right) && ok
	}
	names, all := p.mentioned(left, at, right)
	p.level++
	for _, name := range names {
		if !ok && !p.more() {
			break
		}
		ok = p.ofProperty(left, at, right, name) && ok
	}
	if !all && (ok || p.more()) {
		ok = p.others(left, at, right) && ok
	}
	p.level--
	for _, name := range sortedKeys(right.dependentRequired) {
		for _, need := range right.dependentRequired[name] {
			if (ok || p.more()) && !p.depends(left, at, name, need) {
				ok = p.note(right, "dependentRequired", "property "+need+" is required now where "+name+" is present")
			}
		}
	}
	for _, name := range sortedKeys(right.dependentSchemas) {
		if ok || p.more() {
			ok = p.sub(with(left, p.made.needNode(name)), at, tObj, right.dependentSchemas[name]) && ok
		}
	}
	return ok
}

// depends proves that objects with the one property have the other.
func (p *prover) depends(left []conj, at *declaration, name, need string) bool {
	has, m := p.flatten(with(left, p.made.needNode(name)), tObj)
	return requiredBy(has)[need] || p.unsat(has, at, m)
}

// counts proves minProperties and maxProperties.
func (p *prover) counts(left []conj, at *declaration, right *node) bool {
	lo, hi := bounds(left, propertyCounts)
	lo = max(lo, len(requiredBy(left)))
	ok := true
	if lo < right.minProperties {
		ok = p.noteCount(right, "minProperties", "raised", lo, right.minProperties)
	}
	if n := closedTo(left, at); n >= 0 && (hi < 0 || n < hi) {
		hi = n
	}
	if right.maxProperties != -1 && (hi < 0 || hi > right.maxProperties) {
		ok = p.noteCount(right, "maxProperties", "lowered", hi, right.maxProperties)
	}
	return ok
}

// mentioned are the names that are looked at one by one, sorted. all says that
// there can be no others.
func (p *prover) mentioned(left []conj, at *declaration, right *node) (names []string, all bool) {
	add := func(n *node) {
		for name := range n.properties {
			names = append(names, name)
		}
	}
	add(right)
	if right.unevaluatedProperties != nil {
		reachSurely(right, add)
	}
	asks := right.patterns != nil || right.additional != nil || right.names != nil || right.unevaluatedProperties != nil
	if asks { // of others than its own names
		for _, c := range left {
			add(c.n)
			if c.n.unevaluatedProperties != nil {
				reachInPlace(c.n, add)
			}
			if c.n.names == nil {
				continue
			}
			of, m := p.flatten([]conj{{n: c.n.names}}, tStr)
			if vals, few := finite(of, m); few || m == 0 {
				all = true
				for _, v := range vals {
					if name, ok := v.(string); ok {
						names = append(names, name)
					}
				}
			}
		}
		if at != nil {
			for name := range at.names {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), all
}

// ofProperty proves what right asks of one property.
func (p *prover) ofProperty(left []conj, at *declaration, right *node, name string) bool {
	of, there := p.property(left, at, name)
	if !p.reads(right, name) {
		return false
	}
	ok := true
	ask := func(q *node, keyword string) {
		if !ok && !p.more() {
			return
		}
		switch {
		case q.always != nil && *q.always:
		case p.quiet > 0:
			ok = p.sub(of, there, tAll, q) && ok
		case q.always != nil:
			if !p.unsat(of, there, tAll) {
				ok = p.note(right, keyword, "property "+name+" is no longer accepted")
			}
		case !slices.ContainsFunc(left, func(c conj) bool { return p.reads(c.n, name) && speaksOf(c.n, name) }):
			p.quiet++
			known := p.sub(of, there, tAll, q)
			p.quiet--
			if !known {
				message := "property " + name + " was not declared before and could have any value; it is restricted now"
				if slices.ContainsFunc(of, func(c conj) bool { return c.n.always == nil }) {
					message = "property " + name + " fell under additionalProperties before; it is restricted further now"
				}
				ok = p.note(q, "properties", message)
			}
		default:
			ok = p.within(of, there, tAll, q, keyword, "property "+name+" is") && ok
		}
	}
	keyword := "additionalProperties"
	if right.properties[name] != nil {
		keyword = "properties"
	}
	asked(right, name, func(q *node) { ask(q, keyword) })
	if u := right.unevaluatedProperties; u != nil && right.additional == nil && !p.surelyEvaluatesProperty(right, name) {
		ask(u, "unevaluatedProperties")
	}
	if right.names != nil && p.judge(right.names, name) != yes && !p.sub([]conj{{n: p.made.nameNode(name)}}, nil, tStr, right.names) {
		ask(never, "propertyNames")
	}
	return ok
}

// within is sub of a part, which says at least that the part was narrowed.
func (p *prover) within(of []conj, at *declaration, m mask, q *node, keyword, what string) bool {
	told := p.told
	if p.sub(of, at, m, q) {
		return true
	}
	if p.told == told {
		p.doubt(q, keyword, "it is not proved that "+what+" accepted as before")
	}
	return false
}
