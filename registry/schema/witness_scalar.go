package schema

import (
	"encoding/json"
	"math/big"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// numberFor makes a number for the schemas: of some candidates, one that they allow
// if there is one.
func (g *generator) numberFor(flat []spot, integer bool) json.Number {
	n := json.Number("0")
	for range 6 {
		n = g.candidate(flat, integer)
		r, ok := rational(n)
		if ok && allows(flat, r) && (!integer || r.IsInt()) {
			break
		}
	}
	return n
}

func (g *generator) candidate(flat []spot, integer bool) json.Number {
	if m := multiple(flat); m != nil && g.chance(.7) {
		return g.multipleNear(m)
	}
	if n, ok := pick(g, func(h *hints) []json.Number { return h.numbers }); ok && g.chance(.75) {
		if integer && strings.ContainsAny(string(n), ".") {
			n = json.Number(string(n)[:strings.IndexByte(string(n), '.')])
		}
		if n != "" && n != "-" {
			return n
		}
	}
	switch g.n(8) {
	case 0:
		return "0"
	case 1:
		return json.Number(strconv.Itoa(g.n(200001) - 100000))
	case 2:
		return one(g, []json.Number{"1e20", "-1e20", "9007199254740993", "1", "-1"})
	case 3, 4:
		if !integer {
			return json.Number(strconv.Itoa(g.n(40)-20) + "." + strconv.Itoa(1+g.n(99)))
		}
	}
	return json.Number(strconv.Itoa(g.n(200) - 100))
}

func multiple(flat []spot) *big.Rat {
	for _, p := range flat {
		if n, ok := p.object()["multipleOf"].(json.Number); ok {
			if r, ok := rational(n); ok && r.Sign() > 0 {
				return r
			}
		}
	}
	return nil
}

// multipleNear makes a multiple of m, close to a hint or to zero.
func (g *generator) multipleNear(m *big.Rat) json.Number {
	at := new(big.Rat)
	if n, ok := pick(g, func(h *hints) []json.Number { return h.numbers }); ok && g.chance(.7) {
		if r, ok := rational(n); ok {
			at = r
		}
	}
	q := new(big.Rat).Quo(at, m)
	k := new(big.Int).Quo(q.Num(), q.Denom())
	k.Add(k, big.NewInt(int64(g.n(13)-6)))
	n, ok := exactly(new(big.Rat).Mul(m, new(big.Rat).SetInt(k)))
	if !ok {
		return "0"
	}
	return n
}

// allows says whether the bounds of the schemas let r pass.
func allows(flat []spot, r *big.Rat) bool {
	for _, p := range flat {
		m := p.object()
		bound := func(k string) int { // r compared with it
			n, ok := m[k].(json.Number)
			if !ok {
				return 0
			}
			b, ok := rational(n)
			if !ok {
				return 0
			}
			if c := r.Cmp(b); c != 0 {
				return c
			}
			return 2 // equal
		}
		if bound("minimum") == -1 || bound("maximum") == 1 {
			return false
		}
		if c := bound("exclusiveMinimum"); c == -1 || c == 2 {
			return false
		}
		if c := bound("exclusiveMaximum"); c == 1 || c == 2 {
			return false
		}
	}
	return true
}

// samples are strings that their format allows, and some that look as if it did.
var samples = map[string][]string{
	"date-time":             {"2024-01-02T03:04:05Z", "2024-01-02T03:04:05.678+02:00", "2024-01-02t03:04:05z"},
	"date":                  {"2024-01-02", "1999-12-31"},
	"time":                  {"03:04:05Z", "23:59:59.5+01:00"},
	"duration":              {"P1D", "PT1H30M", "P2W"},
	"period":                {"2024-01-02T03:04:05Z/P1D"},
	"email":                 {"a@example.com", "x.y@b.org"},
	"idn-email":             {"a@example.com"},
	"hostname":              {"example.com", "a"},
	"idn-hostname":          {"example.com"},
	"ipv4":                  {"10.0.0.1", "192.168.1.255"},
	"ip-address":            {"10.0.0.1"},
	"ipv6":                  {"::1", "2001:db8::1"},
	"uri":                   {"http://example.com/", "urn:x:y"},
	"iri":                   {"http://example.com/"},
	"uri-reference":         {"/a", "http://example.com/"},
	"uriref":                {"/a"},
	"iri-reference":         {"/a"},
	"uri-template":          {"/a/{b}"},
	"regex":                 {"^a$", "[a-z]+"},
	"json-pointer":          {"/a", "", "/a/b~1"},
	"relative-json-pointer": {"0", "1/a"},
	"uuid":                  {"123e4567-e89b-12d3-a456-426614174000", "123E4567-E89B-12D3-A456-426614174000"},
}

// sampleLike returns the plainest sample of the format that s is a sample of: a
// person knows it when they see it.
func sampleLike(s string) (string, bool) {
	for _, format := range sortedKeys(samples) {
		if len(s) > 4 && slices.Contains(samples[format], s) {
			return samples[format][0], true
		}
	}
	return "", false
}

// stringFor makes a string for the schemas; nil: for none.
func (g *generator) stringFor(flat []spot) string {
	s := ""
	for range 4 {
		s = g.stringCandidate(flat)
		if fitsLength(flat, s) {
			break
		}
	}
	return s
}

func (g *generator) stringCandidate(flat []spot) string {
	for _, p := range flat {
		if f, ok := p.object()["format"].(string); ok && samples[f] != nil && g.chance(.6) {
			return one(g, samples[f])
		}
		if re, ok := p.object()["pattern"].(string); ok && g.chance(.7) {
			return g.matching(re)
		}
	}
	if p, ok := pick(g, func(h *hints) []string { return h.patterns }); ok && g.chance(.3) {
		return g.matching(p)
	}
	if f, ok := pick(g, func(h *hints) []string { return h.formats }); ok && samples[f] != nil && g.chance(.3) {
		return one(g, samples[f])
	}
	if v, ok := pick(g, func(h *hints) []any { return h.values }); ok && g.chance(.2) {
		if s, ok := v.(string); ok {
			return s
		}
	}
	return g.text(g.stringLength(flat))
}

func (g *generator) stringLength(flat []spot) int {
	n := g.n(6)
	if l, ok := pick(g, func(h *hints) []int { return h.lengths }); ok && g.chance(.7) {
		n = l
	}
	return g.within(flat, n, "minLength", "maxLength", 400)
}

// within moves n into the bounds that the schemas set, mostly.
func (g *generator) within(flat []spot, n int, least, greatest string, limit int) int {
	if g.chance(.05) {
		return min(n, limit)
	}
	for _, p := range flat {
		if h := p.count(greatest); h >= 0 {
			n = min(n, h)
		}
	}
	for _, p := range flat {
		n = max(n, p.count(least))
	}
	return min(n, limit)
}

func fitsLength(flat []spot, s string) bool {
	n := utf8.RuneCountInString(s)
	for _, p := range flat {
		if h := p.count("maxLength"); n < p.count("minLength") || h >= 0 && n > h {
			return false
		}
	}
	return true
}

// text makes a string of n characters.
func (g *generator) text(n int) string {
	if g.compact && g.chance(.5) {
		return strings.Repeat(one(g, []string{"a", "a", "A", "0", " "}), n)
	}
	const abc = "abcxyzABZ019_-. @/é"
	letters := []rune(abc)
	out := make([]rune, n)
	for i := range out {
		out[i] = one(g, letters)
	}
	return string(out)
}

// matching makes a string in which the pattern is found.
func (g *generator) matching(pattern string) string {
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return pattern
	}
	var b strings.Builder
	if g.chance(.2) && !strings.HasPrefix(pattern, "^") {
		b.WriteString(g.text(g.n(3)))
	}
	g.match(&b, re)
	if g.chance(.2) && !strings.HasSuffix(pattern, "$") {
		b.WriteString(g.text(g.n(3)))
	}
	return b.String()
}

func (g *generator) match(b *strings.Builder, re *syntax.Regexp) {
	if b.Len() > 500 {
		return
	}
	switch re.Op {
	case syntax.OpLiteral:
		s := string(re.Rune)
		if re.Flags&syntax.FoldCase != 0 && g.chance(.5) {
			s = strings.ToLower(s)
		}
		b.WriteString(s)
	case syntax.OpCharClass:
		if len(re.Rune) >= 2 {
			b.WriteRune(g.ofClass(re.Rune))
		}
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		b.WriteString(one(g, []string{"a", "b", "Z", "0", "9", "-", " ", "/", "é"}))
	case syntax.OpConcat:
		for _, sub := range re.Sub {
			g.match(b, sub)
		}
	case syntax.OpAlternate:
		g.match(b, one(g, re.Sub))
	case syntax.OpCapture:
		g.match(b, re.Sub[0])
	case syntax.OpStar, syntax.OpPlus, syntax.OpQuest, syntax.OpRepeat:
		for range g.times(re) {
			g.match(b, re.Sub[0])
		}
	default: // it stands for no character
	}
}

// times chooses how often a repeated part comes.
func (g *generator) times(re *syntax.Regexp) int {
	least, greatest := re.Min, re.Max
	switch re.Op {
	case syntax.OpStar:
		least, greatest = 0, -1
	case syntax.OpPlus:
		least, greatest = 1, -1
	case syntax.OpQuest:
		least, greatest = 0, 1
	default:
	}
	if greatest < 0 {
		greatest = least + 3
		if l, ok := pick(g, func(h *hints) []int { return h.lengths }); ok && g.chance(.3) {
			greatest = max(least, min(l, 200))
			return greatest
		}
	}
	if g.chance(.3) {
		return one(g, []int{least, greatest})
	}
	return least + g.n(greatest-least+1)
}

// ofClass chooses a character of a class: its first, its last, or one between, and
// rather a printable one.
func (g *generator) ofClass(ranges []rune) rune {
	for range 4 {
		i := g.n(len(ranges)/2) * 2
		lo, hi := ranges[i], ranges[i+1]
		c := lo + rune(g.n(int(hi-lo)+1))
		switch {
		case lo <= ' ' && hi >= '~': // a class of what is not allowed
			c = ' ' + rune(g.n('~'-' '+1))
		case g.chance(.3):
			c = one(g, []rune{lo, hi})
		}
		if c >= ' ' && c < 0x250 && c != 0x7f || len(ranges) == 2 && (c < 0xd800 || c > 0xdfff) {
			return c
		}
	}
	if lo := ranges[0]; lo >= ' ' {
		return lo
	}
	return ranges[len(ranges)-2]
}
