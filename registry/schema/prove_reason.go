package schema

import (
	"encoding/json"
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strings"
)

// more says whether further reasons are wanted.
func (p *prover) more() bool {
	return p.quiet == 0 && len(p.reasons) < maxReasons && p.steps <= maxProofSteps
}

// note keeps what is known to be no longer accepted. It returns false, as what it
// is said of is not proved.
func (p *prover) note(right *node, keyword, message string) bool {
	p.keep(&p.reasons, right, keyword, message)
	return false
}

// doubt is note for what is not known to be otherwise than it was.
func (p *prover) doubt(right *node, keyword, message string) bool {
	p.keep(&p.doubts, right, keyword, message)
	return false
}

func (p *prover) keep(to *[]Reason, right *node, keyword, message string) {
	if p.quiet > 0 || p.steps > maxProofSteps {
		return
	}
	p.told++
	r := Reason{Keyword: keyword, Path: right.at, Message: message}
	if len(*to) < maxReasons && !slices.Contains(*to, r) {
		*to = append(*to, r)
	}
}

// because is why the proof failed, the most telling reasons first.
func (p *prover) because(right *node) []Reason {
	out := slices.Concat(p.reasons, p.doubts)
	if p.steps > maxProofSteps {
		out = slices.Insert(out, min(len(out), len(p.reasons), maxReasons-1), Reason{Path: right.at, Message: "the schemas are too complex for the proof"})
	}
	if len(out) == 0 {
		out = []Reason{{Path: right.at, Message: "no proof was found"}}
	}
	return out[:min(len(out), maxReasons)]
}

var kindNames = [...]string{"null", "boolean", "number", "string", "array", "object"}

// satisfiable are the types of m of which it is not proved that left has none.
func (p *prover) satisfiable(left []conj, at *declaration, m mask) mask {
	for t := tNull; t <= tObj; t <<= 1 {
		if m&t != 0 && p.unsat(left, at, t) {
			m &^= t
		}
	}
	return m
}

func (p *prover) noteTypes(left []conj, right *node, lost mask) bool {
	if p.quiet > 0 {
		return false
	}
	keyword := "type"
	if lost&right.types == 0 {
		return p.note(right, keyword, "values of type "+listing(kindsOf(left, lost))+" are no longer accepted")
	}
	for _, k := range [...]struct {
		of   []*node
		name string
	}{{right.oneOf, "oneOf"}, {right.anyOf, "anyOf"}} {
		if k.of != nil {
			keyword = k.name
		}
	}
	if len(right.values) > 0 {
		keyword = listKeyword(right)
	}
	return p.note(right, keyword, "values of type "+listing(kindsOf(left, lost))+" are no longer accepted")
}

// kindsOf names the types of m.
func kindsOf(left []conj, m mask) []string {
	var names []string
	for i, name := range kindNames {
		if m&(1<<i) == 0 {
			continue
		}
		if name == "number" && spanOf(left).whole() {
			name = "integer"
		}
		names = append(names, name)
	}
	return names
}

// listing is "a, b and c".
func listing(of []string) string {
	if len(of) < 2 {
		return strings.Join(of, "")
	}
	return strings.Join(of[:len(of)-1], ", ") + " and " + of[len(of)-1]
}

// short is a value as people see it, cut if it is long.
func short(v any) string {
	const longest = 60
	b, err := json.Marshal(v)
	if err != nil {
		return "a value"
	}
	if r := []rune(string(b)); len(r) > longest {
		return string(r[:longest]) + "..."
	}
	return string(b)
}

// shorts are the first of some values.
func shorts(vals []any) []string {
	const most = 5
	var out []string
	for i, v := range vals {
		if i == most {
			out = append(out, fmt.Sprintf("%d more", len(vals)-most))
			break
		}
		out = append(out, short(v))
	}
	return out
}

// noteValues says which of the old values are lost.
func (p *prover) noteValues(right *node, lost []any) bool {
	keyword := "type"
	switch {
	case len(right.values) > 0:
		keyword = listKeyword(right)
	case typeOf(lost[0])&right.types == 0:
	case right.not != nil:
		keyword = "not"
	case right.oneOf != nil:
		keyword = "oneOf"
	case right.anyOf != nil:
		keyword = "anyOf"
	case right.cond != nil:
		keyword = "if"
	default:
		keyword = ""
	}
	verb := " is"
	if len(lost) > 1 {
		verb = " are"
	}
	return p.note(right, keyword, listing(shorts(lost))+verb+" no longer accepted")
}

func listKeyword(n *node) string {
	if len(n.values) == 1 {
		return "const"
	}
	return "enum"
}

// noteListed says that any value was accepted, and now those of a list are.
func (p *prover) noteListed(right *node) bool {
	if p.quiet > 0 {
		return false
	}
	verb := " are"
	if len(right.values) == 1 {
		verb = " is"
	}
	return p.note(right, listKeyword(right), "only "+listing(shorts(right.values))+verb+" accepted now")
}

// decimal is a number as people write it.
func decimal(r *big.Rat) string {
	if n, exact := r.FloatPrec(); exact {
		return r.FloatString(n)
	}
	return r.RatString()
}

func (p *prover) noteBound(right *node, keyword, how string, was, is *big.Rat) bool {
	if p.quiet > 0 {
		return false
	}
	if was == nil {
		return p.note(right, keyword, keyword+" "+decimal(is)+" is new")
	}
	if was.Cmp(is) == 0 {
		return p.note(right, keyword, fmt.Sprintf("%s %s itself is no longer accepted", keyword, decimal(is)))
	}
	return p.note(right, keyword, fmt.Sprintf("%s %s from %s to %s", keyword, how, decimal(was), decimal(is)))
}

// noteCount is noteBound for lengths and numbers of parts, of which 0 and -1 are
// no bound.
func (p *prover) noteCount(right *node, keyword, how string, was, is int) bool {
	if p.quiet > 0 {
		return false
	}
	if was == 0 && how == "raised" || was < 0 {
		return p.note(right, keyword, fmt.Sprintf("%s %d is new", keyword, is))
	}
	return p.note(right, keyword, fmt.Sprintf("%s %s from %d to %d", keyword, how, was, is))
}

// notePattern tells of a new pattern. With sure being no, what was known of the
// strings does not imply it.
func (p *prover) notePattern(right *node, was []*regexp.Regexp, is *regexp.Regexp, sure judgment) bool {
	switch {
	case p.quiet > 0:
		return false
	case len(was) == 0:
		return p.note(right, "pattern", "pattern "+is.String()+" is new")
	case sure == no:
		return p.note(right, "pattern", fmt.Sprintf("pattern changed from %s to %s, which does not match all that the old one did", was[0], is))
	}
	return p.doubt(right, "pattern", fmt.Sprintf("pattern changed from %s to %s, and it is not proved that the new one matches all that the old one did", was[0], is))
}

// noteBranches says why no branch of a union accepts all of left: where but one is
// in question, by what fails in that.
func (p *prover) noteBranches(left []conj, at *declaration, m mask, right *node, keyword string, of []*node) bool {
	if p.quiet > 0 {
		return false
	}
	var near []*node
	for _, b := range of {
		if !p.disjoint(left, at, m, b) {
			near = append(near, b)
		}
	}
	switch len(near) {
	case 0:
		return p.note(right, keyword, p.describe(left, at, m)+" are no longer accepted: no branch of "+keyword+" is for them")
	case 1:
		told := p.told
		p.sub(left, at, m, near[0])
		if p.told > told {
			return false
		}
	}
	return p.doubt(right, keyword, "it is not proved that the branches of "+keyword+" accept all that was accepted before")
}

// describe names the values that fit left: by their type, numbers by where they
// lie, and objects by their properties of one value.
func (p *prover) describe(left []conj, at *declaration, m mask) string {
	switch m {
	case tNum:
		s := spanOf(left)
		var where []string
		if s.lo != nil {
			where = append(where, map[bool]string{true: "above ", false: "from "}[s.loEx]+decimal(s.lo))
		}
		if s.hi != nil {
			where = append(where, map[bool]string{true: "below ", false: "up to "}[s.hiEx]+decimal(s.hi))
		}
		if len(where) > 0 {
			return "numbers " + strings.Join(where, " and ")
		}
	case tObj:
		var with []string
		required := sortedKeys(requiredBy(left))
		for _, name := range required {
			of, _ := p.property(left, at, name)
			of, _ = p.flatten(of, tAll)
			if vals, ok := finite(of, 0); ok && len(vals) == 1 && len(with) < 2 {
				with = append(with, name+" "+short(vals[0]))
			}
		}
		if len(with) > 0 {
			return "objects with " + listing(with)
		}
		if len(required) > 0 {
			return "objects that have " + listing(required[:min(len(required), 2)])
		}
	default:
	}
	return "values of type " + listing(kindsOf(left, m))
}
