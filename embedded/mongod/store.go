package mongod

import (
	"cmp"
	"crypto/rand"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// A store is all data of a server. The server's mutex guards it.
type store struct {
	colls   map[string]*collection // by namespace
	version uint64                 // counts changes; snapshots are taken by it
	clock   bson.Timestamp
	log     oplog

	open    map[*txn]struct{} // transactions that may still read
	garbage []outdated        // by version
}

// outdated is a slot with versions that no snapshot sees once all of them are
// at version or later.
type outdated struct {
	coll    *collection
	slot    *slot
	version uint64
}

func newStore(oplogBytes int) *store {
	s := &store{colls: map[string]*collection{}, open: map[*txn]struct{}{}}
	s.log = oplog{limit: oplogBytes, oldest: s.tick(), notify: make(chan struct{})}
	return s
}

// tick advances the cluster's clock.
func (s *store) tick() bson.Timestamp {
	if now := uint32(time.Now().Unix()); now > s.clock.T {
		s.clock = bson.Timestamp{T: now, I: 1}
	} else {
		s.clock.I++
	}
	return s.clock
}

// A collection holds documents in the order of their insertion. A view is one
// without documents.
type collection struct {
	db, name  string
	uuid      bson.Binary
	opts      bson.D
	validator bson.D
	viewOn    string // the collection that a view reads, "" if it is none
	pipeline  bson.A // of a view
	images    bool   // pre- and post-images are kept

	docs    map[string]*slot // by key of _id
	order   []*slot
	dead    int      // slots in order that are no longer in docs
	ordered *ordered // nil until it is asked for
	idx     []*indexDef
	locks   map[string]*txn // by key of _id
}

// A slot is the place of one document, with the versions that may be read.
type slot struct {
	key  string
	id   any // the _id
	head *record
}

type record struct {
	doc     bson.D // nil: deleted
	version uint64
	prev    *record // what older snapshots see, nil if there are none
}

// at is the document as of a version, nil if there is none.
func (s *slot) at(version uint64) bson.D {
	for r := s.head; r != nil; r = r.prev {
		if r.version <= version {
			return r.doc
		}
	}
	return nil
}

func newCollection(db, name string) *collection {
	id := bson.D{{Key: "_id", Value: int32(1)}}
	return &collection{
		db: db, name: name, uuid: newUUID(),
		docs:  map[string]*slot{},
		locks: map[string]*txn{},
		idx: []*indexDef{{name: idIndex, keys: id, expire: -1, spec: bson.D{
			{Key: "v", Value: int32(2)}, {Key: "key", Value: id}, {Key: "name", Value: idIndex},
		}}},
	}
}

func newUUID() bson.Binary {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return bson.Binary{Subtype: bson.TypeBinaryUUID, Data: b}
}

func (c *collection) ns() string { return c.db + "." + c.name }

// setOptions takes over the options of create and collMod.
func (c *collection) setOptions(opts bson.D) {
	c.opts = slices.Clone(c.opts) // listings share it
	for _, e := range opts {
		c.opts = with(c.opts, e.Key, e.Value)
	}
	c.images = truth(field(asDoc(field(c.opts, "changeStreamPreAndPostImages")), "enabled"))
	c.validator = asDoc(field(c.opts, "validator"))
	c.viewOn = asString(field(c.opts, "viewOn"))
	c.pipeline = asArray(field(c.opts, "pipeline"))
}

// live is the current document of a key, nil if there is none.
func (c *collection) live(key string) bson.D {
	if s := c.docs[key]; s != nil {
		return s.head.doc
	}
	return nil
}

// store puts a document in the place of its key and into the indexes.
func (s *store) put(c *collection, key string, doc bson.D) {
	s.version++
	sl := c.docs[key]
	if sl == nil {
		sl = &slot{key: key, id: doc[0].Value, head: &record{doc: doc, version: s.version}}
		c.docs[key] = sl
		c.order = append(c.order, sl)
		if c.ordered != nil {
			c.ordered.fresh = append(c.ordered.fresh, sl)
		}
	} else {
		c.unindex(sl)
		s.replace(c, sl, doc)
	}
	c.index(sl)
}

// remove deletes the document of a key.
func (s *store) remove(c *collection, key string) {
	sl := c.docs[key]
	if sl == nil || sl.head.doc == nil {
		return
	}
	s.version++
	c.unindex(sl)
	s.replace(c, sl, nil)
	if sl.head.prev == nil {
		c.forget(sl)
	}
}

// replace gives a slot a new version. The older ones are kept while somebody may
// read them.
func (s *store) replace(c *collection, sl *slot, doc bson.D) {
	r := &record{doc: doc, version: s.version}
	if len(s.open) > 0 {
		r.prev = sl.head
		s.garbage = append(s.garbage, outdated{c, sl, s.version})
	}
	sl.head = r
}

// forget drops a slot whose document is deleted.
func (c *collection) forget(sl *slot) {
	if c.docs[sl.key] != sl {
		return
	}
	delete(c.docs, sl.key)
	if c.dead++; c.dead > 64 && c.dead > len(c.docs) {
		c.order = slices.DeleteFunc(c.order, func(s *slot) bool { return c.docs[s.key] != s })
		c.dead = 0
	}
}

// collect drops the versions that no open transaction sees any more.
func (s *store) collect() {
	oldest := s.version
	for t := range s.open {
		oldest = min(oldest, t.snapshot)
	}
	n := 0
	for ; n < len(s.garbage) && s.garbage[n].version <= oldest; n++ {
		g := s.garbage[n]
		r := g.slot.head
		for r.prev != nil && r.version > oldest {
			r = r.prev
		}
		r.prev = nil
		if g.slot.head == r && r.doc == nil {
			g.coll.forget(g.slot)
		}
	}
	s.garbage = slices.Delete(s.garbage, 0, n)
}

// databaseColls are the collections of a database by name, as v sees them.
func (v *view) databaseColls(db string) []*collection {
	var out []*collection
	for _, c := range v.st.colls {
		if c.db == db {
			out = append(out, c)
		}
	}
	if v.txn != nil {
		for _, c := range v.txn.created {
			if c.db == db {
				out = append(out, c)
			}
		}
	}
	slices.SortFunc(out, func(a, b *collection) int { return cmp.Compare(a.name, b.name) })
	return out
}

// A view is how a command sees the store: as it is, or through a transaction.
type view struct {
	st  *store
	txn *txn // nil outside transactions
}

func (v *view) coll(db, name string) *collection {
	ns := db + "." + name
	if v.txn != nil {
		if c := v.txn.created[ns]; c != nil {
			return c
		}
	}
	return v.st.colls[ns]
}

// ensure is coll for writes: the collection is created if there is none.
func (v *view) ensure(db, name string) (*collection, error) {
	if c := v.coll(db, name); c != nil {
		if c.viewOn != "" {
			return nil, errorf(166, "CommandNotSupportedOnView", "Namespace %s is a view, not a collection", c.ns())
		}
		return c, nil
	}
	return v.create(db, name, nil)
}

func (v *view) create(db, name string, opts bson.D) (*collection, error) {
	if err := checkNamespace(db, name); err != nil {
		return nil, err
	}
	c := newCollection(db, name)
	c.setOptions(opts)
	kind := "collection"
	if c.viewOn != "" {
		kind = "view"
	}
	if v.txn != nil {
		v.txn.created[c.ns()] = c
	} else {
		v.st.colls[c.ns()] = c
	}
	desc := append(bson.D{{Key: "idIndex", Value: c.idx[0].spec}}, opts...)
	v.emit(c, &change{op: "create", expanded: true, nsType: kind, desc: desc})
	return c, nil
}

func checkNamespace(db, name string) error {
	if name == "" || db == "" || len(db)+len(name) > 254 || strings.ContainsAny(db, "/\\. \"$\x00") ||
		strings.ContainsAny(name, "$\x00") || strings.HasPrefix(name, "system.") || strings.HasPrefix(name, ".") {
		return errorf(codeInvalidNamespace, "InvalidNamespace", "Invalid namespace specified '%s.%s'", db, name)
	}
	return nil
}

// doc is the document of a key, nil if there is none.
func (v *view) doc(c *collection, key string) bson.D {
	if v.txn == nil {
		return c.live(key)
	}
	if d, ok := v.txn.written(c, key); ok {
		return d
	}
	if s := c.docs[key]; s != nil {
		return s.at(v.txn.snapshot)
	}
	return nil
}

// A found is a document with the key of its _id.
type found struct {
	key string
	doc bson.D
}

// find returns what matches, at most limit documents if limit is positive.
func (v *view) find(c *collection, filter bson.D, limit int) ([]found, error) {
	m, err := newMatcher(filter)
	if err != nil {
		return nil, err
	}
	var out []found
	take := func(key string, d bson.D) (more bool) {
		if d == nil {
			return true
		}
		ok, e := m.match(d)
		if e != nil {
			err = e
			return false
		}
		if ok {
			out = append(out, found{key, d})
		}
		return !ok || limit <= 0 || len(out) < limit
	}
	if keys, ok := v.candidates(c, filter); ok {
		for _, k := range keys {
			if !take(k, v.doc(c, k)) {
				break
			}
		}
		return out, err
	}
	v.scan(c, take)
	return out, err
}

// scan calls take with all documents until it returns false.
func (v *view) scan(c *collection, take func(key string, d bson.D) bool) {
	for _, s := range c.order {
		if c.docs[s.key] != s {
			continue // forgotten
		}
		if !take(s.key, v.doc(c, s.key)) {
			return
		}
	}
	if v.txn == nil {
		return
	}
	if w := v.txn.writes[c]; w != nil {
		for _, k := range w.order {
			if c.docs[k] == nil && !take(k, w.docs[k]) {
				return
			}
		}
	}
}

// candidates are the keys of all documents that may match, if the filter pins
// the _id or a field with a unique index.
func (v *view) candidates(c *collection, filter bson.D) ([]string, bool) {
	if val, ok := get(filter, "_id"); ok {
		if val, ok := pinned(val); ok {
			return []string{keyOf(val)}, true
		}
		if ops, ok := val.(bson.D); ok && len(ops) == 1 && ops[0].Key == "$in" {
			return pinnedAll(asArray(ops[0].Value))
		}
	}
	if v.txn != nil {
		return nil, false // the indexes hold the latest versions only
	}
	for _, ix := range c.idx {
		if !ix.unique || ix.partial != nil || len(ix.keys) != 1 {
			continue
		}
		if val, ok := get(filter, ix.keys[0].Key); ok {
			if val, ok := pinned(val); ok && rank(val) != rankNull && rank(val) != rankArray {
				if s := ix.slots[ix.entry(val)]; s != nil {
					return []string{s.key}, true
				}
				return nil, true
			}
		}
	}
	return nil, false
}

// pinned is the one value that a condition allows.
func pinned(cond any) (any, bool) {
	switch x := cond.(type) {
	case bson.Regex:
		return nil, false
	case bson.D:
		if isOperators(x) {
			if len(x) == 1 && x[0].Key == "$eq" {
				return x[0].Value, true
			}
			return nil, false
		}
	}
	return cond, true
}

func pinnedAll(vals bson.A) ([]string, bool) {
	keys := make([]string, 0, len(vals))
	seen := make(map[string]bool, len(vals))
	for _, v := range vals {
		if _, ok := v.(bson.Regex); ok {
			return nil, false
		}
		if k := keyOf(v); !seen[k] {
			seen[k] = true
			keys = append(keys, k)
		}
	}
	return keys, true
}
