package mongod

import (
	"errors"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// insert stores a new document and records the change.
func (v *view) insert(c *collection, d bson.D) error {
	d, err := v.checkDoc(c, d)
	if err != nil {
		return err
	}
	id := d[0].Value
	key := keyOf(id)
	if err := v.lock(c, key); err != nil {
		return err
	}
	if v.doc(c, key) != nil {
		return c.duplicate(c.idx[0], d)
	}
	if err := v.checkUnique(c, key, d); err != nil {
		return err
	}
	v.write(c, key, d)
	v.emit(c, &change{op: "insert", id: id, post: d})
	return nil
}

// update puts d in the place of an old document and says whether that made a
// difference.
func (v *view) update(c *collection, old found, d bson.D, replaces bool) (bool, error) {
	if replaces {
		d = v.stamp(d)
	}
	d, err := v.checkDoc(c, d)
	if err != nil {
		return false, err
	}
	if err := v.lock(c, old.key); err != nil {
		return false, err
	}
	if same(old.doc, d) {
		return false, nil
	}
	if err := v.checkUnique(c, old.key, d); err != nil {
		return false, err
	}
	v.write(c, old.key, d)
	op := "update"
	if replaces {
		op = "replace"
	}
	v.emit(c, &change{op: op, id: d[0].Value, pre: old.doc, post: d})
	return true, nil
}

func (v *view) delete(c *collection, old found) error {
	if err := v.lock(c, old.key); err != nil {
		return err
	}
	v.write(c, old.key, nil)
	v.emit(c, &change{op: "delete", id: field(old.doc, "_id"), pre: old.doc})
	return nil
}

// write makes d the document of a key; nil deletes it.
func (v *view) write(c *collection, key string, d bson.D) {
	switch {
	case v.txn != nil:
		v.txn.write(c, key, d)
	case d == nil:
		v.st.remove(c, key)
	default:
		v.st.put(c, key, d)
	}
}

// stamp returns a document with the current time instead of empty timestamps in top-level
// fields. MongoDB does that in inserts and replacements, also in one that is an upsert, and not in
// updates by operators or pipelines.
func (v *view) stamp(d bson.D) bson.D {
	if !slices.ContainsFunc(d, isZeroTimestamp) {
		return d
	}
	d = slices.Clone(d)
	for i := range d {
		if isZeroTimestamp(d[i]) {
			d[i].Value = v.st.tick()
		}
	}
	return d
}

// checkDoc returns d as it is stored, with its _id first. A document that cannot be stored is
// refused.
func (v *view) checkDoc(c *collection, d bson.D) (bson.D, error) {
	id, ok := get(d, "_id")
	switch {
	case !ok:
		id = bson.NewObjectID()
	case rank(id) == rankArray || rank(id) == rankRegex:
		return nil, errorf(53, "InvalidIdField", "The '_id' value cannot be of type %s", typeName(id))
	}
	if _, isUndefined := id.(bson.Undefined); isUndefined {
		return nil, errorf(53, "InvalidIdField", "The '_id' value cannot be of type undefined")
	}
	for _, e := range asDoc(id) {
		if strings.HasPrefix(e.Key, "$") {
			return nil, errorf(52, "DollarPrefixedFieldName", "_id fields may not contain '$'-prefixed fields: %s is not valid for storage.", e.Key)
		}
	}
	if !ok || d[0].Key != "_id" {
		d = append(bson.D{{Key: "_id", Value: id}}, without(d, "_id")...)
	}
	if isDeeper(d, maxStored) {
		return nil, errorf(15, "Overflow", "Document exceeds maximum nesting depth of %d", maxStored)
	}
	if n := sizeOf(d); n > maxDocumentBytes {
		return nil, errorf(codeTooLarge, "", "object to insert too large. size in bytes: %d, max size: %d", n, maxDocumentBytes)
	}
	if len(c.validator) > 0 {
		ok, err := match(d, c.validator)
		if err != nil {
			return nil, err
		}
		if !ok {
			e := errorf(121, "DocumentValidationFailure", "Document failed validation")
			e.extra = bson.D{{Key: "errInfo", Value: bson.D{{Key: "failingDocumentId", Value: id}}}}
			return nil, e
		}
	}
	return d, nil
}

// isDeeper reports whether a value has more levels of documents and arrays.
func isDeeper(v any, levels int) bool {
	switch x := v.(type) {
	case bson.D:
		return levels == 0 || slices.ContainsFunc(x, func(e bson.E) bool { return isDeeper(e.Value, levels-1) })
	case bson.A:
		return levels == 0 || slices.ContainsFunc(x, func(e any) bool { return isDeeper(e, levels-1) })
	}
	return false
}

func isZeroTimestamp(e bson.E) bool {
	ts, ok := e.Value.(bson.Timestamp)
	return ok && ts.IsZero() && e.Key != "_id"
}

// free reports errLocked if a transaction is writing one of the documents. It is
// asked before the first of several is changed.
func (v *view) free(c *collection, list []found) error {
	if v.txn != nil || len(c.locks) == 0 {
		return nil
	}
	for _, f := range list {
		if c.locks[f.key] != nil {
			return errLocked
		}
	}
	return nil
}

// statement runs one statement of a write on a collection. Outside transactions
// it waits for those that write the same documents; f is then called again. A
// collection that does not exist is created, or unless create is set, left alone:
// there is nothing to do.
func (k *call) statement(name string, create bool, f func(c *collection) error) error {
	until := k.deadline()
	for {
		if !create && k.coll(k.db, name) == nil {
			return nil
		}
		c, err := k.ensure(k.db, name)
		if err != nil {
			return err
		}
		if err := f(c); !errors.Is(err, errLocked) {
			return err
		}
		if err := k.wait(until); err != nil {
			return err
		}
	}
}

// retryDuplicate says whether an upsert that failed is tried again by itself: as
// MongoDB does if the filter is about nothing but the fields of the index whose
// entry another writer took.
func retryDuplicate(err error, filter bson.D) bool {
	e, ok := errors.AsType[*CommandError](err)
	if !ok || e.Code != codeDuplicateKey {
		return false
	}
	pattern, vals := asDoc(field(e.extra, "keyPattern")), asDoc(field(e.extra, "keyValue"))
	if len(filter) != len(pattern) {
		return false
	}
	for _, f := range filter {
		want, isPinned := pinned(f.Value)
		have, inIndex := get(vals, f.Key)
		if !isPinned || !inIndex || compare(want, have) != 0 {
			return false
		}
	}
	return true
}
