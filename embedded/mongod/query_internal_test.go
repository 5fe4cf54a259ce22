package mongod

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// parse is a value written as extended JSON.
func parse(t testing.TB, s string) any {
	t.Helper()
	var d bson.D
	if err := bson.UnmarshalExtJSON([]byte(`{"v": `+s+`}`), false, &d); err != nil {
		t.Fatalf("%s: %v", s, err)
	}
	return d[0].Value
}

func parseD(t testing.TB, s string) bson.D { t.Helper(); return asDoc(parse(t, s)) }

func errCode(err error) int32 {
	if e, ok := errors.AsType[*CommandError](err); ok {
		return e.Code
	}
	return 0
}

func TestMatch(t *testing.T) {
	for _, tt := range []struct {
		doc, filter string
		want        bool
	}{
		{`{"a": 1}`, `{"a": 1.0}`, true},
		{`{"a": 1}`, `{"a": {"$numberLong": "1"}}`, true},
		{`{"a": 1}`, `{"a": "1"}`, false},
		{`{"a": [1, 2]}`, `{"a": 2}`, true},
		{`{"a": [1, 2]}`, `{"a": [1, 2]}`, true},
		{`{"a": [1, 2]}`, `{"a": [2, 1]}`, false},
		{`{"a": {"b": 1}}`, `{"a.b": 1}`, true},
		{`{"a": [{"b": 1}, {"b": 2}]}`, `{"a.b": 2}`, true},
		{`{"a": [{"b": 1}, {"b": 2}]}`, `{"a.1.b": 1}`, false},
		{`{"a": {"b": 1, "c": 2}}`, `{"a": {"c": 2, "b": 1}}`, false},

		{`{}`, `{"a": null}`, true},
		{`{"a": null}`, `{"a": null}`, true},
		{`{"a": 1}`, `{"a": null}`, false},
		{`{"a": [{"b": 1}, {}]}`, `{"a.b": null}`, true},
		{`{}`, `{"a": {"$lte": null}}`, true},
		{`{}`, `{"a": {"$gte": null}}`, true},
		{`{"a": null}`, `{"a": {"$gte": null}}`, true},
		{`{}`, `{"a": {"$lt": null}}`, false},
		{`{"a": 1}`, `{"a": {"$lte": null}}`, false},
		{`{}`, `{"a": {"$ne": null}}`, false},
		{`{}`, `{"a": {"$exists": false}}`, true},
		{`{"a": null}`, `{"a": {"$exists": true}}`, true},

		{`{"a": 5}`, `{"a": {"$gt": 4, "$lt": 6}}`, true},
		{`{"a": "5"}`, `{"a": {"$gt": 4}}`, false},
		{`{"a": {"$numberDouble": "NaN"}}`, `{"a": {"$lt": 5}}`, false},
		{`{"a": {"$numberDouble": "NaN"}}`, `{"a": {"$gte": {"$numberDouble": "NaN"}}}`, true},
		{`{"a": "x"}`, `{"a": {"$gt": {"$minKey": 1}}}`, true},
		{`{"a": {"$numberLong": "9007199254740993"}}`, `{"a": {"$gt": {"$numberLong": "9007199254740992"}}}`, true},

		{`{"_id": "k"}`, `{"_id": "k", "_seq": {"$not": {"$gte": 5}}}`, true},
		{`{"_id": "k", "_seq": 4}`, `{"_id": "k", "_seq": {"$not": {"$gte": 5}}}`, true},
		{`{"_id": "k", "_seq": 5}`, `{"_id": "k", "_seq": {"$not": {"$gte": 5}}}`, false},

		{`{"a": 2}`, `{"a": {"$in": [1, 2]}}`, true},
		{`{"a": "bar"}`, `{"a": {"$in": [{"$regularExpression": {"pattern": "^b", "options": ""}}]}}`, true},
		{`{}`, `{"a": {"$in": [null]}}`, true},
		{`{"a": 2}`, `{"a": {"$nin": [1, 2]}}`, false},
		{`{"a": [1, 2, 3]}`, `{"a": {"$all": [1, 3]}}`, true},
		{`{"a": [1, 2, 3]}`, `{"a": {"$size": 3}}`, true},
		{`{"a": [{"b": 1, "c": 2}, {"b": 3}]}`, `{"a": {"$elemMatch": {"b": 3, "c": 2}}}`, false},
		{`{"a": [{"b": 1, "c": 2}]}`, `{"a": {"$elemMatch": {"b": 1, "c": 2}}}`, true},
		{`{"a": [1, 7]}`, `{"a": {"$elemMatch": {"$gt": 5, "$lt": 8}}}`, true},
		{`{"a": "Hello"}`, `{"a": {"$regex": "^he", "$options": "i"}}`, true},
		{`{"a": 5}`, `{"a": {"$type": "number"}}`, true},
		{`{"a": 5}`, `{"a": {"$type": 2}}`, false},
		{`{"a": 7}`, `{"a": {"$mod": [4, 3]}}`, true},
		{`{"a": 1, "b": 2}`, `{"$or": [{"a": 2}, {"b": 2}]}`, true},
		{`{"a": 1, "b": 2}`, `{"$nor": [{"a": 2}, {"b": 2}]}`, false},
		{`{"a": 1, "b": 2}`, `{"$and": [{"a": 1}, {"b": 2}]}`, true},
		{`{"a": 1, "b": 2}`, `{"$expr": {"$gt": ["$b", "$a"]}}`, true},
		{`{"a": 1, "b": 2}`, `{"$expr": {"$gt": ["$a", "$c"]}}`, true},
	} {
		got, err := match(parseD(t, tt.doc), parseD(t, tt.filter))
		if err != nil || got != tt.want {
			t.Errorf("match(%s, %s) = %v, %v, want %v", tt.doc, tt.filter, got, err, tt.want)
		}
	}
}

func TestMatchRefuses(t *testing.T) {
	for _, tt := range []struct {
		filter string
		code   int32
	}{
		{`{"$foo": 1}`, 2},
		{`{"a": {"$foo": 1}}`, 2},
		{`{"$or": []}`, 2},
		{`{"$or": [1]}`, 2},
		{`{"a": {"$in": 1}}`, 2},
		{`{"a": {"$not": 1}}`, 2},
		{`{"a": {"$size": -1}}`, 2},
		{`{"a": {"$mod": [0, 1]}}`, 2},
		{`{"a": {"$elemMatch": 1}}`, 2},
		{`{"a": {"$type": "what"}}`, 2},
		{`{"a": {"$regex": "("}}`, 51091},
		{`{"a": {"$near": [1, 2]}}`, 238},
		{`{"$where": "1"}`, 238},
		{`{"$expr": {"$foo": 1}}`, 168},
	} {
		if _, err := match(bson.D{}, parseD(t, tt.filter)); errCode(err) != tt.code {
			t.Errorf("filter %s: error %v, want code %d", tt.filter, err, tt.code)
		}
	}
}

func TestUpdate(t *testing.T) {
	for _, tt := range []struct {
		name, doc, update, want string
	}{
		{"set", `{"_id": 1}`, `{"$set": {"a.b": 1}}`, `{"_id":1,"a":{"b":1}}`},
		{"new fields are in the order of their paths", `{"_id": 1}`, `{"$set": {"z": 1, "b": 1}, "$inc": {"c": 1}, "$max": {"a": 1}}`, `{"_id":1,"a":1,"b":1,"c":1,"z":1}`},
		{"numeric paths by number", `{"_id": 1, "a": {}}`, `{"$set": {"a.10": 1, "a.9": 1}}`, `{"_id":1,"a":{"9":1,"10":1}}`},
		{"array index", `{"_id": 1, "a": [1]}`, `{"$set": {"a.2": 3}}`, `{"_id":1,"a":[1,null,3]}`},
		{"unset", `{"_id": 1, "a": {"b": 1, "c": 2}}`, `{"$unset": {"a.b": ""}}`, `{"_id":1,"a":{"c":2}}`},
		{"inc widens", `{"_id": 1, "a": 2147483647}`, `{"$inc": {"a": 1}}`, `{"_id":1,"a":2147483648}`},
		{"mul of nothing", `{"_id": 1}`, `{"$mul": {"a": 3}}`, `{"_id":1,"a":0}`},
		{"min and max", `{"_id": 1, "a": 5, "b": 5}`, `{"$min": {"a": 3}, "$max": {"b": 3}}`, `{"_id":1,"a":3,"b":5}`},
		{"rename", `{"_id": 1, "a": 1}`, `{"$rename": {"a": "b"}}`, `{"_id":1,"b":1}`},
		{"push", `{"_id": 1, "a": [3]}`, `{"$push": {"a": {"$each": [1, 2], "$sort": 1, "$slice": 2}}}`, `{"_id":1,"a":[1,2]}`},
		{"push at", `{"_id": 1, "a": [3]}`, `{"$push": {"a": {"$each": [1], "$position": 0}}}`, `{"_id":1,"a":[1,3]}`},
		{"add to set", `{"_id": 1, "a": [1]}`, `{"$addToSet": {"a": {"$each": [1, 2]}}}`, `{"_id":1,"a":[1,2]}`},
		{"pull by condition", `{"_id": 1, "a": [1, 5, 9]}`, `{"$pull": {"a": {"$gt": 4}}}`, `{"_id":1,"a":[1]}`},
		{"pull documents", `{"_id": 1, "a": [{"b": 1, "c": 1}, {"b": 2}]}`, `{"$pull": {"a": {"b": 1}}}`, `{"_id":1,"a":[{"b":2}]}`},
		{"pull all", `{"_id": 1, "a": [1, 2, 1]}`, `{"$pullAll": {"a": [1]}}`, `{"_id":1,"a":[2]}`},
		{"pop", `{"_id": 1, "a": [1, 2]}`, `{"$pop": {"a": -1}}`, `{"_id":1,"a":[2]}`},
		{"set on insert only", `{"_id": 1}`, `{"$setOnInsert": {"a": 1}}`, `{"_id":1}`},
		{"replacement keeps the id", `{"_id": 1, "a": 1}`, `{"b": 2}`, `{"_id":1,"b":2}`},
		{"pipeline", `{"_id": 1, "a": 2}`, `[{"$set": {"b": {"$add": ["$a", 1]}}}, {"$unset": "a"}]`, `{"_id":1,"b":3}`},
		{"guarded pipeline", `{"_id": 1, "v": 5, "x": 1}`, `[{"$replaceWith": {"$cond": [{"$gt": [4, "$v"]}, {"v": 4}, "$$ROOT"]}}]`, `{"_id":1,"v":5,"x":1}`},
	} {
		u, err := newUpdater(parse(t, tt.update))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		old := parseD(t, tt.doc)
		before := copyDoc(old)
		got, err := u.apply(old, false)
		if err != nil || jsonD(t, got) != tt.want {
			t.Errorf("%s: %s, %v, want %s", tt.name, jsonD(t, got), err, tt.want)
		}
		if !same(old, before) {
			t.Errorf("%s: changed the old document to %v", tt.name, old)
		}
	}
}

func jsonD(t testing.TB, d bson.D) string {
	t.Helper()
	j, err := bson.MarshalExtJSON(d, false, false)
	if err != nil {
		t.Fatal(err)
	}
	return string(j)
}

func TestUpdateRefuses(t *testing.T) {
	for _, tt := range []struct {
		doc, update string
		code        int32
	}{
		{`{"_id": 1}`, `{"$foo": {"a": 1}}`, 9},
		{`{"_id": 1}`, `{"$set": 1}`, 9},
		{`{"_id": 1}`, `{"a": 1, "$set": {"b": 1}}`, 52},
		{`{"_id": 1}`, `{"$set": {"_id": 2}}`, 66},
		{`{"_id": 1}`, `{"_id": 2}`, 66},
		{`{"_id": 1}`, `{"$set": {"a": 1}, "$inc": {"a": 1}}`, 40},
		{`{"_id": 1}`, `{"$set": {"a": 1, "a.b": 1}}`, 40},
		{`{"_id": 1}`, `{"$rename": {"a": "b"}, "$set": {"b": 1}}`, 40},
		{`{"_id": 1, "a": "x"}`, `{"$inc": {"a": 1}}`, 14},
		{`{"_id": 1}`, `{"$inc": {"a": "x"}}`, 14},
		{`{"_id": 1, "a": 1}`, `{"$push": {"a": 1}}`, 2},
		{`{"_id": 1, "a": 1}`, `{"$set": {"a.b": 1}}`, 28},
		{`{"_id": 1, "a": []}`, `{"$set": {"a.b": 1}}`, 28},
		{`{"_id": 1}`, `{"$set": {"a.$.b": 1}}`, 238},
		{`{"_id": 1}`, `{"$set": {"a..b": 1}}`, 56},
		{`{"_id": 1}`, `[{"$match": {}}]`, 72},
		{`{"_id": 1}`, `[{"$set": {"_id": 2}}]`, 66},
	} {
		u, err := newUpdater(parse(t, tt.update))
		if err == nil {
			_, err = u.apply(parseD(t, tt.doc), false)
		}
		if errCode(err) != tt.code {
			t.Errorf("%s on %s: error %v, want code %d", tt.update, tt.doc, err, tt.code)
		}
	}
}

func TestUpsertSeed(t *testing.T) {
	for _, tt := range []struct{ filter, want string }{
		{`{"_id": "k", "_seq": {"$not": {"$gte": 5}}}`, `{"_id":"k"}`},
		{`{"b": 1, "a": {"$eq": 2}}`, `{"b":1,"a":2}`},
		{`{"$and": [{"a": 1}, {"b.c": 2}]}`, `{"a":1,"b":{"c":2}}`},
		{`{"$or": [{"a": 1}]}`, `{"a":1}`},
		{`{"$or": [{"a": 1}, {"b": 1}]}`, `{}`},
		{`{"a": {"$in": [3]}}`, `{"a":3}`},
		{`{"a": {"$gt": 3}}`, `{}`},
	} {
		got, err := upsertSeed(parseD(t, tt.filter), bson.D{})
		if err != nil || jsonD(t, got) != tt.want {
			t.Errorf("%s: %s, %v, want %s", tt.filter, jsonD(t, got), err, tt.want)
		}
	}
	if _, err := upsertSeed(parseD(t, `{"a": 1, "$and": [{"a": 2}]}`), bson.D{}); errCode(err) != 54 {
		t.Errorf("a field matched twice: %v", err)
	}
}

func TestPipeline(t *testing.T) {
	docs := []bson.D{
		parseD(t, `{"_id": 1, "k": "a", "n": 1, "l": [1, 2]}`),
		parseD(t, `{"_id": 2, "k": "b", "n": 2, "l": []}`),
		parseD(t, `{"_id": 3, "k": "a", "n": 3}`),
	}
	for _, tt := range []struct{ pipeline, want string }{
		{`[{"$match": {"k": "a"}}, {"$project": {"n": 1}}]`, `{"_id":1,"n":1}{"_id":3,"n":3}`},
		{`[{"$sort": {"k": -1, "n": -1}}, {"$limit": 2}, {"$project": {"_id": 1}}]`, `{"_id":2}{"_id":3}`},
		{`[{"$skip": 1}, {"$project": {"l": 0, "n": 0, "_id": 0}}]`, `{"k":"b"}{"k":"a"}`},
		{
			`[{"$group": {"_id": "$k", "n": {"$sum": "$n"}, "c": {"$sum": 1}, "max": {"$max": "$n"}, "avg": {"$avg": "$n"}, "all": {"$push": "$n"}}}]`,
			`{"_id":"a","n":4,"c":2,"max":3,"avg":2.0,"all":[1,3]}{"_id":"b","n":2,"c":1,"max":2,"avg":2.0,"all":[2]}`,
		},
		{`[{"$count": "n"}]`, `{"n":3}`},
		{`[{"$unwind": "$l"}, {"$project": {"l": 1}}]`, `{"_id":1,"l":1}{"_id":1,"l":2}`},
		{`[{"$unwind": {"path": "$l", "preserveNullAndEmptyArrays": true}}, {"$count": "n"}]`, `{"n":4}`},
		{`[{"$limit": 1}, {"$addFields": {"x.y": {"$concat": ["$k", "!"]}, "l": "$$REMOVE"}}]`, `{"_id":1,"k":"a","n":1,"x":{"y":"a!"}}`},
		{`[{"$limit": 1}, {"$replaceRoot": {"newRoot": {"$mergeObjects": [{"a": 1}, {"n": "$n"}]}}}]`, `{"a":1,"n":1}`},
		{`[{"$limit": 1}, {"$project": {"t": {"$toString": "$n"}, "m": {"$ifNull": ["$zz", "none"]}}}]`, `{"_id":1,"t":"1","m":"none"}`},
	} {
		p, err := newPipeline(asArray(parse(t, tt.pipeline)), forRead)
		if err != nil {
			t.Errorf("%s: %v", tt.pipeline, err)
			continue
		}
		out, err := runPipeline(docs, p)
		var b strings.Builder
		for _, d := range out {
			b.WriteString(jsonD(t, d))
		}
		if got := b.String(); err != nil || got != tt.want {
			t.Errorf("%s: %s, %v, want %s", tt.pipeline, got, err, tt.want)
		}
	}
}

func TestPipelineRefuses(t *testing.T) {
	for _, tt := range []struct {
		pipeline string
		use      use
		code     int32
	}{
		{`[{"$foo": 1}]`, forRead, 40324},
		{`[{"$match": {}, "$sort": {}}]`, forRead, 40323},
		{`[{"$lookup": {}}]`, forRead, 238},
		{`[{"$match": {}}, {"$changeStream": {}}]`, forRead, 40602},
		{`[{"$sort": {"a": 1}}]`, forChangeStream, 20},
		{`[{"$out": "x"}]`, forChangeStream, 20},
		{`[{"$changeStreamSplitLargeEvent": {}}, {"$match": {}}]`, forChangeStream, 7182802},
		{`[{"$sort": {"a": 2}}]`, forRead, 15975},
		{`[{"$limit": 0}]`, forRead, 2107201},
		{`[{"$project": {"a": 1, "b": 0}}]`, forRead, 31254},
		{`[{"$group": {"n": {"$sum": 1}}}]`, forRead, 15955},
		{`[{"$group": {"_id": 1, "n": {"$stdDevPop": 1}}}]`, forRead, 15952},
	} {
		if _, err := newPipeline(asArray(parse(t, tt.pipeline)), tt.use); errCode(err) != tt.code {
			t.Errorf("%s: error %v, want code %d", tt.pipeline, err, tt.code)
		}
	}
}

func TestDescribe(t *testing.T) {
	d := describe(
		parseD(t, `{"_id": 1, "a": 1, "b": {"c": 1, "d": 2}, "l": [1, 2, 3], "x": {"0": 1}}`),
		parseD(t, `{"_id": 1, "b": {"c": 2, "d": 2}, "l": [1, 9], "n": {"m": 1}, "x": {"0": 2}}`),
	)
	if got, want := jsonD(t, d.updated), `{"b.c":2,"l.1":9,"n":{"m":1},"x.0":2}`; got != want {
		t.Errorf("updated %s, want %s", got, want)
	}
	if len(d.removed) != 1 || d.removed[0] != "a" {
		t.Errorf("removed %v", d.removed)
	}
	if got, want := jsonD(t, bson.D{{Key: "t", Value: d.truncated}}), `{"t":[{"field":"l","newSize":2}]}`; got != want {
		t.Errorf("truncated %s, want %s", got, want)
	}
	if got, want := jsonD(t, d.ambiguous), `{"x.0":["x","0"]}`; got != want {
		t.Errorf("ambiguous %s, want %s", got, want)
	}
}

// TestKeys checks that values are equal as keys if and only if they compare so.
func TestKeys(t *testing.T) {
	values := []any{
		nil, int32(1), int64(1), 1.0, 1.5, "1", "",
		bson.D{},
		bson.D{{Key: "a", Value: int32(1)}},
		bson.D{{Key: "a", Value: 1.0}},
		bson.A{},
		bson.A{int32(1)},
		bson.A{int32(1), int32(2)},
		bson.A{bson.A{int32(1)}, int32(2)},
		true, false, bson.DateTime(1),
		bson.Timestamp{T: 1},
		bson.ObjectID{},
		bson.Binary{Data: []byte("1")},
		bson.Binary{Subtype: 4, Data: []byte("1")},
		bson.MinKey{},
		bson.MaxKey{},
		bson.Regex{Pattern: "a"},
		bson.D{{Key: "a", Value: "s1:b"}},
		bson.D{{Key: "as", Value: "1:b"}},
		int64(1) << 60, bson.JavaScript("x"),
	}
	for i, a := range values {
		for j, b := range values {
			equal := compare(a, b) == 0
			if (keyOf(a) == keyOf(b)) != equal {
				t.Errorf("%#v and %#v: keys %q and %q, compare %d", a, b, keyOf(a), keyOf(b), compare(a, b))
			}
			if compare(a, b) != -compare(b, a) {
				t.Errorf("%d and %d do not compare the same both ways", i, j)
			}
		}
	}
}

// FuzzWire checks that no message makes the parser fail in another way than by an
// error, and that what it lets pass can be written again.
func FuzzWire(f *testing.F) {
	message := func(op uint32, body []byte) []byte {
		b := make([]byte, 16, 16+len(body))
		binary.LittleEndian.PutUint32(b, uint32(16+len(body)))
		binary.LittleEndian.PutUint32(b[12:], op)
		return append(b, body...)
	}
	raw, err := bson.Marshal(bson.D{{Key: "ping", Value: 1}, {Key: "$db", Value: "d"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(message(opMsg, append([]byte{0, 0, 0, 0, 0}, raw...)))
	f.Add(message(opMsg, append(append([]byte{0, 0, 0, 0, 1, byte(len(raw) + 6), 0, 0, 0, 'd', 0}, raw...), append([]byte{0}, raw...)...)))
	f.Add(message(opQuery, append([]byte("\x00\x00\x00\x00admin.$cmd\x00\x00\x00\x00\x00\x01\x00\x00\x00"), raw...)))
	f.Add(message(opMsg, []byte{0, 0, 0, 0, 1, 5, 0, 0, 0}))
	f.Add([]byte{255, 255, 255, 127})
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := readCommand(bytes.NewReader(b))
		if err != nil {
			return
		}
		if c.name == "" && len(c.body) == 0 {
			t.Fatal("a command without a body")
		}
		if err := writeReply(&bytes.Buffer{}, c, 1, bson.D{{Key: "echo", Value: c.body}}); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzMatch checks that filters, updates and projections of any shape are
// answered, and that $not is the opposite.
func FuzzMatch(f *testing.F) {
	for _, s := range []string{
		`{"a": {"$gt": 1}}`, `{"$or": [{"a.b": {"$elemMatch": {"c": 1}}}]}`, `{"a": {"$in": [1, null]}}`, `{"$expr": {"$add": ["$a", 1]}}`,
		`{"$set": {"a.0.b": 1}, "$push": {"c": {"$each": [1], "$slice": -1}}}`, `{"a.b": 1, "c": {"$concat": ["$a", "x"]}}`, `{"a": {"$size": 1.5}}`,
	} {
		f.Add(s, `{"_id": 1, "a": [{"b": 1}, 2, null], "c": [1]}`)
	}
	f.Fuzz(func(t *testing.T, spec, doc string) {
		var d, q bson.D
		if bson.UnmarshalExtJSON([]byte(doc), false, &d) != nil || bson.UnmarshalExtJSON([]byte(spec), false, &q) != nil {
			return
		}
		before := copyDoc(d)
		if ok, err := match(d, q); err == nil {
			if not, err := match(d, bson.D{{Key: "$nor", Value: bson.A{q}}}); err != nil || not == ok {
				t.Fatalf("%s on %s: %v, negated %v, %v", spec, doc, ok, not, err)
			}
		}
		if u, err := newUpdater(q); err == nil {
			_, _ = u.apply(d, true)
		}
		if p, err := newProjection(q); err == nil {
			_, _ = p.apply(d)
		}
		_, _ = evaluate(q, d)
		if !same(d, before) {
			t.Fatalf("%s changed %s to %v", spec, doc, d)
		}
	})
}

// FuzzDecode compares the decoder with that of the driver.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		`{"a": 1, "b": "x", "c": [1, {"d": null}], "e": {"$numberDouble": "NaN"}, "f": {"$binary": {"base64": "AQI=", "subType": "02"}}}`,
		`{"a": {"$oid": "000000000000000000000001"}, "b": {"$date": {"$numberLong": "5"}}, "c": {"$timestamp": {"t": 1, "i": 2}}, "d": {"$numberLong": "5"}}`,
		`{"a": {"$code": "x", "$scope": {"b": 1}}, "b": {"$code": "x"}, "c": {"$symbol": "x"}, "d": {"$dbPointer": {"$ref": "x", "$id": {"$oid": "000000000000000000000001"}}}}`,
		`{"a": {"$numberDecimal": "1.5"}, "b": {"$minKey": 1}, "c": {"$maxKey": 1}, "d": {"$undefined": true}, "e": true, "f": {"$regularExpression": {"pattern": "x", "options": "i"}}}`,
	} {
		raw, err := bson.Marshal(parseD(f, s))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
		f.Add(raw[:len(raw)-1])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d, rest, err := parseDoc(b)
		if err != nil {
			return
		}
		var want bson.D
		if err := bson.Unmarshal(b[:len(b)-len(rest)], &want); err != nil {
			t.Fatalf("passes %x: %v", b, err)
		}
		if len(d) != 0 && !same(d, want) {
			t.Fatalf("%x is %#v, want %#v", b, d, want)
		}
	})
}
