//go:build unix

package partitions

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// run is a handler's: from its start until it returned, or could not go on.
type run struct {
	member  int // which one
	report      // of its start
	to      time.Time
	handled bool
	open    bool // it runs still
}

// pause is a time in which a process did not run.
type pause struct{ from, to time.Time }

// turn is one of a member's: until it was handed over; zero: it was not, or not yet.
type turn struct {
	member int
	report // of its beginning
	to     time.Time
}

// journal is what all members told.
type journal struct {
	runs   []run // by start
	turns  map[jetbus.Partition][]turn
	pauses [][]pause
}

// overlap is two handlers that ran at a time and should not: of two turns of a partition,
// or of one key, whichever partitions it was in.
type overlap struct {
	first, second run
	explained     bool // the process of the earlier turn did not run when it should have given up
}

// note adds a member's reports. dead is when it was killed, zero if it was not.
func (j *journal) note(reports []report, dead, now time.Time) {
	member := len(j.pauses)
	j.noteTurns(member, reports)
	var pauses []pause
	open := map[string]int{}
	for _, r := range reports {
		id := fmt.Sprint(r.Epoch, " ", r.ID)
		switch r.What {
		case isStalled:
			pauses = append(pauses, pause{r.At.Add(-r.For), r.At})
		case isStarted:
			open[id] = len(j.runs)
			j.runs = append(j.runs, run{member: member, report: r, to: now, open: true})
		case isHandled, isCanceled:
			if i, ok := open[id]; ok {
				j.runs[i].to, j.runs[i].handled, j.runs[i].open = r.At, r.What == isHandled, false
				delete(open, id)
			}
		}
	}
	for _, i := range open {
		if !dead.IsZero() {
			j.runs[i].to, j.runs[i].open = latest(dead, j.runs[i].At), false
		}
	}
	j.pauses = append(j.pauses, pauses)
}

// noteTurns adds the turns that a member had.
func (j *journal) noteTurns(member int, reports []report) {
	if j.turns == nil {
		j.turns = map[jetbus.Partition][]turn{}
	}
	for _, r := range reports {
		of := j.turns[r.Partition]
		switch r.What {
		case isAssigned:
			j.turns[r.Partition] = append(of, turn{member: member, report: r})
		case isRevoked:
			if i := slices.IndexFunc(of, func(t turn) bool { return t.Epoch == r.Epoch }); i >= 0 && r.Clean {
				of[i].to = r.At
			}
		}
	}
}

// early finds what began before it was its turn: turns of a partition before the one
// before was handed over, by a process that ran, and handlers of a turn that was.
func (j *journal) early() (out []string) {
	over := map[uint64]time.Time{} // by epoch
	for p, turns := range j.turns {
		slices.SortFunc(turns, func(a, b turn) int { return cmp.Compare(a.Epoch, b.Epoch) })
		var end turn
		for _, t := range turns {
			if t.At.Before(end.to) && !j.paused(end.member, t.At) {
				out = append(out, fmt.Sprintf("epoch %d of %s, %v before epoch %d was handed over", t.Epoch, p, end.to.Sub(t.At), end.Epoch))
			}
			if !t.to.IsZero() {
				over[t.Epoch], end = t.to, t
			}
		}
	}
	for _, r := range j.runs {
		if to, ok := over[r.Epoch]; ok && r.to.After(to) {
			out = append(out, fmt.Sprintf("%s was handled in epoch %d of %s, which was handed over", r.ID, r.Epoch, r.Partition))
		}
	}
	return out
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// grace is how long a process that runs again may take to see that its turn is over.
const grace = time.Second

// overlaps finds handlers of two turns of a partition, or of one key, that ran at a time.
func (j *journal) overlaps() (out []overlap) {
	slices.SortStableFunc(j.runs, func(a, b run) int { return a.At.Compare(b.At) })
	var running []run
	for _, r := range j.runs {
		running = slices.DeleteFunc(running, func(o run) bool { return !o.to.After(r.At) })
		for _, o := range running {
			if o.Key == r.Key || o.Partition == r.Partition && o.Epoch != r.Epoch {
				out = append(out, overlap{o, r, j.explains(o, r)})
			}
		}
		running = append(running, r)
	}
	return out
}

// explains reports whether the process of the earlier turn did not run when the other
// one began, or shortly before.
func (j *journal) explains(a, b run) bool {
	if a.Epoch == b.Epoch {
		return false
	}
	earlier := a
	if cmp.Or(cmp.Compare(b.Partition.Generation, a.Partition.Generation), cmp.Compare(b.Epoch, a.Epoch)) < 0 {
		earlier = b
	}
	return j.paused(earlier.member, latest(a.At, b.At))
}

// paused reports whether the process of a member did not run then, or shortly before.
func (j *journal) paused(member int, at time.Time) bool {
	return slices.ContainsFunc(j.pauses[member], func(p pause) bool {
		return !p.from.After(at) && p.to.Add(grace).After(at)
	})
}

// account is what became of the events of a topic.
type account struct {
	lost       []string // acknowledged to the publisher, and not stored
	skipped    []string // stored and not handled
	turned     []string // handled for the first time behind a later one of their key
	duplicates int      // successes beyond the first
	outside    []overlap
	inside     []overlap // explained
	early      []string  // turns that began before others were handed over
}

// settle compares what was published, by key, with what is stored and what was handled.
func (j *journal) settle(published map[string][]string, stored map[string]bool) (a account) {
	a.early = j.early()
	for _, o := range j.overlaps() {
		if o.explained {
			a.inside = append(a.inside, o)
		} else {
			a.outside = append(a.outside, o)
		}
	}
	successes := slices.DeleteFunc(slices.Clone(j.runs), func(r run) bool { return !r.handled })
	slices.SortStableFunc(successes, func(x, y run) int { return x.to.Compare(y.to) })
	first := map[string]int{} // the place of the first success
	for i, r := range successes {
		if _, again := first[r.ID]; again {
			a.duplicates++
		} else {
			first[r.ID] = i
		}
	}
	for _, ids := range published {
		behind := -1
		for _, id := range ids {
			at, handled := first[id]
			switch {
			case !stored[id]:
				a.lost = append(a.lost, id)
			case !handled:
				a.skipped = append(a.skipped, id)
			case at < behind:
				a.turned = append(a.turned, id)
			}
			behind = max(behind, at)
		}
	}
	for _, list := range [][]string{a.lost, a.skipped, a.turned, a.early} {
		slices.Sort(list)
	}
	return a
}

// String says what is wrong, or that nothing is.
func (a account) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "skipped %d, overlaps %d outside and %d inside the documented case, lost %d, duplicates %d, out of order %d, early %d",
		len(a.skipped), len(a.outside), len(a.inside), len(a.lost), a.duplicates, len(a.turned), len(a.early))
	for what, list := range map[string][]string{"skipped": a.skipped, "lost": a.lost, "out of order": a.turned, "early": a.early} {
		if len(list) > 0 {
			fmt.Fprintf(&b, "\n%s: %v", what, list[:min(len(list), 10)])
		}
	}
	for _, o := range a.outside[:min(len(a.outside), 10)] {
		fmt.Fprintf(&b, "\noverlap: member %d, %s, epoch %d, %s from %s to %s; member %d, %s, epoch %d, %s from %s",
			o.first.member, o.first.Partition, o.first.Epoch, o.first.ID, o.first.At.Format(time.TimeOnly+".000"), o.first.to.Format(time.TimeOnly+".000"),
			o.second.member, o.second.Partition, o.second.Epoch, o.second.ID, o.second.At.Format(time.TimeOnly+".000"))
	}
	return b.String()
}

// bad reports whether a promise was broken.
func (a account) bad() bool {
	return len(a.lost)+len(a.skipped)+len(a.turned)+len(a.outside)+len(a.early) > 0
}

// TestAccount: what the tests go by finds what is wrong.
func TestAccount(t *testing.T) {
	began := time.Now()
	at := func(what, id string, epoch uint64, s float64) report {
		key, _, _ := strings.Cut(id, "#")
		return report{What: what, Key: key, ID: id, Epoch: epoch, At: began.Add(time.Duration(s * float64(time.Second)))}
	}
	in := func(p jetbus.Partition, reports ...report) []report {
		for i := range reports {
			reports[i].Partition = p
		}
		return reports
	}
	handedOver := at(isRevoked, "", 1, 3)
	handedOver.Clean = true
	handedOverLate := handedOver
	handedOverLate.At = at("", "", 0, 9).At
	newer := jetbus.Partition{Generation: 2, Number: 9}
	stalled := at(isStalled, "", 0, 9)
	stalled.For = 6 * time.Second
	for name, c := range map[string]struct {
		a, b []report
		dead float64 // when a was killed
		want string
	}{
		"all well": {
			a: []report{at(isStarted, "k#1", 1, 1), at(isHandled, "k#1", 1, 2)}, b: []report{at(isStarted, "k#2", 2, 3), at(isHandled, "k#2", 2, 4)},
			want: "0 0 0 0 0 0",
		},
		"skipped": {a: []report{at(isStarted, "k#1", 1, 1), at(isHandled, "k#1", 1, 2)}, want: "1 0 0 0 0 0"},
		"killed, and handled again": {
			a: []report{at(isStarted, "k#1", 1, 1)}, dead: 2,
			b:    []report{at(isStarted, "k#1", 2, 3), at(isHandled, "k#1", 2, 4), at(isStarted, "k#2", 2, 5), at(isHandled, "k#2", 2, 6)},
			want: "0 0 0 0 0 0",
		},
		"an overlap": {
			a:    []report{at(isStarted, "k#1", 1, 1), at(isHandled, "k#1", 1, 4)},
			b:    []report{at(isStarted, "k#1", 2, 3), at(isHandled, "k#1", 2, 5), at(isStarted, "k#2", 2, 5), at(isHandled, "k#2", 2, 6)},
			want: "0 1 0 1 0 0",
		},
		"an overlap across generations": {
			a:    in(jetbus.Partition{Generation: 1}, at(isStarted, "k#1", 2, 1), at(isHandled, "k#1", 2, 4)),
			b:    in(newer, at(isStarted, "k#2", 1, 3), at(isHandled, "k#2", 1, 5)),
			want: "0 1 0 0 0 0",
		},
		"an overlap across generations of one that was frozen": {
			a:    in(jetbus.Partition{Generation: 1}, at(isHandled, "k#1", 1, 1), at(isStarted, "k#1", 3, 1), at(isHandled, "k#1", 3, 2), at(isStarted, "k#1", 4, 3), stalled, at(isCanceled, "k#1", 4, 10)),
			b:    in(newer, at(isStarted, "k#2", 1, 7), at(isHandled, "k#2", 1, 8)),
			want: "0 0 1 0 0 0",
		},
		"handed over": {
			a:    []report{at(isAssigned, "", 1, 1), at(isStarted, "k#1", 1, 1), at(isHandled, "k#1", 1, 2), handedOver},
			b:    []report{at(isAssigned, "", 2, 3), at(isStarted, "k#2", 2, 3), at(isHandled, "k#2", 2, 4)},
			want: "0 0 0 0 0 0",
		},
		"a turn that begins early": {
			a:    []report{at(isAssigned, "", 1, 1), at(isStarted, "k#1", 1, 1), at(isHandled, "k#1", 1, 2), handedOver},
			b:    []report{at(isAssigned, "", 2, 2), at(isStarted, "k#2", 2, 3), at(isHandled, "k#2", 2, 4)},
			want: "0 0 0 0 0 1",
		},
		"a turn that begins while the one before is handed over by one that is frozen": {
			a:    []report{at(isAssigned, "", 1, 1), at(isStarted, "k#1", 1, 1), at(isHandled, "k#1", 1, 2), stalled, handedOverLate},
			b:    []report{at(isAssigned, "", 2, 7), at(isStarted, "k#2", 2, 7), at(isHandled, "k#2", 2, 8)},
			want: "0 0 0 0 0 0",
		},
		"handled after the turn": {
			a:    []report{at(isAssigned, "", 1, 1), at(isStarted, "k#1", 1, 1), at(isHandled, "k#1", 1, 2), at(isStarted, "k#2", 1, 2), handedOver, at(isHandled, "k#2", 1, 4)},
			want: "0 0 0 0 0 1",
		},
		"an overlap of one that was frozen": {
			a:    []report{at(isStarted, "k#1", 1, 1), stalled, at(isCanceled, "k#1", 1, 10)},
			b:    []report{at(isStarted, "k#1", 2, 7), at(isHandled, "k#1", 2, 8), at(isStarted, "k#2", 2, 8), at(isHandled, "k#2", 2, 9)},
			want: "0 0 2 0 0 0",
		},
		"an overlap long after a stall": {
			a:    []report{at(isStarted, "k#1", 1, 1), stalled, at(isCanceled, "k#1", 1, 30)},
			b:    []report{at(isStarted, "k#1", 2, 11), at(isHandled, "k#1", 2, 12), at(isStarted, "k#2", 2, 12), at(isHandled, "k#2", 2, 13)},
			want: "0 2 0 0 0 0",
		},
		"two of a key in one turn": {
			a:    []report{at(isStarted, "k#1", 1, 1), at(isStarted, "k#2", 1, 2), at(isHandled, "k#1", 1, 3), at(isHandled, "k#2", 1, 4)},
			want: "0 1 0 0 0 0",
		},
		"out of order": {
			a:    []report{at(isStarted, "k#2", 1, 1), at(isHandled, "k#2", 1, 2), at(isStarted, "k#1", 1, 3), at(isHandled, "k#1", 1, 4)},
			want: "0 0 0 0 1 0",
		},
	} {
		j, dead := &journal{}, time.Time{}
		if c.dead > 0 {
			dead = at("", "", 0, c.dead).At
		}
		j.note(c.a, dead, began.Add(time.Minute))
		j.note(c.b, time.Time{}, began.Add(time.Minute))
		got := j.settle(map[string][]string{"k": {"k#1", "k#2"}}, map[string]bool{"k#1": true, "k#2": true})
		if s := fmt.Sprint(len(got.skipped), len(got.outside), len(got.inside), got.duplicates, len(got.turned), len(got.early)); s != c.want {
			t.Errorf("%s: %s, want %s\n%v", name, s, c.want, got)
		}
	}
	if got := (&journal{}).settle(map[string][]string{"k": {"k#1"}}, nil); len(got.lost) != 1 || !got.bad() {
		t.Errorf("what is not stored: %v", got)
	}
}
