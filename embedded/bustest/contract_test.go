package bustest_test

import (
	"slices"
	"testing"

	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

// cases are the edge cases that the contract has to cover, by their numbers in
// the project's list.
func cases() []int {
	var out []int
	for _, span := range [][2]int{{1, 18}, {20, 42}, {48, 72}} {
		for n := span[0]; n <= span[1]; n++ {
			out = append(out, n)
		}
	}
	return out
}

func TestContractCoversCases(t *testing.T) {
	covered := map[int]bool{}
	names := map[string]bool{}
	for _, b := range bustest.Behaviors() {
		if names[b.Name] {
			t.Errorf("two behaviors are called %q", b.Name)
		}
		names[b.Name] = true
		if len(b.Cases) == 0 {
			t.Errorf("%q covers no case", b.Name)
		}
		for _, n := range b.Cases {
			covered[n] = true
		}
	}
	for _, n := range cases() {
		if !covered[n] {
			t.Errorf("no behavior covers case %d", n)
		}
	}
}

// Every case must be covered by a behavior that runs on a single broker in fake
// time, whatever else it needs.
func TestContractNeeds(t *testing.T) {
	const inMemory = bustest.NeedRestart
	var left []int
	for _, b := range bustest.Behaviors() {
		if b.Needs&inMemory == 0 {
			left = append(left, b.Cases...)
		}
	}
	for _, n := range cases() {
		// 32 and 60 are about restarts, which only a file store outlives.
		if n != 32 && n != 60 && !slices.Contains(left, n) {
			t.Errorf("case %d is covered by behaviors only that need a restart", n)
		}
	}
}
