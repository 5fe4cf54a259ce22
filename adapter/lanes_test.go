package adapter

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestLanes(t *testing.T) {
	var q lanes
	q.init()
	s := make([]*slot, 7)
	for i := range s {
		s[i] = &slot{}
	}
	for i, want := range []bool{true, false, true, false, true, true} {
		if got := q.push(s[i], []string{"a", "a", "b", "a", "", ""}[i], i < 4); got != want {
			t.Errorf("slot %d: head %t, want %t", i, got, want)
		}
	}
	if key, n := q.blocked(func(*slot) bool { return true }); key != "a" || n != 2 {
		t.Errorf("blocked: %q, %d", key, n)
	}
	if got := q.done(s[1]); got != nil || s[1].lane == nil {
		t.Error("what is not in front was taken out")
	}
	if got := q.done(s[0]); got != s[1] || s[0].lane != nil {
		t.Error("the next of a is not the second")
	}
	if got := q.done(s[0]); got != nil {
		t.Error("what is in no lane has a next one")
	}
	dropped := q.drop(func(h *slot) bool { return h == s[1] })
	slices.SortFunc(dropped, func(a, b *slot) int { return slices.Index(s, a) - slices.Index(s, b) })
	if !slices.Equal(dropped, []*slot{s[2], s[3], s[4], s[5]}) {
		t.Errorf("dropped %d", len(dropped))
	}
	if q.push(s[6], "a", true) {
		t.Error("the lane of a was forgotten")
	}
	if q.done(s[1]) != s[6] || q.done(s[6]) != nil || len(q.byKey) != 0 || q.ring.next != &q.ring {
		t.Error("an empty lane is left")
	}
}

// Lanes are slices by key, but for what they cost.
func TestLanesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q lanes
		q.init()
		model := map[string][]*slot{}
		number := map[*slot]int{}
		pushed := 0
		heads := func() []string {
			return slices.Sorted(maps.Keys(model))
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				key := rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "key")
				s := &slot{}
				pushed++
				number[s] = pushed
				name := key
				if key == "" {
					name = "#" + string(rune('0'+pushed))
				}
				if got, want := q.push(s, key, key != ""), len(model[name]) == 0; got != want {
					t.Fatalf("head %t, want %t", got, want)
				}
				model[name] = append(model[name], s)
			},
			"done": func(t *rapid.T) {
				if len(model) == 0 {
					return // empty
				}
				name := rapid.SampledFrom(heads()).Draw(t, "lane")
				var want *slot
				if len(model[name]) > 1 {
					want = model[name][1]
				}
				if got := q.done(model[name][0]); got != want {
					t.Fatalf("next %p, want %p", got, want)
				}
				if model[name] = model[name][1:]; len(model[name]) == 0 {
					delete(model, name)
				}
			},
			"drop": func(t *rapid.T) {
				odd := rapid.Bool().Draw(t, "keep odd heads")
				keep := func(s *slot) bool { return odd && number[s]%2 == 1 }
				dropped := map[*slot]bool{}
				for _, s := range q.drop(keep) {
					dropped[s] = true
				}
				for name, line := range model {
					if keep(line[0]) {
						model[name] = line[:1]
						line = line[1:]
					} else {
						delete(model, name)
					}
					for _, s := range line {
						if !dropped[s] || s.lane != nil || s.behind != nil {
							t.Fatalf("slot %d was not dropped", number[s])
						}
						delete(dropped, s)
					}
				}
				if len(dropped) > 0 {
					t.Fatalf("%d too many were dropped", len(dropped))
				}
			},
			"": func(t *rapid.T) {
				all, waiting := 0, 0
				for _, line := range model {
					all += len(line)
					waiting = max(waiting, len(line)-1)
				}
				got := 0
				for s := range q.all() {
					got++
					if s.lane == nil {
						t.Fatal("a slot of a lane is in none")
					}
				}
				if got != all {
					t.Fatalf("%d slots, want %d", got, all)
				}
				if _, n := q.blocked(func(*slot) bool { return true }); n != waiting {
					t.Fatalf("%d blocked, want %d", n, waiting)
				}
			},
		})
	})
}

// A server in small delivers to a handler that settles in any order, loses
// deliveries and acknowledgements, delivers twice, and has other owners. Whatever
// happens, an event that was not settled comes; one that was settled does not come
// again, unless its owner died; and what comes new ascends.
func TestAccountModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &accountModel{T: t, settled: map[uint64]bool{}, known: map[uint64]bool{}, start: 1}
		m.a.reset(0)
		m.begin()
		t.Repeat(map[string]func(*rapid.T){
			"deliver": func(t *rapid.T) { m.deliver(rapid.IntRange(0, 9).Draw(t, "lost") > 0) },
			"settle": func(t *rapid.T) {
				open := slices.DeleteFunc(slices.Sorted(maps.Keys(m.a.open)), func(seq uint64) bool { return m.a.open[seq] == nil })
				if len(open) == 0 {
					return // nothing is open
				}
				m.settle(rapid.SampledFrom(open).Draw(t, "event"), rapid.IntRange(0, 4).Draw(t, "lost") > 0)
			},
			"again": func(t *rapid.T) { // a lease runs out
				if len(m.pending) == 0 {
					return // nothing is pending
				}
				m.arrive(rapid.SampledFrom(m.pending).Draw(t, "event"), true)
			},
			"round": func(*rapid.T) { m.round() },
			"hand over": func(*rapid.T) {
				m.round()
				r := m.a.rest("d")
				m.a = account{}
				m.a.resume(r)
				m.begin()
			},
			"die": func(*rapid.T) {
				m.known = map[uint64]bool{}
				settled := m.delivered
				if len(m.pending) > 0 {
					settled = slices.Min(m.pending) - 1
				}
				m.a.reset(settled)
				m.round()
			},
		})
		for range 4 * modelEvents { // in the end everything comes
			m.deliver(true)
			for seq, s := range m.a.open {
				if s != nil {
					m.settle(seq, true)
				}
			}
			if len(m.pending) > 0 { // the lease of what was lost runs out
				m.arrive(m.pending[0], true)
			}
		}
		if len(m.settled) != modelEvents {
			t.Fatalf("%d of %d events came", len(m.settled), modelEvents)
		}
	})
}

const modelEvents = 12

type accountModel struct {
	*rapid.T
	a       account
	settled map[uint64]bool // by anybody
	known   map[uint64]bool // that, and the owner knows
	flowing bool
	newest  uint64 // that came new in this round

	start, delivered, count uint64   // of the durable
	pending                 []uint64 // delivered and not settled, as the server knows
}

func (m *accountModel) begin() {
	m.a.begin(m.count)
	m.flowing, m.newest = true, 0
}

// round drops what is in hand and replaces the durable.
func (m *accountModel) round() {
	for seq := range m.a.open {
		m.a.open[seq] = nil
	}
	from := m.a.from()
	for seq := uint64(1); seq < from; seq++ {
		if !m.settled[seq] {
			m.Fatalf("the durable begins at %d, and %d is not settled", from, seq)
		}
	}
	m.start, m.delivered, m.count, m.pending = from, from-1, 0, nil
	m.begin()
}

func (m *accountModel) deliver(seen bool) {
	if !m.flowing {
		m.round()
	}
	if m.delivered < modelEvents {
		m.delivered++
		m.pending = append(m.pending, m.delivered)
		m.arrive(m.delivered, seen)
	}
}

func (m *accountModel) arrive(seq uint64, seen bool) {
	m.count++
	if !seen || !m.flowing {
		return
	}
	switch what, why := m.a.arrive(seq, m.count); what {
	case arrivalDisorder:
		if why == "" {
			m.Fatal("nobody is told why")
		}
		m.flowing = false
	case arrivalNew:
		if seq <= m.newest {
			m.Fatalf("%d came behind %d", seq, m.newest)
		}
		if m.known[seq] {
			m.Fatalf("%d came although it is settled", seq)
		}
		m.newest = seq
		m.a.open[seq] = &slot{}
	case arrivalAgain:
		m.Fatalf("%d came to the slot that it has, in the same round", seq)
	case arrivalSettled:
		if !m.settled[seq] {
			m.Fatalf("%d was taken for settled", seq)
		}
		m.drop(seq)
	}
}

func (m *accountModel) settle(seq uint64, told bool) {
	delete(m.a.open, seq)
	m.settled[seq], m.known[seq] = true, true
	if told {
		m.drop(seq)
	}
}

func (m *accountModel) drop(seq uint64) {
	m.pending = slices.DeleteFunc(m.pending, func(s uint64) bool { return s == seq })
}

func TestRest(t *testing.T) {
	var a account
	a.reset(3)
	a.last = 20
	for _, seq := range []uint64{5, 6, 7, 12, 19, 20} {
		a.open[seq] = nil
	}
	r := a.rest("d")
	if want := [][2]uint64{{5, 7}, {12, 12}, {19, 20}}; !slices.Equal(r.Open, want) || r.Last != 20 || r.Durable != "d" {
		t.Errorf("rest %+v", r)
	}
	var b account
	b.resume(r)
	if b.last != a.last || !maps.Equal(b.open, a.open) || b.from() != 5 {
		t.Errorf("resumed %+v", b)
	}
	a.reset(0) // more than can be told
	a.last = 4 * maxRanges
	for seq := uint64(1); seq <= a.last; seq += 2 {
		a.open[seq] = nil
	}
	if r = a.rest("d"); len(r.Open) != maxRanges || r.Last != 2*maxRanges-1 {
		t.Errorf("%d ranges up to %d", len(r.Open), r.Last)
	}
}
