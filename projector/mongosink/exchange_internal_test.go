package mongosink

import (
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// The server reports sort keys for the texts of an index with a collation, and says which index it
// is. The stand-in has no collations: these are the server's words.
func TestHolderInAnIndexWithACollation(t *testing.T) {
	listed, err := bson.Marshal(bson.D{{Key: "name", Value: "n"}, {Key: "collation", Value: bson.D{
		{Key: "locale", Value: "de"}, {Key: "strength", Value: int32(2)}, {Key: "numericOrdering", Value: true}, {Key: "version", Value: "57.1"},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	var german indexSpec
	if err := bson.Unmarshal(listed, &german); err != nil {
		t.Fatal(err)
	}
	marshal := func(d bson.D) bson.Raw {
		raw, err := bson.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	indexes := []indexSpec{{Name: "n_3"}, {Name: "n_2", Partial: marshal(bson.D{{Key: "active", Value: true}})}, german}
	body := bson.D{{Key: "in", Value: bson.D{{Key: "n", Value: "Ann"}}}}
	for _, tt := range []struct {
		name, message string
		body          bson.D
		merge         bool
		value         any
		want          string
		collation     options.Collation
	}{
		{"a collation", `E11000 duplicate key error collection: d.c index: n collation: { locale: "de" } dup key: { in.n: "0x2a" }`, body, false, "*", `{"in.n":{"$eq":"Ann"}}`, *german.Collation},
		{"a collation, merge", `E11000 duplicate key error collection: d.c index: n collation: { locale: "de" } dup key: { in.n: "0x2a" }`, bson.D{{Key: "$set", Value: body}}, true, "*", `{"in.n":{"$eq":"Ann"}}`, *german.Collation},
		{"a field that a merge keeps", `E11000 duplicate key error collection: d.c index: n collation: { locale: "de" } dup key: { in.n: "0x2a" }`, bson.D{{Key: "$set", Value: bson.D{}}}, true, "*", ``, options.Collation{}},
		{"partial", `E11000 duplicate key error collection: d.c index: n_2 dup key: { in.n: 1 }`, body, false, 1, `{"in.n":{"$eq":1},"$and":[{"active":true}]}`, options.Collation{Locale: "simple"}},
		{"plain", `E11000 duplicate key error collection: d.c index: n_3 dup key: { in.n: 1 }`, body, false, 1, `{"in.n":{"$eq":1}}`, options.Collation{Locale: "simple"}},
	} {
		c := collision{guarded: &guarded{body: marshal(tt.body), merge: tt.merge}, values: marshal(bson.D{{Key: "in.n", Value: tt.value}}), err: errors.New(tt.message)}
		filter, collation := c.holderFilter(indexes)
		if tt.want == "" {
			if filter != nil {
				t.Errorf("%s: filter %s", tt.name, asJSON(filter))
			}
			continue
		}
		if got := asJSON(filter); got != tt.want || *collation != tt.collation {
			t.Errorf("%s: filter %s, collation %+v, want %s, %+v", tt.name, got, *collation, tt.want, tt.collation)
		}
	}
	if c := german.Collation; c.Locale != "de" || c.Strength != 2 || !c.NumericOrdering {
		t.Errorf("the collation is %+v", *c)
	}
}
