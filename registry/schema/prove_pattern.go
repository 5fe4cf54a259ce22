package schema

import (
	"regexp"
	"regexp/syntax"
	"slices"
	"unicode"
)

// Bounds of one question about patterns. Beyond them it stays open.
const (
	maxProductStates = 2_000
	maxPatternWork   = 400_000 // instructions looked at
	maxRuneBounds    = 2_000
	maxProgram       = 2_000 // instructions of one pattern
	maxCounted       = 300   // lengths up to which characters are counted
)

// lengthsOf are bounds of the length, in code points, of the strings that re
// matches; hi is -1 where there is none. A pattern is searched for, so that only
// one that is bound to both ends has an upper bound.
func lengthsOf(re *regexp.Regexp) (lo, hi int) {
	x, err := syntax.Parse(re.String(), syntax.Perl)
	if err != nil {
		return 0, -1
	}
	lo, hi = widths(x)
	if n := len(x.Sub); x.Op != syntax.OpConcat || n < 2 || x.Sub[0].Op != syntax.OpBeginText || x.Sub[n-1].Op != syntax.OpEndText {
		hi = -1
	}
	return lo, hi
}

// widths are bounds of the length of what an expression matches.
func widths(x *syntax.Regexp) (lo, hi int) {
	const most = 1 << 20
	times := func(a, b int) int { return min(a*b, most) }
	switch x.Op {
	case syntax.OpLiteral:
		return len(x.Rune), len(x.Rune)
	case syntax.OpCharClass, syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return 1, 1
	case syntax.OpCapture:
		return widths(x.Sub[0])
	case syntax.OpStar, syntax.OpPlus, syntax.OpQuest, syntax.OpRepeat:
		atLeast, atMost := x.Min, x.Max
		switch x.Op {
		case syntax.OpStar:
			atLeast, atMost = 0, -1
		case syntax.OpPlus:
			atLeast, atMost = 1, -1
		case syntax.OpQuest:
			atLeast, atMost = 0, 1
		default:
		}
		lo, hi = widths(x.Sub[0])
		switch {
		case hi == 0:
		case atMost < 0 || hi < 0 || hi*atMost > most:
			hi = -1
		default:
			hi *= atMost
		}
		return times(lo, atLeast), hi
	case syntax.OpConcat:
		for _, s := range x.Sub {
			l, h := widths(s)
			lo = min(lo+l, most)
			if h < 0 || hi < 0 || hi+h > most {
				hi = -1
			} else {
				hi += h
			}
		}
		return lo, hi
	case syntax.OpAlternate:
		lo, hi = widths(x.Sub[0])
		for _, s := range x.Sub[1:] {
			l, h := widths(s)
			lo = min(lo, l)
			if h < 0 || hi < 0 {
				hi = -1
			} else {
				hi = max(hi, h)
			}
		}
		return lo, hi
	default: // of no width; and what matches nothing has any length
		return 0, 0
	}
}

// machine reads one pattern as an automaton, determinized as far as it is used. A
// state is a set of places in the program, before the steps that read nothing, as
// those depend on the character that follows.
type machine struct {
	prog   *syntax.Prog
	states []machineState
	ids    map[string]int
	next   [][]int32 // by state and class; 0 is not known yet, else the state + 1
	work   *int
	marks  []int
	turn   int
}

type machineState struct {
	places []uint32
	before rune // what was read last, or a character of its kind; -1 at the start
	found  bool // the pattern was found, whatever follows
}

// alphabet divides all characters into classes. No pattern of a question distinguishes the characters
// of a class.
type alphabet struct {
	of   []rune // one character of each class
	kind []rune // its kind for \b and the ends of lines

	// The characters from bounds[i] up to the next bound have the class classes[i].
	bounds  []rune
	classes []int
}

// class returns the class of a character.
func (a *alphabet) class(r rune) int {
	i, found := slices.BinarySearch(a.bounds, r)
	if !found {
		i--
	}
	return a.classes[i]
}

// emptyLanguage says whether no string is within the bounds of t, matched by all of
// match and none of fail; unclear where it would take too long. work is in
// instructions.
//
// All machines read the same string at once: the states that can be reached
// together are walked, and the strings that end in them judged. Invalid UTF-8 and
// surrogates do not occur in decoded JSON.
func emptyLanguage(t texts) (empty judgment, work int) {
	machines := make([]*machine, 0, len(t.match)+len(t.fail))
	for _, re := range slices.Concat(t.match, t.fail) {
		m := newMachine(re, &work)
		if m == nil {
			return unclear, work
		}
		machines = append(machines, m)
	}
	letters, ok := newAlphabet(machines, &work)
	if !ok {
		return unclear, work
	}
	lo, hi := min(t.lo, maxCounted), t.hi
	if hi > maxCounted {
		hi = -1 // more strings than there are: what is proved of them is true
	}
	counted := max(lo, hi+1)

	type state struct {
		of    []int
		count int
	}
	seen := map[string]bool{}
	var queue []state
	visit := func(s state) {
		key := make([]byte, 0, 4*len(s.of)+2)
		for _, x := range s.of {
			key = append(key, byte(x), byte(x>>8), byte(x>>16), byte(x>>24))
		}
		key = append(key, byte(s.count), byte(s.count>>8))
		if !seen[string(key)] {
			seen[string(key)] = true
			queue = append(queue, s)
		}
	}
	start := state{of: make([]int, len(machines))}
	visit(start)
	for len(queue) > 0 {
		s := queue[0]
		queue = queue[1:]
		if s.count >= lo && fits(machines, s.of, len(t.match)) {
			if t.lo > lo || t.hi > hi {
				return unclear, work // a bound was given up
			}
			return no, work
		}
		if hi >= 0 && s.count >= hi {
			continue
		}
	letter:
		for c := range letters.of {
			next := state{of: make([]int, len(machines)), count: min(s.count+1, counted)}
			for i, m := range machines {
				next.of[i] = m.read(s.of[i], c, letters)
				if i >= len(t.match) && m.states[next.of[i]].found {
					continue letter
				}
			}
			visit(next)
			if len(seen) > maxProductStates || work > maxPatternWork {
				return unclear, work
			}
		}
	}
	return yes, work
}

// fits: a string that ends here is matched by the first of the machines, and not
// by the others.
func fits(machines []*machine, of []int, match int) bool {
	for i, m := range machines {
		if m.ends(of[i]) != (i < match) {
			return false
		}
	}
	return true
}

// program compiles a pattern. It returns nil if the program is too large.
func program(re *regexp.Regexp) *syntax.Prog {
	x, err := syntax.Parse(re.String(), syntax.Perl)
	if err != nil {
		return nil
	}
	prog, err := syntax.Compile(x.Simplify())
	if err != nil || len(prog.Inst) > maxProgram {
		return nil
	}
	return prog
}

func newMachine(re *regexp.Regexp, work *int) *machine {
	prog := program(re)
	if prog == nil {
		return nil
	}
	return newMachineOf(prog, work)
}

func newMachineOf(prog *syntax.Prog, work *int) *machine {
	m := &machine{prog: prog, ids: map[string]int{}, work: work, marks: make([]int, len(prog.Inst))}
	m.state(machineState{before: -1})
	return m
}

// state numbers a state.
func (m *machine) state(s machineState) int {
	key := make([]byte, 0, 4*len(s.places)+5)
	if s.found {
		key = append(key, 1)
	} else {
		key = append(key, 0, byte(s.before), byte(s.before>>8))
		for _, pc := range s.places {
			key = append(key, byte(pc), byte(pc>>8))
		}
	}
	if id, ok := m.ids[string(key)]; ok {
		return id
	}
	id := len(m.states)
	m.ids[string(key)] = id
	m.states = append(m.states, s)
	m.next = append(m.next, nil)
	return id
}

// reach calls f with the instructions that can be reached from a state without
// reading, where after is the character that follows; -1 at the end. A match may
// begin at every place.
func (m *machine) reach(s machineState, after rune, f func(*syntax.Inst)) {
	m.turn++
	flags := syntax.EmptyOpContext(s.before, after)
	var walk func(pc uint32)
	walk = func(pc uint32) {
		if m.marks[pc] == m.turn {
			return
		}
		m.marks[pc] = m.turn
		*m.work++
		switch in := &m.prog.Inst[pc]; in.Op {
		case syntax.InstAlt, syntax.InstAltMatch:
			walk(in.Out)
			walk(in.Arg)
		case syntax.InstCapture, syntax.InstNop:
			walk(in.Out)
		case syntax.InstEmptyWidth:
			if syntax.EmptyOp(in.Arg)&^flags == 0 {
				walk(in.Out)
			}
		case syntax.InstFail:
		default:
			f(in)
		}
	}
	for _, pc := range s.places {
		walk(pc)
	}
	walk(uint32(m.prog.Start)) //nolint:gosec // programs are short
}

// read is the state after a character of the kind c.
func (m *machine) read(from, c int, letters alphabet) int {
	if m.next[from] == nil {
		m.next[from] = make([]int32, len(letters.of))
	}
	if to := m.next[from][c]; to > 0 {
		return int(to - 1)
	}
	s := m.states[from]
	to := s
	if !s.found {
		to = machineState{before: letters.kind[c]}
		m.reach(s, letters.kind[c], func(in *syntax.Inst) {
			if in.Op == syntax.InstMatch {
				to.found = true
			} else if in.MatchRune(letters.of[c]) {
				to.places = append(to.places, in.Out)
			}
		})
		slices.Sort(to.places)
		to.places = slices.Compact(to.places)
	}
	id := m.state(to)
	m.next[from][c] = int32(id + 1) //nolint:gosec // maxPatternWork bounds it
	return id
}

// ends: a string that ends in the state is matched.
func (m *machine) ends(state int) bool {
	s := m.states[state]
	found := s.found
	if !found {
		m.reach(s, -1, func(in *syntax.Inst) { found = found || in.Op == syntax.InstMatch })
	}
	return found
}

// newAlphabet groups all characters by what the machines see of them. ok is false
// if there are too many kinds.
func newAlphabet(machines []*machine, work *int) (a alphabet, ok bool) {
	bounds := []rune{0, 0xD800, 0xE000}
	split := func(lo, hi rune) { bounds = append(bounds, lo, hi+1) }
	var reads []*syntax.Inst
	lines, words := false, false
	for _, m := range machines {
		for i := range m.prog.Inst {
			in := &m.prog.Inst[i]
			switch in.Op {
			case syntax.InstRune, syntax.InstRune1, syntax.InstRuneAny, syntax.InstRuneAnyNotNL:
				reads = append(reads, in)
				splitAt(in, split)
			case syntax.InstEmptyWidth:
				e := syntax.EmptyOp(in.Arg)
				lines = lines || e&(syntax.EmptyBeginLine|syntax.EmptyEndLine) != 0
				words = words || e&(syntax.EmptyWordBoundary|syntax.EmptyNoWordBoundary) != 0
			default:
			}
		}
	}
	if lines {
		split('\n', '\n')
	}
	if words {
		for _, r := range []rune{'0', '9', 'A', 'Z', '_', '_', 'a', 'z'} {
			split(r, r)
		}
	}
	slices.Sort(bounds)
	bounds = slices.Compact(bounds)
	if len(bounds) > maxRuneBounds || len(bounds)*len(reads) > maxPatternWork {
		return a, false
	}
	seen := map[string]int{}
	seenBy := make([]byte, len(reads)+1)
	for _, r := range bounds {
		if r > unicode.MaxRune || r >= 0xD800 && r < 0xE000 {
			continue
		}
		kind := ' '
		switch {
		case lines && r == '\n':
			kind = '\n'
		case words && syntax.IsWordChar(r):
			kind = 'a'
		}
		for i, in := range reads {
			*work++
			seenBy[i] = 0
			if in.MatchRune(r) {
				seenBy[i] = 1
			}
		}
		seenBy[len(reads)] = byte(kind)
		class, known := seen[string(seenBy)]
		if !known {
			class = len(a.of)
			seen[string(seenBy)] = class
			a.of, a.kind = append(a.of, r), append(a.kind, kind)
		}
		a.bounds, a.classes = append(a.bounds, r), append(a.classes, class)
	}
	return a, true
}

// splitAt calls split with the ranges of characters that an instruction reads.
func splitAt(in *syntax.Inst, split func(lo, hi rune)) {
	if len(in.Rune) == 1 {
		split(in.Rune[0], in.Rune[0])
		if syntax.Flags(in.Arg)&syntax.FoldCase != 0 {
			for r := unicode.SimpleFold(in.Rune[0]); r != in.Rune[0]; r = unicode.SimpleFold(r) {
				split(r, r)
			}
		}
		return
	}
	for i := 0; i+1 < len(in.Rune); i += 2 {
		split(in.Rune[i], in.Rune[i+1])
	}
}
