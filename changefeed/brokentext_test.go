package changefeed_test

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/changefeed"
)

// MongoDB stores strings and names of fields that are not valid UTF-8.

// brokenIDs are different ids that have the same text once each invalid byte is
// replaced by U+FFFD, in MongoDB's order.
func brokenIDs() []any {
	long := strings.Repeat("x", jetbus.MaxKeyBytes)
	return []any{
		"a\x80", "a\xc3", "a\ufffd", "a\ufffd\xff", "a\xff", "a\xff\ufffd",
		"true\xfe", "true\xff", long + "\xfe", long + "\xff", "{\"" + long + "\xfe", "{\"" + long + "\xff",
		bson.D{{Key: "k", Value: "v\xfe"}},
		bson.D{{Key: "k", Value: "v\xff"}},
		bson.D{{Key: "k", Value: "v\ufffd"}},
		bson.D{{Key: "n\xfe", Value: 1}},
		bson.D{{Key: "n\xff", Value: 1}},
		bson.D{{Key: "in", Value: bson.A{"x\xfe", bson.D{{Key: "y", Value: bson.Regex{Pattern: "\xfe"}}}}}},
		bson.D{{Key: "in", Value: bson.A{"x\xfe", bson.D{{Key: "y", Value: bson.Regex{Pattern: "\xff"}}}}}},
		bson.JavaScript("f(\xfe)"), bson.JavaScript("f(\xff)"),
		bson.CodeWithScope{Code: "f()", Scope: bson.D{{Key: "s", Value: "\xfe"}}},
		bson.CodeWithScope{Code: "f()", Scope: bson.D{{Key: "s", Value: "\xff"}}},
		bson.Symbol("s\xfe"), bson.Symbol("s\xff"),
	}
}

func rawValue(t testing.TB, v any) bson.RawValue {
	t.Helper()
	doc, err := bson.Marshal(bson.D{{Key: "_id", Value: v}})
	if err != nil {
		t.Fatal(err)
	}
	return bson.Raw(doc).Lookup("_id")
}

// Ids have different keys, and a string with the bytes of another id has a key of its own.
func TestKeysOfBrokenText(t *testing.T) {
	seen := map[string]int{}
	ids := append(brokenIDs(), // the keys of sharded collections have such fields
		bson.D{{Key: "shard", Value: int32(7)}, {Key: "_id", Value: "a"}},
		bson.D{{Key: "shard", Value: bson.D{{Key: "$numberInt", Value: "7"}}}, {Key: "_id", Value: "a"}})
	for i, id := range ids {
		v := rawValue(t, id)
		key := changefeed.Key(v)
		if err := jetbus.ValidKey(key); err != nil {
			t.Errorf("id %d: %v", i, err)
		}
		if other, taken := seen[key]; taken {
			t.Errorf("%q and %q have the key %q", ids[other], id, key)
		}
		seen[key] = i
		imitation := rawValue(t, string(v.Type)+"\x00"+string(v.Value))
		if changefeed.Key(imitation) == key {
			t.Errorf("a string has the key of %q", id)
		}
	}
}

// FuzzKeysDiffer looks for two strings with one key, alone and inside a document.
func FuzzKeysDiffer(f *testing.F) {
	f.Add("a\xff", "a\ufffd")
	f.Add("\xfe", "\xff")
	f.Add(`"a\ufffd"`, "a\xff")
	f.Fuzz(func(t *testing.T, a, b string) {
		if a == b || len(a) > 1<<16 || len(b) > 1<<16 {
			return
		}
		inDocument := func(s string) any { return bson.D{{Key: "k", Value: s}} }
		for _, pair := range [][2]any{{a, b}, {inDocument(a), inDocument(b)}, {a, inDocument(b)}} {
			if key := changefeed.Key(rawValue(t, pair[0])); key == changefeed.Key(rawValue(t, pair[1])) {
				t.Errorf("%q and %q have the key %q", pair[0], pair[1], key)
			}
		}
	})
}

// A copy has each of these documents once and completes, and deletes take away one
// document each.
func TestCopyOfBrokenText(t *testing.T) {
	for _, batch := range []int{1, 1000} {
		t.Run(fmt.Sprint("batches of ", batch), func(t *testing.T) {
			r := newRig(t)
			ids := brokenIDs()
			for _, id := range ids {
				_, err := r.coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: id}})
				r.must(err)
			}
			o := r.options()
			o.Start, o.CopyBatch = changefeed.FromCopy(), batch
			f := r.start(o)
			r.must(f.Err())
			r.published(f)
			r.copiedOnce(len(ids))
			for n, id := range ids {
				_, err := r.coll.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: id}})
				r.must(err)
				r.until("the delete is published", func() bool { return len(r.events()) == len(ids)+2+n })
				if left := len(r.state()); left != len(ids)-n-1 {
					t.Fatalf("after the delete of %q the topic has %d keys, want %d", id, left, len(ids)-n-1)
				}
			}
		})
	}
}

// A copy that is interrupted resumes after each of these documents.
func TestCopyOfBrokenTextResumes(t *testing.T) {
	r := newRig(t)
	ids := brokenIDs()
	for _, id := range ids {
		_, err := r.coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: id}})
		r.must(err)
	}
	o := r.options()
	o.Start, o.CopyBatch, o.TokenStore = changefeed.FromCopy(), 1, forgetful{}
	for n := range len(ids) - 1 {
		taken := 0
		o.Filter = func(*changefeed.Change) bool {
			if taken++; taken > 1 {
				panic("enough")
			}
			return true
		}
		f := r.startOn(r.bus, o)
		r.until("the feed has failed", func() bool { return f.Status().State == changefeed.Failed })
		if got := len(r.events()); got != n+1 {
			t.Fatalf("%d events, want %d: %v", got, n+1, f.Err())
		}
	}
	o.Filter = nil
	r.published(r.start(o))
	r.copiedOnce(len(ids))
}
