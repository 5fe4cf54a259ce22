package schema

import (
	"regexp"
	"regexp/syntax"
	"sync"
)

// matcher matches strings of payloads with one pattern. In the worst case package regexp takes 40 ns
// or more for each byte and each instruction of a pattern, and it cannot be interrupted. An automaton
// takes a few nanoseconds for each byte once its states are known, and the work to make states is
// counted.
type matcher struct {
	re   *regexp.Regexp
	size int // approximate number of instructions

	once     sync.Once
	prog     *syntax.Prog // nil: too large for an automaton
	alphabet alphabet
	ascii    [128]int // classes
}

func newMatcher(re *regexp.Regexp) *matcher {
	return &matcher{re: re, size: textSize(re.String())}
}

func (m *matcher) compile() {
	prog := program(m.re)
	if prog == nil {
		return
	}
	work, ok := 0, false
	if m.alphabet, ok = newAlphabet([]*machine{{prog: prog}}, &work); !ok {
		return
	}
	for r := range m.ascii {
		m.ascii[r] = m.alphabet.class(rune(r))
	}
	m.prog = prog
}

// matching is the state of a matcher in an evaluation.
type matching struct {
	strings int // number of strings matched
	machine *machine
	work    int // of machine, not yet spent
}

const (
	// plainMatches is how many strings package regexp matches before an automaton is made.
	plainMatches = 4
	// plainSize is the largest product of bytes and instructions that is left to package regexp.
	plainSize = 1024
)

// matches reports whether the pattern matches the string.
func (e *evaluation) matches(m *matcher, s string) bool {
	u := e.matching[m]
	if u == nil {
		u = &matching{}
		if e.matching == nil {
			e.matching = map[*matcher]*matching{}
		}
		e.matching[m] = u
		e.spend(10)
	}
	u.strings++
	if cost := (len(s) + 4) * m.size; u.strings <= plainMatches && cost <= plainSize {
		e.spend(cost)
		return m.re.MatchString(s)
	}
	if m.once.Do(m.compile); m.prog == nil {
		e.spend(4 * (len(s) + 4) * m.size)
		return m.re.MatchString(s)
	}
	if u.machine == nil {
		e.spend(20 + len(m.prog.Inst)/2)
		u.machine = newMachineOf(m.prog, &u.work)
	}
	return e.run(u, m, s)
}

// run reports whether the automaton finds the pattern in a string.
func (e *evaluation) run(u *matching, m *matcher, s string) bool {
	e.spend(2 + len(s)/2)
	state, states := 0, len(u.machine.states)
	for _, r := range s {
		class := 0
		if r < 128 {
			class = m.ascii[r]
		} else {
			class = m.alphabet.class(r)
		}
		if next := u.machine.next[state]; next != nil && next[class] > 0 {
			state = int(next[class] - 1)
			continue
		}
		state = u.machine.read(state, class, m.alphabet)
		if n := len(u.machine.states); n > states {
			states = n
			e.spend(20 + (len(m.alphabet.of)+4*len(u.machine.states[n-1].places))/4)
		}
		e.pay(u)
		if u.machine.states[state].found {
			return true
		}
	}
	if u.machine.states[state].found {
		return true
	}
	found := u.machine.ends(state)
	e.pay(u)
	return found
}

// pay spends the work that the automaton has done since the last call.
func (e *evaluation) pay(u *matching) {
	e.spend(1 + u.work)
	u.work = 0
}
