package schema

import (
	"bytes"
	"encoding/json"
	"maps"
	"math/big"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
)

// hints are what the schemas speak of: a value that tells two of them apart is
// most often one of these, or beside one.
type hints struct {
	names    []string
	values   []any         // of enum, const and default
	numbers  []json.Number // bounds and their neighbors
	lengths  []int         // of strings, arrays and objects, and their neighbors
	patterns []string
	formats  []string
	schemas  []spot

	seen map[string]bool
}

// most is how many hints of a kind are kept: a schema of 64 KiB has many names.
const most = 400

func add[T any](h *hints, kind, key string, to *[]T, v T) {
	if h.seen == nil {
		h.seen = map[string]bool{}
	}
	if key = kind + key; len(*to) < most && !h.seen[key] {
		h.seen[key] = true
		*to = append(*to, v)
	}
}

func (h *hints) name(s string) { add(h, "n", s, &h.names, s) }
func (h *hints) length(n int)  { add(h, "l", strconv.Itoa(n), &h.lengths, n) }
func (h *hints) value(v any)   { add(h, "v", string(textOf(v)), &h.values, v) }
func (h *hints) schema(p spot) { h.schemas = append(h.schemas, p) }

func (h *hints) number(r *big.Rat) {
	if n, ok := exactly(r); ok {
		add(h, "#", string(n), &h.numbers, n)
	}
}

func (h *hints) pattern(s string) {
	add(h, "p", s, &h.patterns, s)
	if re, err := syntax.Parse(s, syntax.Perl); err == nil {
		h.repeats(re)
	}
}

// repeats takes the lengths that a pattern counts to.
func (h *hints) repeats(re *syntax.Regexp) {
	if re.Op == syntax.OpRepeat {
		h.around(re.Min)
		h.around(max(re.Max, 0))
	}
	for _, sub := range re.Sub {
		h.repeats(sub)
	}
}

func (h *hints) around(n int) {
	for _, n := range []int{n - 1, n, n + 1} {
		if n >= 0 {
			h.length(n)
		}
	}
}

// all takes the hints of everything at p and below.
func (h *hints) all(p spot) {
	m := p.object()
	if m == nil {
		return
	}
	p = p.rebased()
	if len(h.schemas) < most {
		h.schema(p)
	}
	for _, k := range sortedKeys(m) {
		h.keyword(p, k, m[k])
	}
}

// keyword takes the hints of one keyword of p.
func (h *hints) keyword(p spot, k string, v any) {
	switch k {
	case "properties", "patternProperties", "dependentSchemas", "dependencies", "dependentRequired", "$defs", "definitions":
		m, _ := v.(map[string]any)
		for _, n := range sortedKeys(m) {
			h.member(k, n)
			for _, s := range stringsOf(m[n]) {
				h.name(s)
			}
			h.all(p.child(m[n]))
		}
	case "required":
		for _, s := range stringsOf(v) {
			h.name(s)
		}
	case "enum":
		a, _ := v.([]any)
		for _, x := range a {
			h.value(x)
		}
	case "const", "default":
		h.value(v)
	case "pattern":
		if s, ok := v.(string); ok {
			h.pattern(s)
		}
	case "format":
		if s, ok := v.(string); ok {
			add(h, "f", s, &h.formats, s)
		}
	case "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains":
		if n := p.count(k); n >= 0 {
			h.around(n)
		}
	case "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf":
		h.bound(v)
	default:
		h.below(p, v)
	}
}

// member takes the name of a property, or of the pattern of one.
func (h *hints) member(keyword, name string) {
	switch keyword {
	case "patternProperties":
		h.pattern(name)
	case "$defs", "definitions":
	default:
		h.name(name)
	}
}

func (h *hints) below(p spot, v any) {
	switch t := v.(type) {
	case map[string]any:
		h.all(p.child(t))
	case []any:
		for _, x := range t {
			h.below(p, x)
		}
	}
}

// bound takes a number of a schema, its neighbors and its multiples.
func (h *hints) bound(v any) {
	n, ok := v.(json.Number)
	if !ok {
		return
	}
	r, ok := rational(n)
	if !ok {
		return
	}
	h.number(r)
	for _, d := range []*big.Rat{big.NewRat(1, 1), big.NewRat(-1, 1), big.NewRat(1, 2), big.NewRat(-1, 2), big.NewRat(1, 1000), big.NewRat(-1, 1000)} {
		h.number(new(big.Rat).Add(r, d))
	}
	for _, f := range []*big.Rat{big.NewRat(-1, 1), big.NewRat(2, 1), big.NewRat(3, 1), big.NewRat(1, 2), big.NewRat(5, 1), big.NewRat(7, 1)} {
		h.number(new(big.Rat).Mul(r, f))
	}
}

// differ takes the hints of those parts alone that a and b do not share, and the
// names of the properties that lead to them.
func (h *hints) differ(a, b spot) {
	x, y := a.object(), b.object()
	if x == nil || y == nil {
		if !same(a.of, b.of) {
			h.all(a)
			h.all(b)
		}
		return
	}
	both := maps.Clone(x)
	maps.Copy(both, y)
	found := false
	for _, k := range sortedKeys(both) {
		v, inA := x[k]
		w, inB := y[k]
		if inA && inB && same(v, w) || annotation(k) {
			continue
		}
		found = true
		switch {
		case !inA:
			h.keyword(b, k, w)
		case !inB:
			h.keyword(a, k, v)
		default:
			h.changed(a, b, k)
		}
	}
	if found && len(h.schemas) < most {
		h.schema(a.rebased())
		h.schema(b.rebased())
	}
}

// named are the keywords that hold schemas by names that are no keywords.
var named = map[string]bool{
	"properties": true, "patternProperties": true, "dependentSchemas": true, "dependencies": true, "dependentRequired": true,
	"$defs": true, "definitions": true,
}

// changed takes the hints of a keyword that both have, and not the same.
func (h *hints) changed(a, b spot, k string) {
	v, w := a.object()[k], b.object()[k]
	m, isMap := v.(map[string]any)
	n, isMap2 := w.(map[string]any)
	l, isList := v.([]any)
	o, isList2 := w.([]any)
	switch {
	case isMap && isMap2 && named[k]:
		both := maps.Clone(m)
		maps.Copy(both, n)
		for _, name := range sortedKeys(both) {
			if !same(m[name], n[name]) {
				h.member(k, name)
				for _, s := range append(stringsOf(m[name]), stringsOf(n[name])...) {
					h.name(s)
				}
				h.differ(a.child(m[name]), b.child(n[name]))
			}
		}
	case isMap && isMap2:
		h.differ(a.child(m), b.child(n))
	case isList && isList2 && (k == "enum" || k == "required"):
		h.keyword(a, k, without(l, o))
		h.keyword(b, k, without(o, l))
	case isList && isList2 && len(l) == len(o):
		for i := range l {
			h.differ(a.child(l[i]), b.child(o[i]))
		}
	default:
		h.keyword(a, k, v)
		h.keyword(b, k, w)
	}
}

func annotation(k string) bool {
	switch k {
	case "title", "description", "$comment", "examples", "$schema", "$id", "id", "deprecated", "readOnly", "writeOnly":
		return true
	}
	return false
}

// without returns what a has and b has not.
func without(a, b []any) []any {
	var out []any
	for _, x := range a {
		if !slices.ContainsFunc(b, func(y any) bool { return same(x, y) }) {
			out = append(out, x)
		}
	}
	return out
}

// same says whether two JSON values are written alike.
func same(a, b any) bool {
	switch x := a.(type) {
	case map[string]any:
		y, ok := b.(map[string]any)
		return ok && maps.EqualFunc(x, y, same)
	case []any:
		y, ok := b.([]any)
		return ok && slices.EqualFunc(x, y, same)
	}
	switch b.(type) {
	case map[string]any, []any:
		return false
	}
	return a == b
}

// textOf writes a value as JSON.
func textOf(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil { // only numbers that are none could
		return []byte("null")
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// rational reads a number whose exponent is small, see the limits of Compile.
func rational(n json.Number) (*big.Rat, bool) {
	if i := strings.IndexAny(string(n), "eE"); i >= 0 {
		if e, err := strconv.Atoi(string(n[i+1:])); err != nil || e > 400 || e < -400 {
			return nil, false
		}
	}
	return new(big.Rat).SetString(string(n))
}

// exactly writes a number with all of its digits; not those that have no end, and
// not those that are too long for a payload.
func exactly(r *big.Rat) (json.Number, bool) {
	if r.IsInt() {
		s := r.Num().String()
		short := strings.TrimRight(s, "0")
		if zeros := len(s) - len(short); zeros > 20 {
			s = short + "e" + strconv.Itoa(zeros)
		}
		return json.Number(s), len(s) <= 90
	}
	digits, exact := r.FloatPrec()
	if !exact || digits > 80 {
		return "", false
	}
	s := r.FloatString(digits)
	return json.Number(s), len(s) <= 90
}
