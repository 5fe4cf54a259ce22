package schema

import (
	"flag"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// make fuzz-schema sets them; a plain go test runs a small slice.
var (
	pairs     = flag.Int("pairs", 200, "how many pairs of schemas TestSoundness makes")
	instances = flag.Int("instances", 50, "how many values attack each proof")
	pairSeed  = flag.Uint64("pairseed", 1, "what the pairs are drawn from")
)

// tally counts the verdicts of a run, and the values that attacked proofs: those that the old
// schema accepts, since no other can show that a yes is wrong. A proof is spared where fewer than half of
// what it was to meet are accepted, and idle where none is: mostly since there is no such value.
type tally struct{ pairs, refused, proved, refuted, unproved, attacks, spared, idle atomic.Int64 }

func (n *tally) String() string {
	all := max(n.proved.Load()+n.refuted.Load()+n.unproved.Load(), 1)
	share := func(k int64) string { return fmt.Sprintf("%d (%.1f %%)", k, 100*float64(k)/float64(all)) }
	return fmt.Sprintf("%d pairs, %d more do not compile; written and read in each model, and in both, %s proved, %s refuted, %s unproved; of %d proofs %d met no value, %d more fewer than half of %d, and all together %d",
		n.pairs.Load(), n.refused.Load(), share(n.proved.Load()), share(n.refuted.Load()), share(n.unproved.Load()),
		n.proved.Load(), n.idle.Load(), n.spared.Load(), *instances, n.attacks.Load())
}

// No yes is wrong: pairs of schemas, most of them one or some changes apart, are
// compared, and what is proved is attacked with values.
func TestSoundness(t *testing.T) {
	corpus := corpusDocuments(t)
	t.Logf("pairs %d, instances %d, pairseed %d", *pairs, *instances, *pairSeed)
	var n tally
	var next atomic.Int64
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for {
				i := next.Add(1) - 1
				if i >= int64(*pairs) || t.Failed() {
					return
				}
				comparePair(t, &n, *pairSeed, uint64(i), corpus) //nolint:gosec // it counts from 0
				if done := n.pairs.Load(); done%5000 == 0 && done > 0 {
					t.Logf("%v", &n)
				}
			}
		})
	}
	all.Wait()
	t.Logf("%v", &n)
	if n.proved.Load() == 0 || n.refuted.Load() == 0 {
		t.Errorf("all pairs are alike")
	}
	if n.spared.Load()*20 > n.proved.Load()-n.idle.Load() || n.idle.Load()*2 > n.proved.Load() {
		t.Error("proofs are hardly attacked")
	}
}

// corpusDocuments are the schemas of the everyday changes that stand alone.
func corpusDocuments(t *testing.T) []any {
	var out []any
	for _, c := range changesFile(t) {
		if len(c.refs) > 0 {
			continue
		}
		for _, text := range []string{c.old, c.new} {
			doc, err := decode([]byte(text))
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			out = append(out, doc)
		}
	}
	return out
}

// comparePair makes the i-th pair that compiles and asks the four questions of it.
func comparePair(t *testing.T, n *tally, seed, i uint64, corpus []any) {
	m := newMaker(seed, i)
	for range 100 {
		a, b := m.pair(corpus)
		old, err := Compile(string(textOf(a)), Options{})
		if err != nil {
			n.refused.Add(1)
			continue
		}
		next, err := Compile(string(textOf(b)), Options{})
		if err != nil {
			n.refused.Add(1)
			continue
		}
		n.pairs.Add(1)
		for _, model := range []Model{Strict, Declared} {
			n.judge(t, old, next, model, model, i)
		}
		n.judge(t, old, next, Strict, Declared, i) // of a topic whose model is declared since
		return
	}
	t.Errorf("pair %d: nothing compiles", i)
}

func (n *tally) judge(t *testing.T, old, next *Schema, written, read Model, i uint64) {
	reader, err := readerIn(next, read)
	if err != nil {
		n.unproved.Add(1)
		return
	}
	if yes, _ := prove(old.root, reader.root, written); yes {
		n.proved.Add(1)
		v, met, found := searchOf(old, reader, written).attack(*instances, i)
		n.attacks.Add(int64(met))
		switch {
		case met == 0:
			n.idle.Add(1)
		case met < *instances/2:
			n.spared.Add(1)
		}
		if found {
			a, b := smallestPair(old.doc, next.doc, written, read, i)
			t.Errorf("pair %d, written %s and read %s: proved, and refuted by %s\nold %s\nnew %s\nshrunk:\nold %s\nnew %s",
				i, written, read, textOf(v), old.Text(), next.Text(), textOf(a), textOf(b))
		}
		return
	}
	switch v := CompareModels(old, next, written, read); v.Result {
	case Refuted:
		n.refuted.Add(1)
		if _, ok := shows(old, reader, written, v.Witness); !ok {
			t.Errorf("pair %d, written %s and read %s: %s is no witness\nold %s\nnew %s", i, written, read, v.Witness, old.Text(), next.Text())
		}
	default:
		n.unproved.Add(1)
	}
}

// attack makes values until so many of them were accepted by the old schema, or ten times as
// many were not, or half as many were too heavy to be judged. It returns one that the new
// schema refuses, if it finds any, and how many the old one accepted.
func (s search) attack(instances int, seed uint64) (v any, accepted int, found bool) {
	g := newGenerator(s.old, s.new, s.closed, seed)
	for i, left := 0, instances*heaviestWork/2; accepted < instances && i < 10*instances && left > 0; i++ {
		v := g.try(i)
		work := s.work(v)
		left -= work
		if work > heaviestWork || !s.accepts(v) {
			continue
		}
		if accepted++; s.refuses(v) {
			return s.shrink(v), accepted, true
		}
	}
	return nil, accepted, false
}

// smallestPair drops parts of both schemas for as long as the yes stays wrong.
func smallestPair(a, b any, written, read Model, seed uint64) (any, any) {
	wrong := func(a, b any) bool {
		old, err := Compile(string(textOf(a)), Options{})
		if err != nil {
			return false
		}
		next, err := Compile(string(textOf(b)), Options{})
		if err != nil {
			return false
		}
		reader, err := readerIn(next, read)
		if err != nil {
			return false
		}
		if yes, _ := prove(old.root, reader.root, written); !yes {
			return false
		}
		_, _, found := searchOf(old, reader, written).attack(max(*instances, 1000), seed)
		return found
	}
	for again := true; again; {
		again = simplify(a, func(x any) bool {
			if !wrong(x, b) {
				return false
			}
			a = x
			return true
		}) || simplify(b, func(x any) bool {
			if !wrong(a, x) {
				return false
			}
			b = x
			return true
		})
	}
	return a, b
}
