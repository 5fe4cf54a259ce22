package mongod

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func (k *call) createIndexes() (bson.D, error) {
	if err := k.only("indexes", "commitQuorum"); err != nil {
		return nil, err
	}
	specs := asArray(k.field("indexes"))
	if len(specs) == 0 {
		return nil, badValue("Must specify at least one index to create")
	}
	var wanted []*indexDef
	for _, s := range specs {
		ix, err := newIndexDef(asDoc(s))
		if err != nil {
			return nil, err
		}
		wanted = append(wanted, ix)
	}
	created := k.coll(k.db, k.target()) == nil
	if !created {
		if err := k.indexable(); err != nil {
			return nil, err
		}
	}
	c, err := k.ensure(k.db, k.target())
	if err != nil {
		return nil, err
	}
	before := len(c.idx)
	added, err := k.addIndexes(c, wanted)
	if err != nil {
		if created {
			k.undoCreate(c)
		}
		return nil, err
	}
	if len(added) > 0 {
		k.emit(c, &change{op: "createIndexes", expanded: true, desc: bson.D{{Key: "indexes", Value: added}}})
	}
	d := ok(
		bson.E{Key: "numIndexesBefore", Value: int32(before)}, bson.E{Key: "numIndexesAfter", Value: int32(len(c.idx))},
		bson.E{Key: "createdCollectionAutomatically", Value: created},
	)
	if len(added) == 0 {
		d = append(d, bson.E{Key: "note", Value: "all indexes already exist"})
	}
	return d, nil
}

// indexable makes sure that an existing collection can get indexes now.
func (k *call) indexable() error {
	if k.txn == nil {
		_, err := k.existing()
		return err
	}
	c := k.coll(k.db, k.target())
	if k.txn.created[c.ns()] == c {
		return nil
	}
	return errorf(263, "OperationNotSupportedInTransaction", "Cannot create new indexes on existing collection %s in a multi-document transaction.", c.ns())
}

// undoCreate removes a collection that was created for indexes which cannot be.
// Nothing was written to it. Its create event stays: MongoDB shows one as well.
func (k *call) undoCreate(c *collection) {
	if k.txn == nil {
		delete(k.st.colls, c.ns())
		k.emit(c, &change{op: "drop"})
	}
}

// addIndexes adds the indexes that are not there yet: all of them or, if one is
// in conflict, none.
func (k *call) addIndexes(c *collection, wanted []*indexDef) (bson.A, error) {
	idx := slices.Clone(c.idx)
	var added bson.A
	for _, ix := range wanted {
		exists, err := ix.conflict(idx)
		if err != nil {
			return nil, err
		}
		if exists {
			continue
		}
		if ix.unique {
			if err := c.build(ix); err != nil {
				return nil, err
			}
		}
		idx = append(idx, ix)
		added = append(added, ix.spec)
	}
	c.idx = idx
	return added, nil
}

// conflict says whether the index is already among others, or why it cannot be
// beside them.
func (ix *indexDef) conflict(others []*indexDef) (exists bool, err error) {
	for _, o := range others {
		sameKeys := ix.sameKeys(o)
		switch {
		case o.name == idIndex && sameKeys:
			return true, nil
		case o.name == ix.name && sameKeys && o.sameOptions(ix):
			return true, nil
		case o.name == ix.name:
			return false, errorf(codeIndexKeySpecs, "IndexKeySpecsConflict", "An existing index has the same name as the requested index. When index names are not specified, they are auto generated and can cause conflicts. Please refer to our documentation. Requested index: %s, existing index: %s", jsonOf(ix.spec), jsonOf(o.spec))
		case sameKeys && o.sameOptions(ix):
			return false, errorf(codeIndexOptions, "IndexOptionsConflict", "Index already exists with a different name: %s", o.name)
		case sameKeys && o.samePartial(ix) && o.unique == ix.unique && o.sparse == ix.sparse:
			return false, errorf(codeIndexOptions, "IndexOptionsConflict", "An equivalent index already exists with a different name and options. Requested index: %s, existing index: %s", jsonOf(ix.spec), jsonOf(o.spec))
		}
	}
	return false, nil
}

func (k *call) dropIndexes() (bson.D, error) {
	if err := k.only("index"); err != nil {
		return nil, err
	}
	c, err := k.existing()
	if err != nil {
		return nil, err
	}
	which := k.field("index")
	var dropped bson.A
	keep := c.idx[:1:1]
	for _, ix := range c.idx[1:] {
		if ix.named(which) {
			dropped = append(dropped, ix.spec)
		} else {
			keep = append(keep, ix)
		}
	}
	if c.idx[0].named(which) && which != any("*") {
		return nil, errorf(codeInvalidOptions, "InvalidOptions", "cannot drop _id index")
	}
	if len(dropped) == 0 && which != any("*") {
		return nil, errorf(27, "IndexNotFound", "index not found with name [%s]", jsonOf(which))
	}
	was := int32(len(c.idx))
	c.idx = keep
	k.emit(c, &change{op: "dropIndexes", expanded: true, desc: bson.D{{Key: "indexes", Value: dropped}}})
	return ok(bson.E{Key: "nIndexesWas", Value: was}), nil
}

// named says whether an argument of dropIndexes means the index: its name, its
// keys, a list of names, or "*".
func (ix *indexDef) named(which any) bool {
	switch x := which.(type) {
	case string:
		return x == "*" || x == ix.name
	case bson.D:
		return compare(x, ix.keys) == 0
	case bson.A:
		return slices.ContainsFunc(x, func(v any) bool { return asString(v) == ix.name })
	}
	return false
}

func (k *call) listIndexes() (bson.D, error) {
	c := k.coll(k.db, k.target())
	if c == nil {
		return nil, namespaceNotFound(k.db + "." + k.target())
	}
	docs := make([]bson.D, len(c.idx))
	for i, ix := range c.idx {
		docs[i] = ix.spec
	}
	return k.cursorReply(c.ns(), docs, field(asDoc(k.field("cursor")), "batchSize"), false)
}
