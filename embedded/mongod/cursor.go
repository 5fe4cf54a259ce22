package mongod

import (
	"errors"
	"math"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

const (
	defaultBatch  = 101
	maxBatchBytes = 16 << 20
)

// A cursor is what a client has not fetched yet of a result.
type cursor struct {
	id   int64
	ns   string
	docs []bson.D
	cs   *changeStream // nil: a result that is complete
	used time.Time
	busy int // commands that read from it
}

// cut takes a batch of at most n documents off the head of docs. At least one
// document fits.
func cut(docs []bson.D, n int) (batch bson.A, rest []bson.D) {
	batch = bson.A{}
	bytes := 0
	for len(docs) > 0 && len(batch) < n {
		if bytes += sizeOf(docs[0]); bytes > maxBatchBytes && len(batch) > 0 {
			break
		}
		batch = append(batch, docs[0])
		docs = docs[1:]
	}
	return batch, docs
}

// cursorReply answers with the first batch of a result, and with a cursor for
// the rest.
func (k *call) cursorReply(ns string, docs []bson.D, batchSize any, single bool) (bson.D, error) {
	n := int64(defaultBatch)
	if batchSize != nil {
		if n = asInt(batchSize, -1); n < 0 {
			return nil, badValue("batchSize must not be negative")
		}
	}
	batch, rest := cut(docs, int(min(n, math.MaxInt32)))
	var id int64
	if len(rest) > 0 && !single {
		c, err := k.srv.newCursor(&cursor{ns: ns, docs: rest})
		if err != nil {
			return nil, err
		}
		id = c.id
	}
	return ok(bson.E{Key: "cursor", Value: bson.D{
		{Key: "firstBatch", Value: batch}, {Key: "id", Value: id}, {Key: "ns", Value: ns},
	}}), nil
}

func (s *Server) newCursor(c *cursor) (*cursor, error) {
	if len(s.cursors) >= s.cfg.MaxCursors {
		return nil, errorf(146, "ExceededMemoryLimit", "too many open cursors: at most %d", s.cfg.MaxCursors)
	}
	s.lastID++
	c.id = s.lastID<<16 | 7 // ids are large, as clients are used to
	c.used = time.Now()
	s.cursors[c.id] = c
	return c, nil
}

func (k *call) getMore() (bson.D, error) {
	id, ok := integer(k.body[0].Value)
	if !ok {
		return nil, errorf(codeTypeMismatch, "TypeMismatch", "Field 'getMore' must be of type long")
	}
	c := k.srv.cursors[id]
	if c == nil {
		return nil, cursorNotFound(id)
	}
	if ns := k.db + "." + asString(k.field("collection")); ns != c.ns {
		return nil, errorf(codeUnauthorized, "Unauthorized", "Requested getMore on namespace '%s', but cursor belongs to a different namespace %s", ns, c.ns)
	}
	k.ofChangeStream = c.cs != nil
	if data, hit := k.srv.hit(k.conn, k.command, failGetMore); hit {
		delete(k.srv.cursors, id)
		k.srv.mu.Unlock()
		f := k.srv.effect(k.conn, k.command, data)
		k.srv.mu.Lock()
		if f.cut || f.err != nil {
			return nil, f.failure()
		}
	}
	n := asInt(k.field("batchSize"), 0)
	if n <= 0 {
		n = math.MaxInt32
	}
	c.busy++
	defer func() {
		c.busy--
		c.used = time.Now()
	}()
	if c.cs != nil {
		return k.moreChanges(c, int(min(n, math.MaxInt32)))
	}
	var batch bson.A
	batch, c.docs = cut(c.docs, int(min(n, math.MaxInt32)))
	if len(c.docs) == 0 {
		delete(k.srv.cursors, id)
		id = 0
	}
	return nextBatch(batch, id, c.ns), nil
}

func nextBatch(batch bson.A, id int64, ns string) bson.D {
	return ok(bson.E{Key: "cursor", Value: bson.D{{Key: "nextBatch", Value: batch}, {Key: "id", Value: id}, {Key: "ns", Value: ns}}})
}

func cursorNotFound(id int64) error {
	return errorf(codeCursorNotFound, "CursorNotFound", "cursor id %d not found", id)
}

// moreChanges waits for changes until maxTimeMS is over, a second by default.
func (k *call) moreChanges(c *cursor, n int) (bson.D, error) {
	await := time.Second
	if ms, ok := k.get("maxTimeMS"); ok {
		await = time.Duration(asInt(ms, 0)) * time.Millisecond
	}
	until := time.Now().Add(await)
	for {
		if k.srv.cursors[c.id] != c {
			return nil, cursorNotFound(c.id)
		}
		if !k.srv.primary {
			delete(k.srv.cursors, c.id)
			return nil, errorf(codeStepDown, "", "operation was interrupted because the member stepped down")
		}
		batch, err := c.cs.batch(k.st, n)
		if err != nil {
			delete(k.srv.cursors, c.id)
			return nil, err
		}
		if len(batch) > 0 || c.cs.done() || !time.Now().Before(until) {
			return k.changesReply("nextBatch", c, batch), nil
		}
		if err := k.wait(until); errors.Is(err, ErrCut) {
			return nil, err
		}
	}
}

// changesReply answers with changes and the token to resume behind them.
func (k *call) changesReply(name string, c *cursor, batch bson.A) bson.D {
	id := c.id
	if c.cs.done() {
		delete(k.srv.cursors, id)
		id = 0
	}
	return ok(bson.E{Key: "cursor", Value: bson.D{
		{Key: name, Value: batch},
		{Key: "postBatchResumeToken", Value: c.cs.position().doc()},
		{Key: "id", Value: id},
		{Key: "ns", Value: c.ns},
	}})
}

func (k *call) killCursors() (bson.D, error) {
	killed, unknown := bson.A{}, bson.A{}
	for _, v := range asArray(k.field("cursors")) {
		id, _ := integer(v)
		if k.srv.cursors[id] == nil {
			unknown = append(unknown, v)
			continue
		}
		delete(k.srv.cursors, id)
		killed = append(killed, v)
	}
	k.st.log.wake()
	return ok(
		bson.E{Key: "cursorsKilled", Value: killed}, bson.E{Key: "cursorsNotFound", Value: unknown},
		bson.E{Key: "cursorsAlive", Value: bson.A{}}, bson.E{Key: "cursorsUnknown", Value: bson.A{}},
	), nil
}
