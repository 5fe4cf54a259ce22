package changefeed

import (
	"encoding/hex"
	"math"
	"strconv"
	"time"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// relaxedDepth is how deep appendRelaxed goes. The driver writes deeper documents.
const relaxedDepth = 100

// relaxedJSON is a document in relaxed extended JSON, byte for byte as the driver
// writes it. What most documents are made of is written here, since the driver takes
// longer for it than everything else takes that a feed does with a change.
func relaxedJSON(doc bson.Raw) ([]byte, error) {
	if text, ok := appendRelaxed(make([]byte, 0, len(doc)+len(doc)/2), doc, '{', 0); ok {
		return text, nil
	}
	return bson.MarshalExtJSON(doc, false, false)
}

// appendRelaxed appends a document, or with open '[' an array. ok is false where there
// is something in it that is the driver's to write, or to refuse.
func appendRelaxed(b, doc []byte, open byte, depth int) (_ []byte, ok bool) {
	length, rest, ok := bsoncore.ReadLength(doc)
	if !ok || int(length) != len(doc) || depth > relaxedDepth {
		return b, false
	}
	b = append(b, open)
	for first := true; len(rest) > 1; first = false {
		var element bsoncore.Element
		if element, rest, ok = bsoncore.ReadElement(rest); !ok {
			return b, false
		}
		value, err := element.ValueErr()
		if err != nil {
			return b, false
		}
		if !first {
			b = append(b, ',')
		}
		if open == '{' {
			if b, ok = appendString(b, element.KeyBytes()); !ok {
				return b, false
			}
			b = append(b, ':')
		}
		if b, ok = appendValue(b, value, depth); !ok {
			return b, false
		}
	}
	return append(b, open+2), true // '}' and ']' are two behind '{' and '['
}

func appendValue(b []byte, v bsoncore.Value, depth int) (_ []byte, ok bool) {
	switch v.Type { //nolint:exhaustive // the others are rare
	case bsoncore.TypeString:
		length, rest, ok := bsoncore.ReadLength(v.Data)
		if !ok || length < 1 || int(length) != len(rest) || rest[length-1] != 0 {
			return b, false
		}
		return appendString(b, rest[:length-1])
	case bsoncore.TypeEmbeddedDocument:
		return appendRelaxed(b, v.Data, '{', depth+1)
	case bsoncore.TypeArray:
		return appendRelaxed(b, v.Data, '[', depth+1)
	case bsoncore.TypeInt32:
		n, ok := v.Int32OK()
		return strconv.AppendInt(b, int64(n), 10), ok
	case bsoncore.TypeInt64:
		n, ok := v.Int64OK()
		return strconv.AppendInt(b, n, 10), ok
	case bsoncore.TypeDouble:
		n, ok := v.DoubleOK()
		return appendDouble(b, n), ok && !math.IsNaN(n) && !math.IsInf(n, 0)
	case bsoncore.TypeBoolean:
		is, ok := v.BooleanOK()
		return strconv.AppendBool(b, is), ok
	case bsoncore.TypeNull:
		return append(b, "null"...), true
	case bsoncore.TypeObjectID:
		id, ok := v.ObjectIDOK()
		return append(hex.AppendEncode(append(b, `{"$oid":"`...), id[:]), `"}`...), ok
	case bsoncore.TypeDateTime:
		ms, ok := v.DateTimeOK()
		at := time.UnixMilli(ms).UTC()
		b = at.AppendFormat(append(b, `{"$date":"`...), "2006-01-02T15:04:05.999Z07:00")
		return append(b, `"}`...), ok && at.Year() >= 1970 && at.Year() <= 9999
	}
	return b, false
}

// appendDouble writes a number that is finite so that it is seen to be a double.
func appendDouble(b []byte, n float64) []byte {
	at := len(b)
	b = strconv.AppendFloat(b, n, 'G', -1, 64)
	for _, c := range b[at:] {
		if c == 'E' || c == '.' {
			return b
		}
	}
	return append(b, ".0"...)
}

// escapes are the bytes with a short escape.
var escapes = [utf8.RuneSelf]byte{'"': '"', '\\': '\\', '\n': 'n', '\r': 'r', '\t': 't', '\b': 'b', '\f': 'f'}

// appendString writes a string, but not one with other controls or broken UTF-8.
func appendString(b, s []byte) (_ []byte, ok bool) {
	b = append(b, '"')
	from, ascii := 0, true
	for i, c := range s {
		switch {
		case c >= utf8.RuneSelf:
			ascii = false
		case escapes[c] != 0:
			b = append(append(b, s[from:i]...), '\\', escapes[c])
			from = i + 1
		case c < ' ':
			return b, false
		}
	}
	for rest := s; !ascii && len(rest) > 0; {
		r, size := utf8.DecodeRune(rest)
		if r == utf8.RuneError || r == '\u2028' || r == '\u2029' {
			return b, false
		}
		rest = rest[size:]
	}
	return append(append(b, s[from:]...), '"'), true
}
