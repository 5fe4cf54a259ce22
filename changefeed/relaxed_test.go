package changefeed

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// relaxedCases are documents with every type there is.
func relaxedCases(t testing.TB) []bson.Raw {
	t.Helper()
	docs := []any{
		bson.D{},
		bson.D{{Key: "", Value: ""}, {Key: "a", Value: "b"}, {Key: "ä€😀", Value: "日本"}, {Key: "q\"", Value: 1}, {Key: "nl", Value: "a\nb\\\x7f\x01\u2028\u2029<>&\ufffd"}},
		bson.D{{Key: "broken", Value: "a\xffb"}},
		bson.D{{Key: "escapes\"\\", Value: "\"\\a\n\r\t\b\fb\x7fä\""}, {Key: "last", Value: "\u2029"}},
		bson.D{{Key: "n", Value: int32(-7)}, {Key: "m", Value: int64(math.MinInt64)}, {Key: "t", Value: true}, {Key: "f", Value: false}, {Key: "z", Value: nil}},
		bson.D{{Key: "d", Value: bson.A{0.0, math.Copysign(0, -1), 1.0, -2.5, 1e21, 1e-7, 123456789.0, math.MaxFloat64, math.SmallestNonzeroFloat64}}},
		bson.D{{Key: "d", Value: math.NaN()}, {Key: "i", Value: math.Inf(1)}, {Key: "j", Value: math.Inf(-1)}},
		bson.D{{Key: "at", Value: bson.A{
			time.UnixMilli(0), time.UnixMilli(-1), time.UnixMilli(1_700_000_000_120), time.UnixMilli(1_700_000_000_000),
			bson.DateTime(math.MaxInt64), bson.DateTime(math.MinInt64), bson.DateTime(253402300799999), bson.DateTime(253402300800000),
		}}},
		bson.D{{Key: "id", Value: bson.NewObjectID()}, {Key: "in", Value: bson.D{{Key: "a", Value: bson.A{}}, {Key: "b", Value: bson.D{}}, {Key: "c", Value: bson.A{bson.D{{Key: "x", Value: 1}}, bson.A{"y"}}}}}},
		bson.D{{Key: "b", Value: bson.Binary{Subtype: 4, Data: []byte("0123456789abcdef")}}, {Key: "r", Value: bson.Regex{Pattern: "a\"", Options: "xi"}}, {Key: "ts", Value: bson.Timestamp{T: 1, I: 2}}},
		bson.D{{Key: "m", Value: bson.A{bson.MinKey{}, bson.MaxKey{}, bson.Undefined{}, bson.Symbol("s"), bson.JavaScript("f()"), bson.CodeWithScope{Code: "g", Scope: bson.D{}}, bson.NewDecimal128(1, 2)}}},
	}
	deep := bson.D{{Key: "end", Value: 1}}
	for range 3 * relaxedDepth / 2 {
		deep = bson.D{{Key: "d", Value: bson.A{deep}}}
	}
	docs = append(docs, deep)
	var out []bson.Raw
	for _, d := range docs {
		raw, err := bson.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, raw)
	}
	return out
}

func compareRelaxed(t *testing.T, doc bson.Raw) {
	t.Helper()
	want, wantErr := bson.MarshalExtJSON(doc, false, false)
	got, err := relaxedJSON(doc)
	if (err == nil) != (wantErr == nil) || err == nil && string(got) != string(want) {
		t.Errorf("%x becomes\n%s, %v, the driver writes\n%s, %v", []byte(doc), got, err, want, wantErr)
	}
}

func TestRelaxedIsTheDriversText(t *testing.T) {
	for _, doc := range relaxedCases(t) {
		compareRelaxed(t, doc)
		compareRelaxed(t, doc[:len(doc)-1])
	}
	usual, err := bson.Marshal(bson.D{{Key: "_id", Value: bson.NewObjectID()}, {Key: "name", Value: "Zoë \"Z\"\n\t\\"}, {Key: "n", Value: bson.A{1, int64(2), 3.5}}, {Key: "at", Value: time.Now()}, {Key: "on", Value: true}})
	if err != nil {
		t.Fatal(err)
	}
	text, ok := appendRelaxed(nil, usual, '{', 0)
	if !ok || !json.Valid(text) {
		t.Errorf("the driver has to write what is usual: %s", text)
	}
}

func FuzzRelaxed(f *testing.F) {
	for _, doc := range relaxedCases(f) {
		f.Add([]byte(doc))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		if bsoncore.Document(doc).Validate() == nil {
			compareRelaxed(t, doc)
			return
		}
		_, _ = relaxedJSON(doc) // must not panic
	})
}
