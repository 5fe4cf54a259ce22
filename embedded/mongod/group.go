package mongod

import (
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// An accumulator is a field of $group.
type accumulator struct {
	name string
	op   string
	expr any
}

func groupStage(arg any) (stage, error) {
	spec, ok := arg.(bson.D)
	if !ok {
		return nil, errorf(15947, "", "a group's fields must be specified in an object")
	}
	id, ok := get(spec, "_id")
	if !ok {
		return nil, errorf(15955, "", "a group specification must include an _id")
	}
	var accs []accumulator
	for _, f := range spec {
		if f.Key == "_id" {
			continue
		}
		a, ok := f.Value.(bson.D)
		if !ok || len(a) != 1 {
			return nil, errorf(40234, "", "The field '%s' must be an accumulator object", f.Key)
		}
		if !slices.Contains(accumulators, a[0].Key) {
			if strings.HasPrefix(a[0].Key, "$") {
				return nil, errorf(15952, "", "unknown group operator '%s', or one that this stand-in for MongoDB does not support", a[0].Key)
			}
			return nil, errorf(40234, "", "The field '%s' must be an accumulator object", f.Key)
		}
		accs = append(accs, accumulator{f.Key, a[0].Key, a[0].Value})
	}
	return func(in []bson.D) ([]bson.D, error) { return group(in, id, accs) }, nil
}

var accumulators = []string{"$sum", "$avg", "$count", "$min", "$max", "$first", "$last", "$push", "$addToSet"}

// A bucket is one group.
type bucket struct {
	id   any
	docs []bson.D
}

func group(in []bson.D, id any, accs []accumulator) ([]bson.D, error) {
	byID := map[string]*bucket{}
	var order []*bucket
	for _, d := range in {
		v, err := evaluate(id, d)
		if err != nil {
			return nil, err
		}
		v = null(v)
		k := keyOf(v)
		b := byID[k]
		if b == nil {
			b = &bucket{id: v}
			byID[k] = b
			order = append(order, b)
		}
		b.docs = append(b.docs, d)
	}
	out := make([]bson.D, len(order))
	for i, b := range order {
		out[i] = bson.D{{Key: "_id", Value: b.id}}
		for _, a := range accs {
			v, err := a.run(b.docs)
			if err != nil {
				return nil, err
			}
			out[i] = append(out[i], bson.E{Key: a.name, Value: v})
		}
	}
	return out, nil
}

func (a accumulator) run(docs []bson.D) (any, error) {
	if a.op == "$count" {
		return int32(len(docs)), nil
	}
	vals := make([]any, len(docs))
	for i, d := range docs {
		v, err := evaluate(a.expr, d)
		if err != nil {
			return nil, err
		}
		vals[i] = v
	}
	switch a.op {
	case "$sum", "$avg":
		numbers := slices.DeleteFunc(vals, func(v any) bool { return rank(v) != rankNumber })
		sum, err := fold("$add", int32(0), numbers)
		if err != nil || a.op == "$sum" {
			return sum, err
		}
		if len(numbers) == 0 {
			return nil, nil
		}
		f, _ := number(sum)
		return f / float64(len(numbers)), nil
	case "$min":
		return extreme(vals, -1), nil
	case "$max":
		return extreme(vals, 1), nil
	case "$first":
		return null(vals[0]), nil
	case "$last":
		return null(vals[len(vals)-1]), nil
	}
	out := bson.A{}
	seen := map[string]bool{}
	for _, v := range vals {
		if v == any(missing{}) {
			continue
		}
		if a.op == "$addToSet" {
			k := keyOf(v)
			if seen[k] {
				continue
			}
			seen[k] = true
		}
		out = append(out, v)
	}
	return out, nil
}
