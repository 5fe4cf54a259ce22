package mongosink

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/projector"
)

// maxDepth is the maximum nesting of documents and arrays, as in MongoDB. MongoDB rejects a whole
// command with more than 200 levels.
const maxDepth = 180

// payloadSize is about how large a state is, to allocate for it.
func payloadSize(doc any) int {
	switch d := doc.(type) {
	case json.RawMessage:
		return len(d) * 5 / 4
	case bson.Raw:
		return len(d)
	case []byte:
		return len(d)
	}
	return 256
}

// Headers that mark an event as a MongoDB document. headerFeed is changefeed.HeaderFeed.
const (
	headerFeed = "x-mongo-feed"
	typeBSON   = "application/bson"
)

// isOfFeed reports whether a change feed published the event of a change.
func isOfFeed(c *projector.Change) bool { return c.Event.Headers[headerFeed] != "" }

// appendState appends the fields of a state to a document. The state is JSON, BSON, or a
// value that the driver can marshal to a document. In an event of a change feed, JSON is
// extended JSON, and fields keep the names of their source. Errors wrap ErrInvalidDocument
// or ErrTooLarge.
func appendState(b []byte, c *projector.Change) ([]byte, error) {
	fromFeed := isOfFeed(c)
	var raw bson.Raw
	var err error
	switch d := c.Doc.(type) {
	case nil:
		return nil, invalid("there is none")
	case json.RawMessage:
		if !fromFeed {
			return appendJSON(b, d)
		}
		raw, err = extended(d)
	case []byte:
		if t := c.Event.Headers[jetbus.HeaderContentType]; t != typeBSON {
			return nil, invalid("the content type is %q, use %s or JSON", t, typeBSON)
		}
		raw = d
	case bson.Raw:
		raw = d
	default:
		raw, err = marshal(d)
	}
	if err != nil {
		return nil, err
	}
	return appendFields(b, raw, fromFeed)
}

// extended converts extended JSON to a document.
func extended(payload []byte) (raw bson.Raw, err error) {
	if !json.Valid(payload) {
		return nil, invalid("the payload is not valid JSON")
	}
	if err := bson.UnmarshalExtJSON(payload, false, &raw); err != nil {
		return nil, invalid("extended JSON: %v", err)
	}
	return raw, nil
}

// marshal converts a value to a document. Marshalers are the caller's code: a panic in one
// becomes an error.
func marshal(doc any) (raw bson.Raw, err error) {
	defer func() {
		if r := recover(); r != nil {
			raw, err = nil, invalid("%T: panic: %v", doc, r)
		}
	}()
	raw, err = bson.Marshal(doc)
	if err != nil {
		return nil, invalid("%T: %v", doc, err)
	}
	return raw, nil
}

// appendFields appends the fields of a document, except for the sink's own fields. asStored
// allows everything that MongoDB stores.
func appendFields(b []byte, doc bson.Raw, asStored bool) ([]byte, error) {
	if err := doc.Validate(); err != nil {
		return nil, invalid("%v", err)
	}
	elements, err := doc.Elements()
	if err != nil {
		return nil, invalid("%v", err)
	}
	seen := make(map[string]struct{}, len(elements))
	for _, e := range elements {
		keep, err := checkTop([]byte(e.Key()), asStored)
		if err != nil {
			return nil, err
		}
		if _, again := seen[e.Key()]; again && !asStored {
			return nil, errTwice(e.Key())
		}
		seen[e.Key()] = struct{}{}
		if err := checkValue(e.Value(), 1, asStored); err != nil {
			return nil, err
		}
		if keep {
			b = append(b, e...)
		}
	}
	return b, nil
}

// checkValue checks the names of fields and the texts within a value, and how deep it is.
func checkValue(v bson.RawValue, depth int, asStored bool) error {
	if depth > maxDepth {
		return invalid("it is nested deeper than %d levels", maxDepth)
	}
	switch v.Type {
	case bson.TypeEmbeddedDocument, bson.TypeArray:
	case bson.TypeString, bson.TypeSymbol, bson.TypeJavaScript:
		if s, _, ok := bsoncore.ReadString(v.Value); !ok || !asStored && !utf8.ValidString(s) {
			return invalid("a text is no UTF-8")
		}
		return nil
	default:
		return nil
	}
	elements, err := bson.Raw(v.Value).Elements()
	if err != nil {
		return invalid("%v", err)
	}
	for _, e := range elements {
		if v.Type == bson.TypeEmbeddedDocument {
			if err := checkName([]byte(e.Key()), asStored); err != nil {
				return err
			}
		}
		if err := checkValue(e.Value(), depth+1, asStored); err != nil {
			return err
		}
	}
	return nil
}

// checkTop checks the name of a field of the state, and says whether it is stored:
// _id and _deleted are said by the key and by what the event means.
func checkTop(name []byte, asStored bool) (keep bool, err error) {
	if len(name) > 0 && name[0] == '_' {
		switch string(name) {
		case "_id", "_deleted":
			return false, nil
		case "_key", "_seq", "_v", "_ts", "_src", "_srcCreated", "_expireAt":
			return false, invalid("field %s is the sink's own", name)
		}
	}
	return true, checkName(name, asStored)
}

// checkName refuses field names that MongoDB does not store and, unless asStored is set,
// names that it stores but cannot query, or that are not valid UTF-8.
func checkName(name []byte, asStored bool) error {
	switch {
	case asStored && bytes.IndexByte(name, 0) < 0:
		return nil
	case len(name) == 0:
		return invalid("the name of a field is empty")
	case name[0] == '$':
		return invalid("the name of field %q begins with $", name)
	case bytes.IndexByte(name, '.') >= 0:
		return invalid("the name of field %q has a dot", name)
	case bytes.IndexByte(name, 0) >= 0:
		return invalid("the name of field %q has a NUL", name)
	case !utf8.Valid(name):
		return invalid("the name of field %q is no UTF-8", name)
	}
	return nil
}

func errTwice(name string) error { return invalid("field %q is there twice", name) }

func containsNUL(s string) bool { return strings.IndexByte(s, 0) >= 0 }

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalidDocument}, args...)...)
}
