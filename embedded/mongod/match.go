package mongod

import (
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// A matcher is a filter that was checked and prepared.
type matcher struct {
	conds []predicate
}

// A predicate says whether a document satisfies one condition of a filter.
type predicate func(d bson.D) (bool, error)

// newMatcher prepares a filter. A filter that MongoDB would refuse is refused
// here, whether or not there are documents.
func newMatcher(filter bson.D) (*matcher, error) {
	m := &matcher{}
	for _, e := range filter {
		p, err := condition(e)
		if err != nil {
			return nil, err
		}
		m.conds = append(m.conds, p)
	}
	return m, nil
}

func (m *matcher) match(d bson.D) (bool, error) {
	for _, p := range m.conds {
		if ok, err := p(d); err != nil || !ok {
			return false, err
		}
	}
	return true, nil
}

// match says whether d satisfies a filter.
func match(d, filter bson.D) (bool, error) {
	m, err := newMatcher(filter)
	if err != nil {
		return false, err
	}
	return m.match(d)
}

func condition(e bson.E) (predicate, error) {
	switch e.Key {
	case "$and", "$or", "$nor":
		return logical(e.Key, e.Value)
	case "$expr":
		return func(d bson.D) (bool, error) {
			v, err := evaluate(e.Value, d)
			return truth(v), err
		}, nil
	case "$comment":
		return func(bson.D) (bool, error) { return true, nil }, nil
	case "$where", "$text", "$jsonSchema", "$sampleRate":
		return nil, unsupported("the query operator " + e.Key)
	}
	if strings.HasPrefix(e.Key, "$") {
		return nil, badValue("unknown top level operator: %s. If you have a field name that starts with a '$' symbol, consider using $getField or $setField.", e.Key)
	}
	tests, err := fieldTests(e.Value)
	if err != nil {
		return nil, err
	}
	path := splitPath(e.Key)
	return func(d bson.D) (bool, error) {
		r := reachOf(d, path)
		for _, t := range tests {
			if ok, err := t(r); err != nil || !ok {
				return false, err
			}
		}
		return true, nil
	}, nil
}

func logical(op string, arg any) (predicate, error) {
	list, ok := arg.(bson.A)
	if !ok || len(list) == 0 {
		return nil, badValue("%s argument must be a non-empty array", op)
	}
	parts := make([]*matcher, len(list))
	for i, f := range list {
		d, ok := f.(bson.D)
		if !ok {
			return nil, badValue("%s argument's entries must be objects", op)
		}
		m, err := newMatcher(d)
		if err != nil {
			return nil, err
		}
		parts[i] = m
	}
	return func(d bson.D) (bool, error) {
		for _, m := range parts {
			ok, err := m.match(d)
			if err != nil {
				return false, err
			}
			if ok != (op == "$and") {
				return op == "$or", nil
			}
		}
		return op != "$or", nil
	}, nil
}

// isOperators says whether v is a document of operators rather than a value.
func isOperators(v any) bool {
	d, ok := v.(bson.D)
	return ok && len(d) > 0 && strings.HasPrefix(d[0].Key, "$") && d[0].Key != "$ref" && d[0].Key != "$id" && d[0].Key != "$db"
}

// A test says whether what a path reaches satisfies one operator.
type test func(r reach) (bool, error)

// fieldTests prepares the condition of one field.
func fieldTests(cond any) ([]test, error) {
	if re, ok := cond.(bson.Regex); ok {
		t, err := regexTest(re.Pattern, re.Options)
		return []test{t}, err
	}
	if !isOperators(cond) {
		return []test{func(r reach) (bool, error) { return r.equals(cond), nil }}, nil
	}
	ops := cond.(bson.D)
	tests := make([]test, 0, len(ops))
	for _, o := range ops {
		t, err := operator(o.Key, o.Value, ops)
		if err != nil {
			return nil, err
		}
		tests = append(tests, t)
	}
	return tests, nil
}

// each calls f with all values and the elements of those that are arrays, until
// f returns true: {a: 1} matches {a: [1, 2]}.
func (r reach) each(f func(v any) bool) bool {
	for _, v := range r.vals {
		if f(v) {
			return true
		}
		if a, ok := v.(bson.A); ok && slices.ContainsFunc(a, f) {
			return true
		}
	}
	return false
}

// equals says whether something that is reached equals want. What is missing
// equals null.
func (r reach) equals(want any) bool {
	rw := rank(want)
	if rw == rankNull && (r.absent || len(r.vals) == 0) {
		return true
	}
	return r.each(func(v any) bool { return rank(v) == rw && compare(v, want) == 0 })
}
