package mongod

import (
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// A change is one entry of the history that change streams read.
type change struct {
	op        string // as in the operationType of the event
	db, coll  string
	uuid      bson.Binary
	images    bool // the collection kept pre- and post-images then
	id        any
	pre, post bson.D
	ts        bson.Timestamp
	txIdx     uint32 // place in its transaction, from 1; 0 outside transactions
	wall      time.Time
	lsid      bson.D // of the transaction
	txnNumber int64
	toDB, to  string // of a rename
	desc      bson.D // operationDescription
	nsType    string
	expanded  bool // shown with showExpandedEvents only
	size      int
}

// An oplog is the history of changes, bounded in bytes.
type oplog struct {
	entries []*change
	base    uint64         // absolute position of the first entry
	oldest  bson.Timestamp // where the history begins
	bytes   int
	limit   int

	// stalled is the absolute position at which change streams stop while there
	// is no majority, and held whether that is so.
	stalled uint64
	held    bool

	waiters int
	notify  chan struct{} // closed and made anew to wake the waiters
}

// end is the position after the last change.
func (l *oplog) end() uint64 { return l.base + uint64(len(l.entries)) }

// readable is the position after the last change that change streams may read.
func (l *oplog) readable() uint64 {
	if l.held {
		return max(l.stalled, l.base)
	}
	return l.end()
}

func (l *oplog) at(pos uint64) *change { return l.entries[pos-l.base] }

func (l *oplog) append(e *change) {
	e.wall = time.Now()
	e.size = 128 + sizeOf(e.pre) + sizeOf(e.post) + sizeOf(e.desc)
	l.entries = append(l.entries, e)
	l.bytes += e.size
	n := 0
	for l.bytes > l.limit && n < len(l.entries)-1 {
		l.bytes -= l.entries[n].size
		n++
	}
	l.drop(n)
	l.wake()
}

// drop forgets the n oldest changes.
func (l *oplog) drop(n int) {
	if n == 0 {
		return
	}
	last := l.entries[n-1]
	l.oldest = bson.Timestamp{T: last.ts.T, I: last.ts.I + 1}
	clear(l.entries[:n])
	l.entries = l.entries[n:]
	l.base += uint64(n)
}

// truncate forgets everything up to now.
func (l *oplog) truncate(now bson.Timestamp) {
	l.base = l.end()
	l.entries, l.bytes, l.oldest = nil, 0, now
	l.wake()
}

// wake lets everyone who waits for changes look again.
func (l *oplog) wake() {
	if l.waiters > 0 {
		close(l.notify)
		l.notify = make(chan struct{})
	}
}

// seek is the position of the first change for which after is true; it is so for
// all behind it.
func (l *oplog) seek(after func(*change) bool) uint64 {
	i, _ := slices.BinarySearchFunc(l.entries, true, func(e *change, _ bool) int {
		if after(e) {
			return 1
		}
		return -1
	})
	return l.base + uint64(i)
}

// emit records a change of c, or of a database if c is nil.
func (v *view) emit(c *collection, e *change) {
	if c != nil {
		e.uuid, e.images = c.uuid, c.images
		if e.db == "" {
			e.db, e.coll = c.db, c.name
		}
	}
	if v.txn != nil {
		e.lsid, e.txnNumber = v.txn.sess.lsid, v.txn.number
		v.txn.changes = append(v.txn.changes, e)
		return
	}
	e.ts = v.st.tick()
	v.st.log.append(e)
}
