package schema

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// question is one of the four that a change in testdata/changes.txt answers.
type question struct {
	model Model
	d     Direction
}

func (q question) String() string { return string(q.model) + " " + string(q.d) }

var questions = []question{{Strict, Backward}, {Strict, Forward}, {Declared, Backward}, {Declared, Forward}}

// change is one entry of testdata/changes.txt.
type change struct {
	name, old, new, why string
	refs                map[string]string // text by URI
	truth               map[question]bool
	unproved            map[question]string // why it is not proved although true
}

// changesFile reads testdata/changes.txt; its head says what it holds.
func changesFile(t testing.TB) []change {
	t.Helper()
	text, err := os.ReadFile("testdata/changes.txt")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.SplitSeq(string(text), "\n") {
		switch {
		case strings.HasPrefix(line, " "):
			lines[len(lines)-1] += line
		case line != "" && (!strings.HasPrefix(line, "#") || strings.HasPrefix(line, "## ")):
			lines = append(lines, line)
		}
	}
	var out []change
	for _, line := range lines {
		key, rest, _ := strings.Cut(line, " ")
		if key == "##" {
			out = append(out, change{name: rest, refs: map[string]string{}, truth: map[question]bool{}, unproved: map[question]string{}})
			continue
		}
		if err := out[len(out)-1].set(key, rest); err != nil {
			t.Fatalf("%s: %s: %v", out[len(out)-1].name, line, err)
		}
	}
	return out
}

func (c *change) set(key, rest string) error {
	switch key {
	case "old":
		c.old = rest
	case "new":
		c.new = rest
	case "why":
		c.why = rest
	case "ref":
		uri, text, _ := strings.Cut(rest, " ")
		c.refs[uri] = text
	case "strict", "declared":
		var back, forth string
		if _, err := fmt.Sscanf(rest, "backward %s forward %s", &back, &forth); err != nil {
			return err
		}
		for d, word := range map[Direction]string{Backward: back, Forward: forth} {
			if word != "yes" && word != "no" {
				return fmt.Errorf("%q is neither yes nor no", word)
			}
			c.truth[question{Model(key), d}] = word == "yes"
		}
	case "unproved":
		f := strings.SplitN(rest, " ", 3)
		if len(f) < 3 {
			return fmt.Errorf("%q names no model, direction and reason", rest)
		}
		c.unproved[question{Model(f[0]), Direction(f[1])}] = f[2]
	default:
		return fmt.Errorf("%q is not known", key)
	}
	return nil
}

// compiled returns the schemas of a question in the order of Compare.
func (c *change) compiled(t testing.TB, d Direction) (from, to *Schema) {
	t.Helper()
	refs := map[string]*Schema{}
	for range len(c.refs) + 1 { // each may refer to those that are there already
		for uri, text := range c.refs {
			if s, err := Compile(text, Options{References: refs}); err == nil && refs[uri] == nil {
				refs[uri] = s
			}
		}
	}
	from, to = compileWith(t, c.old, refs), compileWith(t, c.new, refs)
	if d == Forward {
		from, to = to, from
	}
	return from, to
}

func compileWith(t testing.TB, text string, refs map[string]*Schema) *Schema {
	t.Helper()
	s, err := Compile(text, Options{References: refs})
	if err != nil {
		t.Fatalf("compile %s: %v", text, err)
	}
	return s
}

func TestChangesFile(t *testing.T) {
	all := changesFile(t)
	if len(all) < 150 {
		t.Errorf("there are %d changes, want at least 150", len(all))
	}
	seen := map[string]bool{}
	for _, c := range all {
		if seen[c.name] || c.old == "" || c.new == "" || len(c.truth) != 4 {
			t.Errorf("%s: twice, or not complete", c.name)
		}
		seen[c.name] = true
		for q := range c.unproved {
			if !c.truth[q] {
				t.Errorf("%s: %v is not true, so it cannot be proved", c.name, q)
			}
		}
	}
}

// The verdicts of the changes people make every day: a true yes is proved, a true
// no is refuted, by a value that the schemas judge so.
func TestChanges(t *testing.T) {
	for _, c := range changesFile(t) {
		for _, q := range questions {
			t.Run(c.name+"/"+q.String(), func(t *testing.T) {
				from, to := c.compiled(t, q.d)
				v := Compare(from, to, q.model)
				reason, listed := c.unproved[q]
				switch {
				case !c.truth[q]:
					if v.Result != Refuted {
						t.Fatalf("%s, want refuted: %v", v.Result, v.Explain(q.d))
					}
					checkWitness(t, from, to, q.model, v)
				case listed && v.Result == Proved:
					t.Errorf("it is proved now: take it off the list of the unproved")
				case !listed && v.Result != Proved:
					t.Errorf("%s, want proved: %v", v.Result, v.Explain(q.d))
				case listed && v.Result != Unproved:
					t.Errorf("%s, want unproved (%s): %v", v.Result, reason, v.Explain(q.d))
				}
				if c.truth[q] {
					attack(t, from, to, q.model, *instances, 1) // make fuzz-schema has more of them
				}
			})
		}
	}
}

// checkWitness looks at a refutation as a user of the package could.
func checkWitness(t *testing.T, from, to *Schema, m Model, v Verdict) {
	t.Helper()
	accept := from.Validate
	if m == Declared {
		accept = from.ValidateDeclared
	}
	if err := accept(v.Witness); err != nil {
		t.Errorf("the witness %s is not accepted by the one schema: %v", v.Witness, err)
	}
	if m == Strict && to.Validate(v.Witness) == nil {
		t.Errorf("the witness %s is accepted by the other schema", v.Witness)
	}
	if len(v.Violations) == 0 {
		t.Errorf("the witness %s violates nothing", v.Witness)
	}
	if len(v.Witness) > 200 {
		t.Errorf("the witness %s is too long to be read", v.Witness)
	}
}

// attack looks for a value that shows a yes to be wrong.
func attack(t *testing.T, from, to *Schema, m Model, tries int, seed uint64) {
	t.Helper()
	reader, err := readerIn(to, m)
	if err != nil {
		t.Fatal(err)
	}
	if v, _, found := searchOf(from, reader, m).attack(tries, seed); found {
		t.Errorf("a wrong yes: %s is accepted by\n%s\nand not by\n%s", textOf(v), from.Text(), to.Text())
	}
}

// One pair of schemas has one verdict.
func TestCompareIsDeterministic(t *testing.T) {
	all := changesFile(t)
	for _, c := range slices.Concat(all[:20], all[len(all)-20:]) {
		for _, q := range questions {
			first := ""
			for range 3 {
				from, to := c.compiled(t, q.d)
				v := Compare(from, to, q.model)
				got := fmt.Sprintf("%s %s %v %v", v.Result, v.Witness, v.Violations, v.Reasons)
				if first == "" {
					first = got
				}
				if got != first {
					t.Errorf("%s, %v: once\n%s\nthen\n%s", c.name, q, first, got)
				}
			}
		}
	}
}
