package mongod

import (
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// nowVariable is the time of a command, in expressions.
const nowVariable = "$$NOW"

// bindNow puts the time in the place of $$NOW in the expressions of a command, so that
// it is the same for all documents and statements. Nothing is changed in place.
func bindNow(body bson.D, at time.Time) bson.D {
	n := nowBinder{bson.NewDateTimeFromTime(at)}
	fields := func(name string) func(any) any {
		switch name {
		case "filter", "query", "q":
			return n.filter
		case "projection", "fields":
			return n.expression
		case "pipeline":
			return n.pipeline
		case "u", "update":
			return func(v any) any {
				if _, isPipeline := v.(bson.A); !isPipeline {
					return v // operators and replacements have values, not expressions
				}
				return n.pipeline(v)
			}
		}
		return nil
	}
	statement := func(v any) any { return mapFields(v, fields) }
	out, _ := mapFields(body, func(name string) func(any) any {
		if name == "updates" || name == "deletes" {
			return func(v any) any { return mapElements(v, statement) }
		}
		return fields(name)
	}).(bson.D)
	return out
}

type nowBinder struct{ at bson.DateTime }

func (n nowBinder) filter(v any) any {
	return mapFields(v, func(name string) func(any) any {
		switch name {
		case "$expr":
			return n.expression
		case "$and", "$or", "$nor":
			return func(v any) any { return mapElements(v, n.filter) }
		}
		return nil
	})
}

func (n nowBinder) pipeline(v any) any {
	return mapElements(v, func(stage any) any {
		return mapFields(stage, func(name string) func(any) any {
			if name == "$match" {
				return n.filter
			}
			return n.expression
		})
	})
}

func (n nowBinder) expression(v any) any {
	switch x := v.(type) {
	case string:
		if x == nowVariable {
			return n.at
		}
	case bson.A:
		return mapElements(x, n.expression)
	case bson.D:
		return mapFields(x, func(name string) func(any) any {
			if name == "$literal" {
				return nil
			}
			return n.expression
		})
	}
	return v
}

// mapFields applies to each field of a document the function that there is for its name.
func mapFields(v any, by func(name string) func(any) any) any {
	d, ok := v.(bson.D)
	if !ok {
		return v
	}
	out, copied := d, false
	for i, e := range d {
		f := by(e.Key)
		if f == nil {
			continue
		}
		if now := f(e.Value); replaced(e.Value, now) {
			if !copied {
				out, copied = slices.Clone(d), true
			}
			out[i].Value = now
		}
	}
	return out
}

func mapElements(v any, f func(any) any) any {
	a, ok := v.(bson.A)
	if !ok {
		return v
	}
	out, copied := a, false
	for i, e := range a {
		if now := f(e); replaced(e, now) {
			if !copied {
				out, copied = slices.Clone(a), true
			}
			out[i] = now
		}
	}
	return out
}

// replaced reports whether a value is another one: a copy, or a time instead of a string.
func replaced(old, now any) bool {
	switch x := old.(type) {
	case string:
		_, same := now.(string)
		return !same
	case bson.D:
		y, ok := now.(bson.D)
		return !ok || len(x) > 0 && &x[0] != &y[0]
	case bson.A:
		y, ok := now.(bson.A)
		return !ok || len(x) > 0 && &x[0] != &y[0]
	}
	return false
}
