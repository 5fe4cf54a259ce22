package changefeed

import (
	"bytes"
	"math"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// oddValues are values that the driver does not write as they are here, two or more of each kind.
func oddValues() []bson.RawValue {
	value := func(t bson.Type, data []byte) bson.RawValue { return bson.RawValue{Type: t, Value: data} }
	document := func(t bson.Type, data []byte) bson.RawValue {
		return value(bson.TypeEmbeddedDocument, bsoncore.BuildDocument(nil, bsoncore.AppendValueElement(nil, "r", bsoncore.Value{Type: bsoncore.Type(t), Data: data})))
	}
	var out []bson.RawValue
	add := func(t bson.Type, data []byte) { out = append(out, value(t, data), document(t, data)) }
	for _, regex := range []string{"a\x00im\x00", "a\x00mi\x00", "a\x00sxmi\x00", "a\x00xsmi\x00", "a\x00ii\x00", "a\x00\x00"} {
		add(bson.TypeRegex, []byte(regex))
	}
	for _, n := range []float64{0, math.Copysign(0, -1), 1, 5e-324, math.MaxFloat64, math.Inf(1)} {
		add(bson.TypeDouble, bsoncore.AppendDouble(nil, n))
	}
	for _, high := range []uint64{0x3040000000000000, 0x303e000000000000, 0xb040000000000000, 0x2f84000000000000} {
		add(bson.TypeDecimal128, bsoncore.AppendDecimal128(nil, high, 10))
	}
	for _, data := range []string{"", "a", "ab", "\x00\x00\x00\x00"} {
		add(bson.TypeBinary, bsoncore.AppendBinary(nil, 2, []byte(data)))
		add(bson.TypeBinary, bsoncore.AppendBinary(nil, 0, []byte(data)))
	}
	add(bson.TypeBinary, []byte("\x06\x00\x00\x00\x02\x01\x00\x00\x00xy")) // the lengths do not agree
	add(bson.TypeBinary, []byte("\x06\x00\x00\x00\x02\x01\x00\x00\x00xz"))
	for _, ms := range []int64{0, -1, math.MinInt64, math.MaxInt64} {
		add(bson.TypeDateTime, bsoncore.AppendDateTime(nil, ms))
		add(bson.TypeInt64, bsoncore.AppendInt64(nil, ms))
	}
	add(bson.TypeInt32, bsoncore.AppendInt32(nil, 0))
	add(bson.TypeTimestamp, bsoncore.AppendTimestamp(nil, math.MaxUint32, math.MaxUint32))
	add(bson.TypeDBPointer, bsoncore.AppendDBPointer(nil, "c", [12]byte{1}))
	add(bson.TypeUndefined, nil)
	add(bson.TypeNull, nil)
	add(bson.TypeMinKey, nil)
	add(bson.TypeMaxKey, nil)
	return out
}

// Each id has a key of its own, and a copy that resumes after it gets the same bytes.
func TestOddIDsHaveOneKeyEachAndComeBack(t *testing.T) {
	seen := map[string]bson.RawValue{}
	for _, id := range oddValues() {
		key := Key(id)
		if other, taken := seen[key]; taken {
			t.Errorf("%v %q and %v %q have the key %s", id.Type, id.Value, other.Type, other.Value, key)
		}
		seen[key] = id
		back, err := parseID(idText(id))
		if err != nil || back.Type != id.Type || !bytes.Equal(back.Value, id.Value) {
			t.Errorf("%v %q came back as %v %q, %v: %s", id.Type, id.Value, back.Type, back.Value, err, idText(id))
		}
	}
}
