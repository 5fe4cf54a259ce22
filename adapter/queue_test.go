package adapter

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Whatever comes and goes: each lease comes out once, those of a topic in the order they came,
// and of no other topic more than a turn comes before a topic that waits.
func TestQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const most = 5 // events of a turn
		var q queue
		flows := make([]flow, rapid.IntRange(1, 4).Draw(t, "topics"))
		model, of, size := make([][]*lease, len(flows)), map[*lease]int{}, 0
		passed := make([][]int, len(flows)) // of each, what has come of the others since it has had something, or was served
		for i := range passed {
			passed[i] = make([]int, len(flows))
		}
		for range rapid.IntRange(0, 200).Draw(t, "steps") {
			if i := rapid.IntRange(-len(flows), 2*len(flows)-1).Draw(t, "topic, or less to pop"); i >= 0 {
				i %= len(flows)
				l := &lease{}
				q.push(&flows[i], l)
				of[l], size = i, size+1
				if model[i] = append(model[i], l); len(model[i]) == 1 {
					clear(passed[i])
				}
			} else if l := q.pop(rapid.IntRange(0, most).Draw(t, "turn")); size == 0 && l != nil || size > 0 && l == nil {
				t.Fatalf("popped %p of %d", l, size)
			} else if l != nil {
				i, size = of[l], size-1
				if model[i][0] != l {
					t.Fatalf("topic %d out of order", i)
				}
				model[i] = model[i][1:]
				clear(passed[i])
				for other := range flows {
					if passed[other][i]++; other != i && len(model[other]) > 0 && passed[other][i] > most {
						t.Fatalf("topic %d has had %d events while %d waited", i, passed[other][i], other)
					}
				}
			}
			if q.len() != size {
				t.Fatalf("length %d, want %d", q.len(), size)
			}
		}
	})
}

// Topics that have enough have turns of the length that is asked for; one that ran empty before
// its turn was over has the rest of it as soon as there is something again, and then waits for
// the others once.
func TestQueueTakesTurns(t *testing.T) {
	var q queue
	flows := map[string]*flow{"a": {}, "b": {}, "c": {}}
	push := func(topic string, n int) {
		for range n {
			q.push(flows[topic], &lease{id: topic})
		}
	}
	pop := func(n, turn int, want string) {
		t.Helper()
		var got strings.Builder
		for range n {
			got.WriteString(q.pop(turn).id)
		}
		if got.String() != want {
			t.Fatalf("got %s, want %s", got.String(), want)
		}
	}
	push("a", 12)
	push("b", 12)
	pop(10, 4, "aaaabbbbaa")
	push("c", 1)
	pop(3, 4, "caa")
	push("c", 5)
	pop(8, 4, "cccbbbba")
	pop(9, 4, "aaaccbbbb") // c had used up a turn
	push("a", 5)
	push("b", 5)
	pop(2, 4, "aa")
	pop(5, 1, "ababa") // what is left of a turn is no more than one has now
	pop(3, 1, "bbb")
	if l := q.pop(1); l != nil || q.len() != 0 {
		t.Fatalf("left: %v, %d", l, q.len())
	}
}
