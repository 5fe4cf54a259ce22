package mongod

import (
	"errors"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

type txnState int

const (
	txnOpen txnState = iota
	txnCommitted
	txnAborted
)

// A txn is a multi-document transaction. It reads the store as it was when the
// transaction began, overlaid with what it wrote itself.
type txn struct {
	sess     *session
	number   int64
	state    txnState
	snapshot uint64
	began    time.Time

	created map[string]*collection
	writes  map[*collection]*overlay
	changes []*change
	locked  []lockedKey
}

type lockedKey struct {
	coll *collection
	key  string
}

// An overlay is what a transaction wrote to one collection.
type overlay struct {
	docs    map[string]bson.D // by key of _id; nil: deleted
	order   []string
	entries map[*indexDef]map[string]string // of the unique indexes: the keys of _id
}

// errLocked says that a document is being written by a transaction. Outside
// transactions one waits for it.
var errLocked = errors.New("written by a transaction that is open")

func writeConflict() *CommandError {
	return errorf(codeWriteConflict, "WriteConflict",
		"Caused by :: Write conflict during plan execution and yielding is disabled. :: Please retry your operation or multi-document transaction.")
}

func noSuchTransaction(why string) *CommandError {
	return errorf(codeNoTransaction, "NoSuchTransaction", "%s", why)
}

func (s *store) begin(sess *session, number int64) *txn {
	t := &txn{
		sess: sess, number: number, snapshot: s.version, began: time.Now(),
		created: map[string]*collection{}, writes: map[*collection]*overlay{},
	}
	s.open[t] = struct{}{}
	return t
}

// finish ends a transaction in the given state and lets go of all it holds.
func (s *store) finish(t *txn, state txnState) {
	for _, l := range t.locked {
		delete(l.coll.locks, l.key)
	}
	t.state = state
	t.created, t.writes, t.changes, t.locked = nil, nil, nil, nil
	delete(s.open, t)
	s.collect()
	s.log.wake() // those who wait for a lock wait there too
}

// commit applies a transaction, or aborts it if it cannot.
func (s *store) commit(t *txn) error {
	for c, w := range t.writes {
		if t.created[c.ns()] == c {
			if s.colls[c.ns()] != nil {
				s.finish(t, txnAborted)
				return writeConflict()
			}
		} else if s.colls[c.ns()] != c {
			s.finish(t, txnAborted)
			return writeConflict()
		}
		if err := w.checkCommit(); err != nil {
			s.finish(t, txnAborted)
			return err
		}
	}
	for ns, c := range t.created {
		if s.colls[ns] == nil {
			s.colls[ns] = c
		}
	}
	delete(s.open, t) // its own snapshot keeps nothing
	for c, w := range t.writes {
		s.apply(c, w)
	}
	if len(t.changes) > 0 {
		ts := s.tick()
		for i, e := range t.changes {
			e.ts, e.txIdx = ts, uint32(i+1)
			s.log.append(e)
		}
	}
	s.finish(t, txnCommitted)
	return nil
}

// checkCommit looks for unique entries that writers outside took meanwhile.
func (w *overlay) checkCommit() error {
	for ix, entries := range w.entries {
		for e, key := range entries {
			s := ix.slots[e]
			if s == nil || s.key == key {
				continue
			}
			if _, rewritten := w.docs[s.key]; !rewritten {
				return writeConflict()
			}
		}
	}
	return nil
}

// apply makes the writes of a transaction the current versions.
func (s *store) apply(c *collection, w *overlay) {
	for _, key := range w.order { // entries may move from one document to another
		if sl := c.docs[key]; sl != nil {
			c.unindex(sl)
		}
	}
	for _, key := range w.order {
		if d := w.docs[key]; d != nil {
			s.put(c, key, d)
		} else {
			s.remove(c, key)
		}
	}
}

// written is the version of a document that the transaction wrote.
func (t *txn) written(c *collection, key string) (bson.D, bool) {
	w := t.writes[c]
	if w == nil {
		return nil, false
	}
	d, ok := w.docs[key]
	return d, ok
}

// write remembers a document, or with nil its deletion.
func (t *txn) write(c *collection, key string, d bson.D) {
	w := t.writes[c]
	if w == nil {
		w = &overlay{docs: map[string]bson.D{}, entries: map[*indexDef]map[string]string{}}
		t.writes[c] = w
	}
	old, again := w.docs[key]
	if !again {
		w.order = append(w.order, key)
	}
	w.docs[key] = d
	for _, ix := range c.idx {
		if !ix.unique {
			continue
		}
		m := w.entries[ix]
		if m == nil {
			m = map[string]string{}
			w.entries[ix] = m
		}
		if old != nil {
			entries, _ := ix.entries(old)
			for _, e := range entries {
				delete(m, e)
			}
		}
		if d != nil {
			entries, _ := ix.entries(d)
			for _, e := range entries {
				m[e] = key
			}
		}
	}
}

// checkEntry reports another document than that of key that has entry e of ix.
func (t *txn) checkEntry(c *collection, ix *indexDef, key, e string, d bson.D) error {
	if w := t.writes[c]; w != nil {
		if k, ok := w.entries[ix][e]; ok && k != key {
			return c.duplicate(ix, d)
		}
	}
	s := ix.slots[e]
	if s == nil || s.key == key {
		return nil
	}
	if _, rewritten := t.written(c, s.key); rewritten {
		return nil // and no longer has the entry, or it would have been found above
	}
	if s.head.version > t.snapshot {
		return writeConflict()
	}
	return c.duplicate(ix, d)
}

// lock makes sure that v may write the document of a key.
func (v *view) lock(c *collection, key string) error {
	owner := c.locks[key]
	switch {
	case v.txn == nil && owner != nil:
		return errLocked
	case v.txn == nil || owner == v.txn:
		return nil
	case owner != nil:
		return writeConflict()
	}
	if s := c.docs[key]; s != nil && s.head.version > v.txn.snapshot {
		return writeConflict()
	}
	c.locks[key] = v.txn
	v.txn.locked = append(v.txn.locked, lockedKey{c, key})
	return nil
}
