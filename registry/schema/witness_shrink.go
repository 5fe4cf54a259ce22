package schema

import (
	"encoding/json"
	"maps"
	"math/big"
	"slices"
	"strings"
	"unicode"
)

// maxShrinks is how many simpler values are judged to shrink one witness.
const maxShrinks = 600

// simpler says whether a is easier to take in than b: it is shorter.
func simpler(a, b any) bool { return len(textOf(a)) < len(textOf(b)) }

// shrink makes a witness simpler for as long as it stays one.
func (s search) shrink(v any) any {
	left := &budget{maxShrinks, maxSearchWork / 4}
	for again := true; again; {
		again = false
		simplify(v, func(c any) bool {
			if left.tries--; left.tries < 0 || left.work < 0 {
				return true // enough
			}
			if !s.is(c, left) {
				return false
			}
			v, again = c, true
			return true
		})
	}
	return v
}

// simplify offers values that are a step simpler than v, the boldest first, until
// try takes one.
func simplify(v any, try func(any) bool) bool {
	for _, c := range []any{json.Number("0"), "", map[string]any{}, []any{}, nil, false} {
		if (sameKind(c, v) || complexity(c) < complexity(v)) && simpler(c, v) && try(c) {
			return true
		}
	}
	switch t := v.(type) {
	case bool:
		return t && try(false)
	case json.Number:
		return simplifyNumber(t, try)
	case string:
		return simplifyString(t, try)
	case []any:
		return simplifyArray(t, try)
	case map[string]any:
		return simplifyObject(t, try)
	}
	return false
}

func sameKind(a, b any) bool { return complexity(a) == complexity(b) }

// complexity orders the types of values.
func complexity(v any) int {
	switch v.(type) {
	case nil:
		return 0
	case bool:
		return 1
	case json.Number:
		return 2
	case string:
		return 3
	case []any:
		return 4
	}
	return 5
}

func simplifyObject(t map[string]any, try func(any) bool) bool {
	names := sortedKeys(t)
	if len(names) > 8 { // halves first: a witness can have dozens of members
		for _, half := range [][]string{names[:len(names)/2], names[len(names)/2:]} {
			c := maps.Clone(t)
			maps.DeleteFunc(c, func(k string, _ any) bool { return slices.Contains(half, k) })
			if try(c) {
				return true
			}
		}
	}
	for _, k := range names {
		c := maps.Clone(t)
		delete(c, k)
		if try(c) {
			return true
		}
	}
	for _, k := range names {
		if simplify(t[k], func(x any) bool {
			c := maps.Clone(t)
			c[k] = x
			return try(c)
		}) {
			return true
		}
	}
	for _, k := range names { // a name that nobody speaks of can be a short one
		if _, taken := t["x"]; taken || len(k) < 2 && k != "" {
			continue
		}
		c := maps.Clone(t)
		delete(c, k)
		c["x"] = t[k]
		if try(c) {
			return true
		}
	}
	return false
}

func simplifyArray(t []any, try func(any) bool) bool {
	if len(t) > 3 && (try(t[:len(t)/2]) || try(t[len(t)/2:])) {
		return true
	}
	for i := range t {
		if try(slices.Delete(slices.Clone(t), i, i+1)) {
			return true
		}
	}
	for i := range t {
		if x, first := textOf(t[i]), textOf(t[0]); len(x) >= len(first) && string(x) != string(first) {
			c := slices.Clone(t)
			if c[i] = t[0]; try(c) {
				return true
			}
		}
	}
	for i := range t {
		if simplify(t[i], func(x any) bool {
			c := slices.Clone(t)
			c[i] = x
			return try(c)
		}) {
			return true
		}
	}
	return false
}

func simplifyNumber(t json.Number, try func(any) bool) bool {
	r, ok := rational(t)
	if !ok {
		return false
	}
	offer := func(c *big.Rat) bool {
		n, ok := exactly(c)
		if !ok || n == t || len(n) > len(t) {
			return false
		}
		closer := c.Cmp(r) != 0 && new(big.Rat).Abs(c).Cmp(new(big.Rat).Abs(r)) < 0
		return (closer || len(n) < len(t)) && try(n)
	}
	whole := func(x *big.Rat) *big.Rat {
		return new(big.Rat).SetInt(new(big.Int).Quo(x.Num(), x.Denom()))
	}
	times := func(x *big.Rat, a, b int64) *big.Rat { return new(big.Rat).Mul(x, big.NewRat(a, b)) }
	sign := big.NewRat(int64(r.Sign()), 1)
	steps := []*big.Rat{sign, times(sign, 1, 2), whole(r), times(r, -1, 1)}
	if r.IsInt() {
		steps = append(steps, whole(times(r, 1, 2)), whole(times(r, 3, 4)), whole(times(r, 15, 16)), new(big.Rat).Sub(r, sign))
	} else {
		away := new(big.Rat).Add(whole(r), sign)
		steps = append(steps, away, new(big.Rat).Add(whole(times(r, 1, 2)), times(sign, 1, 2)), new(big.Rat).Add(whole(r), times(sign, 1, 2)))
		if digits, exact := r.FloatPrec(); exact && digits > 1 {
			if c, ok := new(big.Rat).SetString(r.FloatString(digits - 1)); ok {
				steps = append(steps, c)
			}
		}
	}
	return slices.ContainsFunc(steps, offer)
}

func simplifyString(t string, try func(any) bool) bool {
	if first, ok := sampleLike(t); ok {
		return len(t) > 1 && try("a") || first != t && try(first)
	}
	r := []rune(t)
	part := func(c []rune) bool { return len(c) < len(r) && try(string(c)) }
	if len(r) > 1 && (try("a") || part(r[:len(r)/2]) || part(r[len(r)/2:])) {
		return true
	}
	if as := strings.Repeat("a", len(r)); t != as && try(as) {
		return true
	}
	if len(r) > 80 {
		return part(r[1:]) || part(r[:len(r)-len(r)/8])
	}
	for i := range r {
		if part(slices.Delete(slices.Clone(r), i, i+1)) {
			return true
		}
	}
	for i, c := range r {
		if c == 'a' || c < 128 && unicode.IsDigit(c) {
			continue
		}
		x := slices.Clone(r)
		x[i] = 'a'
		if try(string(x)) {
			return true
		}
	}
	return false
}
