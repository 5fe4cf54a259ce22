package mongobox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
)

// Codes of MongoDB's errors.
const (
	codeUnauthorized    = 13
	codeAuthentication  = 18
	codeIllegal         = 20
	codeNamespaceExists = 48
	codeIndexOptions    = 85
	codeIndexKeySpecs   = 86
	codeOnView          = 166
	codeDuplicateKey    = 11000
	codeNotReplicaSet   = 40573
)

func hasCode(err error, codes ...int) bool {
	e, ok := errors.AsType[mongo.ServerError](err)
	return ok && slices.ContainsFunc(codes, e.HasErrorCode)
}

// wireVersion of MongoDB 5.0.
const wireVersion = 13

// keysExpire is after how many seconds a counter is removed that is not used.
const keysExpire = 24 * 60 * 60

// The indexes of an outbox: one makes IDs unique within their topic, one finds what is
// due, one the turnstile of a key, one what Clean removes.
const (
	indexID      = "outbox_id"
	indexPending = "outbox_pending"
	indexKeys    = "outbox_keys"
	indexSent    = "outbox_sent"
	indexExpire  = "outbox_expire"
)

// indexes are specifications by name.
type indexes map[string]mongo.IndexModel

func rowIndexes() indexes { // made anew, since the driver writes to them
	return indexes{
		indexID:      {Keys: ascending(fieldTopic, fieldID), Options: options.Index().SetUnique(true)},
		indexPending: {Keys: ascending(fieldState, fieldPos, fieldRowID), Options: options.Index()},
		indexKeys:    {Keys: ascending(fieldTopic, fieldKey, fieldState, fieldPos), Options: options.Index()},
		indexSent:    {Keys: ascending(fieldState, fieldSent), Options: options.Index()},
	}
}

func keyIndexes() indexes {
	return indexes{
		indexExpire: {Keys: ascending("at"), Options: options.Index().SetExpireAfterSeconds(keysExpire)},
	}
}

// models are the specifications as the driver takes them.
func (x indexes) models() []mongo.IndexModel {
	var out []mongo.IndexModel
	for _, name := range slices.Sorted(maps.Keys(x)) {
		m := x[name]
		m.Options.SetName(name)
		out = append(out, m)
	}
	return out
}

func ascending(fields ...string) bson.D {
	var d bson.D
	for _, f := range fields {
		d = append(d, bson.E{Key: f, Value: int32(1)})
	}
	return d
}

// prepare checks the server, and makes or checks the collections.
func (b *Box) prepare(ctx context.Context) error {
	var hello struct {
		SetName string `bson:"setName"`
		Msg     string `bson:"msg"`
		Version int    `bson:"maxWireVersion"`
	}
	err := b.rows.Database().RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello)
	switch {
	case err != nil:
		return err
	case hello.SetName == "" && hello.Msg != "isdbgrid":
		return fmt.Errorf("%w: the server is a standalone, which has no transactions: initiate a replica set, a single member will do", jetbus.ErrUnsupported)
	case hello.Version < wireVersion:
		return fmt.Errorf("%w: MongoDB 5.0 or newer is needed", jetbus.ErrUnsupported)
	}
	if err := ensure(ctx, b.rows, rowIndexes(), rowDifference); err != nil {
		return err
	}
	return ensure(ctx, b.keys, keyIndexes(), counterDifference)
}

// sampled is how many documents of a collection are looked at that has not been an
// outbox before.
const sampled = 100

// ensure makes a collection and its indexes, or checks those that are there. Others may
// do so at once.
func ensure(ctx context.Context, c *mongo.Collection, indexes indexes, difference func(bson.Raw) *jetbus.Difference) error {
	if err := checkKind(ctx, c); err != nil {
		return err
	}
	if err := c.Database().CreateCollection(ctx, c.Name()); err != nil && !hasCode(err, codeNamespaceExists) {
		return fmt.Errorf("create collection %s: %w", c.Name(), err)
	}
	known, err := checkIndexes(ctx, c, slices.Collect(maps.Keys(indexes)))
	if err == nil && !known {
		err = checkDocuments(ctx, c, difference)
	}
	if err != nil {
		return err
	}
	_, err = c.Indexes().CreateMany(ctx, indexes.models())
	switch {
	case hasCode(err, codeIndexOptions, codeIndexKeySpecs):
		return conflict(c, jetbus.Difference{Field: "index", Have: err.Error(), Want: "as Open makes it"})
	case hasCode(err, codeDuplicateKey):
		return conflict(c, jetbus.Difference{Field: "index " + indexID, Have: err.Error(), Want: "possible"})
	case err != nil:
		return fmt.Errorf("create indexes of %s: %w", c.Name(), err)
	}
	return nil
}

func conflict(c *mongo.Collection, d ...jetbus.Difference) error {
	return &jetbus.ConflictError{What: "collection " + c.Name(), Differences: d, Hint: "choose another collection, or mend this one"}
}

// checkKind refuses what looks like a collection and is none that rows can wait in.
func checkKind(ctx context.Context, c *mongo.Collection) error {
	list, err := c.Database().ListCollectionSpecifications(ctx, bson.D{{Key: "name", Value: c.Name()}})
	if err != nil {
		return fmt.Errorf("look at collection %s: %w", c.Name(), err)
	}
	for _, spec := range list {
		capped, _ := spec.Options.Lookup("capped").BooleanOK()
		if capped {
			spec.Type = "capped collection"
		}
		if spec.Type != "collection" {
			return conflict(c, jetbus.Difference{Field: "its kind", Have: spec.Type, Want: "collection"})
		}
	}
	return nil
}

// checkIndexes looks for indexes that would remove documents or refuse them, and reports
// whether the collection has some of its own already.
func checkIndexes(ctx context.Context, c *mongo.Collection, own []string) (known bool, err error) {
	list, err := c.Indexes().ListSpecifications(ctx)
	if err != nil {
		return false, fmt.Errorf("list indexes of %s: %w", c.Name(), err)
	}
	for _, ix := range list {
		switch {
		case slices.Contains(own, ix.Name):
			known = true
		case ix.ExpireAfterSeconds != nil:
			return false, conflict(c, jetbus.Difference{Field: "index " + ix.Name, Have: "one that removes documents by age", Want: "away"})
		case ix.Unique != nil && *ix.Unique:
			return false, conflict(c, jetbus.Difference{Field: "index " + ix.Name, Have: "a unique one", Want: "away"})
		}
	}
	return known, nil
}

// checkDocuments looks at some documents, so that the collection of somebody else does
// not become an outbox by mistake.
func checkDocuments(ctx context.Context, c *mongo.Collection, difference func(bson.Raw) *jetbus.Difference) error {
	cursor, err := c.Find(ctx, bson.D{}, options.Find().SetLimit(sampled))
	if err != nil {
		return err
	}
	defer func() { _ = cursor.Close(context.WithoutCancel(ctx)) }()
	for cursor.Next(ctx) {
		if d := difference(cursor.Current); d != nil {
			d.Field = fmt.Sprintf("document %s: field %s", cursor.Current.Lookup(fieldRowID), d.Field)
			return conflict(c, *d)
		}
	}
	return cursor.Err()
}

// rowDifference is what makes a document no row; nil if it is one.
func rowDifference(raw bson.Raw) *jetbus.Difference {
	for _, name := range []string{fieldID, fieldTopic, fieldState} {
		if d := typeDifference(raw, name, bson.TypeString); d != nil {
			return d
		}
	}
	if s := State(raw.Lookup(fieldState).StringValue()); s != Pending && s != Dead && s != Sent {
		return &jetbus.Difference{Field: fieldState, Have: fmt.Sprintf("%.40q", s), Want: fmt.Sprintf("%q, %q or %q", Pending, Dead, Sent)}
	}
	return nil
}

func counterDifference(raw bson.Raw) *jetbus.Difference {
	return typeDifference(raw, "n", bson.TypeInt64)
}

func typeDifference(raw bson.Raw, name string, want bson.Type) *jetbus.Difference {
	v, err := raw.LookupErr(name)
	switch {
	case err != nil:
		return &jetbus.Difference{Field: name, Have: "missing", Want: want.String()}
	case v.Type != want:
		return &jetbus.Difference{Field: name, Have: v.Type.String(), Want: want.String()}
	}
	return nil
}
