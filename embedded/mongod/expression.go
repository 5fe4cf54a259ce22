package mongod

import (
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// evaluate is the value of an aggregation expression for a document; missing{}
// if it has none.
func evaluate(expr any, root bson.D) (any, error) {
	switch x := expr.(type) {
	case string:
		return evaluatePath(x, root)
	case bson.A:
		out := make(bson.A, len(x))
		for i, e := range x {
			v, err := evaluate(e, root)
			if err != nil {
				return nil, err
			}
			out[i] = null(v)
		}
		return out, nil
	case bson.D:
		if len(x) > 0 && strings.HasPrefix(x[0].Key, "$") {
			if len(x) > 1 {
				return nil, errorf(15983, "", "An object representing an expression must have exactly one field")
			}
			return evaluateOperator(x[0].Key, x[0].Value, root)
		}
		out := bson.D{}
		for _, f := range x {
			v, err := evaluate(f.Value, root)
			if err != nil {
				return nil, err
			}
			if v != any(missing{}) {
				out = append(out, bson.E{Key: f.Key, Value: v})
			}
		}
		return out, nil
	}
	return expr, nil
}

func evaluatePath(s string, root bson.D) (any, error) {
	name, ok := strings.CutPrefix(s, "$$")
	if !ok {
		if name, ok = strings.CutPrefix(s, "$"); !ok {
			return s, nil
		}
		return exprPath(root, splitPath(name)), nil
	}
	path := splitPath(name)
	switch path[0] {
	case "ROOT", "CURRENT":
		return exprPath(root, path[1:]), nil
	case "REMOVE":
		return missing{}, nil
	}
	return nil, errorf(17276, "", "Use of undefined variable: %s", path[0])
}

// null is v, or nil for what is missing.
func null(v any) any {
	if v == any(missing{}) {
		return nil
	}
	return v
}

func evaluateOperator(op string, arg any, root bson.D) (any, error) {
	switch op {
	case "$literal":
		return arg, nil
	case "$cond":
		if d, ok := arg.(bson.D); ok {
			arg = bson.A{field(d, "if"), field(d, "then"), field(d, "else")}
		}
		a := asArray(arg)
		if len(a) != 3 {
			return nil, errorf(16020, "", "Expression $cond takes exactly 3 arguments. %d were passed in.", len(a))
		}
		c, err := evaluate(a[0], root)
		if err != nil {
			return nil, err
		}
		if truth(c) {
			return evaluate(a[1], root)
		}
		return evaluate(a[2], root)
	}
	f, ok := functions[op]
	if !ok {
		return nil, errorf(168, "InvalidPipelineOperator", "Unrecognized expression '%s', or one that this stand-in for MongoDB does not support", op)
	}
	list := listOf(arg)
	args := make([]any, len(list))
	for i, a := range list {
		v, err := evaluate(a, root)
		if err != nil {
			return nil, err
		}
		args[i] = v
	}
	if f.args >= 0 && len(args) != f.args {
		return nil, errorf(16020, "", "Expression %s takes exactly %d arguments. %d were passed in.", op, f.args, len(args))
	}
	return f.call(args)
}

// A function is an operator that evaluates all its arguments.
type function struct {
	args int // how many it takes; -1: any number
	call func(args []any) (any, error)
}

func comparison(holds func(c int) bool) function {
	return function{2, func(a []any) (any, error) { return holds(compareExpr(a[0], a[1])), nil }}
}

// compareExpr compares as expressions do: what is missing is less than null.
func compareExpr(a, b any) int {
	am, bm := a == any(missing{}), b == any(missing{})
	switch {
	case am && bm:
		return 0
	case am && rank(b) != rankMinKey:
		return -1
	case bm && rank(a) != rankMinKey:
		return 1
	}
	return compare(a, b)
}

var functions = map[string]function{
	"$eq":  comparison(func(c int) bool { return c == 0 }),
	"$ne":  comparison(func(c int) bool { return c != 0 }),
	"$gt":  comparison(func(c int) bool { return c > 0 }),
	"$gte": comparison(func(c int) bool { return c >= 0 }),
	"$lt":  comparison(func(c int) bool { return c < 0 }),
	"$lte": comparison(func(c int) bool { return c <= 0 }),
	"$cmp": {2, func(a []any) (any, error) { return int32(compareExpr(a[0], a[1])), nil }},
	"$not": {1, func(a []any) (any, error) { return !truth(a[0]), nil }},
	"$and": {-1, func(a []any) (any, error) {
		return !slices.ContainsFunc(a, func(v any) bool { return !truth(v) }), nil
	}},
	"$or": {-1, func(a []any) (any, error) {
		return slices.ContainsFunc(a, truth), nil
	}},
	"$ifNull": {-1, func(a []any) (any, error) {
		for _, v := range a {
			if rank(v) != rankNull {
				return v, nil
			}
		}
		if len(a) == 0 {
			return nil, nil
		}
		return a[len(a)-1], nil
	}},
	"$add":      {-1, func(a []any) (any, error) { return fold("$add", int32(0), a) }},
	"$multiply": {-1, func(a []any) (any, error) { return fold("$multiply", int32(1), a) }},
	"$subtract": {2, func(a []any) (any, error) {
		minus, err := arithmetic("$multiply", a[1], int32(-1))
		if err != nil || rank(a[0]) == rankNull || rank(a[1]) == rankNull {
			return nil, err
		}
		return arithmetic("$add", a[0], minus)
	}},
	"$min": {-1, func(a []any) (any, error) { return extreme(a, -1), nil }},
	"$max": {-1, func(a []any) (any, error) { return extreme(a, 1), nil }},
	"$concat": {-1, func(a []any) (any, error) {
		var b strings.Builder
		for _, v := range a {
			switch s := v.(type) {
			case string:
				b.WriteString(s)
			default:
				if rank(v) == rankNull {
					return nil, nil
				}
				return nil, errorf(16702, "", "$concat only supports strings, not %s", typeName(v))
			}
		}
		return b.String(), nil
	}},
	"$toLong":   {1, func(a []any) (any, error) { return toLong(a[0]) }},
	"$toString": {1, func(a []any) (any, error) { return toString(a[0]) }},
	"$mergeObjects": {-1, func(a []any) (any, error) {
		out := bson.D{}
		for _, v := range a {
			if _, ok := v.(bson.D); !ok && rank(v) != rankNull {
				return nil, errorf(40400, "", "$mergeObjects requires object inputs, but input is of type %s", typeName(v))
			}
			for _, e := range asDoc(v) {
				out = with(out, e.Key, e.Value)
			}
		}
		return out, nil
	}},
	"$in": {2, func(a []any) (any, error) {
		list, ok := a[1].(bson.A)
		if !ok {
			return nil, errorf(40081, "", "$in requires an array as a second argument, found: %s", typeName(a[1]))
		}
		for _, e := range list {
			if compare(e, null(a[0])) == 0 {
				return true, nil
			}
		}
		return false, nil
	}},
	"$arrayElemAt": {2, func(a []any) (any, error) {
		list, i := asArray(a[0]), asInt(a[1], 0)
		if i < 0 {
			i += int64(len(list))
		}
		if i < 0 || i >= int64(len(list)) {
			return missing{}, nil
		}
		return list[i], nil
	}},
	"$type": {1, func(a []any) (any, error) { return typeName(a[0]), nil }},
	"$size": {1, func(a []any) (any, error) {
		list, ok := a[0].(bson.A)
		if !ok {
			return nil, errorf(17124, "", "The argument to $size must be an array, but was of type: %s", typeName(a[0]))
		}
		return int32(len(list)), nil
	}},
	"$bsonSize": {1, func(a []any) (any, error) {
		if rank(a[0]) == rankNull {
			return nil, nil
		}
		return int32(sizeOf(a[0])), nil
	}},
}

// fold combines numbers; null makes the result null.
func fold(op string, start any, args []any) (any, error) {
	out := start
	for _, a := range args {
		if rank(a) == rankNull {
			return nil, nil
		}
		var err error
		if out, err = arithmetic(op, out, a); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// extreme is the least or, with by 1, the greatest value that is not null.
func extreme(vals []any, by int) any {
	var out any
	for _, v := range vals {
		if rank(v) != rankNull && (out == nil || compare(v, out)*by > 0) {
			out = v
		}
	}
	return out
}

func toLong(v any) (any, error) {
	switch x := v.(type) {
	case int64:
		return x, nil
	case int32:
		return int64(x), nil
	case bool:
		if x {
			return int64(1), nil
		}
		return int64(0), nil
	case bson.DateTime:
		return int64(x), nil
	}
	if rank(v) == rankNull {
		return nil, nil
	}
	return nil, unsupported("$toLong of " + typeName(v))
}

func toString(v any) (any, error) {
	switch x := v.(type) {
	case string:
		return x, nil
	case bson.ObjectID:
		return x.Hex(), nil
	case bson.DateTime:
		return x.Time().UTC().Format("2006-01-02T15:04:05.000Z"), nil
	case bson.D, bson.A, bson.Binary, bson.Timestamp, bson.Regex:
		return nil, errorf(241, "ConversionFailure", "Unsupported conversion from %s to string in $convert with no onError value", typeName(v))
	}
	if rank(v) == rankNull {
		return nil, nil
	}
	return strings.Trim(jsonOf(v), `"`), nil
}

// arithmetic adds or multiplies two numbers as MongoDB does: an int32 that
// overflows becomes an int64, and that a double.
func arithmetic(op string, a, b any) (any, error) {
	x, aInt := integer(a)
	y, bInt := integer(b)
	multiply := op == "$multiply" || op == "$mul"
	if aInt && bInt {
		var r int64
		var exact bool
		if multiply {
			r = x * y
			exact = x == 0 || r/x == y && (x != -1 || y != -1<<63)
		} else {
			r = x + y
			exact = (r > x) == (y > 0)
		}
		if exact {
			_, aWide := a.(int64)
			_, bWide := b.(int64)
			if aWide || bWide || int64(int32(r)) != r {
				return r, nil
			}
			return int32(r), nil
		}
	}
	f, aOK := number(a)
	g, bOK := number(b)
	if d, ok := a.(bson.DateTime); ok && bOK && !multiply {
		return d + bson.DateTime(asInt(b, 0)), nil
	}
	if d, ok := b.(bson.DateTime); ok && aOK && op == "$add" {
		return d + bson.DateTime(asInt(a, 0)), nil
	}
	if !aOK || !bOK {
		return nil, errorf(codeTypeMismatch, "TypeMismatch", "%s only supports numeric types, not %s and %s", op, typeName(a), typeName(b))
	}
	if multiply {
		return f * g, nil
	}
	return f + g, nil
}
