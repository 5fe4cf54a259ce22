package mongosink

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-63e9a637/jetbus"
)

// ttlIndex is the index that removes the documents of deleted keys in time.
const ttlIndex = "_expireAt_1"

// prepare creates a collection and its indexes where they do not exist. Replicas
// may do so at once.
func prepare(ctx context.Context, db *mongo.Database, name string, indexes []Index, tombstones bool) error {
	if err := db.CreateCollection(ctx, name); err != nil && !hasCode(err, codeNamespaceExists) {
		return fmt.Errorf("create collection %s: %w", name, err)
	}
	if err := checkKind(ctx, db, name); err != nil {
		return err
	}
	if tombstones {
		spec := bson.D{{Key: "key", Value: bson.D{{Key: "_expireAt", Value: int32(1)}}}, {Key: "name", Value: ttlIndex}, {Key: "expireAfterSeconds", Value: int32(0)}}
		if err := createIndex(ctx, db, name, spec); err != nil {
			return err
		}
	}
	for _, ix := range indexes {
		if err := createIndex(ctx, db, name, ix.spec()); err != nil {
			return err
		}
	}
	return nil
}

// checkKind refuses what looks like a collection and cannot be filled: views,
// time series, capped collections.
func checkKind(ctx context.Context, db *mongo.Database, name string) error {
	list, err := db.ListCollectionSpecifications(ctx, bson.D{{Key: "name", Value: name}})
	if err != nil {
		return fmt.Errorf("look at collection %s: %w", name, err)
	}
	for _, c := range list {
		capped, _ := c.Options.Lookup("capped").BooleanOK()
		switch {
		case c.Type != "collection":
			return fmt.Errorf("%w: %s is a %s, which cannot be written: choose another collection", jetbus.ErrInvalidOption, name, c.Type)
		case capped:
			return fmt.Errorf("%w: %s is a capped collection, which forgets documents: choose another collection", jetbus.ErrInvalidOption, name)
		}
	}
	return nil
}

// uuidOf is what the server knows a collection by, which stays when that is renamed.
// Nil: there is none.
func uuidOf(ctx context.Context, db *mongo.Database, name string) (*bson.Binary, error) {
	list, err := db.ListCollectionSpecifications(ctx, bson.D{{Key: "name", Value: name}})
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return list[0].UUID, nil
}

// spec is the index as createIndexes takes it.
func (ix Index) spec() bson.D {
	spec := bson.D{{Key: "key", Value: ix.Keys}, {Key: "name", Value: ix.Name}}
	if ix.Unique {
		spec = append(spec, bson.E{Key: "unique", Value: true})
	}
	if ix.Sparse {
		spec = append(spec, bson.E{Key: "sparse", Value: true})
	}
	if ix.Partial != nil {
		spec = append(spec, bson.E{Key: "partialFilterExpression", Value: ix.Partial})
	}
	return spec
}

// createIndex creates an index unless it exists. The command is used as it is,
// since the driver's models cannot say all that a specification can.
func createIndex(ctx context.Context, db *mongo.Database, name string, spec bson.D) error {
	err := db.RunCommand(ctx, bson.D{
		{Key: "createIndexes", Value: name},
		{Key: "indexes", Value: bson.A{spec}},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}},
	}).Err()
	switch {
	case err == nil:
		return nil
	case hasCode(err, codeDuplicateKey):
		return &IndexError{Collection: name, Wanted: asJSON(spec), Err: err}
	case hasCode(err, codeIndexOptions, codeIndexKeySpecs):
		existing, listErr := existingIndex(ctx, db, name, spec)
		if listErr != nil {
			err = errors.Join(err, listErr)
		}
		return &IndexError{Collection: name, Wanted: asJSON(spec), Existing: existing, Err: err}
	}
	return fmt.Errorf("create index %s of %s: %w", asJSON(spec), name, err)
}

// existingIndex is the index that is in the way of another: the one with its name,
// else the one with its keys.
func existingIndex(ctx context.Context, db *mongo.Database, name string, spec bson.D) (string, error) {
	const unknown = "another index that is in the way"
	cur, err := db.Collection(name).Indexes().List(ctx)
	if err != nil {
		return unknown, err
	}
	var list []bson.D
	if err := cur.All(ctx, &list); err != nil {
		return unknown, err
	}
	for _, field := range []string{"name", "key"} {
		want := fieldOf(spec, field)
		for _, have := range list {
			if fieldOf(have, field) == want {
				return asJSON(have), nil
			}
		}
	}
	return unknown, nil
}

// fieldOf is a field of a specification, without the types of its numbers.
func fieldOf(spec bson.D, field string) string {
	for _, e := range spec {
		if e.Key == field {
			return asJSON(bson.D{e})
		}
	}
	return ""
}
