package mongod

import (
	"math"
	"regexp"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// operator prepares one operator of a field's condition; ops are all of them.
func operator(op string, arg any, ops bson.D) (test, error) {
	switch op {
	case "$eq":
		return func(r reach) (bool, error) { return r.equals(arg), nil }, nil
	case "$ne":
		return func(r reach) (bool, error) { return !r.equals(arg), nil }, nil
	case "$gt", "$gte", "$lt", "$lte":
		return orderTest(op, arg), nil
	case "$in", "$nin":
		return inTest(op, arg)
	case "$exists":
		want := truth(arg)
		return func(r reach) (bool, error) { return len(r.vals) > 0 == want, nil }, nil
	case "$not":
		return notTest(arg)
	case "$size":
		n, ok := integer(arg)
		if f, isNumber := number(arg); !ok && isNumber && f == math.Trunc(f) {
			n, ok = int64(f), true
		}
		if !ok || n < 0 {
			return nil, badValue("Failed to parse $size. Expected a whole number that is not negative")
		}
		return func(r reach) (bool, error) {
			return slices.ContainsFunc(r.vals, func(v any) bool { a, ok := v.(bson.A); return ok && int64(len(a)) == n }), nil
		}, nil
	case "$all":
		return allTest(arg)
	case "$elemMatch":
		return elemTest(arg)
	case "$regex":
		re, ok := arg.(bson.Regex)
		if s, isString := arg.(string); isString {
			re, ok = bson.Regex{Pattern: s}, true
		}
		if !ok {
			return nil, badValue("$regex has to be a string")
		}
		if o, has := get(ops, "$options"); has {
			re.Options = asString(o)
		}
		return regexTest(re.Pattern, re.Options)
	case "$options":
		if _, ok := get(ops, "$regex"); !ok {
			return nil, badValue("$options needs a $regex")
		}
		return func(reach) (bool, error) { return true, nil }, nil
	case "$type":
		return typeTest(arg)
	case "$mod":
		return modTest(arg)
	case "$comment":
		return func(reach) (bool, error) { return true, nil }, nil
	case "$near", "$nearSphere", "$geoWithin", "$geoIntersects", "$bitsAllSet", "$bitsAnySet", "$bitsAllClear", "$bitsAnyClear":
		return nil, unsupported("the query operator " + op)
	}
	return nil, badValue("unknown operator: %s", op)
}

// orderTest compares values of the same type; MinKey and MaxKey compare with all.
func orderTest(op string, arg any) test {
	ra := rank(arg)
	orEqual := op == "$gte" || op == "$lte"
	less := op == "$lt" || op == "$lte"
	holds := func(c int) bool { return c == 0 && orEqual || c < 0 && less || c > 0 && !less }
	return func(r reach) (bool, error) {
		if ra == rankNull {
			return orEqual && r.equals(nil), nil
		}
		return r.each(func(v any) bool {
			rv := rank(v)
			if rv != ra && ra != rankMinKey && ra != rankMaxKey {
				return false
			}
			if isNaN(v) || isNaN(arg) {
				return orEqual && isNaN(v) && isNaN(arg)
			}
			return holds(compare(v, arg))
		}), nil
	}
}

func isNaN(v any) bool {
	switch v.(type) {
	case float64, bson.Decimal128:
		f, _ := number(v)
		return math.IsNaN(f)
	}
	return false
}

func inTest(op string, arg any) (test, error) {
	list, ok := arg.(bson.A)
	if !ok {
		return nil, badValue("%s needs an array", op)
	}
	var regexes []test
	var null bool
	keys := make(map[string]bool, len(list))
	for _, w := range list {
		if isOperators(w) {
			return nil, badValue("cannot nest $ under %s", op)
		}
		if re, ok := w.(bson.Regex); ok {
			t, err := regexTest(re.Pattern, re.Options)
			if err != nil {
				return nil, err
			}
			regexes = append(regexes, t)
			continue
		}
		null = null || rank(w) == rankNull
		keys[keyOf(w)] = true
	}
	want := op == "$in"
	return func(r reach) (bool, error) {
		if null && r.equals(nil) || r.each(func(v any) bool { return keys[keyOf(v)] }) {
			return want, nil
		}
		for _, t := range regexes {
			if ok, err := t(r); err != nil || ok {
				return want, err
			}
		}
		return !want, nil
	}, nil
}

func notTest(arg any) (test, error) {
	if _, ok := arg.(bson.Regex); !ok && !isOperators(arg) {
		return nil, badValue("$not needs a regex or a document of operators")
	}
	tests, err := fieldTests(arg)
	if err != nil {
		return nil, err
	}
	return func(r reach) (bool, error) {
		for _, t := range tests {
			if ok, err := t(r); err != nil || !ok {
				return !ok, err
			}
		}
		return false, nil
	}, nil
}

func allTest(arg any) (test, error) {
	list, ok := arg.(bson.A)
	if !ok {
		return nil, badValue("$all needs an array")
	}
	var tests []test
	for _, w := range list {
		if d, ok := w.(bson.D); ok && len(d) == 1 && d[0].Key == "$elemMatch" {
			t, err := elemTest(d[0].Value)
			if err != nil {
				return nil, err
			}
			tests = append(tests, t)
			continue
		}
		tests = append(tests, func(r reach) (bool, error) { return r.equals(w), nil })
	}
	return func(r reach) (bool, error) {
		for _, t := range tests {
			if ok, err := t(r); err != nil || !ok {
				return false, err
			}
		}
		return len(tests) > 0, nil
	}, nil
}

func elemTest(arg any) (test, error) {
	cond, ok := arg.(bson.D)
	if !ok {
		return nil, badValue("$elemMatch needs an Object")
	}
	fits := func(any) (bool, error) { return false, nil }
	if isOperators(cond) && !slices.Contains([]string{"$and", "$or", "$nor", "$expr"}, cond[0].Key) {
		tests, err := fieldTests(cond)
		if err != nil {
			return nil, err
		}
		fits = func(v any) (bool, error) {
			for _, t := range tests {
				if ok, err := t(reach{vals: []any{v}}); err != nil || !ok {
					return false, err
				}
			}
			return true, nil
		}
	} else {
		m, err := newMatcher(cond)
		if err != nil {
			return nil, err
		}
		fits = func(v any) (bool, error) {
			d, ok := v.(bson.D)
			if !ok {
				return false, nil
			}
			return m.match(d)
		}
	}
	return func(r reach) (bool, error) {
		for _, v := range r.vals {
			for _, e := range asArray(v) {
				if ok, err := fits(e); err != nil || ok {
					return ok, err
				}
			}
		}
		return false, nil
	}, nil
}

func regexTest(pattern, options string) (test, error) {
	if i := strings.IndexFunc(options, func(o rune) bool { return !strings.ContainsRune("imsu", o) }); i >= 0 {
		return nil, unsupported("the option " + options[i:i+1] + " of regular expressions")
	}
	flags := strings.ReplaceAll(options, "u", "")
	if flags != "" {
		pattern = "(?" + flags + ")" + pattern
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, errorf(51091, "", "Regular expression is invalid, or not supported by this stand-in for MongoDB: %v", err)
	}
	return func(r reach) (bool, error) {
		return r.each(func(v any) bool {
			switch x := v.(type) {
			case string:
				return re.MatchString(x)
			case bson.Symbol:
				return re.MatchString(string(x))
			case bson.Regex:
				return x.Pattern == strings.TrimPrefix(pattern, "(?"+flags+")") && x.Options == options
			}
			return false
		}), nil
	}, nil
}

func typeTest(arg any) (test, error) {
	var names []string
	for _, w := range listOf(arg) {
		name := asString(w)
		if code, ok := number(w); ok {
			for n, c := range typeCodes {
				if float64(c) == code {
					name = n
				}
			}
		}
		if _, known := typeCodes[name]; !known && name != "number" {
			return nil, badValue("Unknown type name alias or code: %v", w)
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return nil, errorf(9, "FailedToParse", "$type must match at least one type")
	}
	return func(r reach) (bool, error) {
		return r.each(func(v any) bool {
			return slices.Contains(names, typeName(v)) || rank(v) == rankNumber && slices.Contains(names, "number")
		}), nil
	}, nil
}

func modTest(arg any) (test, error) {
	a := asArray(arg)
	if len(a) != 2 || rank(a[0]) != rankNumber || rank(a[1]) != rankNumber || asInt(a[0], 0) == 0 {
		return nil, badValue("malformed mod, needs an array of a divisor that is not 0 and a remainder")
	}
	by, want := asInt(a[0], 1), asInt(a[1], 0)
	return func(r reach) (bool, error) {
		return r.each(func(v any) bool { return rank(v) == rankNumber && !isNaN(v) && asInt(v, 0)%by == want }), nil
	}, nil
}

var typeCodes = map[string]int32{
	"double": 1, "string": 2, "object": 3, "array": 4, "binData": 5, "undefined": 6, "objectId": 7, "bool": 8, "date": 9,
	"null": 10, "regex": 11, "dbPointer": 12, "javascript": 13, "symbol": 14, "javascriptWithScope": 15, "int": 16,
	"timestamp": 17, "long": 18, "decimal": 19, "minKey": -1, "maxKey": 127,
}

func typeName(v any) string {
	switch v.(type) {
	case missing:
		return "missing"
	case nil, bson.Null:
		return "null"
	case float64:
		return "double"
	case string:
		return "string"
	case bson.D:
		return "object"
	case bson.A:
		return "array"
	case bson.Binary:
		return "binData"
	case bson.Undefined:
		return "undefined"
	case bson.ObjectID:
		return "objectId"
	case bool:
		return "bool"
	case bson.DateTime:
		return "date"
	case bson.Regex:
		return "regex"
	case bson.DBPointer:
		return "dbPointer"
	case bson.JavaScript:
		return "javascript"
	case bson.Symbol:
		return "symbol"
	case bson.CodeWithScope:
		return "javascriptWithScope"
	case int32:
		return "int"
	case bson.Timestamp:
		return "timestamp"
	case int64:
		return "long"
	case bson.Decimal128:
		return "decimal"
	case bson.MinKey:
		return "minKey"
	case bson.MaxKey:
		return "maxKey"
	}
	return "missing"
}
