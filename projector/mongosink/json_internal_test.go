package mongosink

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// decode makes a document of JSON.
func decode(payload string) (bson.Raw, error) {
	start, b := bsoncore.AppendDocumentStart(nil)
	b, err := appendJSON(b, []byte(payload))
	if err != nil {
		return nil, err
	}
	b, err = bsoncore.AppendDocumentEnd(b, start)
	return b, err
}

func TestJSON(t *testing.T) {
	many := make([]string, 40)
	for i := range many {
		many[i] = fmt.Sprintf(`"f%d":{"$numberLong":"%d"}`, i, i)
	}
	manyIn := strings.NewReplacer(`{"$numberLong":"`, "", `"}`, "").Replace("{" + strings.Join(many, ",") + "}")
	for _, tt := range []struct{ in, want string }{
		{`{}`, `{}`},
		{" \t\r\n{ \"a\" : 1 , \"b\" : [ ] } ", `{"a":{"$numberLong":"1"},"b":[]}`},
		{`{"z":1,"a":2}`, `{"z":{"$numberLong":"1"},"a":{"$numberLong":"2"}}`},
		{`{"a":{"z":null,"a":[true,false,{"b":"x"},[]]}}`, `{"a":{"z":null,"a":[true,false,{"b":"x"},[]]}}`},
		{`{"a":-9223372036854775808}`, `{"a":{"$numberLong":"-9223372036854775808"}}`},
		{`{"a":9223372036854775808}`, `{"a":{"$numberDecimal":"9223372036854775808"}}`},
		{`{"a":[0,-0,1.0,1e2,-1.5E-3]}`, `{"a":[{"$numberLong":"0"},{"$numberLong":"0"},{"$numberDouble":"1.0"},{"$numberDouble":"100.0"},{"$numberDouble":"-0.0015"}]}`},
		{`{"a":"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00 é"}`, "{\"a\":\"\\\"\\\\/\\b\\f\\n\\r\\té😀 é\"}"},
		{`{"a":"\ud800x\udc00\ud800\ud83d\ude00"}`, "{\"a\":\"\ufffdx\ufffd\ufffd😀\"}"},
		{`{"\u0061":"x\u0000y"}`, `{"a":"x\u0000y"}`},
		{`{"_id":{"$x":"y"},"_deleted":true,"a":{"_id":1}}`, ""},
		{`{"_id":7,"_deleted":true,"a":{"_id":1}}`, `{"a":{"_id":{"$numberLong":"1"}}}`},
		{manyIn, "{" + strings.Join(many, ",") + "}"},
	} {
		raw, err := decode(tt.in)
		if (err == nil) != (tt.want != "") {
			t.Errorf("%s: error %v", tt.in, err)
			continue
		}
		if err != nil {
			continue
		}
		if err := raw.Validate(); err != nil {
			t.Errorf("%s: %v", tt.in, err)
		}
		got, err := bson.MarshalExtJSON(raw, true, false)
		if err != nil || string(got) != tt.want {
			t.Errorf("%s: %s, want %s (%v)", tt.in, got, tt.want, err)
		}
	}
}

func TestJSONRefused(t *testing.T) {
	deep := func(n int) string { return `{"a":` + strings.Repeat("[", n-1) + strings.Repeat("]", n-1) + `}` }
	if _, err := decode(deep(maxDepth)); err != nil {
		t.Errorf("%d levels: %v", maxDepth, err)
	}
	names := make([]string, 40)
	for i := range names {
		names[i] = fmt.Sprintf(`"f%d":1`, i%39)
	}
	for _, tt := range []struct{ in, want string }{
		{"", "no JSON object"},
		{"null", "no JSON object"},
		{"5", "no JSON object"},
		{"[]", "no JSON object"},
		{"{", "string is missing"},
		{`{"a"}`, "':' is missing"},
		{`{"a":}`, "value is missing"},
		{`{"a":1`, "missing"},
		{`{"a":1,}`, "string is missing"},
		{`{"a":[1,]}`, "value is missing"},
		{`{"a":[1 2]}`, "comma"},
		{`{} x`, "behind its end"},
		{`{"a":01}`, "begins with 0"},
		{`{"a":-}`, "value is missing"},
		{`{"a":1.}`, "point"},
		{`{"a":1e}`, "exponent"},
		{`{"a":+1}`, "value is missing"},
		{`{"a":.5}`, "value is missing"},
		{`{"a":1e400}`, "too large"},
		{`{"a":1` + strings.Repeat("1", 40) + `}`, "Decimal128"},
		{`{"a":1` + strings.Repeat("0", 7000) + `}`, "too large"},
		{`{"a":NaN}`, "missing"},
		{`{"a":nul}`, "missing"},
		{`{"a":truex}`, "comma"},
		{`{"a":"x`, "no end"},
		{`{"a":"\`, "escape"},
		{`{"a":"\x"}`, "escape"},
		{`{"a":"\u12"}`, "escape"},
		{`{"a":"\ud800\u"}`, "escape"},
		{"{\"a\":\"\n\"}", "control"},
		{"{\"a\":\"\\n\n\"}", "control"},
		{"{\"a\":\"\xff\"}", "UTF-8"},
		{"{\"a\":\"\\n\xff\"}", "UTF-8"},
		{`{'a':1}`, "string is missing"},
		{"{" + strings.Join(names, ",") + "}", `"f0" is there twice`},
		{`{"a":{"b":1,"b":1}}`, `"b" is there twice`},
		{`{"a":1,"\u0061":1}`, "twice"},
		{`{"_id":1,"_id":2}`, "twice"},
		{deep(maxDepth + 1), "deeper"},
		{`{"a":` + strings.Repeat(`{"a":`, maxDepth) + `1}` + strings.Repeat("}", maxDepth), "deeper"},
		{`{"_v":1}`, "sink's own"},
		{`{"_id":{"a.b":1}}`, "dot"},
	} {
		_, err := decode(tt.in)
		if !errors.Is(err, ErrInvalidDocument) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%.60s: %v, want %s", tt.in, err, tt.want)
		}
	}
}

// FuzzJSON compares with encoding/json: what is decoded is what it decodes, and what
// is refused it refuses as well, or MongoDB does not store.
func FuzzJSON(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"a":1}`, `{"a":[1,2.5,-1e3,"x",null,true,{"b":{}}]}`, `{"a":"\ud83d\ude00\u00e9\n"}`, `{"a":9223372036854775808}`,
		`{"$a":1}`, `{"a":1,"a":2}`, `[1]`, `{"a":1.}`, ` {"a" : "` + "\xff" + `"}`, `{"_id":1,"b":[[[]]]}`, `{"a":1e999}`, `{"a":"\ud800\ud800"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		raw, err := decode(string(in))
		var want map[string]any
		dec := json.NewDecoder(bytes.NewReader(in))
		dec.UseNumber()
		valid := json.Valid(in) && dec.Decode(&want) == nil && want != nil
		switch {
		case err == nil && !valid:
			t.Fatalf("%q is decoded: %v", in, raw)
		case err != nil:
			if valid && utf8.Valid(in) && isStorable(want, 1) && !strings.Contains(err.Error(), "twice") {
				t.Fatalf("%q is refused: %v", in, err)
			}
			return
		}
		if err := raw.Validate(); err != nil {
			t.Fatalf("%q: %v", in, err)
		}
		delete(want, "_id")
		delete(want, "_deleted")
		if !same(bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: raw}, want) {
			t.Fatalf("%q: %v, want %v", in, raw, want)
		}
	})
}

// isStorable reports whether names, depth and numbers are those that MongoDB stores.
func isStorable(v any, depth int) bool {
	switch v := v.(type) {
	case map[string]any:
		for name, e := range v {
			if _, err := checkTop([]byte(name), false); depth == 1 && err != nil || depth > 1 && checkName([]byte(name), false) != nil || !isStorable(e, depth+1) {
				return false
			}
		}
	case []any:
		for _, e := range v {
			if !isStorable(e, depth+1) {
				return false
			}
		}
	case json.Number:
		f, err := v.Float64()
		return err == nil && !math.IsInf(f, 0) && len(v) <= 34
	default:
		return true
	}
	return depth <= maxDepth
}

// same compares a value with what encoding/json makes of it.
func same(v bson.RawValue, want any) bool {
	switch w := want.(type) {
	case map[string]any:
		elements, err := bson.Raw(v.Value).Elements()
		if err != nil || v.Type != bson.TypeEmbeddedDocument || len(elements) != len(w) {
			return false
		}
		for _, e := range elements {
			if member, ok := w[e.Key()]; !ok || !same(e.Value(), member) {
				return false
			}
		}
		return true
	case []any:
		values, err := bson.RawArray(v.Value).Values()
		if err != nil || v.Type != bson.TypeArray || len(values) != len(w) {
			return false
		}
		for i, e := range values {
			if !same(e, w[i]) {
				return false
			}
		}
		return true
	case json.Number:
		return sameNumber(v, string(w))
	case string:
		s, ok := v.StringValueOK()
		return ok && s == w
	case bool:
		b, ok := v.BooleanOK()
		return ok && b == w
	}
	return want == nil && v.Type == bson.TypeNull
}

func sameNumber(v bson.RawValue, want string) bool {
	switch v.Type {
	case bson.TypeInt64:
		n, err := strconv.ParseInt(want, 10, 64)
		return err == nil && n == v.Int64()
	case bson.TypeDouble:
		f, err := strconv.ParseFloat(want, 64)
		return err == nil && f == v.Double()
	case bson.TypeDecimal128:
		d, err := bson.ParseDecimal128(want)
		return err == nil && d == v.Decimal128()
	default:
		return false
	}
}
