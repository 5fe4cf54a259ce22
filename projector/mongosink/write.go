package mongosink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus/projector"
)

// Bounds of a bulk: it goes out as one message.
const (
	maxBulk      = 1000
	maxBulkBytes = 8 << 20
	// maxRounds bounds how often a change may lose the race for its key in one Write.
	maxRounds = 10
)

// A writer writes batches of one source to one collection.
type writer struct {
	db   *mongo.Database
	o    *Options
	coll *mongo.Collection
	mark *bookmark

	session *mongo.Session // its transaction may be open on the server; nil: none is open
}

// write stores a batch. The outcome counts only if there is no error.
func (w *writer) write(ctx context.Context, b projector.Batch) (out projector.Outcome, err error) {
	writes := make([]*guarded, 0, len(b.Changes))
	now := time.Now()
	for i := range b.Changes {
		g, err := w.newGuarded(i, &b.Changes[i], now)
		if err != nil {
			out.Rejected = append(out.Rejected, projector.Rejection{Index: i, Err: err})
			if w.mark.src.Every { // nothing behind it, until it is out of the way
				break
			}
			continue
		}
		writes = append(writes, g)
	}
	defer func() {
		slices.SortFunc(out.Rejected, func(a, b projector.Rejection) int { return cmp.Compare(a.Index, b.Index) })
	}()
	if w.o.HardDelete {
		err = w.commit(ctx, writes, b, &out)
		return out, err
	}
	if err := w.mark.note(ctx, b.Last); err != nil {
		return out, err
	}
	for len(writes) > 0 {
		n := distinct(writes)
		rejected := len(out.Rejected)
		if err := w.writePass(ctx, writes[:n], &out); err != nil {
			return out, err
		}
		if writes = writes[n:]; w.mark.src.Every && len(out.Rejected) > rejected {
			break
		}
	}
	if b.UpTo > 0 && len(out.Rejected) == 0 {
		err = w.mark.advance(ctx, b.UpTo)
	}
	return out, err
}

// distinct is how many of the writes, from the first one on, have keys of their
// own: within a bulk there is no order.
func distinct(writes []*guarded) int {
	keys := make(map[string]struct{}, len(writes))
	for i, g := range writes {
		if keys[g.key] = struct{}{}; len(keys) == i {
			return i
		}
	}
	return len(writes)
}

// A collision is a write that the server refused with a duplicate key.
type collision struct {
	*guarded
	onKey  bool     // the collision is in _id: the guard did not match the existing document
	values bson.Raw // the values in the other index; nil: the server did not report them
	err    error
}

// writePass writes changes of different keys until each is applied, stale or
// rejected.
func (w *writer) writePass(ctx context.Context, pending []*guarded, out *projector.Outcome) error {
	for round := 1; len(pending) > 0; round++ {
		applied := out.Applied
		var collisions []collision
		for chunk := range chunks(pending) {
			c, err := w.bulk(ctx, chunk, out)
			if err != nil {
				return err
			}
			collisions = append(collisions, c...)
		}
		var err error
		pending, err = w.settle(ctx, collisions, out.Applied > applied, out)
		if err != nil {
			return err
		}
		if len(pending) > 0 && round >= maxRounds && out.Applied == applied {
			return fmt.Errorf("key %q: the race against other writers was lost %d times", pending[0].key, round)
		}
	}
	return nil
}

// chunks yields the bulks that writes are sent in.
func chunks(writes []*guarded) func(yield func([]*guarded) bool) {
	return func(yield func([]*guarded) bool) {
		start, size := 0, 0
		for i, g := range writes {
			n := len(g.filter) + len(g.body)
			if i > start && (i-start == maxBulk || size+n > maxBulkBytes) {
				if !yield(writes[start:i]) {
					return
				}
				start, size = i, 0
			}
			size += n
		}
		if start < len(writes) {
			yield(writes[start:])
		}
	}
}

// bulk sends one bulk and counts what was applied and rejected. An error means that
// nothing is known of any of its writes, or that they are not durable.
func (w *writer) bulk(ctx context.Context, writes []*guarded, out *projector.Outcome) ([]collision, error) {
	models := make([]mongo.WriteModel, len(writes))
	for i, g := range writes {
		models[i] = g.model()
	}
	_, err := w.coll.BulkWrite(ctx, models, options.BulkWrite().SetOrdered(false))
	if err == nil {
		out.Applied += len(writes)
		return nil, nil
	}
	be, ok := errors.AsType[mongo.BulkWriteException](err)
	switch {
	case !ok:
		return nil, err
	case be.WriteConcernError != nil:
		return nil, fmt.Errorf("no majority has the writes: %w", err)
	}
	var collisions []collision
	var rejected []projector.Rejection
	for _, we := range be.WriteErrors {
		g := writes[we.Index]
		switch {
		case we.Code == codeDuplicateKey:
			values, _ := we.Raw.Lookup("keyValue").DocumentOK()
			collisions = append(collisions, collision{guarded: g, onKey: onKey(we.WriteError), values: values, err: duplicate(we.WriteError)})
		case permanent[we.Code]:
			rejected = append(rejected, projector.Rejection{Index: g.index, Err: refused(we.WriteError)})
		default:
			return nil, fmt.Errorf("key %q: %w", g.key, err)
		}
	}
	out.Applied += len(writes) - len(be.WriteErrors)
	out.Rejected = append(out.Rejected, rejected...)
	return collisions, nil
}

// onKey reports whether a duplicate key is one in the index of _id.
func onKey(we mongo.WriteError) bool {
	if pattern, ok := we.Raw.Lookup("keyPattern").DocumentOK(); ok {
		elements, err := pattern.Elements()
		return err == nil && len(elements) == 1 && elements[0].Key() == "_id"
	}
	return strings.Contains(we.Message, "index: _id_ ")
}

// duplicate is the reason of a rejection by a unique index.
func duplicate(we mongo.WriteError) error {
	return fmt.Errorf("%w: %s", ErrDuplicate, we.Message)
}

// refused is the reason of a rejection by the server.
func refused(we mongo.WriteError) error {
	switch we.Code {
	case codeTooLarge, codeTooLargeUpdated, codeTooLargeUpserted:
		return fmt.Errorf("%w: %s", ErrTooLarge, we.Message)
	}
	return fmt.Errorf("%w: %s (code %d)", ErrRefused, we.Error(), we.Code)
}

// settle reads the documents with which writes collided. A write is stale if its document is
// as new. settle returns the changes that must be written again: those that lost a race and,
// if others were applied in the same round, those that collided in another index. If none
// were applied, it exchanges changes that collide with each other.
func (w *writer) settle(ctx context.Context, collisions []collision, moved bool, out *projector.Outcome) ([]*guarded, error) {
	if len(collisions) == 0 {
		return nil, nil
	}
	keys := make([]string, len(collisions))
	for i, c := range collisions {
		keys[i] = c.key
	}
	marks, err := w.marks(ctx, keys)
	if err != nil {
		return nil, err
	}
	var again []*guarded
	var stuck []collision
	for _, c := range collisions {
		m, found := marks[c.key]
		switch {
		case found && m.foreign != "":
			out.Rejected = append(out.Rejected, projector.Rejection{Index: c.index, Err: keyTaken(c.key, m)})
		case found && m.newer:
			return nil, w.madeAnew(c.key)
		case found && m.covers(c.guarded):
			out.Stale++
		case !c.onKey && !moved:
			stuck = append(stuck, c)
		default:
			if !c.raced && c.onKey {
				c.raced = true
				out.Raced++
			}
			again = append(again, c.guarded)
		}
	}
	if len(stuck) == 0 || len(again) > 0 { // a change that is written again may remove the collision
		for _, c := range stuck {
			again = append(again, c.guarded)
		}
		return again, nil
	}
	return w.exchange(ctx, stuck, out)
}

func keyTaken(key string, m mark) error {
	return fmt.Errorf("%w: there is a document with the _id %q, and %s", ErrKeyTaken, key, m.foreign)
}

// madeAnew is the error for a document of the stream as it was made after the writer's own
// one: the writer has slept while the topic was made anew and the collection filled from it.
func (w *writer) madeAnew(key string) error {
	return fmt.Errorf("%w: the document with the _id %q is of a stream %s that was made later than %s",
		projector.ErrNewStream, key, w.mark.src.Stream, moment(w.mark.src.Created.UnixNano()))
}

// marks reads the marks of the documents that there are of the keys.
func (w *writer) marks(ctx context.Context, keys []string) (map[string]mark, error) {
	found := make(map[string]mark, len(keys))
	only := options.Find().SetProjection(bson.D{{Key: "_seq", Value: 1}, {Key: "_v", Value: 1}, {Key: "_src", Value: 1}, {Key: "_srcCreated", Value: 1}})
	for part := range slices.Chunk(keys, maxBulk) {
		cur, err := w.coll.Find(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: part}}}}, only)
		if err != nil {
			return nil, err
		}
		for cur.Next(ctx) {
			if key, ok := cur.Current.Lookup("_id").StringValueOK(); ok {
				found[key] = readMark(cur.Current, w.mark.src.Stream, w.mark.src.Created.UnixNano())
			}
		}
		if err := errors.Join(cur.Err(), cur.Close(ctx)); err != nil {
			return nil, err
		}
	}
	return found, nil
}
