package mongod

import (
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

const idIndex = "_id_"

// An indexDef is an index. Only a unique one has entries; the order of fields in
// keys and the rest of the definition are kept for listings and conflicts.
type indexDef struct {
	name    string
	keys    bson.D
	unique  bool
	sparse  bool
	partial bson.D // partialFilterExpression, nil if there is none
	expire  int64  // expireAfterSeconds, -1 if there is none
	spec    bson.D

	slots map[string]*slot
}

func newIndexDef(spec bson.D) (*indexDef, error) {
	ix := &indexDef{
		name: asString(field(spec, "name")), keys: asDoc(field(spec, "key")),
		unique: truth(field(spec, "unique")), sparse: truth(field(spec, "sparse")),
		partial: asDoc(field(spec, "partialFilterExpression")),
		expire:  asInt(field(spec, "expireAfterSeconds"), -1),
	}
	switch {
	case ix.name == "":
		return nil, errorf(67, "CannotCreateIndex", "index name cannot be empty")
	case len(ix.keys) == 0:
		return nil, errorf(67, "CannotCreateIndex", "Index keys cannot be an empty object")
	}
	if e, ok := get(spec, "expireAfterSeconds"); ok && (rank(e) != rankNumber || ix.expire < 0) {
		return nil, errorf(67, "CannotCreateIndex", "TTL index 'expireAfterSeconds' option must be a number that is not negative")
	}
	if ix.expire >= 0 && len(ix.keys) > 1 {
		return nil, errorf(67, "CannotCreateIndex", "TTL indexes are single-field indexes, compound indexes do not support TTL")
	}
	for _, k := range ix.keys {
		if rank(k.Value) != rankNumber {
			return nil, unsupported(fmt.Sprintf("an index of kind %v", k.Value))
		}
	}
	for _, e := range spec {
		switch e.Key {
		case "key", "name", "unique", "sparse", "partialFilterExpression", "expireAfterSeconds", "v", "background", "hidden", "ns", "comment":
		case "collation":
			if err := checkCollation(e.Value); err != nil {
				return nil, err
			}
		default:
			return nil, errorf(197, "InvalidIndexSpecificationOption", "The field '%s' is not valid for an index specification", e.Key)
		}
	}
	if ix.partial != nil {
		if _, err := newMatcher(ix.partial); err != nil {
			return nil, err
		}
		if ix.sparse {
			return nil, errorf(67, "CannotCreateIndex", "cannot mix \"partialFilterExpression\" and \"sparse\" options")
		}
	}
	ix.spec = append(bson.D{{Key: "v", Value: int32(2)}}, without(spec, "v")...)
	return ix, nil
}

// sameOptions says whether two indexes differ at most in names and keys.
func (ix *indexDef) sameOptions(o *indexDef) bool {
	return ix.unique == o.unique && ix.sparse == o.sparse && ix.expire == o.expire && ix.samePartial(o)
}

func (ix *indexDef) samePartial(o *indexDef) bool {
	return (ix.partial == nil) == (o.partial == nil) && same(ix.partial, o.partial)
}

// sameKeys says whether two indexes are over the same fields in the same order.
func (ix *indexDef) sameKeys(o *indexDef) bool { return compareDocs(ix.keys, o.keys) == 0 }

// entry is the key of the given values in the index.
func (ix *indexDef) entry(vals ...any) string {
	var b []byte
	for _, v := range vals {
		b = append(appendKey(b, v), '|')
	}
	return string(b)
}

// maxIndexEntries bounds the entries of one document in one index; a compound
// index has one for each combination of array elements.
const maxIndexEntries = 100_000

// entries are the keys of a document in the index.
func (ix *indexDef) entries(d bson.D) ([]string, error) {
	if ix.partial != nil {
		if ok, err := match(d, ix.partial); err != nil || !ok {
			return nil, err
		}
	}
	out := []string{""}
	absent := true
	for _, k := range ix.keys {
		r := reachOf(d, splitPath(k.Key))
		var vals []any
		for _, v := range r.vals {
			if a, ok := v.(bson.A); ok && len(a) > 0 {
				vals = append(vals, a...)
			} else {
				vals = append(vals, v)
			}
		}
		absent = absent && len(vals) == 0
		if len(vals) == 0 {
			vals = []any{nil}
		}
		if len(vals)*len(out) > maxIndexEntries {
			return nil, errorf(67, "CannotCreateIndex", "more than %d entries in index %s", maxIndexEntries, ix.name)
		}
		next := make([]string, 0, len(out)*len(vals))
		for _, o := range out {
			for _, v := range vals {
				next = append(next, o+ix.entry(v))
			}
		}
		out = next
	}
	if ix.sparse && absent {
		return nil, nil
	}
	return out, nil
}

// checkUnique reports the first unique index in which another document than that
// of key has an entry of d.
func (v *view) checkUnique(c *collection, key string, d bson.D) error {
	for _, ix := range c.idx {
		if !ix.unique {
			continue
		}
		entries, err := ix.entries(d)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if v.txn != nil {
				err = v.txn.checkEntry(c, ix, key, e, d)
			} else if s := ix.slots[e]; s != nil && s.key != key {
				err = c.duplicate(ix, d)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// index enters the current document of a slot into the unique indexes.
func (c *collection) index(s *slot) {
	for _, ix := range c.idx {
		if !ix.unique || s.head.doc == nil {
			continue
		}
		entries, _ := ix.entries(s.head.doc) // checked before it was stored
		for _, e := range entries {
			ix.slots[e] = s
		}
	}
}

func (c *collection) unindex(s *slot) {
	for _, ix := range c.idx {
		if !ix.unique || s.head.doc == nil {
			continue
		}
		entries, _ := ix.entries(s.head.doc)
		for _, e := range entries {
			if ix.slots[e] == s {
				delete(ix.slots, e)
			}
		}
	}
}

// build fills a new unique index.
func (c *collection) build(ix *indexDef) error {
	ix.slots = map[string]*slot{}
	for _, s := range c.docs {
		if s.head.doc == nil {
			continue
		}
		entries, err := ix.entries(s.head.doc)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if o := ix.slots[e]; o != nil && o != s {
				return c.duplicate(ix, s.head.doc)
			}
			ix.slots[e] = s
		}
	}
	return nil
}

// duplicate is the error for d having an entry that another document has.
func (c *collection) duplicate(ix *indexDef, d bson.D) error {
	vals := bson.D{}
	var parts []string
	for _, k := range ix.keys {
		v, _ := plainPath(d, splitPath(k.Key))
		vals = append(vals, bson.E{Key: k.Key, Value: v})
		parts = append(parts, k.Key+": "+jsonOf(v))
	}
	e := errorf(codeDuplicateKey, "DuplicateKey", "E11000 duplicate key error collection: %s index: %s dup key: { %s }",
		c.ns(), ix.name, strings.Join(parts, ", "))
	e.extra = bson.D{{Key: "keyPattern", Value: ix.keys}, {Key: "keyValue", Value: vals}}
	return e
}

// jsonOf is a value as people read it in error messages.
func jsonOf(v any) string {
	j, err := bson.MarshalExtJSON(bson.D{{Key: "v", Value: v}}, false, false)
	if err != nil {
		return fmt.Sprint(v)
	}
	return strings.TrimSuffix(strings.TrimPrefix(string(j), `{"v":`), "}")
}
