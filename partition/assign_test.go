package partition_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/partition"
)

// TestAssign plays 1,000 groups of which members come, go and change their weight,
// and checks what Assign promises after each change.
func TestAssign(t *testing.T) {
	for seed := range uint64(1000) {
		g := &group{T: t, rng: rand.New(rand.NewPCG(seed, 1))} //nolint:gosec // reproducible on purpose
		g.n = 1 + g.rng.IntN(200)
		for range 1 + g.rng.IntN(12) {
			g.join()
		}
		g.assign(fmt.Sprintf("seed %d, first", seed))
		for step := range 6 {
			switch i := g.rng.IntN(max(len(g.members), 1)); {
			case len(g.members) < 2 || g.rng.IntN(2) == 0:
				g.join()
			case g.rng.IntN(4) == 0:
				g.members[i].Weight = 1 + g.rng.IntN(partition.MaxWeight)
			default:
				g.members = slices.Delete(g.members, i, i+1)
			}
			g.assign(fmt.Sprintf("seed %d, change %d", seed, step))
		}
	}
}

type group struct {
	*testing.T
	rng     *rand.Rand
	n       int
	members []partition.Member
	holders []string
}

func (g *group) join() {
	weight := 0
	if g.rng.IntN(3) == 0 {
		weight = 1 + g.rng.IntN(5)
	}
	g.members = append(g.members, partition.Member{ID: fmt.Sprintf("w-%x", g.rng.Uint64()), Weight: weight})
}

// assign checks the assignment of the members there are, and lets them have it.
func (g *group) assign(when string) {
	g.Helper()
	got := partition.Assign(g.n, g.members, g.holders)
	others := slices.Clone(g.members)
	g.rng.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	if !slices.Equal(got, partition.Assign(g.n, others, g.holders)) {
		g.Errorf("%s: members that list each other in another order disagree", when)
	}
	weights := 0
	for _, m := range g.members {
		weights += max(m.Weight, 1)
	}
	load := map[string]int{}
	for _, id := range got {
		load[id]++
	}
	held := map[string]int{}
	for _, id := range g.holders {
		held[id]++
	}
	var lower, upper, had []int
	total := 0
	for _, m := range g.members {
		low, rest := g.n*max(m.Weight, 1)/weights, g.n*max(m.Weight, 1)%weights
		high := low
		if rest > 0 {
			high++
		}
		if load[m.ID] < low || load[m.ID] > high {
			g.Errorf("%s: %s has %d of %d partitions, its share is %d to %d", when, m.ID, load[m.ID], g.n, low, high)
		}
		total += load[m.ID]
		lower, upper, had = append(lower, low), append(upper, high), append(had, held[m.ID])
	}
	if total != g.n {
		g.Errorf("%s: %d of %d partitions are given to members", when, total, g.n)
	}
	moved := 0
	for p := range g.holders {
		if got[p] != g.holders[p] {
			moved++
		}
	}
	if g.holders != nil {
		if least := g.n - kept(g.n, lower, upper, had); moved != least {
			g.Errorf("%s: %d partitions moved, %d would have done", when, moved, least)
		}
	}
	g.holders = got
}

// kept is how many of n partitions can stay where they are, at most, when each
// member has from lower to upper of them and had some before. It tries all ways, one
// member after the other.
func kept(n int, lower, upper, had []int) int {
	const never = -1 << 30
	most := make([]int, n+1) // by how many partitions are given out
	for i := range most {
		most[i] = never
	}
	most[0] = 0
	for m := range lower {
		next := make([]int, n+1)
		for i := range next {
			next[i] = never
			for room := lower[m]; room <= upper[m] && room <= i; room++ {
				next[i] = max(next[i], most[i-room]+min(room, had[m]))
			}
		}
		most = next
	}
	return most[n]
}

func TestAssignEdges(t *testing.T) {
	two := []partition.Member{{ID: "a"}, {ID: "b"}}
	for _, c := range []struct {
		name    string
		n       int
		members []partition.Member
		holders []string
		want    []string
	}{
		{"nobody", 2, nil, []string{"a", "b"}, []string{"", ""}},
		{"no partitions", 0, two, nil, []string{}},
		{"less than none", -1, two, nil, []string{}},
		{"one", 3, two[:1], []string{"", "b"}, []string{"a", "a", "a"}},
		{"as they are", 2, two, []string{"b", "a"}, []string{"b", "a"}},
		{"one id twice", 2, []partition.Member{{ID: "a"}, {ID: "a", Weight: 5}}, nil, []string{"a", "a"}},
		{"more holders than partitions", 1, two, []string{"b", "a"}, []string{"b"}},
		{"one that is gone", 2, two, []string{"c", "a"}, []string{"b", "a"}},
		{"weights", 4, []partition.Member{{ID: "a", Weight: 3}, {ID: "b"}}, []string{"b", "b", "a", "a"}, []string{"", "", "a", "a"}},
	} {
		got := partition.Assign(c.n, c.members, c.holders)
		if c.name == "weights" { // of 0 and 1 b keeps the one for which its score is higher
			load := 0
			for p := range 2 {
				if got[p] == "b" {
					load++
				}
				got[p] = ""
			}
			if load != 1 {
				t.Errorf("weights: b keeps %d of 2, want 1", load)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// BenchmarkAssign is the largest group there may be, of which one member goes.
func BenchmarkAssign(b *testing.B) {
	members := make([]partition.Member, 1000)
	for i := range members {
		members[i].ID = fmt.Sprintf("member-%d", i)
	}
	holders := partition.Assign(jetbus.MaxPartitions, members, nil)
	b.ResetTimer()
	for b.Loop() {
		partition.Assign(jetbus.MaxPartitions, members[1:], holders)
	}
}
