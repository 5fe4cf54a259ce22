package mongod

import (
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// An updater is an update that was checked and prepared.
type updater struct {
	replacement bson.D     // the new document, if that is what it is
	replaces    bool       // whether it is
	pipeline    []stage    // of an update by pipeline
	changes     []modifier // of an update by operators, in the order of their paths
}

// newUpdater prepares an update. One that MongoDB would refuse is refused here.
func newUpdater(u any) (*updater, error) {
	switch x := u.(type) {
	case bson.A:
		p, err := newPipeline(x, forUpdate)
		if err != nil {
			return nil, err
		}
		return &updater{pipeline: p}, nil
	case bson.D:
		if len(x) > 0 && strings.HasPrefix(x[0].Key, "$") {
			m, err := modifiers(x)
			if err != nil {
				return nil, err
			}
			return &updater{changes: m}, nil
		}
		for _, e := range x {
			if strings.HasPrefix(e.Key, "$") {
				return nil, errorf(52, "DollarPrefixedFieldName", "The dollar ($) prefixed field '%s' in '%s' is not allowed in the context of a replacement", e.Key, e.Key)
			}
		}
		return &updater{replacement: x, replaces: true}, nil
	}
	return nil, errorf(9, "FailedToParse", "the update must be a document or an array")
}

// apply is the document that takes the place of old. Inserting says that it is
// for an upsert, with old made of the filter.
func (u *updater) apply(old bson.D, inserting bool) (bson.D, error) {
	var out bson.D
	switch {
	case u.replaces:
		out = u.replacement
	case u.changes != nil:
		out = copyDoc(old)
		for _, m := range u.changes {
			var err error
			if out, err = m.apply(out, inserting); err != nil {
				return nil, err
			}
		}
	default:
		docs, err := runPipeline([]bson.D{old}, u.pipeline)
		if err != nil {
			return nil, err
		}
		out = docs[0]
	}
	out, err := keepID(out, old)
	if err != nil {
		return nil, err
	}
	if n := sizeOf(out); n > maxDocumentBytes {
		return nil, errorf(17419, "", "Resulting document after update is larger than %d", maxDocumentBytes)
	}
	return out, nil
}

// keepID puts the _id first, which an update may not change.
func keepID(d, old bson.D) (bson.D, error) {
	id, had := get(old, "_id")
	now, has := get(d, "_id")
	switch {
	case had && has && compare(id, now) != 0:
		return nil, errorf(66, "ImmutableField", "Performing an update on the path '_id' would modify the immutable field '_id'")
	case !had && !has:
		return d, nil
	case !had:
		id = now
	}
	if had && len(d) > 0 && d[0].Key == "_id" && same(d[0].Value, id) {
		return d, nil
	}
	return append(bson.D{{Key: "_id", Value: id}}, without(d, "_id")...), nil
}

// upsertSeed is the document that an upsert starts from: what the filter says
// that fields are equal to, in the order of the filter.
func upsertSeed(filter bson.D, out bson.D) (bson.D, error) {
	set := func(path string, v any) error {
		if _, exists := plainPath(out, splitPath(path)); exists {
			return errorf(54, "NotSingleValueField", "cannot infer query fields to set, path '%s' is matched twice", path)
		}
		d, err := setDocPath(out, splitPath(path), copyOf(v))
		out = d
		return err
	}
	for _, e := range filter {
		var err error
		switch {
		case e.Key == "$and" || e.Key == "$or" && len(asArray(e.Value)) == 1:
			for _, c := range asArray(e.Value) {
				if out, err = upsertSeed(asDoc(c), out); err != nil {
					return nil, err
				}
			}
		case strings.HasPrefix(e.Key, "$"):
		case isOperators(e.Value):
			ops := asDoc(e.Value)
			if v, ok := get(ops, "$eq"); ok {
				err = set(e.Key, v)
			} else if a := asArray(field(ops, "$in")); len(a) == 1 {
				err = set(e.Key, a[0])
			} else if a := asArray(field(ops, "$all")); len(a) == 1 {
				err = set(e.Key, a[0])
			}
		default:
			if _, isRegex := e.Value.(bson.Regex); !isRegex {
				err = set(e.Key, e.Value)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}
