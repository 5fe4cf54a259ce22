package mongosink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus/projector"
)

// MongoDB checks a unique index at each single write, even within a transaction. So two keys
// that swap their values collide in whatever order they are written. A transaction therefore
// first replaces the indexed values in their documents by placeholders, and then writes the
// changes. Readers never see the placeholders; a change stream does, as an update before each of
// the changes.

// errRaced aborts an exchange because another writer has written one of the keys.
var errRaced = errors.New("another writer has written the key")

// exchange writes the changes that collide in unique indexes with each other's documents, and
// rejects the others. After a race it returns the changes that must be written again.
func (w *writer) exchange(ctx context.Context, stuck []collision, out *projector.Outcome) ([]*guarded, error) {
	writes, err := w.cycles(ctx, stuck)
	if err != nil {
		return nil, err
	}
	note := ""
	if len(writes) > 0 {
		set, err := isReplicaSet(ctx, w.db)
		if err != nil {
			return nil, err
		}
		if !set {
			note = "; a swap of values needs a transaction: make the server a replica set (a single member will do) and rebuild the projection"
			writes = nil
		}
	}
	for _, c := range stuck {
		if !slices.Contains(writes, c.guarded) {
			out.Rejected = append(out.Rejected, projector.Rejection{Index: c.index, Err: fmt.Errorf("%w%s", c.err, note)})
		}
	}
	if len(writes) == 0 {
		return nil, nil
	}
	var refused []projector.Rejection
	err = w.transactParked(ctx, func(ctx context.Context, paths []string) error {
		todo := slices.DeleteFunc(slices.Clone(writes), func(g *guarded) bool { return isRejected(g, refused) })
		if err := w.park(ctx, todo, paths); err != nil {
			return err
		}
		return w.replaceAll(ctx, todo)
	}, &refused)
	switch {
	case errors.Is(err, errRaced):
		return writes, nil
	case err != nil:
		return nil, err
	}
	out.Rejected = append(out.Rejected, refused...)
	out.Applied += len(writes) - len(refused)
	return nil, nil
}

// cycles returns the changes that wait for each other: each of them needs a value that is in
// the document of another one. All other changes collide with documents that do not change.
func (w *writer) cycles(ctx context.Context, stuck []collision) ([]*guarded, error) {
	indexes, err := w.indexes(ctx)
	if err != nil {
		return nil, err
	}
	holders := make(map[string]string, len(stuck)) // by key: the key of the document with which the change collides
	for _, c := range stuck {
		holder, err := w.holder(ctx, &c, indexes)
		if err != nil {
			return nil, err
		}
		if holder != c.key {
			holders[c.key] = holder
		}
	}
	for more := true; more; {
		more = false
		for key, holder := range holders {
			if _, waits := holders[holder]; !waits {
				delete(holders, key)
				more = true
			}
		}
	}
	var writes []*guarded
	for _, c := range stuck {
		if _, waits := holders[c.key]; waits {
			writes = append(writes, c.guarded)
		}
	}
	return writes, nil
}

// An indexSpec describes which documents an index has, and how it compares their values.
type indexSpec struct {
	Name      string             `bson:"name"`
	Partial   bson.Raw           `bson:"partialFilterExpression"`
	Collation *options.Collation `bson:"collation"`
}

// indexes lists the indexes of the collection.
func (w *writer) indexes(ctx context.Context) (list []indexSpec, err error) {
	cur, err := w.coll.Indexes().List(ctx)
	if err == nil {
		err = cur.All(ctx, &list)
	}
	return list, err
}

// holder returns the key of the document that has the values with which a change collided. It
// is empty if there is none, or if the values are unknown.
func (w *writer) holder(ctx context.Context, c *collision, indexes []indexSpec) (string, error) {
	filter, collation := c.holderFilter(indexes)
	if filter == nil {
		return "", nil
	}
	o := options.FindOne().SetProjection(bson.D{{Key: "_id", Value: 1}}).SetCollation(collation)
	found, err := w.coll.FindOne(ctx, filter, o).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return "", nil
	}
	key, _ := found.Lookup("_id").StringValueOK()
	return key, err
}

// holderFilter selects the document with which a change collided. The filter is nil if the
// values are unknown.
func (c *collision) holderFilter(indexes []indexSpec) (bson.D, *options.Collation) {
	values, err := c.values.Elements()
	if err != nil || len(values) == 0 {
		return nil, nil
	}
	var ix indexSpec
	for _, one := range indexes {
		start := "index: " + one.Name
		if text := c.err.Error(); strings.Contains(text, start+" dup key: ") || strings.Contains(text, start+" collation: ") {
			ix = one
		}
	}
	filter := bson.D{}
	for _, e := range values {
		value := e.Value()
		if ix.Collation != nil { // the server reports sort keys instead of texts
			path := strings.Split(e.Key(), ".")
			if c.merge {
				path = append([]string{"$set"}, path...)
			}
			if value, err = c.body.LookupErr(path...); err != nil {
				return nil, nil
			}
		}
		filter = append(filter, bson.E{Key: e.Key(), Value: bson.D{{Key: "$eq", Value: value}}})
	}
	if ix.Partial != nil {
		filter = append(filter, bson.E{Key: "$and", Value: bson.A{ix.Partial}})
	}
	if ix.Collation == nil { // not that of the collection
		return filter, &options.Collation{Locale: "simple"}
	}
	return filter, ix.Collation
}

// transactParked runs a transaction until the server refuses none of its writes. After each
// refusal it adds the fields of the index that refused the write to paths, for park. If paths
// already has them, it adds the write to refused, and run must leave the write out.
func (w *writer) transactParked(ctx context.Context, run func(ctx context.Context, paths []string) error, refused *[]projector.Rejection) error {
	var paths []string
	for {
		err := w.transact(ctx, func(ctx context.Context) error { return run(ctx, paths) })
		refusal, ok := errors.AsType[*refusalError](err)
		if !ok {
			return err
		}
		parked := len(paths)
		for _, path := range refusal.paths {
			if !slices.Contains(paths, path) {
				paths = append(paths, path)
			}
		}
		if len(paths) == parked {
			*refused = append(*refused, refusal.Rejection)
		}
	}
}

// park replaces the values at some paths in the documents that writes will replace, within a
// transaction. The placeholder is different for each document: documents that lack the fields
// still collide in an index that is partial or not sparse.
func (w *writer) park(ctx context.Context, writes []*guarded, paths []string) error {
	for part := range slices.Chunk(writes, maxBulk) {
		var parked []*guarded
		var models []mongo.WriteModel
		for _, g := range part {
			if set := g.placeholders(paths); len(set) > 0 {
				parked = append(parked, g)
				models = append(models, mongo.NewUpdateOneModel().SetFilter(g.filter).SetUpdate(bson.D{{Key: "$set", Value: set}}))
			}
		}
		if len(models) == 0 {
			continue
		}
		err := w.sendOrdered(ctx, parked, models)
		if refusal, ok := errors.AsType[*refusalError](err); ok {
			refusal.Err = fmt.Errorf("set placeholders for values of a unique index: %w", refusal.Err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// placeholders returns the fields at paths with placeholders, without those that a merge keeps.
// A placeholder is not a string, which a collation might find equal to another one. The sink's own
// fields stay: the filter reads them.
func (g *guarded) placeholders(paths []string) bson.D {
	var set bson.D
	for _, path := range paths {
		root, _, _ := strings.Cut(path, ".")
		if isState, err := checkTop([]byte(root), true); !isState || err != nil {
			continue
		}
		if !g.merge || len(g.body.Lookup("$set", root).Value) > 0 {
			set = withValue(set, path, bson.Binary{Subtype: bson.TypeBinaryUserDefined, Data: []byte(g.key)})
		}
	}
	return set
}

// withValue sets a value at a path of a document. If one path is the beginning of another, only
// the longer one gets the value.
func withValue(doc bson.D, path string, value bson.Binary) bson.D {
	name, rest, nested := strings.Cut(path, ".")
	i := slices.IndexFunc(doc, func(e bson.E) bool { return e.Key == name })
	if i < 0 {
		i, doc = len(doc), append(doc, bson.E{Key: name, Value: value})
	}
	if nested {
		in, _ := doc[i].Value.(bson.D)
		doc[i].Value = withValue(in, rest, value)
	}
	return doc
}

// pathsOf returns the fields of the index with which a write collided, or none if the server
// did not report them.
func pathsOf(we mongo.WriteError) (paths []string) {
	pattern, _ := we.Raw.Lookup("keyPattern").DocumentOK()
	elements, _ := pattern.Elements() // none if the pattern is malformed
	for _, e := range elements {
		paths = append(paths, e.Key())
	}
	return paths
}
