package changefeed

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/seed-63e9a637/jetbus"
)

const (
	idField    = "_id"
	hashedMark = "sha256:"
	bytesMark  = "bson:" // precedes the bytes of an _id in base64; JSON never begins with it
	objectHex  = 24      // digits of an ObjectID
)

// Key returns the event key of a document with that _id. Different IDs have different keys:
//
//   - an ObjectID becomes its 24 hexadecimal digits;
//   - a string remains as it is, unless it looks like one of the other forms: then it becomes
//     a JSON string with quotation marks;
//   - any other value becomes canonical extended JSON, such as {"$numberInt":"7"};
//   - a text longer than the maximum key length becomes "sha256:" and its digest;
//   - an ID that extended JSON does not preserve, such as one with text that is not valid UTF-8
//     or a regular expression whose options are not sorted, becomes "sha256:" and the digest of
//     its bytes.
func Key(id bson.RawValue) string {
	key, plain := plainKey(id)
	if !plain {
		key = exactText(id)
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
		if !utf8.ValidString(s) { // JSON would replace the invalid bytes
			return "", false
		}
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

// exactText returns a text that no other value has. It is canonical extended JSON; for values
// that extended JSON cannot express, it is a brace and the bytes of the value. That form has
// NULs, which JSON never has, and begins with a brace, as no string does that is hashed
// unquoted (see isTaken).
func exactText(v bson.RawValue) string {
	if text, ok := canonical(v); ok {
		return text
	}
	return "{" + string(wrapped(v))
}

// wrapped returns the document that has the value as its only field.
func wrapped(v bson.RawValue) []byte {
	return bsoncore.BuildDocument(nil, bsoncore.AppendValueElement(nil, "v", bsoncore.Value{Type: bsoncore.Type(v.Type), Data: v.Value}))
}

// canonical returns the canonical extended JSON of a value. ok is false if another value has
// the same text: JSON replaces invalid UTF-8, field names may equal the names with which
// extended JSON marks types, and it does not preserve all regular expressions and binaries.
func canonical(v bson.RawValue) (text string, ok bool) {
	if !isExact(bsoncore.Value{Type: bsoncore.Type(v.Type), Data: v.Value}) {
		return "", false
	}
	b, err := bson.MarshalExtJSON(bson.D{{Key: "v", Value: v}}, true, false)
	return strings.TrimSuffix(strings.TrimPrefix(string(b), `{"v":`), "}"), err == nil
}

// isExact reports whether canonical extended JSON preserves the whole value.
func isExact(v bsoncore.Value) bool {
	texts, docs, ok := []string(nil), []bsoncore.Document(nil), true
	switch v.Type { //nolint:exhaustive // extended JSON preserves the other types
	case bsoncore.TypeString:
		s, valid := v.StringValueOK()
		texts, ok = []string{s}, valid
	case bsoncore.TypeSymbol:
		s, valid := v.SymbolOK()
		texts, ok = []string{s}, valid
	case bsoncore.TypeJavaScript:
		s, valid := v.JavaScriptOK()
		texts, ok = []string{s}, valid
	case bsoncore.TypeRegex:
		pattern, flags, valid := v.RegexOK()
		texts, ok = []string{pattern, flags}, valid && slices.IsSorted([]rune(flags)) // extended JSON sorts them
	case bsoncore.TypeBinary:
		ok = isExactBinary(v.Data)
	case bsoncore.TypeDBPointer:
		ns, _, valid := v.DBPointerOK()
		texts, ok = []string{ns}, valid
	case bsoncore.TypeCodeWithScope:
		code, scope, valid := v.CodeWithScopeOK()
		texts, docs, ok = []string{code}, []bsoncore.Document{scope}, valid
	case bsoncore.TypeEmbeddedDocument, bsoncore.TypeArray:
		docs = []bsoncore.Document{v.Data}
	}
	if !ok || slices.ContainsFunc(texts, func(s string) bool { return !utf8.ValidString(s) }) {
		return false
	}
	for _, doc := range docs {
		elements, err := doc.Elements()
		if err != nil || slices.ContainsFunc(elements, func(e bsoncore.Element) bool {
			return !isExactName(e.Key()) || !isExact(e.Value())
		}) {
			return false
		}
	}
	return true
}

// isExactBinary reports whether extended JSON preserves a binary value. A value of subtype 2 has a
// second length, which extended JSON omits. The driver writes an empty one with that length as its
// content.
func isExactBinary(data []byte) bool {
	length, rest, ok := bsoncore.ReadLength(data)
	if !ok || len(rest) == 0 || rest[0] != bson.TypeBinaryBinaryOld {
		return ok
	}
	inner, _, ok := bsoncore.ReadLength(rest[1:])
	return ok && inner > 0 && inner == length-4
}

// isExactName reports whether a field with the name is still a field in extended JSON. In an
// _id, MongoDB accepts the three names of a DBRef, and no other name with a dollar sign.
func isExactName(name string) bool {
	return utf8.ValidString(name) && (!strings.HasPrefix(name, "$") || name == "$ref" || name == "$id" || name == "$db")
}

// idText returns an _id in the form of CopyProgress.After.
func idText(id bson.RawValue) string {
	if text, ok := canonical(id); ok {
		return text
	}
	return bytesMark + base64.StdEncoding.EncodeToString(wrapped(id))
}

// parseID parses a text that idText returned.
func parseID(text string) (bson.RawValue, error) {
	var doc bson.Raw
	var err error
	if encoded, ok := strings.CutPrefix(text, bytesMark); ok {
		doc, err = base64.StdEncoding.DecodeString(encoded)
	} else {
		err = bson.UnmarshalExtJSON([]byte(`{"v":`+text+`}`), true, &doc)
	}
	var id bson.RawValue
	if err == nil {
		id, err = doc.LookupErr("v")
	}
	if err == nil {
		err = doc.Validate()
	}
	if err != nil {
		return id, fmt.Errorf("%w: invalid _id %q in the position of a copy: %w", ErrStream, text, err)
	}
	return id, nil
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
