package schema

import (
	"encoding/base64"
	"encoding/json"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// prepare derives the fields of evaluated from the keywords of a node.
func (n *node) prepare() {
	for _, v := range n.values {
		key := string(appendKey(nil, objectsOf(v), MaxText))
		if n.allowed == nil {
			n.allowed = map[string]bool{}
		}
		n.allowed[key] = true
		n.longestKey = max(n.longestKey, len(key))
	}
	for _, name := range sortedKeys(n.properties) {
		of := n.properties[name]
		n.sorted = append(n.sorted, namedNode{name, of})
		if of.constant {
			n.constants = append(n.constants, namedNode{name, of})
		}
	}
	for _, name := range sortedKeys(n.dependentSchemas) {
		n.dependent = append(n.dependent, namedNode{name, n.dependentSchemas[name]})
	}
	n.applied(func(*node) { n.applies = true })
	n.applies = n.applies || n.target != nil
	if n.pattern != nil {
		n.matcher = newMatcher(n.pattern)
	}
	for _, p := range n.patterns {
		n.matchers = append(n.matchers, newMatcher(p.re))
	}
}

// isAllowed reports whether the value is equal to const, or to a value of enum.
func (e *evaluation) isAllowed(n *node, v any) bool {
	e.key = appendKey(e.key[:0], v, n.longestKey)
	if e.spend(1 + len(e.key)/8); typeOf(v) == tNum {
		e.spend(10)
	}
	return n.allowed[string(e.key)]
}

// hasFormat reports whether a string has the format of n.
func (e *evaluation) hasFormat(n *node, v any) bool {
	s, ok := v.(string)
	if !ok {
		return true
	}
	switch n.format {
	case "duration", "period": // the library takes quadratic time
		e.spend(20 + len(s)*len(s)/64)
	case "regex": // one character can compile to thousands of instructions
		e.spend(20 + 100*len(s))
	case "email":
		e.spend(100)
	case "ipv4", "ip-address", "json-pointer", "relative-json-pointer", "uri-template": // the library splits them
		e.spend(10 + len(s))
	default:
		e.spend(5 + len(s)/3)
	}
	return n.isFormat(v)
}

func (e *evaluation) object(n *node, v object, track bool) bool {
	ok := true
	if len(v) < n.minProperties {
		ok = e.fail(n, "minProperties", v)
	}
	if n.maxProperties >= 0 && len(v) > n.maxProperties {
		ok = e.fail(n, "maxProperties", v)
	}
	if !e.hasAll(n, "required", n.required, v, "") {
		ok = false
	}
	for _, d := range n.needs {
		if (ok || e.reporting) && v.has(d.name) && !e.hasAll(n, d.keyword+"/"+escape(d.name), d.names, v, d.name) {
			ok = false
		}
	}
	if !ok && !e.reporting {
		return false
	}
	if ok = e.members(n, v, track) && ok; track && n.additional != nil {
		e.mark(every)
	}
	return ok
}

// hasAll reports whether the object has all members in names. If because is set, it is the name of the
// member that requires them.
func (e *evaluation) hasAll(n *node, keyword string, names []string, v object, because string) bool {
	ok := true
	for i, name := range names {
		if e.spend(1); v.has(name) {
			continue
		}
		ok = false
		switch {
		case !e.reporting:
			return false
		case because == "":
			e.violate(n, keyword, "lacks the required property "+excerpt(name))
		default:
			e.violate(n, keyword+"/"+itoa(i), "property "+singleQuoted(name)+" is required, if "+singleQuoted(because)+" property exists")
		}
	}
	return ok
}

// members evaluates the members of an object and their names.
func (e *evaluation) members(n *node, v object, track bool) bool {
	ok := true
	if !e.reporting && len(v) > 1 { // constants first, since they distinguish the branches of a union
		for _, p := range n.constants {
			e.spend(1)
			if i := v.find(p.name); i >= 0 && !e.eval(p.of, v[i].value, false) {
				return false
			}
		}
	}
	if n.patterns == nil && n.additional == nil && n.names == nil && !n.expressions && len(n.sorted) < len(v) {
		for _, p := range n.sorted { // fewer than the members of v
			e.spend(1)
			if i := v.find(p.name); i >= 0 {
				if ok = e.listed(p.of, v, i, track) && ok; !ok && !e.reporting {
					return false
				}
			}
		}
		return ok
	}
	if n.sorted == nil && n.patterns == nil && n.additional == nil && n.names == nil && !n.expressions {
		return true
	}
	for i := range v {
		if ok = e.member(n, v, i, track) && ok; !ok && !e.reporting {
			return false
		}
	}
	return ok
}

// listed evaluates a member by a schema of properties or patternProperties.
func (e *evaluation) listed(by *node, v object, i int, track bool) bool {
	if track {
		e.mark(i)
	}
	return e.below(by, v[i].value, step{v[i].name, -1})
}

func (e *evaluation) member(n *node, v object, i int, track bool) bool {
	name := v[i].name
	e.spend(2 + len(name)/32)
	ok := true
	if n.names != nil {
		naming := e.naming
		e.naming = true
		ok = e.below(n.names, name, step{name, -1})
		e.naming = naming
	}
	if n.expressions {
		if e.spend(100 * len(name)); badExpression(name) {
			ok = false
			if e.reporting {
				e.violate(n, "", "the name of the property "+excerpt(name)+" is not a regular expression")
			}
		}
	}
	if !ok && !e.reporting {
		return false
	}
	listed := n.properties[name]
	if listed != nil {
		ok = e.listed(listed, v, i, track) && ok
	}
	for k, m := range n.matchers {
		if (ok || e.reporting) && e.matches(m, name) {
			listed = n.patterns[k].of
			ok = e.listed(listed, v, i, track) && ok
		}
	}
	switch {
	case listed != nil || n.additional == nil || !ok && !e.reporting:
	case n.additional.always == nil:
		ok = e.below(n.additional, v[i].value, step{name, -1}) && ok
	case !*n.additional.always:
		ok = false
		if e.reporting {
			e.violate(n, "additionalProperties", "the property "+excerpt(name)+" is not allowed")
		}
	}
	return ok
}

func (e *evaluation) array(n *node, v []any, track bool) bool {
	ok := true
	if len(v) < n.minItems {
		ok = e.fail(n, "minItems", v)
	}
	if n.maxItems >= 0 && len(v) > n.maxItems {
		ok = e.fail(n, "maxItems", v)
	}
	if !ok && !e.reporting {
		return false
	}
	ok = e.items(n, v, track) && ok
	if n.contains != nil && (ok || e.reporting) {
		ok = e.contains(n, v, track) && ok
	}
	if n.unique && (ok || e.reporting) {
		ok = e.unique(n, v) && ok
	}
	return ok
}

func (e *evaluation) items(n *node, v []any, track bool) bool {
	ok := true
	for i, x := range v {
		by := n.items
		if i < len(n.prefix) {
			by = n.prefix[i]
		}
		switch {
		case by == nil:
			return ok
		case i == len(n.prefix) && by.always != nil && !*by.always && strings.HasSuffix(by.at, "/additionalItems"):
			return e.fail(n, "additionalItems", v)
		case track && n.items == nil:
			e.mark(i)
		}
		if ok = e.below(by, x, step{"", i}) && ok; !ok && !e.reporting {
			return false
		}
	}
	if track && n.items != nil {
		e.mark(every)
	}
	return ok
}

func (e *evaluation) contains(n *node, v []any, track bool) bool {
	track = track && n.containsEvaluates
	matched := 0
	for i, x := range v {
		if !e.quietly(n.contains, x, false) {
			continue
		}
		matched++
		if track {
			e.mark(i)
		} else if matched >= n.minContains && n.maxContains < 0 {
			break
		}
	}
	switch {
	case matched < n.minContains:
		return e.count(n, "minContains", "at least", n.minContains, matched)
	case n.maxContains >= 0 && matched > n.maxContains:
		return e.count(n, "maxContains", "at most", n.maxContains, matched)
	}
	return true
}

func (e *evaluation) count(n *node, keyword, how string, limit, matched int) bool {
	if e.reporting {
		if keyword == "minContains" && limit == 1 { // the default, which the schema need not have
			keyword = "contains"
		}
		e.violate(n, keyword, "must have "+how+" "+count(limit, "item", "items")+" as contains describes, but has "+itoa(matched))
	}
	return false
}

// unique evaluates uniqueItems.
func (e *evaluation) unique(n *node, v []any) bool {
	if len(v) < 2 {
		return true
	}
	seen := make(map[string]int, min(len(v), 64))
	for i, x := range v {
		e.key = appendKey(e.key[:0], x, math.MaxInt-1)
		e.spend(10 + len(e.key)/4)
		if first, twice := seen[string(e.key)]; twice {
			if e.reporting {
				e.violate(n, "uniqueItems", "must not have equal items: items at index "+itoa(first)+" and "+itoa(i)+" are equal")
			}
			return false
		}
		seen[string(e.key)] = i
	}
	return true
}

// text evaluates the keywords of strings.
func (e *evaluation) text(n *node, v string) bool {
	ok := true
	if n.minLength > 0 || n.maxLength >= 0 {
		e.spend(len(v) / 16)
		length := utf8.RuneCountInString(v)
		if length < n.minLength {
			ok = e.fail(n, "minLength", v)
		}
		if n.maxLength >= 0 && length > n.maxLength {
			ok = e.fail(n, "maxLength", v)
		}
		if !ok && !e.reporting {
			return false
		}
	}
	if n.matcher != nil && !e.matches(n.matcher, v) {
		ok = e.fail(n, "pattern", v)
	}
	content := []byte(nil)
	if n.base64 {
		e.spend(2 + len(v)/4)
		var err error
		if content, err = base64.StdEncoding.DecodeString(v); err != nil {
			return e.fail(n, "contentEncoding", v)
		}
	}
	if n.json {
		if e.spend(2 + len(v) + len(v)/2); !n.base64 {
			content = []byte(v)
		}
		if _, err := scan(content, payloadLimits); err != nil || !json.Valid(content) {
			ok = e.fail(n, "contentMediaType", v)
		}
	}
	return ok
}

// number evaluates the keywords of numbers.
func (e *evaluation) number(n *node, v any) bool {
	if n.minimum == nil && n.maximum == nil && n.exclusiveMinimum == nil && n.exclusiveMaximum == nil && n.multipleOf == nil {
		return true
	}
	r := e.rational(v)
	ok := true
	if n.minimum != nil && e.compare(r, n.minimum) < 0 {
		ok = e.fail(n, "minimum", v)
	}
	if n.exclusiveMinimum != nil && e.compare(r, n.exclusiveMinimum) <= 0 {
		ok = e.fail(n, "exclusiveMinimum", v)
	}
	if n.maximum != nil && e.compare(r, n.maximum) > 0 {
		ok = e.fail(n, "maximum", v)
	}
	if n.exclusiveMaximum != nil && e.compare(r, n.exclusiveMaximum) >= 0 {
		ok = e.fail(n, "exclusiveMaximum", v)
	}
	if n.multipleOf != nil {
		e.spend(10 + 2*digits(r) + 2*digits(n.multipleOf))
		if !new(big.Rat).Quo(r, n.multipleOf).IsInt() {
			ok = e.fail(n, "multipleOf", v)
		}
	}
	return ok
}

func (e *evaluation) compare(r, bound *big.Rat) int {
	e.spend(2 + (digits(r)+digits(bound))/2)
	return r.Cmp(bound)
}

// rational returns the exact value of a number.
func (e *evaluation) rational(v any) *big.Rat {
	text, _ := v.(json.Number)
	if n, err := strconv.ParseInt(string(text), 10, 32); err == nil {
		e.spend(3)
		return new(big.Rat).SetInt64(n)
	}
	r, ok := new(big.Rat).SetString(string(text))
	if !ok { // cannot happen: numbers of payloads and schemas are within its range
		r = new(big.Rat)
	}
	e.spend(10 + digits(r))
	return r
}

// digits returns about the size of a number in memory, in bytes.
func digits(r *big.Rat) int { return (r.Num().BitLen() + r.Denom().BitLen()) / 8 }

func (e *evaluation) isInteger(v any) bool {
	text, _ := v.(json.Number)
	for i := range len(text) {
		if c := text[i]; c == '.' || c == 'e' || c == 'E' {
			return e.rational(v).IsInt()
		}
	}
	return true
}
