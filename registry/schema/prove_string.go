package schema

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// sameFormats are names under which the validator has one check. Nothing else is
// known of what formats imply: its date-time takes times of which date knows
// nothing, and its uri takes a backslash, which uri-reference does not.
var sameFormats = map[string]string{
	"ip-address":    "ipv4",
	"iri":           "uri",
	"uriref":        "uri-reference",
	"iri-reference": "uri-reference",
}

func formatOf(n *node) string {
	if f, ok := sameFormats[n.format]; ok {
		return f
	}
	return n.format
}

// bounds are the sharpest of lower and upper bounds; hi is -1 where there is none.
func bounds(left []conj, of func(*node) (lo, hi int)) (lo, hi int) {
	hi = -1
	for _, c := range left {
		l, h := of(c.n)
		lo = max(lo, l)
		if h >= 0 && (hi < 0 || h < hi) {
			hi = h
		}
	}
	return lo, hi
}

func lengths(n *node) (lo, hi int)    { return n.minLength, n.maxLength }
func itemCounts(n *node) (lo, hi int) { return n.minItems, n.maxItems }
func propertyCounts(n *node) (lo, hi int) {
	return max(n.minProperties, 0), n.maxProperties
}

// texts is what is known of a string.
type texts struct {
	lo, hi      int // of its length
	match, fail []*regexp.Regexp
}

func textsOf(left []conj) texts {
	var t texts
	t.lo, t.hi = bounds(left, lengths)
	for _, c := range left {
		if c.n.pattern != nil {
			t.match = append(t.match, c.n.pattern)
		}
		if x := c.n.not; x != nil && onlyPattern(x) {
			t.fail = append(t.fail, x.pattern)
		}
	}
	return t
}

// onlyPattern: of strings, n asks for nothing but a pattern. It may say no where
// that is so.
func onlyPattern(n *node) bool {
	return n.pattern != nil && n.types&tStr != 0 && n.always == nil && len(n.beyond) == 0 && n.values == nil &&
		n.ref == nil && !hasInPlace(n) && n.not == nil && n.minLength == 0 && n.maxLength == -1 && n.format == ""
}

// noText proves that no string fits left.
func (p *prover) noText(left []conj) bool {
	t := textsOf(left)
	if t.hi >= 0 && t.lo > t.hi {
		return true
	}
	return len(t.match) > 0 && (len(t.match)+len(t.fail) > 1 || t.lo > 0 || t.hi >= 0) && p.noString(t) == yes
}

// text proves what right asks of strings.
func (p *prover) text(left []conj, right *node) bool {
	if right.minLength == 0 && right.maxLength == -1 && right.pattern == nil && right.format == "" {
		return true
	}
	t := textsOf(left)
	ok := true
	if lo := right.minLength; t.lo < lo {
		short := t
		short.hi = lo - 1
		if t.hi >= 0 {
			short.hi = min(t.hi, lo-1)
		}
		if len(t.match) == 0 || p.noString(short) != yes {
			ok = p.noteCount(right, "minLength", "raised", t.lo, lo)
		}
	}
	if hi := right.maxLength; hi != -1 && (t.hi < 0 || t.hi > hi) {
		long := t
		long.lo = max(t.lo, hi+1)
		if len(t.match) == 0 || p.noString(long) != yes {
			ok = p.noteCount(right, "maxLength", "lowered", t.hi, hi)
		}
	}
	if re := right.pattern; re != nil {
		if sure := p.implies(t, re); sure != yes {
			ok = p.notePattern(right, t.match, re, sure)
		}
	}
	if f := formatOf(right); f != "" && !slices.ContainsFunc(left, func(c conj) bool { return formatOf(c.n) == f }) {
		message := "format " + right.format + " is new"
		if i := slices.IndexFunc(left, func(c conj) bool { return c.n.format != "" }); i >= 0 {
			message = fmt.Sprintf("format changed from %s to %s", left[i].n.format, right.format)
		}
		ok = p.note(right, "format", message)
	}
	return ok
}

// among: the strings that fit left are among the values of right, as the patterns
// on the left let no others pass.
func (p *prover) among(left []conj, right *node) bool {
	const most = 64
	t := textsOf(left)
	if len(t.match) == 0 || len(right.values) > most {
		return false
	}
	var listed []string
	for _, v := range right.values {
		if s, ok := v.(string); ok {
			listed = append(listed, regexp.QuoteMeta(s))
		}
	}
	if len(listed) == 0 {
		return p.noString(t) == yes
	}
	re, err := regexp.Compile("^(?:" + strings.Join(listed, "|") + ")$")
	return err == nil && p.implies(t, re) == yes
}

// implies: every string of t is matched by re.
func (p *prover) implies(t texts, re *regexp.Regexp) judgment {
	if slices.ContainsFunc(t.match, func(m *regexp.Regexp) bool { return m.String() == re.String() }) {
		return yes
	}
	t.fail = append(slices.Clone(t.fail), re)
	return p.noString(t)
}

// noString says whether it is sure that there is no such string, or that the
// patterns leave one.
func (p *prover) noString(t texts) judgment {
	buf := strconv.AppendInt(nil, int64(t.lo), 10)
	buf = strconv.AppendInt(append(buf, ' '), int64(t.hi), 10)
	for _, l := range [][]*regexp.Regexp{t.match, t.fail} {
		buf = append(buf, 0)
		for _, re := range l {
			buf = strconv.AppendQuote(buf, re.String())
		}
	}
	key := string(buf)
	if known, ok := p.automata[key]; ok {
		return known
	}
	empty := yes
	if !t.impossible() {
		var work int
		empty, work = emptyLanguage(t)
		p.steps += work / 64
	}
	if p.automata == nil {
		p.automata = map[string]judgment{}
	}
	p.automata[key] = empty
	return empty
}

// impossible: the lengths that the patterns allow lie outside of the bounds.
func (t texts) impossible() bool {
	for _, re := range t.match {
		lo, hi := lengthsOf(re)
		if t.hi >= 0 && lo > t.hi || hi >= 0 && hi < t.lo {
			return true
		}
	}
	return false
}
