package schema

// search looks for a value that old accepts and new does not. What it finds it
// proves incompatible; that it finds nothing proves nothing.
type search struct {
	old, new *documents
	// accepts and refuses judge a value: accepts by the old schema, refuses by the
	// new one. They must not change it.
	accepts, refuses func(v any) bool
	work             func(v any) int // of judging v, see MaxWork
	closed           bool            // old refuses undeclared properties
}

const (
	// maxTries is how many values one search makes: some milliseconds for an
	// ordinary event's schemas.
	maxTries = 2500
	// moreTries is how many it makes after the first witness, for a shorter one.
	moreTries = 60
	// maxSearchWork bounds a search where values or schemas are large, in the units
	// of MaxWork.
	maxSearchWork = 600_000
	// searchSeed makes one pair of schemas have one verdict.
	searchSeed = 2024
)

// budget is what a search has left.
type budget struct{ tries, work int }

// witness returns the simplest value that it finds, and false if it finds none.
func (s search) witness(tries int, seed uint64) (any, bool) {
	g := newGenerator(s.old, s.new, s.closed, seed)
	left := &budget{tries, maxSearchWork / maxTries * max(tries, maxTries)}
	g.left = left
	var best any
	found := false
	for i := 0; left.tries > 0 && left.work > 0; i++ {
		left.tries--
		v := g.try(i)
		if found && !simpler(v, best) || !s.is(v, left) {
			continue
		}
		if best = v; !found {
			found = true
			left.tries = min(left.tries, moreTries)
		}
	}
	if !found {
		return nil, false
	}
	return s.shrink(best), true
}

// is says whether v is a witness.
func (s search) is(v any, left *budget) bool {
	work := s.work(v)
	values, _ := size(v)
	if left.work -= 50 + 8*values + min(work, heaviestWork); work > heaviestWork || left.work < 0 {
		return false
	}
	return s.accepts(v) && s.refuses(v)
}

// try makes the value of the i-th try.
func (g *generator) try(i int) any {
	if i%2 == 0 && i/2 < len(g.hot.values) {
		return g.hot.values[i/2]
	}
	var v any
	switch {
	case i%8 == 7:
		v = g.aimed(g.new.root)
	case i%32 == 6:
		g.fuel, g.keep, g.compact = fuelOf, .5, false
		v = g.hole(0)
	default:
		v = g.aimed(g.old.root)
	}
	if i%3 == 1 {
		for range 1 + g.n(2) {
			g.fuel = fuelOf
			v = g.mutated(v)
		}
	}
	return v
}

// size counts the values within v, long strings as several, and how deep they lie.
func size(v any) (values, depth int) {
	below := func(x any) {
		n, d := size(x)
		values, depth = values+n, max(depth, d+1)
	}
	values = 1
	switch t := v.(type) {
	case map[string]any:
		for k, x := range t {
			values += len(k) / 64
			below(x)
		}
	case []any:
		for _, x := range t {
			below(x)
		}
	case string:
		values += len(t) / 64
	}
	return values, depth
}

// letters counts the bytes of all strings and names within v, which patterns may read.
func letters(v any) int {
	n := 0
	switch t := v.(type) {
	case map[string]any:
		for k, x := range t {
			n += len(k) + letters(x)
		}
	case []any:
		for _, x := range t {
			n += letters(x)
		}
	case string:
		n = len(t)
	}
	return n
}
