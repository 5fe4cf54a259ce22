package mongosink

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/seed-63e9a637/jetbus/projector"
)

// maxDocument is the size of a document that MongoDB stores at most.
const maxDocument = 16 << 20

// errNoKey: a change without a key, which no document can have.
var errNoKey = fmt.Errorf("%w: the key is empty, has a NUL or is no UTF-8", ErrInvalidDocument)

// A guarded write is a change on its way to the server: it replaces what is older
// only.
type guarded struct {
	index     int // in the batch
	key       string
	created   int64 // when the stream was made, in nanoseconds since 1970
	seq       int64
	version   int64
	versioned bool
	deleted   bool
	filter    bson.Raw
	body      bson.Raw // the document, or the update of a merge
	merge     bool
	literal   bool // the body has fields that only a pipeline can write
	raced     bool // it was written again
}

// newGuarded makes the write of a change. An error says why it can never be stored.
func (w *writer) newGuarded(index int, c *projector.Change, now time.Time) (*guarded, error) {
	if c.Key == "" || !utf8.ValidString(c.Key) || containsNUL(c.Key) {
		return nil, errNoKey
	}
	if c.Event.Seq > math.MaxInt64 {
		return nil, invalid("sequence %d is no 64-bit integer", c.Event.Seq)
	}
	g := &guarded{
		index: index, key: c.Key, created: w.mark.src.Created.UnixNano(), seq: int64(c.Event.Seq),
		version: c.Version, versioned: c.Versioned, deleted: c.Deleted, merge: w.o.Merge && !c.Deleted,
	}
	g.filter = g.newFilter(w.mark.src.Stream)
	var err error
	g.body, err = w.newBody(g, c, now)
	if err != nil {
		return nil, err
	}
	if isOfFeed(c) && !c.Deleted { // other states cannot have such names
		if g.literal, err = needsPipeline(g.body, g.merge); err != nil {
			return nil, err
		}
	}
	if len(g.body) > maxDocument {
		return nil, fmt.Errorf("%w: it has %d bytes", ErrTooLarge, len(g.body))
	}
	return g, nil
}

// newBody makes the document that a change becomes, or the update of a merge.
func (w *writer) newBody(g *guarded, c *projector.Change, now time.Time) (bson.Raw, error) {
	start, b := bsoncore.AppendDocumentStart(make([]byte, 0, 256+payloadSize(c.Doc)))
	var set int32
	if g.merge {
		set, b = bsoncore.AppendDocumentElementStart(b, "$set")
	} else {
		b = bsoncore.AppendStringElement(b, "_id", g.key)
	}
	b = bsoncore.AppendStringElement(b, "_key", g.key)
	b = bsoncore.AppendInt64Element(b, "_seq", g.seq)
	if g.versioned {
		b = bsoncore.AppendInt64Element(b, "_v", g.version)
	}
	if !c.Event.Time.IsZero() {
		b = bsoncore.AppendDateTimeElement(b, "_ts", c.Event.Time.UnixMilli())
	}
	b = bsoncore.AppendStringElement(b, "_src", w.mark.src.Stream)
	b = bsoncore.AppendInt64Element(b, "_srcCreated", g.created)
	if c.Deleted {
		b = bsoncore.AppendBooleanElement(b, "_deleted", true)
		if w.o.TombstoneTTL != forever {
			b = bsoncore.AppendDateTimeElement(b, "_expireAt", now.Add(w.o.TombstoneTTL).UnixMilli())
		}
	} else {
		var err error
		if b, err = appendState(b, c); err != nil {
			return nil, err
		}
	}
	if g.merge { // the key may have been deleted
		b, _ = bsoncore.AppendDocumentEnd(b, set)
		var unset int32
		unset, b = bsoncore.AppendDocumentElementStart(b, "$unset")
		b = bsoncore.AppendStringElement(b, "_deleted", "")
		b = bsoncore.AppendStringElement(b, "_expireAt", "")
		b, _ = bsoncore.AppendDocumentEnd(b, unset)
	}
	b, err := bsoncore.AppendDocumentEnd(b, start)
	return b, err
}

// newFilter makes the guard: it matches the key's document if that is older, of the
// same source or of none. Where a stream was made anew under its name, sequences began
// anew as well: what is of the one before is older, whatever its sequence.
func (g *guarded) newFilter(stream string) bson.Raw {
	start, b := bsoncore.AppendDocumentStart(make([]byte, 0, 288+len(g.key)+len(stream)))
	b = bsoncore.AppendStringElement(b, "_id", g.key)
	b = appendOneOrNone(b, "_src", func(b []byte) []byte { return bsoncore.AppendStringElement(b, "0", stream) })
	// {$or: [{_srcCreated: {$lt: created}}, {_srcCreated: {$in: [created, null]}, ...}]}
	or, b := bsoncore.AppendArrayElementStart(b, "$or")
	e, b := bsoncore.AppendDocumentElementStart(b, "0")
	made, b := bsoncore.AppendDocumentElementStart(b, "_srcCreated")
	b = bsoncore.AppendInt64Element(b, "$lt", g.created)
	b, _ = bsoncore.AppendDocumentEnd(b, made)
	b, _ = bsoncore.AppendDocumentEnd(b, e)
	e, b = bsoncore.AppendDocumentElementStart(b, "1")
	// null: a document from before there was the field
	b = appendOneOrNone(b, "_srcCreated", func(b []byte) []byte { return bsoncore.AppendInt64Element(b, "0", g.created) })
	b = g.appendGuard(b)
	b, _ = bsoncore.AppendDocumentEnd(b, e)
	b, _ = bsoncore.AppendArrayEnd(b, or)
	b, _ = bsoncore.AppendDocumentEnd(b, start)
	return b
}

// appendOneOrNone appends {name: {$in: [value, null]}}, where value appends the first
// element: it matches a document that lacks the field as well.
func appendOneOrNone(b []byte, name string, value func([]byte) []byte) []byte {
	field, b := bsoncore.AppendDocumentElementStart(b, name)
	in, b := bsoncore.AppendArrayElementStart(b, "$in")
	b = bsoncore.AppendNullElement(value(b), "1")
	b, _ = bsoncore.AppendArrayEnd(b, in)
	b, _ = bsoncore.AppendDocumentEnd(b, field)
	return b
}

// appendGuard appends what an older document of the same stream matches.
func (g *guarded) appendGuard(b []byte) []byte {
	if !g.versioned {
		return g.appendOlder(b)
	}
	// {$or: [{_v: null, _seq: ...}, {_v: {$lt: v}}, {_v: v, _seq: ...}]}
	or, b := bsoncore.AppendArrayElementStart(b, "$or")
	e, b := bsoncore.AppendDocumentElementStart(b, "0")
	b = bsoncore.AppendNullElement(b, "_v") // of a projection that had no versions
	b = g.appendOlder(b)
	b, _ = bsoncore.AppendDocumentEnd(b, e)
	e, b = bsoncore.AppendDocumentElementStart(b, "1")
	lt, b := bsoncore.AppendDocumentElementStart(b, "_v")
	b = bsoncore.AppendInt64Element(b, "$lt", g.version)
	b, _ = bsoncore.AppendDocumentEnd(b, lt)
	b, _ = bsoncore.AppendDocumentEnd(b, e)
	e, b = bsoncore.AppendDocumentElementStart(b, "2")
	b = bsoncore.AppendInt64Element(b, "_v", g.version)
	b = g.appendOlder(b)
	b, _ = bsoncore.AppendDocumentEnd(b, e)
	b, _ = bsoncore.AppendArrayEnd(b, or)
	return b
}

// appendOlder appends {_seq: {$not: {$gte: seq}}}, which matches a document without
// a sequence as well.
func (g *guarded) appendOlder(b []byte) []byte {
	seq, b := bsoncore.AppendDocumentElementStart(b, "_seq")
	not, b := bsoncore.AppendDocumentElementStart(b, "$not")
	b = bsoncore.AppendInt64Element(b, "$gte", g.seq)
	b, _ = bsoncore.AppendDocumentEnd(b, not)
	b, _ = bsoncore.AppendDocumentEnd(b, seq)
	return b
}

// needsPipeline reports whether only a pipeline can write a document. One reason is a top-level
// field whose name begins with $, as update operators do. The other is a Timestamp(0, 0) in a
// top-level field, which a replacement would set to the server's time. A merge writes such a
// timestamp as it is. In a merge a name with $ is an error, and so are a name with a dot, which
// would be a path, and two fields with one name.
func needsPipeline(body bson.Raw, merge bool) (bool, error) {
	if merge {
		body = body.Lookup("$set").Document()
	}
	elements, err := body.Elements()
	if err != nil {
		return false, err
	}
	seen := map[string]bool{}
	for _, e := range elements {
		name := e.Key()
		switch {
		case !merge:
			t, i, ok := e.Value().TimestampOK()
			if strings.HasPrefix(name, "$") || ok && t == 0 && i == 0 {
				return true, nil
			}
			continue
		case seen[name]:
			return false, errTwice(name)
		}
		if err := checkName([]byte(name), false); err != nil {
			return false, err
		}
		seen[name] = true
	}
	return false, nil
}

// model is the write as the driver takes it.
func (g *guarded) model() mongo.WriteModel {
	switch {
	case g.merge:
		return mongo.NewUpdateOneModel().SetFilter(g.filter).SetUpdate(g.body).SetUpsert(true)
	case g.literal:
		whole := bson.D{{Key: "$replaceWith", Value: bson.D{{Key: "$literal", Value: g.body}}}}
		return mongo.NewUpdateOneModel().SetFilter(g.filter).SetUpdate(mongo.Pipeline{whole}).SetUpsert(true)
	}
	return mongo.NewReplaceOneModel().SetFilter(g.filter).SetReplacement(g.body).SetUpsert(true)
}

// A mark is what the guards look at in a stored document.
type mark struct {
	foreign      string // what it comes from, if not from the sink's stream
	older, newer bool   // it comes from the stream as it was made before, or after
	seq, version int64
	hasSeq, hasV bool
}

// readMark reads the mark of a document for a sink of a stream that was made at a time.
func readMark(doc bson.Raw, stream string, created int64) mark {
	var m mark
	src, v := doc.Lookup("_src"), doc.Lookup("_v")
	m.seq, m.hasSeq = number(doc.Lookup("_seq"))
	m.version, m.hasV = number(v)
	if made, ok := number(doc.Lookup("_srcCreated")); ok {
		m.older, m.newer = made < created, made > created
	}
	switch {
	case src.IsZero(), src.Type == bson.TypeNull, src.Type == bson.TypeString && src.StringValue() == stream:
	default:
		m.foreign = "it comes from " + src.String()
	}
	if m.foreign == "" && !m.hasV && !v.IsZero() && v.Type != bson.TypeNull {
		m.foreign = "its _v is " + v.String()
	}
	return m
}

// number is a value as an integer.
func number(v bson.RawValue) (int64, bool) {
	switch v.Type {
	case bson.TypeInt64:
		return v.Int64(), true
	case bson.TypeInt32:
		return int64(v.Int32()), true
	case bson.TypeDouble:
		f := v.Double()
		return int64(math.Floor(max(-1<<53, min(f, 1<<53)))), !math.IsNaN(f)
	default:
		return 0, false
	}
}

// covers reports whether a document is as new as a change, or newer: what the guard
// of the change does not match.
func (m mark) covers(g *guarded) bool {
	if m.older {
		return false
	}
	if g.versioned && m.hasV && m.version != g.version {
		return m.version > g.version
	}
	return m.hasSeq && m.seq >= g.seq
}
