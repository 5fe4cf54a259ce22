package mongod

import (
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func namespaceNotFound(ns string) error {
	return errorf(codeNamespaceNotFound, "NamespaceNotFound", "ns does not exist: %s", ns)
}

// collectionOptions are the options of create and collMod that mean something
// here.
var collectionOptions = []string{"changeStreamPreAndPostImages", "validator", "validationLevel", "validationAction", "viewOn", "pipeline", "autoIndexId", "idIndex", "storageEngine", "collation"}

func checkOptions(opts bson.D) error {
	for _, e := range opts {
		if !slices.Contains(collectionOptions, e.Key) {
			if e.Key == "capped" && !truth(e.Value) {
				continue
			}
			return unsupported("the option " + e.Key + " of collections")
		}
	}
	if err := checkCollation(field(opts, "collation")); err != nil {
		return err
	}
	if action := asString(field(opts, "validationAction")); action != "" && action != "error" {
		return unsupported("the validation action " + action)
	}
	if _, err := newMatcher(asDoc(field(opts, "validator"))); err != nil {
		return err
	}
	_, err := newPipeline(asArray(field(opts, "pipeline")), forRead)
	return err
}

func (k *call) createCollection() (bson.D, error) {
	opts := k.options()
	if err := checkOptions(opts); err != nil {
		return nil, err
	}
	if old := k.coll(k.db, k.target()); old != nil {
		if len(opts) == len(old.opts) && same(opts, old.opts) {
			return ok(), nil
		}
		return nil, errorf(codeNamespaceExists, "NamespaceExists", "Collection %s already exists.", old.ns())
	}
	if _, err := k.create(k.db, k.target(), opts); err != nil {
		return nil, err
	}
	return ok(), nil
}

// existing is the collection of the command, when no transaction writes to it.
func (k *call) existing() (*collection, error) {
	for {
		c := k.coll(k.db, k.target())
		if c == nil {
			return nil, namespaceNotFound(k.db + "." + k.target())
		}
		if err := k.unlocked(c); err != nil {
			return nil, err
		}
		if k.coll(k.db, k.target()) == c {
			return c, nil
		}
	}
}

func (k *call) collMod() (bson.D, error) {
	c, err := k.existing()
	if err != nil {
		return nil, err
	}
	opts := k.options()
	reply := ok()
	if spec, has := get(opts, "index"); has {
		if reply, err = k.modifyIndex(c, asDoc(spec)); err != nil {
			return nil, err
		}
		opts = without(opts, "index")
	}
	if err := checkOptions(opts); err != nil {
		return nil, err
	}
	c.setOptions(opts)
	k.emit(c, &change{op: "modify", expanded: true, desc: k.options()})
	return reply, nil
}

// modifyIndex changes the expireAfterSeconds of a TTL index.
func (k *call) modifyIndex(c *collection, spec bson.D) (bson.D, error) {
	for i, ix := range c.idx {
		if ix.name != asString(field(spec, "name")) && compare(ix.keys, field(spec, "keyPattern")) != 0 {
			continue
		}
		seconds, has := get(spec, "expireAfterSeconds")
		if !has {
			return nil, unsupported("this change of an index")
		}
		changed := *ix // listings share the old one
		old := ix.expire
		changed.expire = asInt(seconds, 0)
		changed.spec = append(without(ix.spec, "expireAfterSeconds"), bson.E{Key: "expireAfterSeconds", Value: seconds})
		c.idx = slices.Clone(c.idx)
		c.idx[i] = &changed
		return ok(bson.E{Key: "expireAfterSeconds_old", Value: old}, bson.E{Key: "expireAfterSeconds_new", Value: seconds}), nil
	}
	return nil, errorf(27, "IndexNotFound", "cannot find index for ns %s", c.ns())
}

func (k *call) drop() (bson.D, error) {
	c, err := k.existing()
	if err != nil {
		if e := commandError(err); e.Code == codeNamespaceNotFound {
			return ok(), nil
		}
		return nil, err
	}
	delete(k.st.colls, c.ns())
	k.emit(c, &change{op: "drop"})
	return ok(bson.E{Key: "nIndexesWas", Value: int32(len(c.idx))}, bson.E{Key: "ns", Value: c.ns()}), nil
}

func (k *call) dropDatabase() (bson.D, error) {
	list := k.databaseColls(k.db)
	for _, c := range list {
		if err := k.unlocked(c); err != nil {
			return nil, err
		}
	}
	list = k.databaseColls(k.db) // as it is now
	for _, c := range list {
		delete(k.st.colls, c.ns())
		k.emit(c, &change{op: "drop"})
	}
	if len(list) > 0 {
		k.emit(nil, &change{op: "dropDatabase", db: k.db})
	}
	return ok(bson.E{Key: "dropped", Value: k.db}), nil
}

func (k *call) rename() (bson.D, error) {
	from, to := k.target(), asString(k.field("to"))
	toDB, toName, _ := strings.Cut(to, ".")
	if err := checkNamespace(toDB, toName); err != nil {
		return nil, err
	}
	if from == to {
		return nil, errorf(codeIllegalOperation, "IllegalOperation", "Can't rename a collection to itself")
	}
	for _, ns := range []string{from, to} {
		if c := k.st.colls[ns]; c != nil {
			if err := k.unlocked(c); err != nil {
				return nil, err
			}
		}
	}
	c, target := k.st.colls[from], k.st.colls[to]
	if c == nil {
		return nil, errorf(codeNamespaceNotFound, "NamespaceNotFound", "Source collection %s does not exist", from)
	}
	if c.viewOn != "" || target != nil && target.viewOn != "" {
		return nil, errorf(166, "CommandNotSupportedOnView", "cannot rename view: %s", c.ns())
	}
	desc := bson.D{{Key: "to", Value: bson.D{{Key: "db", Value: toDB}, {Key: "coll", Value: toName}}}}
	if target != nil {
		if !truth(k.field("dropTarget")) {
			return nil, errorf(codeNamespaceExists, "NamespaceExists", "target namespace exists")
		}
		desc = append(desc, bson.E{Key: "dropTarget", Value: target.uuid})
	}
	e := &change{op: "rename", db: c.db, coll: c.name, toDB: toDB, to: toName, desc: desc}
	delete(k.st.colls, from)
	c.db, c.name = toDB, toName
	k.st.colls[to] = c
	for id, cur := range k.srv.cursors { // of reads; change streams see the rename
		if cur.cs == nil && (cur.ns == from || cur.ns == to) {
			delete(k.srv.cursors, id)
		}
	}
	k.emit(c, e)
	return ok(), nil
}

func (k *call) listDatabases() (bson.D, error) {
	m, err := newMatcher(asDoc(k.field("filter")))
	if err != nil {
		return nil, err
	}
	names := []string{"admin", "config", "local"}
	for _, c := range k.st.colls {
		names = append(names, c.db)
	}
	slices.Sort(names)
	out := bson.A{}
	for _, name := range slices.Compact(names) {
		d := bson.D{{Key: "name", Value: name}}
		if !truth(k.field("nameOnly")) {
			d = append(d, bson.E{Key: "sizeOnDisk", Value: int64(0)}, bson.E{Key: "empty", Value: len(k.databaseColls(name)) == 0})
		}
		if ok, err := m.match(d); err != nil {
			return nil, err
		} else if ok {
			out = append(out, d)
		}
	}
	return ok(bson.E{Key: "databases", Value: out}, bson.E{Key: "totalSize", Value: int64(0)}), nil
}

func (k *call) listCollections() (bson.D, error) {
	m, err := newMatcher(asDoc(k.field("filter")))
	if err != nil {
		return nil, err
	}
	var docs []bson.D
	for _, c := range k.databaseColls(k.db) {
		kind := "collection"
		if c.viewOn != "" {
			kind = "view"
		}
		d := bson.D{{Key: "name", Value: c.name}, {Key: "type", Value: kind}}
		if !truth(k.field("nameOnly")) {
			info := bson.D{{Key: "readOnly", Value: kind == "view"}, {Key: "uuid", Value: c.uuid}}
			d = append(d, bson.E{Key: "options", Value: orEmpty(c.opts)}, bson.E{Key: "info", Value: info})
			if kind == "collection" {
				d = append(d, bson.E{Key: "idIndex", Value: c.idx[0].spec})
			}
		}
		if ok, err := m.match(d); err != nil {
			return nil, err
		} else if ok {
			docs = append(docs, d)
		}
	}
	return k.cursorReply(k.db+".$cmd.listCollections", docs, field(asDoc(k.field("cursor")), "batchSize"), false)
}
