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
// first removes the fields of the index from their documents, and then writes the changes.
// Readers never see the documents without the fields.

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
	err = w.transactParked(ctx, func(ctx context.Context, roots []string) error {
		todo := slices.DeleteFunc(slices.Clone(writes), func(g *guarded) bool { return isRejected(g, refused) })
		if err := w.park(ctx, todo, roots); err != nil {
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
	holders := make(map[string]string, len(stuck)) // by key: the key of the document with which the change collides
	for _, c := range stuck {
		holder, err := w.holder(ctx, &c)
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

// holder returns the key of the document that has the values with which a change collided. It
// is empty if there is none, or if the server did not report the values.
func (w *writer) holder(ctx context.Context, c *collision) (string, error) {
	values, err := c.values.Elements()
	if err != nil || len(values) == 0 {
		return "", nil //nolint:nilerr // without the values the holder is unknown
	}
	filter := bson.D{}
	for _, e := range values {
		filter = append(filter, bson.E{Key: e.Key(), Value: bson.D{{Key: "$eq", Value: e.Value()}}})
	}
	found, err := w.coll.FindOne(ctx, filter, options.FindOne().SetProjection(bson.D{{Key: "_id", Value: 1}})).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return "", nil
	}
	key, _ := found.Lookup("_id").StringValueOK()
	return key, err
}

// transactParked runs a transaction until the server refuses none of its writes. After each
// refusal it adds the fields of the index that refused the write to roots, for park. If roots
// already has them, it adds the write to refused, and run must leave the write out.
func (w *writer) transactParked(ctx context.Context, run func(ctx context.Context, roots []string) error, refused *[]projector.Rejection) error {
	var roots []string
	for {
		err := w.transact(ctx, func(ctx context.Context) error { return run(ctx, roots) })
		refusal, ok := errors.AsType[*refusalError](err)
		if !ok {
			return err
		}
		parked := len(roots)
		for _, root := range refusal.roots {
			if !slices.Contains(roots, root) {
				roots = append(roots, root)
			}
		}
		if len(roots) == parked {
			*refused = append(*refused, refusal.Rejection)
		}
	}
}

// park removes fields from the documents that writes will replace, within a transaction.
func (w *writer) park(ctx context.Context, writes []*guarded, roots []string) error {
	var models []mongo.WriteModel
	for _, g := range writes {
		unset := bson.D{}
		for _, root := range roots {
			if !g.merge || len(g.body.Lookup("$set", root).Value) > 0 { // a merge keeps the other fields
				unset = append(unset, bson.E{Key: root, Value: ""})
			}
		}
		if len(unset) > 0 {
			models = append(models, mongo.NewUpdateOneModel().SetFilter(g.filter).SetUpdate(bson.D{{Key: "$unset", Value: unset}}))
		}
	}
	for part := range slices.Chunk(models, maxBulk) {
		if _, err := w.coll.BulkWrite(ctx, part, options.BulkWrite().SetOrdered(true)); err != nil {
			return err
		}
	}
	return nil
}

// rootsOf returns the top-level fields of the index with which a write collided, or none if the
// server did not report them.
func rootsOf(we mongo.WriteError) (roots []string) {
	pattern, _ := we.Raw.Lookup("keyPattern").DocumentOK()
	elements, _ := pattern.Elements() // none if the pattern is malformed
	for _, e := range elements {
		root, _, _ := strings.Cut(e.Key(), ".")
		roots = append(roots, root)
	}
	return roots
}
