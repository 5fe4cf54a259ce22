package schema

import (
	"encoding/json"
	"math/big"
	"slices"
)

// span is what is known of a number: where it lies, and what it is a multiple of.
type span struct {
	lo, hi     *big.Rat // nil: no bound
	loEx, hiEx bool     // the bound itself is out
	step       *big.Rat // nil: any number
}

var unit = big.NewRat(1, 1)

// spanOf is the span of the numbers that fit left.
func spanOf(left []conj) span {
	var s span
	for _, c := range left {
		n := c.n
		if n.integer {
			s.divide(unit)
		}
		s.divide(n.multipleOf)
		s.above(n.minimum, false)
		s.above(n.exclusiveMinimum, true)
		s.below(n.maximum, false)
		s.below(n.exclusiveMaximum, true)
		if n.not != nil && onlyBound(n.not) { // it lies on the other side
			s.below(n.not.minimum, true)
			s.below(n.not.exclusiveMinimum, false)
			s.above(n.not.maximum, true)
			s.above(n.not.exclusiveMaximum, false)
		}
	}
	s.tighten()
	return s
}

// onlyBound: of numbers, n asks for nothing but one bound. It may say no where that
// is so.
func onlyBound(n *node) bool {
	bounds := 0
	for _, b := range [...]*big.Rat{n.minimum, n.exclusiveMinimum, n.maximum, n.exclusiveMaximum} {
		if b != nil {
			bounds++
		}
	}
	return bounds == 1 && n.types&tNum != 0 && !n.integer && n.multipleOf == nil && n.always == nil && n.values == nil &&
		len(n.beyond) == 0 && n.ref == nil && !hasInPlace(n) && n.not == nil
}

func (s *span) above(x *big.Rat, out bool) {
	if x == nil {
		return
	}
	if s.lo == nil || x.Cmp(s.lo) > 0 || out && x.Cmp(s.lo) == 0 {
		s.lo, s.loEx = x, out
	}
}

func (s *span) below(x *big.Rat, out bool) {
	if x == nil {
		return
	}
	if s.hi == nil || x.Cmp(s.hi) < 0 || out && x.Cmp(s.hi) == 0 {
		s.hi, s.hiEx = x, out
	}
}

// divide takes note that the number is a multiple of x: of both a/b and c/d means
// of lcm(ad, cb)/bd. Where that grows long, the fact is left out.
func (s *span) divide(x *big.Rat) {
	const longest = 4096 // bits
	if x == nil {
		return
	}
	if s.step == nil || s.step == x {
		s.step = x
		return
	}
	if s.step.Cmp(x) == 0 || s.step.Num().BitLen()+s.step.Denom().BitLen()+x.Num().BitLen()+x.Denom().BitLen() > longest {
		return
	}
	ad := new(big.Int).Mul(s.step.Num(), x.Denom())
	cb := new(big.Int).Mul(x.Num(), s.step.Denom())
	lcm := new(big.Int).Mul(ad, cb)
	lcm.Quo(lcm, new(big.Int).GCD(nil, nil, ad, cb))
	s.step = new(big.Rat).SetFrac(lcm, new(big.Int).Mul(s.step.Denom(), x.Denom()))
}

// tighten moves the bounds to multiples of step.
func (s *span) tighten() {
	if s.step == nil {
		return
	}
	if s.lo != nil {
		s.lo, s.loEx = s.next(s.lo, s.loEx), false
	}
	if s.hi != nil {
		down := s.next(new(big.Rat).Neg(s.hi), s.hiEx) // the same, mirrored
		s.hi, s.hiEx = down.Neg(down), false
	}
}

// next is the smallest multiple of step that is not below x, or with out above it.
func (s *span) next(x *big.Rat, out bool) *big.Rat {
	q := new(big.Rat).Quo(x, s.step)
	n := new(big.Int)
	rem := new(big.Int)
	n.DivMod(q.Num(), q.Denom(), rem) // rounded down
	if rem.Sign() != 0 || out {
		n.Add(n, big.NewInt(1))
	}
	q.SetInt(n)
	return q.Mul(q, s.step)
}

// whole: all of them are integers.
func (s span) whole() bool {
	return s.step != nil && s.step.IsInt() || s.lo != nil && s.hi != nil && s.lo.Cmp(s.hi) == 0 && s.lo.IsInt()
}

func (s span) empty() bool {
	if s.lo == nil || s.hi == nil {
		return false
	}
	c := s.lo.Cmp(s.hi)
	return c > 0 || c == 0 && (s.loEx || s.hiEx)
}

// holds: x lies within the bounds.
func (s span) holds(x *big.Rat) bool {
	if s.lo != nil {
		if c := x.Cmp(s.lo); c < 0 || c == 0 && s.loEx {
			return false
		}
	}
	if s.hi != nil {
		if c := x.Cmp(s.hi); c > 0 || c == 0 && s.hiEx {
			return false
		}
	}
	return true
}

// values lists all numbers of the span, if they are at most few.
func (s span) values(few int64) ([]any, bool) {
	if s.lo == nil || s.hi == nil || s.step == nil || !s.step.IsInt() {
		return nil, false
	}
	n := new(big.Rat).Quo(new(big.Rat).Sub(s.hi, s.lo), s.step)
	if n.Cmp(big.NewRat(few, 1)) >= 0 {
		return nil, false
	}
	var out []any
	for x := new(big.Rat).Set(s.lo); x.Cmp(s.hi) <= 0; x.Add(x, s.step) {
		out = append(out, json.Number(x.Num().String()))
	}
	return out, true
}

// fewNumbers lists the numbers that fit left, where right wants to be asked about
// each of them.
func fewNumbers(left []conj, right *node) ([]any, bool) {
	if len(right.values) == 0 && !branches(right) {
		return nil, false
	}
	return spanOf(left).values(64)
}

// number proves what right asks of numbers.
func (p *prover) number(left []conj, right *node) bool {
	if right.minimum == nil && right.exclusiveMinimum == nil && right.maximum == nil && right.exclusiveMaximum == nil && right.multipleOf == nil {
		return true
	}
	s := spanOf(left)
	ok := true
	if r := right.minimum; r != nil && (s.lo == nil || s.lo.Cmp(r) < 0) {
		ok = p.noteBound(right, "minimum", "raised", s.lo, r)
	}
	if r := right.exclusiveMinimum; r != nil && (s.lo == nil || s.lo.Cmp(r) < 0 || s.lo.Cmp(r) == 0 && !s.loEx) {
		ok = p.noteBound(right, "exclusiveMinimum", "raised", s.lo, r)
	}
	if r := right.maximum; r != nil && (s.hi == nil || s.hi.Cmp(r) > 0) {
		ok = p.noteBound(right, "maximum", "lowered", s.hi, r)
	}
	if r := right.exclusiveMaximum; r != nil && (s.hi == nil || s.hi.Cmp(r) > 0 || s.hi.Cmp(r) == 0 && !s.hiEx) {
		ok = p.noteBound(right, "exclusiveMaximum", "lowered", s.hi, r)
	}
	if r := right.multipleOf; r != nil && !s.multiple(r) {
		var was *big.Rat
		if i := slices.IndexFunc(left, func(c conj) bool { return c.n.multipleOf != nil }); i >= 0 {
			was = left[i].n.multipleOf
		}
		ok = p.noteBound(right, "multipleOf", "changed", was, r)
	}
	return ok
}

// multiple: all of them are multiples of r.
func (s span) multiple(r *big.Rat) bool {
	if s.step != nil && new(big.Rat).Quo(s.step, r).IsInt() {
		return true
	}
	return s.lo != nil && s.hi != nil && s.lo.Cmp(s.hi) == 0 && new(big.Rat).Quo(s.lo, r).IsInt()
}
