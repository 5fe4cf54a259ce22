package changefeed

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/seed-63e9a637/jetbus"
)

// Headers of the feed's events.
const (
	HeaderOp             = "x-mongo-op"              // the operation: insert, update, replace, delete, copy, or a control event
	HeaderClusterTime    = "x-mongo-cluster-time"    // seconds and counter, "1700000000.7"; not unique
	HeaderToken          = "x-mongo-token"           // the feed's position behind the event
	HeaderNamespace      = "x-mongo-ns"              // database.collection; a JSON string where a header cannot have the name
	HeaderFeed           = "x-mongo-feed"            // the feed's name
	HeaderTransaction    = "x-mongo-txn"             // of the changes of one transaction
	HeaderCollectionUUID = "x-mongo-collection-uuid" // with Options.Expanded
	HeaderOmitted        = "x-mongo-omitted"         // why the payload is not the document; see OmittedMissing
	HeaderCopy           = "x-mongo-copy"            // how far a copy is, in JSON; absent when none is under way
)

// Values of HeaderOmitted. The payload is the key of the document, or for OmittedUpdate the update
// description. A projection without a Map skips OmittedMissing, and dead-letters the others. A Map
// gets all of them, and must not take the payload for the document.
const (
	OmittedMissing  = "missing"  // the document of an update is gone; its delete follows
	OmittedNoImage  = "noImage"  // WhenAvailable: MongoDB has no image of the document
	OmittedUpdate   = "update"   // NoDocument: the event tells what the update changed
	OmittedOversize = "oversize" // KeyOnly: the event would be larger than the broker takes
)

// Operations that are no MongoDB's own.
const (
	OpCopy   = "copy"   // a document as the copy found it
	OpCopied = "copied" // control event: the copy is complete
	OpGap    = "gap"    // control event: changes are missing between what is before and behind it
)

// Operations of MongoDB's that mean more to a feed than to be published.
const (
	opInvalidate = "invalidate"
	opRename     = "rename"
)

// Change is one change as MongoDB tells it.
type Change struct {
	Op                   string // insert, update, replace, delete, copy; or drop, rename, dropDatabase, invalidate, gap, copied and others
	Database, Collection string
	Key                  string        // of the event; empty for what is about no document
	ID                   bson.RawValue // the document's _id
	DocumentKey          bson.Raw
	FullDocument         bson.Raw // nil: there is none
	Before               bson.Raw // nil: there is none
	UpdateDescription    bson.Raw // of an update
	ClusterTime          bson.Timestamp
	Token                Token
	Raw                  bson.Raw // the whole change event; nil for a copy, a gap and copied

	transaction string // that it belongs to; empty: none
	uuid        string // of the collection, where it is told
}

// isDocument reports whether the change is one of a document.
func (c *Change) isDocument() bool { return c.Key != "" }

// readChange reads a change event, which is not copied.
func (f *Feed) readChange(raw bson.Raw) (*Change, time.Time, error) {
	c := &Change{Raw: raw}
	at, err := c.readFields()
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("read a change event: %w", err)
	}
	if len(c.DocumentKey) > 0 {
		c.Key, c.ID = documentKey(c.DocumentKey)
		c.Key = f.scoped(c.Collection, c.Key)
	}
	if at.IsZero() {
		at = time.Unix(int64(c.ClusterTime.T), 0)
	}
	return c, at, nil
}

// readFields goes once through the fields of the change event, and returns its wall time.
func (c *Change) readFields() (at time.Time, err error) {
	var session []byte
	number, inTransaction := int64(0), false
	for _, rest, ok := bsoncore.ReadLength(c.Raw); ok && len(rest) > 1; {
		var element bsoncore.Element
		if element, rest, ok = bsoncore.ReadElement(rest); !ok {
			return at, bsoncore.NewInsufficientBytesError(c.Raw, rest)
		}
		value, err := element.ValueErr()
		if err != nil {
			return at, err
		}
		v, right := bson.RawValue{Type: bson.Type(value.Type), Value: value.Data}, true
		doc, _ := v.DocumentOK()            // null where a document is gone
		switch string(element.KeyBytes()) { // which is not copied for that
		case idField:
			c.Token, err = tokenOf(doc)
		case "operationType":
			c.Op, right = v.StringValueOK()
		case "clusterTime":
			c.ClusterTime.T, c.ClusterTime.I, right = v.TimestampOK()
		case "wallTime":
			at, right = v.TimeOK()
		case "ns":
			c.Database, _ = doc.Lookup("db").StringValueOK()
			c.Collection, _ = doc.Lookup("coll").StringValueOK()
		case "documentKey":
			c.DocumentKey = doc
		case "fullDocument":
			c.FullDocument = doc
		case "fullDocumentBeforeChange":
			c.Before = doc
		case "updateDescription":
			c.UpdateDescription = doc
		case "collectionUUID":
			if _, uuid, ok := v.BinaryOK(); ok {
				c.uuid = hex.EncodeToString(uuid)
			}
		case "txnNumber":
			number, inTransaction = v.Int64OK()
		case "lsid":
			_, session, _ = doc.Lookup("id").BinaryOK()
		}
		if err == nil && !right {
			err = fmt.Errorf("field %s is a %s", element.Key(), v.Type)
		}
		if err != nil {
			return at, err
		}
	}
	if inTransaction && session != nil {
		c.transaction = hex.EncodeToString(session) + "-" + strconv.FormatInt(number, 10)
	}
	if c.Token == "" {
		return at, fmt.Errorf("%s has no resume token", c.Raw)
	}
	return at, nil
}

// slashes escapes what would let the name of a collection go on into the key of a document.
var slashes = strings.NewReplacer("%", "%25", "/", "%2F")

// scoped is a key among those of all collections that are watched: different documents
// have different ones.
func (f *Feed) scoped(collection, key string) string {
	if f.o.Collection != "" {
		return key
	}
	if key = slashes.Replace(collection) + "/" + key; jetbus.ValidKey(key) != nil {
		sum := sha256.Sum256([]byte(key))
		key = hashedMark + hex.EncodeToString(sum[:])
	}
	return key
}

// event is what a change becomes, without Map.
func (f *Feed) event(c *Change, at time.Time) (jetbus.Event, error) {
	e := jetbus.Event{Topic: f.o.Topic, ID: f.eventID(string(c.Token)), Time: at, Key: c.Key, Headers: map[string]string{
		HeaderOp: c.Op, HeaderClusterTime: clusterTime(c.ClusterTime), HeaderFeed: f.o.Name, HeaderToken: string(c.Token),
	}}
	if ns := namespaceHeader(c); ns != "" {
		e.Headers[HeaderNamespace] = ns
	}
	if c.transaction != "" {
		e.Headers[HeaderTransaction] = c.transaction
	}
	if c.uuid != "" {
		e.Headers[HeaderCollectionUUID] = c.uuid
	}
	var err error
	switch {
	case c.Op == "delete":
		e.Payload = []byte("null")
	case !c.isDocument():
		e.Payload, err = f.control(c)
	case c.FullDocument != nil:
		err = f.setPayload(&e, c.FullDocument)
	case c.Op == "update" && f.o.FullDocument == NoDocument && c.UpdateDescription != nil:
		e.Headers[HeaderOmitted] = OmittedUpdate
		err = f.setPayload(&e, c.UpdateDescription)
	default:
		e.Headers[HeaderOmitted] = OmittedMissing
		if f.o.FullDocument == WhenAvailable {
			e.Headers[HeaderOmitted] = OmittedNoImage
		}
		err = f.setPayload(&e, c.DocumentKey)
	}
	return e, err
}

// setPayload makes a payload of a document.
func (f *Feed) setPayload(e *jetbus.Event, doc bson.Raw) (err error) {
	if f.o.Format == BSON {
		e.Payload, e.Headers[jetbus.HeaderContentType] = doc, "application/bson"
		return nil
	}
	if f.o.Format == Relaxed {
		e.Payload, err = relaxedJSON(doc)
		return err
	}
	e.Payload, err = bson.MarshalExtJSON(doc, true, false)
	return err
}

// control is the payload of an event that is about no document.
func (f *Feed) control(c *Change) ([]byte, error) {
	if c.Raw == nil {
		return json.Marshal(map[string]string{"operationType": c.Op, "token": string(c.Token)})
	}
	d := bson.D{{Key: "operationType", Value: c.Op}}
	for _, name := range []string{"ns", "to", "operationDescription"} {
		if v, err := c.Raw.LookupErr(name); err == nil {
			d = append(d, bson.E{Key: name, Value: v})
		}
	}
	return bson.MarshalExtJSON(d, false, false)
}

// remap runs Map, whose panics are errors.
func (f *Feed) remap(c *Change, e *jetbus.Event) (err error) {
	if f.o.Map == nil {
		return nil
	}
	defer func() {
		if v := recover(); v != nil {
			err = &jetbus.PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	before := *e
	own := maps.Clone(e.Headers)
	if err := f.o.Map(c, e); err != nil {
		return err
	}
	e.ID, e.Topic = before.ID, before.Topic
	if e.Headers == nil {
		e.Headers = map[string]string{}
	}
	for _, name := range []string{HeaderOp, HeaderClusterTime, HeaderToken, HeaderFeed, HeaderNamespace} {
		if value, ok := own[name]; ok { // the feed finds its position by them
			e.Headers[name] = value
		}
	}
	return e.Validate()
}

func (c *Change) namespace() string {
	if c.Collection == "" {
		return c.Database
	}
	return c.Database + "." + c.Collection
}

// clusterTime is a timestamp in a header.
func clusterTime(ts bson.Timestamp) string {
	var digits [24]byte
	b := append(strconv.AppendUint(digits[:0], uint64(ts.T), 10), '.')
	return string(strconv.AppendUint(b, uint64(ts.I), 10))
}

// isSwap reports whether a change is one behind which all documents are copied again.
func (f *Feed) isSwap(c *Change) bool {
	return f.o.OnInvalidate == Resync && (c.Op == opInvalidate || c.Op == opRename && f.o.Collection == "")
}

// isLoop reports whether a projection of the topic wrote the document.
func (f *Feed) isLoop(c *Change) bool {
	if f.o.AllowLoop || f.stream == "" {
		return false
	}
	source, ok := c.FullDocument.Lookup("_src").StringValueOK()
	return ok && source == f.stream
}
