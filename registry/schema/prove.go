package schema

import (
	"encoding/binary"
	"slices"
)

// Bounds of one proof. What they cut off is unproved.
const (
	maxProofSteps = 60_000
	maxProofDepth = 300 // of nested claims
	maxReasons    = 6
	stepWork      = 16 // how much work, in the units of MaxWork, is one step
)

// prove says whether it is proved that every value which before accepts is accepted
// by after, and where not, why. With Declared, before stands for what
// ValidateDeclared accepts, and after must be the reader's form of its schema: the
// one in which additionalProperties and unevaluatedProperties forbid nothing.
//
// What is proved are claims of two kinds about all JSON values v whose type is in
// a mask m, that a list of nodes ("left", a conjunction) accepts, and, with
// Declared, that have no part which a declaration ("at") does not declare:
//
//	sub:   the node "right" accepts v
//	unsat: there is no such v
//
// A claim is proved from other claims, about v itself or about the parts of v: the
// values of its properties, its names, its items. Nothing is ever concluded from a
// failure to prove something, not even below a not: that v is outside of X is the
// claim unsat(left and X), and that left contradicts "not X" is the claim
// sub(left, X). So every claim enters a proof only as a fact.
//
// That is what makes induction sound. Let the measure of a value be its depth,
// names being parts as well. To prove a claim for all values of depth d, it may be
// used, whatever claims led back to it, for values of a smaller depth: those are
// the proper parts of the value it began with. level counts the descents into
// parts; a claim that comes up again at its own level is not proved by that, and
// at a deeper one it is. A claim that was proved with the help of one still open
// is not remembered, as it falls with that.
func prove(before, after *node, m Model) (ok bool, reasons []Reason) {
	if before == after { // the reader's form is the schema itself where nothing is forbidden
		return true, nil
	}
	p := &prover{leant: leant{none, none}}
	var at *declaration
	if m == Declared {
		at = p.declared.describe(before)
	}
	if p.sub([]conj{{n: before}}, at, tAll, after) {
		return true, nil
	}
	return false, p.because(after)
}

// conj is one thing known of the value: that n accepts it. A flag says that what
// it names was turned into more of them already.
type conj struct {
	n    *node
	used flags
}

type flags uint8

const (
	usedAny   flags = 1 << iota // anyOf: one branch is on the left
	usedOne                     // oneOf: one branch is on the left, and that the others fail
	usedIf                      // if: it or its opposite is on the left
	usedNot                     // not: it is being contradicted
	usedCases                   // the value was split into cases, see cases
)

// prover is one run of prove. It is not safe for concurrent use.
type prover struct {
	steps, depth, level int
	quiet               int // above 0: a failure here is no reason yet

	open map[string]openClaim
	done map[string]bool // by key; proved, or failed for good
	leant
	buf []byte // of keys

	ids      map[*node]uint32
	facts    map[*node]mask // see possible
	made     made
	differs  map[[2]*node]bool // pairs known to differ, or known to be equal
	pairs    [][2]*node        // assumed equal by the comparison under way
	automata map[string]judgment
	members  map[*node]map[any]struct{}

	declared declarations // of the old schema, with Declared
	wheres   map[*declaration]uint32
	parts    map[string]uint32

	reasons []Reason // what is known to be no longer accepted
	doubts  []Reason // what is not proved
	told    int      // how often there was something to tell
}

const none = int(^uint(0) >> 1)

// leant are the lowest indexes of the open claims that were come upon since the
// last one was opened: those that were assumed, and those that could not be, as
// they came up at their own level. A proof that leans on the former, and a failure
// by the latter, are not for good.
type leant struct{ onTrue, onFalse int }

// openClaim is a claim whose proof is under way.
type openClaim struct{ level, index int }

// step counts the work. It is false when there was too much of it.
func (p *prover) step() bool {
	p.steps++
	return p.steps <= maxProofSteps
}

// begin opens a claim; right is nil for unsat. known says that it need not be
// proved now, because of what verdict is.
func (p *prover) begin(left []conj, at *declaration, m mask, right *node) (key string, outer leant, verdict, known bool) {
	p.key(left, at, m, right)
	if o, ok := p.open[string(p.buf)]; ok {
		if p.level > o.level {
			p.onTrue = min(p.onTrue, o.index)
			return "", leant{}, true, true
		}
		p.onFalse = min(p.onFalse, o.index)
		return "", leant{}, false, true
	}
	// A failure is looked at again where its reasons are wanted.
	if was, ok := p.done[string(p.buf)]; ok && (was || p.quiet > 0) {
		return "", leant{}, was, true
	}
	if p.depth >= maxProofDepth {
		p.steps = maxProofSteps + 1
		return "", leant{}, false, true
	}
	key = string(p.buf)
	if p.open == nil {
		p.open, p.done = map[string]openClaim{}, map[string]bool{}
	}
	p.open[key] = openClaim{level: p.level, index: p.depth}
	p.depth++
	outer, p.leant = p.leant, leant{none, none}
	return key, outer, false, false
}

// end closes what begin opened.
func (p *prover) end(key string, outer leant, verdict bool) {
	p.depth--
	delete(p.open, key)
	if verdict && p.onTrue >= p.depth || !verdict && p.onFalse >= p.depth {
		p.done[key] = verdict
	}
	// What leant on the claim itself is settled with it.
	if p.onTrue >= p.depth {
		p.onTrue = none
	}
	if p.onFalse >= p.depth {
		p.onFalse = none
	}
	p.onTrue, p.onFalse = min(p.onTrue, outer.onTrue), min(p.onFalse, outer.onFalse)
}

// key puts into buf all that the truth of a claim depends on.
func (p *prover) key(left []conj, at *declaration, m mask, right *node) {
	b := p.buf[:0]
	add := func(id uint32, last byte) {
		b = append(b, byte(id), byte(id>>8), byte(id>>16), byte(id>>24), last)
	}
	add(p.id(right), byte(m))
	add(p.where(at), 0)
	head := len(b)
	for _, c := range left {
		add(p.id(c.n), byte(c.used))
	}
	sortChunks(b[head:])
	p.buf = b
}

// where numbers declarations from 1; nil is 0. References that are nothing else
// declare nothing themselves, so that declarations which differ in them are one.
func (p *prover) where(at *declaration) uint32 {
	if at == nil {
		return 0
	}
	if id, ok := p.wheres[at]; ok {
		return id
	}
	key := make([]byte, 0, 2*len(at.of))
	for _, n := range at.of {
		if n.ref == nil || !onlyRef(n) {
			key = binary.AppendUvarint(key, uint64(n.id)) //nolint:gosec // an index is not negative
		}
	}
	id, ok := p.parts[string(key)]
	if !ok {
		if p.parts == nil {
			p.parts, p.wheres = map[string]uint32{}, map[*declaration]uint32{}
		}
		id = uint32(len(p.parts) + 1) //nolint:gosec // the steps bound it
		p.parts[string(key)] = id
	}
	p.wheres[at] = id
	return id
}

// sortChunks sorts the parts of a key, so that the order of the left side is none
// of it.
func sortChunks(b []byte) {
	const size = 5
	for i := size; i < len(b); i += size {
		for j := i; j > 0 && slices.Compare(b[j:j+size], b[j-size:j]) < 0; j -= size {
			var t [size]byte
			copy(t[:], b[j:])
			copy(b[j:j+size], b[j-size:j])
			copy(b[j-size:], t[:])
		}
	}
}

// id numbers nodes from 1; nil is 0.
func (p *prover) id(n *node) uint32 {
	if n == nil {
		return 0
	}
	if id, ok := p.ids[n]; ok {
		return id
	}
	if p.ids == nil {
		p.ids = map[*node]uint32{}
	}
	id := uint32(len(p.ids) + 1) //nolint:gosec // the steps bound it
	p.ids[n] = id
	return id
}

// sub proves that right accepts every value of m that all of left accept.
func (p *prover) sub(left []conj, at *declaration, m mask, right *node) bool {
	if !p.step() {
		return false
	}
	right = through(right)
	if right.always != nil && *right.always {
		return true
	}
	for _, c := range left {
		if p.equal(c.n, right) {
			return true
		}
	}
	flat, m := p.flatten(left, m)
	if m == 0 {
		return true
	}
	if len(flat) != len(left) {
		for _, c := range flat {
			if p.equal(c.n, right) {
				return true
			}
		}
	}
	key, outer, verdict, known := p.begin(flat, at, m, right)
	if known {
		return verdict
	}
	ok := p.follow(flat, at, m, right)
	p.end(key, outer, ok)
	return ok
}

// follow is sub of a flat left side.
func (p *prover) follow(left []conj, at *declaration, m mask, right *node) bool {
	if p.quiet == 0 && m&(m-1) != 0 && right.always == nil { // one reason for all types that are lost
		if lost := p.satisfiable(left, at, m&^p.possible(right)); lost != 0 {
			p.noteTypes(left, right, lost)
			if m &^= lost; m != 0 && p.more() {
				p.follow(left, at, m, right)
			}
			return false
		}
	}
	vals, few := finite(left, m)
	if !few && m == tNum {
		vals, few = fewNumbers(left, right)
	}
	if few {
		if decided, ok := p.listed(left, m, right, vals); decided {
			return ok
		}
	}
	if p.unsat(left, at, m) {
		return true
	}
	if right.always != nil {
		return p.note(right, "false", "nothing is accepted here any more")
	}
	if !p.divisible(left, m, right) {
		return p.atoms(left, at, m, right)
	}
	// What fails for the whole may hold for each part, and what is said of the
	// parts is nearer to the point.
	p.quiet++
	ok := p.atoms(left, at, m, right)
	p.quiet--
	return ok || p.cases(left, at, m, right)
}

// atoms proves each thing that right asks for.
func (p *prover) atoms(left []conj, at *declaration, m mask, right *node) bool {
	ok := true
	if lost := m &^ p.possible(right); lost != 0 && !p.unsat(left, at, lost) {
		ok = p.noteTypes(left, right, lost)
		if !p.more() {
			return false
		}
		m &^= lost
	}
	m &= p.possible(right)
	if right.integer && m&tNum != 0 && !spanOf(left).whole() {
		ok = p.note(right, "type", "numbers must be integers now")
	}
	for _, k := range right.beyond {
		ok = p.doubt(right, k, "the proof does not understand "+k)
	}
	if len(right.values) > 0 && m != 0 && (m != tStr || !p.among(left, right)) {
		ok = p.noteListed(right)
	}
	if !ok && !p.more() {
		return false
	}
	ok = p.inPlace(left, at, m, right) && ok
	if !ok && !p.more() {
		return false
	}
	if m&tNum != 0 {
		ok = p.number(left, right) && ok
	}
	if m&tStr != 0 && (ok || p.more()) {
		ok = p.text(left, right) && ok
	}
	if m&tArr != 0 && (ok || p.more()) {
		ok = p.array(left, at, right) && ok
	}
	if m&tObj != 0 && (ok || p.more()) {
		ok = p.object(left, at, right) && ok
	}
	return ok
}

// inPlace proves what right asks of the same value through other schemas.
func (p *prover) inPlace(left []conj, at *declaration, m mask, right *node) bool {
	if m == 0 {
		return true
	}
	ok := right.ref == nil || p.sub(left, at, m, right.ref)
	for _, a := range right.allOf {
		if !ok && !p.more() {
			return false
		}
		ok = p.sub(left, at, m, a) && ok
	}
	if len(right.anyOf) > 0 && (ok || p.more()) {
		ok = p.some(left, at, m, right) && ok
	}
	if len(right.oneOf) > 0 && (ok || p.more()) {
		ok = p.one(left, at, m, right) && ok
	}
	if right.not != nil && (ok || p.more()) && !p.disjoint(left, at, m, right.not) {
		ok = p.doubt(right, "not", "it is not proved that none of the values accepted before is forbidden by not")
	}
	if right.cond == nil || !ok && !p.more() {
		return ok
	}
	if right.then != nil {
		ok = p.sub(with(left, right.cond), at, m, right.then) && ok
	}
	if right.els != nil && (ok || p.more()) {
		ok = p.sub(with(left, p.made.notNode(right.cond)), at, m, right.els) && ok
	}
	return ok
}

// some proves that one branch of anyOf accepts all.
func (p *prover) some(left []conj, at *declaration, m mask, right *node) bool {
	p.quiet++
	ok := slices.ContainsFunc(right.anyOf, func(r *node) bool { return p.sub(left, at, m, r) })
	p.quiet--
	return ok || p.noteBranches(left, at, m, right, "anyOf", right.anyOf)
}

// one proves that one branch of oneOf accepts all, and no other anything of it.
func (p *prover) one(left []conj, at *declaration, m mask, right *node) bool {
	p.quiet++
	i := slices.IndexFunc(right.oneOf, func(r *node) bool { return p.sub(left, at, m, r) })
	alone := i >= 0
	for j, o := range right.oneOf {
		// If another accepts all as well, then these two overlap: only the first matters.
		alone = alone && (i == j || p.disjoint(left, at, m, o))
	}
	p.quiet--
	switch {
	case alone:
		return true
	case i >= 0:
		return p.doubt(right, "oneOf", "it is not proved that only one branch of oneOf accepts what was accepted before")
	default:
		return p.noteBranches(left, at, m, right, "oneOf", right.oneOf)
	}
}

// disjoint proves that no value fits both left and x.
func (p *prover) disjoint(left []conj, at *declaration, m mask, x *node) bool {
	return p.unsat(with(left, x), at, m)
}

// with is left and more.
func with(left []conj, more ...*node) []conj {
	out := make([]conj, len(left), len(left)+len(more))
	copy(out, left)
	for _, n := range more {
		if n != nil {
			out = append(out, conj{n: n})
		}
	}
	return out
}
