package mongod

import (
	"math"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// What a change stream watches.
type scope int

const (
	scopeCollection scope = iota
	scopeDatabase
	scopeCluster
)

// A changeStream reads the history from a position on.
type changeStream struct {
	scope    scope
	db, coll string
	full     string // the option fullDocument
	before   string // the option fullDocumentBeforeChange
	expanded bool
	split    bool
	maxEvent int
	stages   []stage

	next    uint64         // position of the next change to look at
	after   bson.Timestamp // changes up to it are of before the start
	skip    uint16         // fragments of that change that the client has
	inval   *change        // to be followed by an invalidate event
	queue   []pending      // made and not fetched
	last    token          // of what was fetched
	ended   bool           // nothing comes behind the queue
	failure error          // comes behind the queue
}

// A pending event has the token to resume behind it.
type pending struct {
	doc bson.D
	tok token
}

func (cs *changeStream) done() bool { return cs.ended && len(cs.queue) == 0 }

// position is where a new stream would have to resume.
func (cs *changeStream) position() token { return cs.last }

func historyLost(during string) error {
	e := errorf(codeHistoryLost, "", "Executor error during %s :: caused by :: Resume of change stream was not possible, as the resume point may no longer be in the oplog.", during)
	e.Labels = []string{labelNotResumable}
	return e
}

func streamFatal(msg string) error {
	e := errorf(codeStreamFatal, "", "%s", msg)
	e.Labels = []string{labelNotResumable}
	return e
}

// watch opens a change stream.
func (k *call) watch(pipeline bson.A, opts bson.D) (bson.D, error) {
	if level := asString(field(asDoc(k.field("readConcern")), "level")); level != "" && level != "majority" {
		return nil, errorf(codeInvalidOptions, "InvalidOptions", "$changeStream cannot be used with readConcern level %s", level)
	}
	if k.txn != nil {
		return nil, errorf(263, "OperationNotSupportedInTransaction", "Stage not supported inside of a multi-document transaction: $changeStream")
	}
	if k.srv.cfg.Standalone {
		return nil, errorf(40573, "", "The $changeStream stage is only supported on replica sets")
	}
	spec, ok := asDoc(pipeline[0])[0].Value.(bson.D)
	if !ok {
		return nil, errorf(50808, "", "$changeStream stage expects a document as argument")
	}
	cs, err := k.newChangeStream(spec, pipeline[1:])
	if err != nil {
		return nil, err
	}
	if err := cs.seek(k.st, spec); err != nil {
		return nil, err
	}
	ns := k.db + ".$cmd.aggregate"
	if cs.scope == scopeCollection {
		ns = k.db + "." + cs.coll
	}
	k.srv.raceWatch(ns)
	n := asInt(field(opts, "batchSize"), defaultBatch)
	batch, err := cs.batch(k.st, int(min(max(n, 0), math.MaxInt32)))
	if err != nil {
		return nil, err
	}
	c, err := k.srv.newCursor(&cursor{ns: ns, cs: cs})
	if err != nil {
		return nil, err
	}
	return k.changesReply("firstBatch", c, batch), nil
}

// newChangeStream reads the options of a change stream except for its start.
func (k *call) newChangeStream(spec bson.D, pipeline bson.A) (*changeStream, error) {
	cs := &changeStream{db: k.db, scope: scopeDatabase, maxEvent: k.srv.cfg.MaxEventBytes}
	if name, ok := k.body[0].Value.(string); ok {
		cs.scope, cs.coll = scopeCollection, name
		if c := k.coll(k.db, name); c != nil && c.viewOn != "" {
			return nil, errorf(166, "CommandNotSupportedOnView", "$changeStream is not supported on views: %s", c.ns())
		}
	}
	for _, e := range spec {
		switch e.Key {
		case "allChangesForCluster":
			if !truth(e.Value) {
				continue
			}
			if k.db != "admin" || cs.scope == scopeCollection {
				return nil, errorf(codeInvalidOptions, "InvalidOptions", "A $changeStream with 'allChangesForCluster:true' may only be opened on the 'admin' database, and with no collection name")
			}
			cs.scope = scopeCluster
		case "fullDocument":
			if cs.full = asString(e.Value); !slices.Contains([]string{"default", "updateLookup", "whenAvailable", "required"}, cs.full) {
				return nil, badValue("Enumeration value '%v' for field '$changeStream.fullDocument' is not a valid value.", e.Value)
			}
		case "fullDocumentBeforeChange":
			if cs.before = asString(e.Value); !slices.Contains([]string{"off", "whenAvailable", "required"}, cs.before) {
				return nil, badValue("Enumeration value '%v' for field '$changeStream.fullDocumentBeforeChange' is not a valid value.", e.Value)
			}
		case "showExpandedEvents":
			cs.expanded = truth(e.Value)
		case "resumeAfter", "startAfter", "startAtOperationTime", "showMigrationEvents", "showSystemEvents":
		default:
			return nil, errorf(40415, "", "BSON field '$changeStream.%s' is an unknown field.", e.Key)
		}
	}
	if cs.scope == scopeDatabase && (k.db == "admin" || k.db == "config" || k.db == "local") {
		return nil, errorf(codeInvalidNamespace, "InvalidNamespace", "$changeStream may not be opened on the internal %s database", k.db)
	}
	var err error
	if cs.stages, err = newPipeline(pipeline, forChangeStream); err != nil {
		return nil, err
	}
	if n := len(pipeline); n > 0 {
		cs.split = asDoc(pipeline[n-1])[0].Key == splitStageName
	}
	return cs, nil
}

// seek goes to where the options say that the stream starts; without any, to
// the end.
func (cs *changeStream) seek(st *store, spec bson.D) error {
	var from bson.E
	for _, e := range spec {
		switch e.Key {
		case "resumeAfter", "startAfter", "startAtOperationTime":
			if from.Key != "" {
				return errorf(40674, "", "Only one type of resume option is allowed, but multiple were found.")
			}
			from = e
		}
	}
	l := &st.log
	switch from.Key {
	case "":
		cs.next = l.readable()
		cs.last = token{ts: st.clock, kind: tokenHigh}
		if l.held && cs.next > l.base {
			cs.last.ts = l.at(cs.next - 1).ts
		}
		return nil
	case "startAtOperationTime":
		ts, ok := from.Value.(bson.Timestamp)
		if !ok {
			return errorf(codeTypeMismatch, "TypeMismatch", "BSON field '$changeStream.startAtOperationTime' is the wrong type '%s', expected type 'timestamp'", typeName(from.Value))
		}
		if ts.Compare(l.oldest) < 0 {
			return historyLost("aggregate command")
		}
		cs.next = l.seek(func(e *change) bool { return e.ts.Compare(ts) >= 0 })
		cs.after = momentBefore(ts)
		cs.last = token{ts: cs.after, kind: tokenHigh}
		return nil
	}
	tok, err := parseToken(from.Value)
	if err != nil {
		return err
	}
	return cs.resume(st, tok, from.Key == "resumeAfter")
}

// momentBefore is the last moment before another one.
func momentBefore(ts bson.Timestamp) bson.Timestamp {
	if ts.I > 0 {
		return bson.Timestamp{T: ts.T, I: ts.I - 1}
	}
	return bson.Timestamp{T: max(ts.T, 1) - 1, I: math.MaxUint32}
}

// resume goes to the position behind a token.
func (cs *changeStream) resume(st *store, tok token, notInvalidated bool) error {
	if notInvalidated && tok.kind == tokenInvalidate {
		e := errorf(codeInvalidToken, "InvalidResumeToken", "Attempting to resume a change stream using 'resumeAfter' is not allowed from an invalidate notification.")
		e.Labels = []string{labelNotResumable}
		return e
	}
	l := &st.log
	if tok.ts.Compare(l.oldest) < 0 {
		return historyLost("aggregate command")
	}
	cs.next, cs.last = l.seek(tok.before), tok
	if tok.kind == tokenHigh { // it may be of a start that is to come
		cs.after = tok.ts
	}
	if tok.kind != tokenEvent {
		return nil
	}
	notFound := streamFatal("cannot resume stream; the resume token was not found. " + jsonOf(tok.doc()))
	if cs.next == l.base {
		return notFound
	}
	e := l.at(cs.next - 1)
	if !tok.of(e) || !cs.visible(e) {
		return notFound
	}
	// The same pipeline lets the same event pass, and splits it alike.
	events, err := cs.events(st, e)
	if err != nil {
		return err
	}
	if len(events) == 0 || int(tok.fragment) > len(events) || (tok.fragment > 0) != (len(events) > 1) {
		return notFound
	}
	if tok.fragment > 0 {
		cs.next--
		cs.skip = tok.fragment
		return nil
	}
	if cs.invalidates(e) {
		cs.inval = e
	}
	return nil
}

// visible says whether the stream is about a change.
func (cs *changeStream) visible(e *change) bool {
	if e.expanded && !cs.expanded || e.db == "admin" || e.db == "config" || e.db == "local" || strings.HasPrefix(e.coll, "system.") {
		return false
	}
	switch cs.scope {
	case scopeCluster:
		return true
	case scopeDatabase:
		return e.db == cs.db || e.op == "rename" && e.toDB == cs.db
	default:
		return e.op != "dropDatabase" &&
			(e.db == cs.db && e.coll == cs.coll || e.op == "rename" && e.toDB == cs.db && e.to == cs.coll)
	}
}

// invalidates says whether the stream ends behind a change.
func (cs *changeStream) invalidates(e *change) bool {
	switch cs.scope {
	case scopeCollection:
		return e.op == "drop" || e.op == "rename"
	case scopeDatabase:
		return e.op == "dropDatabase"
	default:
		return false
	}
}

// batch takes up to n events that are there. An error ends the stream.
func (cs *changeStream) batch(st *store, n int) (bson.A, error) {
	batch := bson.A{}
	bytes := 0
	for len(batch) < n {
		if len(cs.queue) == 0 {
			if !cs.advance(st) {
				break
			}
			continue
		}
		p := cs.queue[0]
		if bytes += sizeOf(p.doc); bytes > maxBatchBytes && len(batch) > 0 {
			break
		}
		batch = append(batch, p.doc)
		cs.queue, cs.last = cs.queue[1:], p.tok
	}
	if len(cs.queue) > 0 {
		return batch, nil
	}
	if cs.failure != nil && len(batch) == 0 {
		return nil, cs.failure
	}
	if !cs.ended && cs.failure == nil && cs.inval == nil {
		cs.passed(&st.log)
	}
	return batch, nil
}

// advance looks at the next change and queues its events. It returns false if
// there is none.
func (cs *changeStream) advance(st *store) bool {
	l := &st.log
	switch {
	case cs.ended || cs.failure != nil:
		return false
	case cs.inval != nil:
		tok := token{ts: cs.inval.ts, txIdx: cs.inval.txIdx, kind: tokenInvalidate}
		cs.queueAll(invalidateEvent(cs.inval, tok), tok)
		cs.inval, cs.ended = nil, true
		return true
	case cs.next < l.base:
		cs.failure = historyLost("getMore")
		return false
	case cs.next >= l.readable():
		return false
	}
	e := l.at(cs.next)
	cs.next++
	if e.ts.Compare(cs.after) <= 0 || !cs.visible(e) {
		return true
	}
	events, err := cs.events(st, e)
	if err != nil {
		cs.failure = err
		return false
	}
	cs.queue = append(cs.queue, events[min(int(cs.skip), len(events)):]...)
	cs.skip = 0
	if cs.invalidates(e) {
		cs.inval = e
	}
	return true
}

// queueAll runs an event through the pipeline and queues what comes out.
func (cs *changeStream) queueAll(d bson.D, tok token) {
	events, err := cs.through(d, tok)
	if err != nil {
		cs.failure = err
		return
	}
	cs.queue = append(cs.queue, events...)
}

// passed moves the position behind the changes that were looked at.
func (cs *changeStream) passed(l *oplog) {
	if cs.next <= l.base {
		return
	}
	ts := l.at(cs.next - 1).ts
	if cs.next < l.end() && l.at(cs.next).ts == ts {
		return // in the middle of a transaction
	}
	if cs.last.ts.Compare(ts) < 0 {
		cs.last = token{ts: ts, kind: tokenHigh}
	}
}
