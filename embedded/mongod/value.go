package mongod

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Documents that are stored, logged or answered are shared between goroutines
// and never changed: a change makes a new document.

// missing is the value of an expression whose field does not exist. It is not
// null.
type missing struct{}

func get(d bson.D, key string) (any, bool) {
	for i := range d {
		if d[i].Key == key {
			return d[i].Value, true
		}
	}
	return nil, false
}

// field is the value of a field, nil if there is none.
func field(d bson.D, key string) any {
	v, _ := get(d, key)
	return v
}

func asString(v any) string { s, _ := v.(string); return s }
func asDoc(v any) bson.D    { d, _ := v.(bson.D); return d }
func asArray(v any) bson.A  { a, _ := v.(bson.A); return a }

// listOf is an array itself, and anything else as an array of one.
func listOf(v any) bson.A {
	if a, ok := v.(bson.A); ok {
		return a
	}
	return bson.A{v}
}

// with is d with the field set to v. It changes d if d has the field.
func with(d bson.D, key string, v any) bson.D {
	for i := range d {
		if d[i].Key == key {
			d[i].Value = v
			return d
		}
	}
	return append(d, bson.E{Key: key, Value: v})
}

// without is a copy of d that lacks the field.
func without(d bson.D, key string) bson.D {
	return slices.DeleteFunc(slices.Clone(d), func(e bson.E) bool { return e.Key == key })
}

// truth is what a value means as a condition.
func truth(v any) bool {
	switch x := v.(type) {
	case nil, bson.Null, bson.Undefined, missing:
		return false
	case bool:
		return x
	}
	if f, ok := number(v); ok {
		return f != 0
	}
	return true
}

func number(v any) (float64, bool) {
	switch x := v.(type) {
	case int32:
		return float64(x), true
	case int64:
		return float64(x), true
	case float64:
		return x, true
	case bson.Decimal128:
		f, err := strconv.ParseFloat(x.String(), 64)
		return f, err == nil
	}
	return 0, false
}

// asInt is v as an integer, or def if it is no number.
func asInt(v any, def int64) int64 {
	if i, ok := integer(v); ok {
		return i
	}
	f, ok := number(v)
	switch {
	case !ok || math.IsNaN(f):
		return def
	case f >= math.MaxInt64:
		return math.MaxInt64
	case f <= math.MinInt64:
		return math.MinInt64
	}
	return int64(f)
}

func integer(v any) (int64, bool) {
	switch x := v.(type) {
	case int32:
		return int64(x), true
	case int64:
		return x, true
	}
	return 0, false
}

func copyOf(v any) any {
	switch x := v.(type) {
	case bson.D:
		return copyDoc(x)
	case bson.A:
		out := make(bson.A, len(x))
		for i, e := range x {
			out[i] = copyOf(e)
		}
		return out
	}
	return v
}

func copyDoc(d bson.D) bson.D {
	out := make(bson.D, len(d))
	for i, e := range d {
		out[i] = bson.E{Key: e.Key, Value: copyOf(e.Value)}
	}
	return out
}

// The order of types, as MongoDB sorts them.
const (
	rankMinKey = iota
	rankNull
	rankNumber
	rankString
	rankDoc
	rankArray
	rankBinary
	rankObjectID
	rankBool
	rankDate
	rankTimestamp
	rankRegex
	rankOther
	rankMaxKey
)

func rank(v any) int {
	switch v.(type) {
	case bson.MinKey:
		return rankMinKey
	case nil, bson.Null, bson.Undefined, missing:
		return rankNull
	case int32, int64, float64, bson.Decimal128:
		return rankNumber
	case string, bson.Symbol:
		return rankString
	case bson.D:
		return rankDoc
	case bson.A:
		return rankArray
	case bson.Binary:
		return rankBinary
	case bson.ObjectID:
		return rankObjectID
	case bool:
		return rankBool
	case bson.DateTime:
		return rankDate
	case bson.Timestamp:
		return rankTimestamp
	case bson.Regex:
		return rankRegex
	case bson.MaxKey:
		return rankMaxKey
	}
	return rankOther
}

// compare orders any two values: by type first, then by value.
func compare(a, b any) int {
	ra, rb := rank(a), rank(b)
	if ra != rb {
		return sign(ra - rb)
	}
	switch x := a.(type) {
	case string, bson.Symbol:
		return strings.Compare(text(a), text(b))
	case bson.D:
		return compareDocs(x, b.(bson.D))
	case bson.A:
		y := b.(bson.A)
		for i := range min(len(x), len(y)) {
			if c := compare(x[i], y[i]); c != 0 {
				return c
			}
		}
		return sign(len(x) - len(y))
	case bson.Binary:
		y := b.(bson.Binary)
		if c := sign(len(x.Data) - len(y.Data)); c != 0 {
			return c
		}
		if c := sign(int(x.Subtype) - int(y.Subtype)); c != 0 {
			return c
		}
		return bytes.Compare(x.Data, y.Data)
	case bson.ObjectID:
		y := b.(bson.ObjectID)
		return bytes.Compare(x[:], y[:])
	case bool:
		switch y := b.(bool); {
		case x == y:
			return 0
		case x:
			return 1
		}
		return -1
	case bson.DateTime:
		return compareOrdered(x, b.(bson.DateTime))
	case bson.Timestamp:
		return x.Compare(b.(bson.Timestamp))
	case bson.Regex:
		y := b.(bson.Regex)
		return strings.Compare(x.Pattern+"/"+x.Options, y.Pattern+"/"+y.Options)
	}
	if ra == rankNumber {
		return compareNumbers(a, b)
	}
	if ra == rankOther {
		return strings.Compare(keyOf(a), keyOf(b))
	}
	return 0
}

func text(v any) string {
	if s, ok := v.(bson.Symbol); ok {
		return string(s)
	}
	return asString(v)
}

func compareDocs(x, y bson.D) int {
	for i := range min(len(x), len(y)) {
		if c := sign(rank(x[i].Value) - rank(y[i].Value)); c != 0 {
			return c
		}
		if c := strings.Compare(x[i].Key, y[i].Key); c != 0 {
			return c
		}
		if c := compare(x[i].Value, y[i].Value); c != 0 {
			return c
		}
	}
	return sign(len(x) - len(y))
}

func compareNumbers(a, b any) int {
	if x, ok := integer(a); ok {
		if y, ok := integer(b); ok {
			return compareOrdered(x, y)
		}
	}
	x, _ := number(a)
	y, _ := number(b)
	switch {
	case math.IsNaN(x) && math.IsNaN(y):
		return 0
	case math.IsNaN(x):
		return -1
	case math.IsNaN(y):
		return 1
	}
	return compareOrdered(x, y)
}

func compareOrdered[T ~int64 | ~float64](a, b T) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func sign(i int) int { return compareOrdered(int64(i), 0) }

// same says whether two values are equal in type as well, so that storing one
// in place of the other changes nothing.
func same(a, b any) bool {
	switch x := a.(type) {
	case bson.D:
		y, ok := b.(bson.D)
		return ok && slices.EqualFunc(x, y, func(p, q bson.E) bool { return p.Key == q.Key && same(p.Value, q.Value) })
	case bson.A:
		y, ok := b.(bson.A)
		return ok && slices.EqualFunc(x, y, same)
	case bson.Binary:
		y, ok := b.(bson.Binary)
		return ok && x.Subtype == y.Subtype && bytes.Equal(x.Data, y.Data)
	case bson.CodeWithScope:
		y, ok := b.(bson.CodeWithScope)
		return ok && x.Code == y.Code && same(x.Scope, y.Scope)
	case float64:
		y, ok := b.(float64)
		return ok && math.Float64bits(x) == math.Float64bits(y)
	}
	switch b.(type) {
	case bson.D, bson.A, bson.Binary, bson.CodeWithScope:
		return false
	}
	return a == b
}

// keyOf is a string that two values share if and only if they are equal as keys:
// numbers are equal whatever their type.
func keyOf(v any) string { return string(appendKey(nil, v)) }

func appendKey(b []byte, v any) []byte {
	switch x := v.(type) {
	case nil, bson.Null, bson.Undefined, missing:
		return append(b, '0')
	case int32:
		return strconv.AppendInt(append(b, 'n'), int64(x), 10)
	case int64:
		return strconv.AppendInt(append(b, 'n'), x, 10)
	case float64:
		return appendFloatKey(b, x)
	case bson.Decimal128:
		f, _ := number(x)
		return appendFloatKey(b, f)
	case string:
		return append(binary.AppendUvarint(append(b, 's'), uint64(len(x))), x...)
	case bson.ObjectID:
		return append(append(b, 'o'), x[:]...)
	case bson.D:
		b = append(b, '{')
		for _, e := range x {
			b = append(binary.AppendUvarint(b, uint64(len(e.Key)+1)), e.Key...)
			b = append(appendKey(b, e.Value), ',')
		}
		return append(b, 0)
	case bson.A:
		b = append(b, '[')
		for _, e := range x {
			b = append(appendKey(b, e), ',')
		}
		return append(b, ']')
	}
	kind, raw, err := bson.MarshalValue(v)
	if err != nil {
		return append(b, '?')
	}
	b = append(b, 'b', byte(kind))
	return append(binary.AppendUvarint(b, uint64(len(raw))), raw...)
}

func appendFloatKey(b []byte, f float64) []byte {
	if f == math.Trunc(f) && math.Abs(f) < 1<<53 {
		return strconv.AppendInt(append(b, 'n'), int64(f), 10)
	}
	return strconv.AppendFloat(append(b, 'f'), f, 'g', -1, 64)
}

// sizeOf is about what a value takes as BSON, in bytes, without its field name.
func sizeOf(v any) int {
	switch x := v.(type) {
	case bson.D:
		n := 5
		for _, e := range x {
			n += 2 + len(e.Key) + sizeOf(e.Value)
		}
		return n
	case bson.A:
		n := 5
		for i, e := range x {
			n += 2 + len(strconv.Itoa(i)) + sizeOf(e)
		}
		return n
	case string:
		return 5 + len(x)
	case bson.Symbol:
		return 5 + len(x)
	case bson.JavaScript:
		return 5 + len(x)
	case bson.CodeWithScope:
		return 9 + len(x.Code) + sizeOf(x.Scope)
	case bson.Binary:
		return 5 + len(x.Data)
	case bson.Regex:
		return 2 + len(x.Pattern) + len(x.Options)
	case bson.DBPointer:
		return 17 + len(x.DB)
	case bson.ObjectID:
		return 12
	case bson.Decimal128:
		return 16
	case nil, bson.Null, bson.Undefined, bson.MinKey, bson.MaxKey:
		return 0
	case bool:
		return 1
	case int32:
		return 4
	}
	return 8
}
