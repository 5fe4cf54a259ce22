//go:build unix

package changefeed

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-63e9a637/jetbus/e2e/internal/chaos"
)

// Outcomes of a write.
const (
	done    = "done"
	nothing = "nothing" // MongoDB said so
	unknown = "unknown" // no answer
)

// write is what a writer asked for. All but a delete leave the document with n, which
// ascends from write to write.
type write struct {
	op      string // insert, update, replace, delete
	n       int
	outcome string
}

// writer writes one document, again and again.
type writer struct {
	id     string
	coll   *mongo.Collection
	random *rand.Rand
	exists bool // as far as is known
	log    []write
}

// run writes until ctx ends. What it began then, it ends.
func (w *writer) run(ctx context.Context) {
	for n := 1; ctx.Err() == nil; n++ {
		w.log = append(w.log, w.write(context.WithoutCancel(ctx), w.next(), n))
		if n%50 > 25 { // now fast, now slow
			chaos.Linger(ctx, time.Duration(w.random.IntN(150))*time.Millisecond)
		}
	}
}

// next says what to do: usually something that makes a change.
func (w *writer) next() string {
	p := w.random.IntN(100)
	switch {
	case p < 3:
		return []string{"insert", "update", "replace", "delete"}[w.random.IntN(4)]
	case !w.exists:
		return "insert"
	case p < 60:
		return "update"
	case p < 80:
		return "replace"
	}
	return "delete"
}

func (w *writer) write(ctx context.Context, op string, n int) write {
	mine, doc := bson.D{{Key: "_id", Value: w.id}}, bson.D{{Key: "_id", Value: w.id}, {Key: "n", Value: n}}
	var matched int64
	var err error
	switch op {
	case "insert":
		_, err = w.coll.InsertOne(ctx, doc)
		if matched = 1; mongo.IsDuplicateKeyError(err) {
			matched, err = 0, nil
		}
	case "update":
		var r *mongo.UpdateResult
		if r, err = w.coll.UpdateOne(ctx, mine, bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: n}}}}); err == nil {
			matched = r.MatchedCount
		}
	case "replace":
		var r *mongo.UpdateResult
		if r, err = w.coll.ReplaceOne(ctx, mine, doc); err == nil {
			matched = r.MatchedCount
		}
	case "delete":
		var r *mongo.DeleteResult
		if r, err = w.coll.DeleteOne(ctx, mine); err == nil {
			matched = r.DeletedCount
		}
	}
	switch {
	case err != nil:
		return write{op, n, unknown}
	case matched == 0:
		w.exists = op == "insert" // there was one
		return write{op, n, nothing}
	}
	w.exists = op != "delete"
	return write{op, n, done}
}

// explains checks that a document's history is what its writer asked for, in that
// order: everything that was done, nothing of what was not, and of what is unknown some.
func explains(log []write, history []change) error {
	at := map[int]bool{0: true} // how much of the history may be over
	for i, w := range log {
		next := map[int]bool{}
		for j := range at {
			if w.outcome != done {
				next[j] = true
			}
			if w.outcome != nothing && j < len(history) && history[j].op == w.op && (w.op == "delete" || history[j].n == w.n) {
				next[j+1] = true
			}
		}
		if len(next) == 0 {
			return fmt.Errorf("write %d (%+v) is not in the history where it should be, at one of %v of %d", i, w, at, len(history))
		}
		at = next
	}
	if !at[len(history)] {
		return fmt.Errorf("the writer explains %v of %d changes", at, len(history))
	}
	return nil
}
