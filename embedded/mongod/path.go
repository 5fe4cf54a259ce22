package mongod

import (
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func splitPath(p string) []string { return strings.Split(p, ".") }

// A reach is what a dotted path of a query leads to.
type reach struct {
	vals   []any
	absent bool // some branch of the path ended before its end
}

// reachOf follows a path as the query language does: through the elements of
// arrays, and by index.
func reachOf(v any, path []string) reach {
	var r reach
	r.follow(v, path)
	return r
}

func (r *reach) follow(v any, path []string) {
	if len(path) == 0 {
		r.vals = append(r.vals, v)
		return
	}
	switch x := v.(type) {
	case bson.D:
		if c, ok := get(x, path[0]); ok {
			r.follow(c, path[1:])
			return
		}
		r.absent = true
	case bson.A:
		if i, ok := index(path[0], len(x)); ok {
			r.follow(x[i], path[1:])
		}
		for _, e := range x {
			if d, ok := e.(bson.D); ok {
				r.follow(d, path)
			}
		}
	default:
		r.absent = true
	}
}

// index is a path component as an index below n.
func index(s string, n int) (int, bool) {
	if len(s) == 0 || s[0] < '0' || s[0] > '9' || len(s) > 1 && s[0] == '0' {
		return 0, false
	}
	i, err := strconv.Atoi(s)
	return i, err == nil && i < n
}

// exprPath follows a path as the expression "$a.b" does: an array becomes the
// array of what its elements hold.
func exprPath(v any, path []string) any {
	if len(path) == 0 {
		return v
	}
	switch x := v.(type) {
	case bson.D:
		c, ok := get(x, path[0])
		if !ok {
			return missing{}
		}
		return exprPath(c, path[1:])
	case bson.A:
		out := bson.A{}
		for _, e := range x {
			if r := exprPath(e, path); r != any(missing{}) {
				out = append(out, r)
			}
		}
		return out
	}
	return missing{}
}

// plainPath follows a path without looking into the elements of arrays except
// by index, as update operators do.
func plainPath(v any, path []string) (any, bool) {
	for _, p := range path {
		switch x := v.(type) {
		case bson.D:
			c, ok := get(x, p)
			if !ok {
				return nil, false
			}
			v = c
		case bson.A:
			i, ok := index(p, len(x))
			if !ok {
				return nil, false
			}
			v = x[i]
		default:
			return nil, false
		}
	}
	return v, true
}

// maxArrayPad bounds how many nulls a write to an index past the end may add.
const maxArrayPad = 1_500_000

// setPath sets what a path leads to and makes what is missing on the way. It
// changes v where it can and returns what has to take v's place.
func setPath(v any, path []string, val any) (any, error) {
	if len(path) == 0 {
		return val, nil
	}
	switch x := v.(type) {
	case bson.A:
		i, ok := index(path[0], len(x)+maxArrayPad)
		if !ok {
			return nil, errorf(28, "PathNotViable", "Cannot create field '%s' in an array", path[0])
		}
		for len(x) <= i {
			x = append(x, nil)
		}
		e, err := setPath(x[i], path[1:], val)
		if err != nil {
			return nil, err
		}
		x[i] = e
		return x, nil
	case bson.D:
		c, ok := get(x, path[0])
		if !ok && len(path) > 1 {
			c = bson.D{}
		}
		e, err := setPath(c, path[1:], val)
		if err != nil {
			return nil, err
		}
		return with(x, path[0], e), nil
	}
	return nil, errorf(28, "PathNotViable", "Cannot create field '%s' in element that is no document", path[0])
}

// setDocPath is setPath for a document. It changes d.
func setDocPath(d bson.D, path []string, val any) (bson.D, error) {
	v, err := setPath(d, path, val)
	return asDoc(v), err
}

// forcePath is setPath that replaces what is in its way, as $project and
// $addFields do.
func forcePath(v any, path []string, val any) any {
	if len(path) == 0 {
		return val
	}
	switch x := v.(type) {
	case bson.D:
		return with(x, path[0], forcePath(field(x, path[0]), path[1:], val))
	case bson.A:
		for i := range x {
			x[i] = forcePath(x[i], path, copyOf(val))
		}
		return x
	}
	return bson.D{{Key: path[0], Value: forcePath(nil, path[1:], val)}}
}

// unsetPath removes what a path leads to; in an array by index it leaves null.
// It changes v where it can and returns what has to take v's place.
func unsetPath(v any, path []string) any {
	switch x := v.(type) {
	case bson.D:
		c, ok := get(x, path[0])
		switch {
		case !ok:
		case len(path) == 1:
			return slices.DeleteFunc(x, func(e bson.E) bool { return e.Key == path[0] })
		default:
			return with(x, path[0], unsetPath(c, path[1:]))
		}
	case bson.A:
		if i, ok := index(path[0], len(x)); ok {
			if len(path) == 1 {
				x[i] = nil
			} else {
				x[i] = unsetPath(x[i], path[1:])
			}
		}
	}
	return v
}

// cutPath removes what a path leads to, in every element of the arrays on the
// way, as projections do. It changes v.
func cutPath(v any, path []string) any {
	switch x := v.(type) {
	case bson.D:
		if len(path) == 1 {
			return slices.DeleteFunc(x, func(e bson.E) bool { return e.Key == path[0] })
		}
		if c, ok := get(x, path[0]); ok {
			return with(x, path[0], cutPath(c, path[1:]))
		}
	case bson.A:
		for i := range x {
			x[i] = cutPath(x[i], path)
		}
	}
	return v
}
