package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
)

// Compare says whether every value that old accepts, next accepts as well, under
// the given model of undeclared properties; any other model than [Declared] is
// [Strict]. It looks for a proof, and where it finds none for a value that shows
// the contrary, the simplest it can find.
//
// A schema is backward compatible with the one before it if Compare(before, after)
// is Proved: what was written under the old one can be read under the new one. It
// is forward compatible if Compare(after, before) is: what is written under the new
// one can be read under the old one.
//
// A verdict speaks of what the schemas say of a value, and not of [MaxWork]: a large payload
// that is valid under old can be too much work to judge by next, and is refused then.
//
// One pair of schemas has one verdict, witness and reasons included, always. The
// work is bounded by steps and tries, not by time: an ordinary event's proof takes
// some tens of microseconds, a witness some milliseconds, and when neither is found
// some tenths of a second.
func Compare(old, next *Schema, m Model) Verdict { return CompareModels(old, next, m, m) }

// CompareModels is Compare where values were written in one model and are read in
// another: with Strict and Declared, old may have been written with any property that
// it does not forbid, and next passes over what it does not know.
func CompareModels(old, next *Schema, written, read Model) (v Verdict) {
	defer func() {
		if r := recover(); r != nil { // a fault of the proof or the search
			v = Verdict{Result: Unproved, Reasons: []Reason{{Path: "#", Message: fmt.Sprintf("the comparison broke off, which is a fault of JetBus: %v", r)}}}
		}
	}()
	return compare(old, next, written, read)
}

func compare(old, next *Schema, written, read Model) Verdict {
	reader, err := readerIn(next, read)
	if err != nil {
		return Verdict{Result: Unproved, Reasons: []Reason{{Keyword: "$ref", Path: "#", Message: "a reference to an additionalProperties or unevaluatedProperties that is false has no meaning for a reader"}}}
	}
	ok, reasons := prove(old.root, reader.root, written)
	if ok {
		return Verdict{Result: Proved}
	}
	v, found := searchOf(old, reader, written).witness(maxTries, searchSeed)
	if !found {
		return Verdict{Result: Unproved, Reasons: reasons}
	}
	text := textOf(v)
	violations, ok := shows(old, reader, written, text)
	if !ok {
		return Verdict{Result: Unproved, Reasons: reasons}
	}
	return Verdict{Result: Refuted, Witness: text, Violations: violations, Reasons: reasons}
}

// readerIn is the form of a schema that judges what is read in the model.
func readerIn(s *Schema, m Model) (*Schema, error) {
	if m == Declared {
		return s.reader()
	}
	return s, nil
}

// shows judges a witness once more, as the payload that it would be, written in the
// model m.
func shows(old, reader *Schema, m Model, payload json.RawMessage) ([]Violation, bool) {
	accept := old.Validate
	if m == Declared {
		accept = old.ValidateDeclared
	}
	if accept(payload) != nil {
		return nil, false
	}
	refused, ok := errors.AsType[*InvalidError](reader.Validate(payload))
	if !ok {
		return nil, false
	}
	return refused.Violations, true
}

// searchOf makes the search for a value that old accepts, written in the model m, and
// reader, which is the newer schema in the form that reads, does not.
func searchOf(old, reader *Schema, m Model) search {
	declared := func(any) bool { return true }
	if m == Declared {
		all := old.declarations.describe(old.root)
		declared = func(v any) bool {
			return declares(old.declarations, all, objectsOf(v))
		}
	}
	return search{
		old:     documentsOf(old),
		new:     documentsOf(reader),
		closed:  m == Declared,
		accepts: func(v any) bool { return declared(v) && old.root.accepts(v) },
		refuses: func(v any) bool { return !reader.root.accepts(v) },
		work:    func(v any) int { return old.work(v) + reader.work(v) },
	}
}

const (
	// heavyWork is where the work of judging a value is counted out, and not taken
	// from its size.
	heavyWork = 300
	// heaviestWork is the most that judging one value may take in a search.
	heaviestWork = 50_000
)

// work is about what judging v takes, in the units of MaxWork; more than
// heaviestWork where it is too much for a search.
func (s *Schema) work(v any) int {
	values, depth := size(v)
	bound := float64(2 * values * s.heaviest.cost)
	if s.heaviest.pattern > 0 {
		bound += float64(letters(v)) * float64(s.heaviest.pattern) / patternUnit
	}
	bound *= math.Pow(float64(max(s.heaviest.ways, 1)), float64(depth))
	if bound <= heavyWork {
		return int(bound)
	}
	e := &effort{left: heaviestWork}
	if !e.part(map[*node]int{s.root: 1}, v, place{}) {
		return heaviestWork + 1
	}
	return heaviestWork - e.left
}
