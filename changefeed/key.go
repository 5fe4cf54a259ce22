package changefeed

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/seed-63e9a637/jetbus"
)

const (
	idField    = "_id"
	hashedMark = "sha256:"
	objectHex  = 24 // digits of an ObjectID
)

// Key is the event key of a document with that _id. Different ids have different
// keys:
//
//   - an ObjectID is its 24 hexadecimal digits;
//   - a string is itself, unless it could be taken for one of the others: then it is
//     a JSON string with its quotation marks;
//   - anything else is canonical extended JSON, such as {"$numberInt":"7"};
//   - what is longer than a key may be is "sha256:" and the digest of that.
func Key(id bson.RawValue) string {
	key, plain := plainKey(id)
	if !plain {
		key = canonical(id)
	}
	if jetbus.ValidKey(key) != nil {
		sum := sha256.Sum256([]byte(key))
		key = hashedMark + hex.EncodeToString(sum[:])
	}
	return key
}

// plainKey returns the key of an id that has a short form.
func plainKey(id bson.RawValue) (key string, ok bool) {
	if oid, ok := id.ObjectIDOK(); ok {
		return oid.Hex(), true
	}
	s, ok := id.StringValueOK()
	if !ok {
		return "", false
	}
	if jetbus.ValidKey(s) != nil && len(s) <= jetbus.MaxKeyBytes || s == "" || isTaken(s) {
		text, err := json.Marshal(s)
		return string(text), err == nil
	}
	return s, true
}

// isTaken reports whether a string looks like the key of something else.
func isTaken(s string) bool {
	switch s {
	case "true", "false", "null":
		return true
	}
	if strings.HasPrefix(s, hashedMark) || strings.ContainsRune("{[\"", rune(s[0])) {
		return true
	}
	if len(s) != objectHex {
		return false
	}
	for _, c := range s {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// canonical is the canonical extended JSON of a value.
func canonical(v bson.RawValue) string {
	text, err := bson.MarshalExtJSON(bson.D{{Key: "v", Value: v}}, true, false)
	if err != nil { // a value that cannot be written has a text all the same
		return v.String()
	}
	return strings.TrimSuffix(strings.TrimPrefix(string(text), `{"v":`), "}")
}

// documentKey is the key of a change, and its id. In a sharded collection the
// fields of the shard key belong to it.
func documentKey(doc bson.Raw) (key string, id bson.RawValue) {
	id = doc.Lookup(idField)
	if _, rest, ok := bsoncore.ReadLength(doc); ok {
		if _, rest, ok = bsoncore.ReadElement(rest); ok && len(rest) > 1 && doc.Validate() == nil {
			return Key(bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: doc}), id
		}
	}
	return Key(id), id
}
