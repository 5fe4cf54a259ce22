package mongobox

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/outrow"
)

// Add puts events into the outbox, in the transaction of the session that ctx holds:
// they are published after its commit, or not at all. Without a transaction there they
// are added in one of their own, all or none, which says nothing about what else the
// caller writes.
//
// Empty IDs and zero times are filled in. All events are checked before the first is
// written: the error wraps [jetbus.ErrInvalidTopic], [jetbus.ErrInvalidHeader],
// [jetbus.ErrInvalidEvent], [jetbus.ErrPayloadTooLarge], or is that of Options.Check.
// Other errors are those of MongoDB, after which the transaction is over: return them
// from the callback of [mongo.Session.WithTransaction], which runs it again after a
// write conflict. One that is final is an ID of the same topic that is in the outbox
// already.
//
// Call [jetbus.Drainer.Kick] after the commit, where a drainer runs in the same process
// and Watch does not.
func (b *Box) Add(ctx context.Context, events ...jetbus.Event) error {
	events, err := b.complete(ctx, events)
	if err == nil && len(events) > 0 {
		err = b.add(ctx, events)
	}
	if err != nil {
		return fmt.Errorf("add to outbox %s: %w", b.name, err)
	}
	return nil
}

func (b *Box) add(ctx context.Context, events []jetbus.Event) error {
	session := mongo.SessionFromContext(ctx)
	if session != nil && session.TransactionRunning() {
		return b.insert(ctx, events)
	}
	if session == nil {
		var err error
		if session, err = b.rows.Database().Client().StartSession(); err != nil {
			return err
		}
		defer session.EndSession(context.WithoutCancel(ctx))
	}
	_, err := session.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		return nil, b.insert(ctx, events)
	}, transaction(readconcern.Local()))
	return err
}

// complete checks events and fills in what they do not say.
func (b *Box) complete(ctx context.Context, events []jetbus.Event) ([]jetbus.Event, error) {
	out, err := outrow.Complete(ctx, events, b.o.MaxBytes, b.o.Check)
	for i := range out {
		if n := documentSize(&out[i]); n > maxDocument {
			return nil, fmt.Errorf("event %d (%.100q): %w: %d bytes as a document, MongoDB takes %d with room for the rest of the row",
				i, out[i].Topic, jetbus.ErrPayloadTooLarge, n, maxDocument)
		}
	}
	return out, err
}

// maxDocument leaves room in the 16 MiB of a document for what the row gets later, and in
// those of the command that makes it.
const maxDocument = 15 << 20

// documentSize is how large the row of an event is at most.
func documentSize(e *jetbus.Event) int {
	const (
		fields  = 512 // the names of the fields, and the short values
		element = 16  // around a string
	)
	n := fields + len(e.Payload) + len(e.Topic) + len(e.ID) + len(e.SID) + len(e.Key)
	for name, value := range e.Headers {
		n += len(name) + len(value) + element
	}
	for _, list := range [][]string{e.CausedBy, e.Tags} {
		for _, item := range list {
			n += len(item) + element
		}
	}
	return n
}

// Positions are microseconds since 1970 by the clock of the primary, and for the rows
// of one key never at or below those that were given before: the counter of the key
// goes up by the number of the events of an Add, or to the clock where that is ahead.
// What makes them the order of commits is that the counter is written in the caller's
// transaction: a second transaction that comes to it before the first has committed, or
// began before that, gets a write conflict and is run again.
var clock = bson.D{{Key: "$multiply", Value: bson.A{bson.D{{Key: "$toLong", Value: now}}, int64(1000)}}}

// now is the clock of the primary, in an expression.
const now = "$$NOW"

// insert writes the counters and the rows, in a transaction.
func (b *Box) insert(ctx context.Context, events []jetbus.Event) error {
	bases, err := b.number(ctx, events)
	if err != nil {
		return err
	}
	first := int64(0) // of rows without a key, among others that have one
	for _, base := range bases {
		first = max(first, base)
	}
	rows := make([]mongo.WriteModel, len(events))
	for i := range events {
		e := &events[i]
		id := bson.NewObjectID()
		base, ok := bases[counterOf(e)]
		if !ok {
			base = first
		}
		var pos any = base + int64(i)
		if base == 0 {
			pos = bson.D{{Key: "$add", Value: bson.A{clock, int64(i)}}}
		}
		// An upsert, and no insert, for the clock of the primary.
		rows[i] = mongo.NewUpdateOneModel().SetFilter(bson.D{{Key: fieldRowID, Value: id}}).SetUpsert(true).
			SetUpdate(mongo.Pipeline{{{Key: "$replaceWith", Value: bson.D{{Key: "$mergeObjects", Value: bson.A{
				bson.D{{Key: "$literal", Value: newDocument(id, e)}},
				bson.D{{Key: fieldPos, Value: pos}, {Key: fieldCreated, Value: now}},
			}}}}}})
	}
	_, err = b.rows.BulkWrite(ctx, rows)
	return err
}

// counterOf names the counter of an event; empty: it has none.
func counterOf(e *jetbus.Event) string {
	if e.Key == "" {
		return ""
	}
	return e.Topic + "|" + e.Key
}

// counter is the document of a key.
type counter struct {
	ID string `bson:"_id"`
	N  int64  `bson:"n"` // above the position of the key's last row
}

// number moves the counters of the keys and returns the first position for each.
func (b *Box) number(ctx context.Context, events []jetbus.Event) (bases map[string]int64, err error) {
	n := int64(len(events)) // leaves gaps, so that the rows of an Add are in order whatever their keys
	var ids []string
	bases = map[string]int64{}
	for i := range events {
		id := counterOf(&events[i])
		if _, ok := bases[id]; !ok && id != "" {
			bases[id] = 0
			ids = append(ids, id)
		}
	}
	move := mongo.Pipeline{{{Key: "$set", Value: bson.D{
		{Key: "n", Value: bson.D{{Key: "$add", Value: bson.A{bson.D{{Key: "$max", Value: bson.A{"$n", clock}}}, n}}}},
		{Key: "at", Value: now},
	}}}}
	var moved []counter
	switch len(ids) {
	case 0:
		return bases, nil
	case 1: // in one round trip
		moved = make([]counter, 1)
		err = b.keys.FindOneAndUpdate(ctx, bson.D{{Key: "_id", Value: ids[0]}}, move,
			options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After)).Decode(&moved[0])
	default:
		moved, err = b.moveAll(ctx, ids, move)
	}
	if err != nil {
		return nil, fmt.Errorf("count in %s%s: %w", b.name, keysSuffix, err)
	}
	for _, c := range moved {
		bases[c.ID] = c.N - n
	}
	return bases, nil
}

// moveAll moves several counters and reads them.
func (b *Box) moveAll(ctx context.Context, ids []string, move mongo.Pipeline) (moved []counter, err error) {
	models := make([]mongo.WriteModel, len(ids))
	for i, id := range ids {
		models[i] = mongo.NewUpdateOneModel().SetFilter(bson.D{{Key: "_id", Value: id}}).SetUpdate(move).SetUpsert(true)
	}
	if _, err := b.keys.BulkWrite(ctx, models); err != nil {
		return nil, err
	}
	cursor, err := b.keys.Find(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}})
	if err != nil {
		return nil, err
	}
	if err := cursor.All(ctx, &moved); err != nil {
		return nil, err
	}
	if len(moved) != len(ids) {
		return nil, fmt.Errorf("%d of %d counters are there", len(moved), len(ids))
	}
	return moved, nil
}
