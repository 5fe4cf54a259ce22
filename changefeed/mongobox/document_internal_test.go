package mongobox

import (
	"bytes"
	"math"
	"reflect"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-63e9a637/jetbus"
)

// TestRef reads what it writes, whatever an _id is, and nothing else.
func TestRef(t *testing.T) {
	for _, id := range []any{
		bson.NewObjectID(), "order-7", "", `{"_id":1}`, int32(7), int64(7), 7.5, true, bson.NewDateTimeFromTime(time.Now()),
		bson.Binary{Subtype: 4, Data: make([]byte, 16)},
		bson.D{{Key: "a", Value: int32(1)}, {Key: "b", Value: "c"}},
		bson.RawValue{Type: bson.TypeString, Value: []byte("\x02\x00\x00\x00\xff\x00")},
		math.Inf(1), math.NaN(),
		bson.Decimal128{},
	} {
		raw, err := bson.Marshal(bson.D{{Key: "_id", Value: id}})
		if err != nil {
			t.Fatal(err)
		}
		ref := refOf(bson.Raw(raw).Lookup("_id"))
		if got, ok := idOf(ref); !ok {
			t.Errorf("%#v became %s, which is not a Ref", id, ref)
		} else if again, err := bson.Marshal(bson.D{{Key: "_id", Value: got}}); err != nil || !bytes.Equal(raw, again) {
			t.Errorf("%#v became %s and then %#v, %v", id, ref, got, err)
		}
	}
	for _, ref := range []string{"", "7", "x", "{", `{"_id":1,"a":2}`, "{}", `{"_id":`, "bson:", "bson:xx", "bson:02", "bson:0200", "507f1f77bcf86cd79943901"} {
		if id, ok := idOf(ref); ok {
			t.Errorf("%q is %v", ref, id)
		}
	}
}

// FuzzRow reads any document without a panic; what it has no error for comes through a
// row again as it was.
func FuzzRow(f *testing.F) {
	seed := func(d bson.D) {
		raw, err := bson.Marshal(d)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	seed(bson.D{})
	seed(newDocument(bson.NewObjectID(), &jetbus.Event{
		ID: "1", Topic: "orders", Key: "a", SID: "till", Time: time.UnixMilli(1), Headers: map[string]string{"x-a": "b"},
		Payload: []byte("{}"), CausedBy: []string{"0"}, Tags: []string{"t"},
	}))
	seed(bson.D{{Key: "id", Value: 1}, {Key: "headers", Value: bson.A{"a"}}, {Key: "tags", Value: bson.A{1}}, {Key: "pos", Value: "x"}, {Key: "due_at", Value: bson.NewDateTimeFromTime(time.UnixMilli(7))}})
	f.Fuzz(func(t *testing.T, data []byte) {
		raw := bson.Raw(data)
		if raw.Validate() != nil {
			return
		}
		row := readRow(raw, time.UnixMilli(5))
		_ = readPlace(raw)
		if row.Err != nil {
			return
		}
		again, err := bson.Marshal(newDocument(bson.NewObjectID(), &row.Event))
		if err != nil {
			return // a string that is no UTF-8
		}
		if e, err := readEvent(again); err != nil || !equal(e, row.Event) {
			t.Errorf("%+v became %+v, %v", row.Event, e, err)
		}
	})
}

// equal compares events, in which nil and empty mean the same.
func equal(a, b jetbus.Event) bool {
	for _, e := range []*jetbus.Event{&a, &b} {
		if len(e.Headers) == 0 {
			e.Headers = nil
		}
		if len(e.Payload) == 0 {
			e.Payload = nil
		}
		if len(e.CausedBy) == 0 {
			e.CausedBy = nil
		}
		if len(e.Tags) == 0 {
			e.Tags = nil
		}
	}
	return reflect.DeepEqual(a, b)
}
