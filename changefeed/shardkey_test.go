package changefeed

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// A document that is copied has the key that its changes have.
func TestShardKey(t *testing.T) {
	doc, err := bson.Marshal(bson.D{
		{Key: "_id", Value: int32(7)}, {Key: "region", Value: "eu"}, {Key: "at", Value: bson.D{{Key: "zip", Value: "1010"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		shardKey []string
		document string
		key      string
	}{
		{nil, `{"_id":7}`, `{"$numberInt":"7"}`},
		{[]string{"_id"}, `{"_id":7}`, `{"$numberInt":"7"}`},
		{[]string{"region"}, `{"region":"eu","_id":7}`, `{"region":"eu","_id":{"$numberInt":"7"}}`},
		{[]string{"at.zip", "region"}, `{"at.zip":"1010","region":"eu","_id":7}`, `{"at.zip":"1010","region":"eu","_id":{"$numberInt":"7"}}`},
		{[]string{"_id", "region"}, `{"_id":7,"region":"eu"}`, `{"_id":{"$numberInt":"7"},"region":"eu"}`},
		{[]string{"none"}, `{"_id":7}`, `{"$numberInt":"7"}`},
	} {
		got, err := keyOf(doc, c.shardKey)
		if err != nil {
			t.Fatal(err)
		}
		text, err := bson.MarshalExtJSON(got, false, false)
		if err != nil || string(text) != c.document {
			t.Errorf("%v: %s, %v, want %s", c.shardKey, text, err, c.document)
		}
		if key, id := documentKey(got); key != c.key || id.Int32() != 7 {
			t.Errorf("%v: key %s of %v, want %s", c.shardKey, key, id, c.key)
		}
	}
}
