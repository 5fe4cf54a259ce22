package mongosink_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/projector"
	"github.com/seed-63e9a637/jetbus/projector/mongosink"
)

// everyType is a document with all types of BSON, and names that MongoDB 5 and newer store.
func everyType() bson.D {
	return bson.D{
		{Key: "oid", Value: bson.NewObjectID()},
		{Key: "in", Value: bson.D{{Key: "oid", Value: bson.NewObjectID()}, {Key: "none", Value: bson.D{}}}},
		{Key: "date", Value: bson.NewDateTimeFromTime(time.Now())},
		{Key: "old", Value: bson.DateTime(-62135596800001)},
		{Key: "far", Value: bson.DateTime(math.MaxInt64)},
		{Key: "int", Value: int32(7)},
		{Key: "long", Value: int64(math.MinInt64)},
		{Key: "above", Value: int64(math.MaxInt32) + 1},
		{Key: "double", Value: 1.0},
		{Key: "small", Value: 5e-324},
		{Key: "zero", Value: math.Copysign(0, -1)},
		{Key: "nan", Value: math.NaN()},
		{Key: "inf", Value: math.Inf(-1)},
		{Key: "decimal", Value: bson.NewDecimal128(0x3040000000000000, 1234)},
		{Key: "text", Value: "ü\"\\\n\x00\u2028\ufffd"},
		{Key: "yes", Value: true},
		{Key: "null", Value: nil},
		{Key: "list", Value: bson.A{int32(1), "a", bson.A{}, bson.D{{Key: "d", Value: bson.DateTime(0)}}, nil}},
		{Key: "bin", Value: bson.Binary{Subtype: 0, Data: []byte{0, 255}}},
		{Key: "old bin", Value: bson.Binary{Subtype: 2, Data: []byte{1}}},
		{Key: "uuid", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}},
		{Key: "own", Value: bson.Binary{Subtype: 128, Data: []byte{}}},
		{Key: "regex", Value: bson.Regex{Pattern: "^a\"/", Options: "im"}},
		{Key: "code", Value: bson.JavaScript("f()")},
		{Key: "scoped", Value: bson.CodeWithScope{Code: "g()", Scope: bson.D{{Key: "x", Value: int32(1)}}}},
		{Key: "symbol", Value: bson.Symbol("s")},
		{Key: "pointer", Value: bson.DBPointer{DB: "d.c", Pointer: bson.NewObjectID()}},
		{Key: "time", Value: bson.Timestamp{T: math.MaxUint32, I: 1}},
		{Key: "undefined", Value: bson.Undefined{}},
		{Key: "min", Value: bson.MinKey{}},
		{Key: "max", Value: bson.MaxKey{}},
		{Key: "ref", Value: bson.D{{Key: "$ref", Value: "c"}, {Key: "$id", Value: bson.NewObjectID()}, {Key: "$db", Value: "d"}}},
		{Key: "a.b", Value: bson.D{{Key: "c.d", Value: bson.DateTime(1)}, {Key: "$price", Value: int32(1)}, {Key: "", Value: "empty"}}},
		{Key: "", Value: "empty"},
		{Key: ".", Value: "dot"},
	}
}

// oddDocument is a document of a kind that few programs store: texts that are not valid UTF-8, an
// empty timestamp, a name twice, and as many levels as MongoDB stores. JSON cannot have the texts.
func oddDocument(text bool) bson.D {
	deep := any(int32(1))
	for i := range 179 {
		if i%2 == 0 {
			deep = bson.A{deep}
		} else {
			deep = bson.D{{Key: "d", Value: deep}}
		}
	}
	d := bson.D{
		{Key: "stamp", Value: bson.Timestamp{}},
		{Key: "deep", Value: deep},
		{Key: "twice", Value: int32(1)},
		{Key: "twice", Value: "b"},
		{Key: "in", Value: bson.D{{Key: "stamp", Value: bson.Timestamp{}}}},
	}
	if text {
		d = append(d, bson.E{Key: "text", Value: "a\xff"}, bson.E{Key: "symbol", Value: bson.Symbol("\x80")}, bson.E{Key: "code", Value: bson.JavaScript("f('\xc3')")},
			bson.E{Key: "name\xff", Value: bson.D{{Key: "in\xfe", Value: bson.A{"\xfe"}}}})
	}
	return d
}

// fromFeed is a change as an event of a change feed makes it, with the payload in the format.
func fromFeed(t testing.TB, key string, seq uint64, doc bson.D, format string) projector.Change {
	t.Helper()
	raw, err := bson.Marshal(doc)
	var text []byte
	if err == nil {
		text, err = bson.MarshalExtJSON(bson.Raw(raw), format == "canonical", false)
	}
	if err != nil {
		t.Fatal(err)
	}
	c := put(key, seq, string(text))
	c.Event.Headers = map[string]string{"x-mongo-feed": "f", "x-mongo-op": "insert"}
	if format == "bson" {
		c.Doc, c.Event.Headers[jetbus.HeaderContentType] = raw, "application/bson"
	}
	return c
}

// raws are the documents of a collection without what is the sink's own, by key.
func (r *rig) raws(collection string) map[string]bson.Raw {
	r.Helper()
	cur, err := r.db.Collection(collection).Find(r.Context(), bson.D{})
	if err != nil {
		r.Fatal(err)
	}
	out := map[string]bson.Raw{}
	for cur.Next(r.Context()) {
		elements, err := cur.Current.Elements()
		if err != nil {
			r.Fatal(err)
		}
		d := bson.D{}
		for _, e := range elements {
			switch e.Key() {
			case "_id", "_key", "_seq", "_ts", "_src", "_srcCreated":
			default:
				d = append(d, bson.E{Key: e.Key(), Value: e.Value()})
			}
		}
		doc, err := bson.Marshal(d)
		if err != nil {
			r.Fatal(err)
		}
		out[cur.Current.Lookup("_id").StringValue()] = doc
	}
	if err := errors.Join(cur.Err(), cur.Close(r.Context())); err != nil {
		r.Fatal(err)
	}
	return out
}

// A document that a change feed publishes is stored as it is in its source.
func TestFeedDocumentsKeepTheirTypes(t *testing.T) {
	for _, format := range []string{"relaxed", "canonical", "bson"} {
		for _, hard := range []bool{false, true} {
			name := format
			if hard {
				name += ", hard delete"
			}
			t.Run(name, func(t *testing.T) {
				r := newRig(t)
				src := source()
				if src.Exclusive = hard; hard {
					src = exclusive()
				}
				s := r.open(mongosink.Options{HardDelete: hard}, src)
				doc := everyType()
				odd := oddDocument(format == "bson")
				dollar := append(bson.D{{Key: "$top", Value: bson.DateTime(5)}}, doc...)
				later := append(bson.D{{Key: "n", Value: int32(2)}}, dollar...)
				out := r.write(s, fromFeed(t, "a", 1, doc, format), fromFeed(t, "b", 2, dollar, format), fromFeed(t, "c", 3, bson.D{}, format),
					fromFeed(t, "odd", 4, odd, format), fromFeed(t, "even", 5, bson.D{}, format))
				r.wantOutcome(out, 5, 0, 0)
				r.wantOutcome(r.write(s, fromFeed(t, "c", 6, later, format), fromFeed(t, "even", 7, odd, format)), 2, 0, 0)
				got := r.raws("things")
				for key, want := range map[string]bson.D{"a": doc, "b": dollar, "c": later, "odd": odd, "even": odd} {
					raw, err := bson.Marshal(want)
					if err != nil {
						t.Fatal(err)
					}
					if !bytes.Equal(got[key], raw) {
						t.Errorf("%s is\n%s\nwant\n%s", key, got[key], bson.Raw(raw))
					}
				}
			})
		}
	}
}

// What a merge cannot write as a field is rejected: MongoDB would take the name for a path or
// an operator.
func TestFeedNamesInAMerge(t *testing.T) {
	r := newRig(t)
	s := r.open(mongosink.Options{Merge: true}, source())
	out := r.write(s,
		fromFeed(t, "a", 1, bson.D{{Key: "x.y", Value: 1}}, "relaxed"), fromFeed(t, "b", 2, bson.D{{Key: "$x", Value: 1}}, "relaxed"),
		fromFeed(t, "c", 3, bson.D{{Key: "n", Value: bson.DateTime(5)}, {Key: "stamp", Value: bson.Timestamp{}}}, "relaxed"),
		fromFeed(t, "d", 4, bson.D{{Key: "x", Value: 1}, {Key: "x", Value: 2}}, "relaxed"))
	r.wantOutcome(out, 1, 0, 3)
	if stamp, ok := r.docs("things", bson.D{})[0]["stamp"].(bson.Timestamp); !ok || !stamp.IsZero() {
		t.Errorf("the empty timestamp became %v", stamp)
	}
	for _, rejected := range out.Rejected {
		if !errors.Is(rejected.Err, mongosink.ErrInvalidDocument) {
			t.Errorf("rejected: %v", rejected.Err)
		}
	}
}

// Events of others are JSON as before: no names with dots or dollar signs, and no BSON
// without its content type.
func TestOthersAreNotExtendedJSON(t *testing.T) {
	r := newRig(t)
	s := r.open(mongosink.Options{}, source())
	unlabeled, malformed := put("c", 3, `{}`), put("d", 4, `{}`)
	unlabeled.Doc = []byte{5, 0, 0, 0, 0}
	malformed.Doc, malformed.Event.Headers = []byte{6, 0, 0, 0, 0}, map[string]string{jetbus.HeaderContentType: "application/bson"}
	trailing := put("e", 5, `{}`)
	trailing.Doc, trailing.Event.Headers = json.RawMessage(`{"a":1} {`), map[string]string{"x-mongo-feed": "f"}
	out := r.write(s, put("a", 1, `{"at":{"$date":"2020-01-01T00:00:00Z"}}`), put("b", 2, `{"a.b":1}`), unlabeled, malformed, trailing)
	r.wantOutcome(out, 0, 0, 5)
	for _, rejected := range out.Rejected {
		if !errors.Is(rejected.Err, mongosink.ErrInvalidDocument) || strings.Contains(rejected.Err.Error(), "%!") {
			t.Errorf("rejected: %v", rejected.Err)
		}
	}
	if n, err := r.db.Collection("things").CountDocuments(t.Context(), bson.D{}); n > 0 || err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
		t.Errorf("%d documents, %v", n, err)
	}
}
