package mongobox

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/outbox"
)

// Row, State and Query are those of package outbox, so that programs may show and mend
// both kinds alike.
type (
	// Row is an event in an outbox, as [Box.List] shows it.
	Row = outbox.Row
	// State is where a row is on its way.
	State = outbox.State
	// Query selects rows. The zero value selects all.
	Query = outbox.Query
)

// The states of a row.
const (
	Pending = outbox.Pending // to be published; Row.ClaimedUntil says whether a drainer has it
	Dead    = outbox.Dead    // set aside, until it is retried or removed
	Sent    = outbox.Sent    // published, and kept for Options.Keep
)

// filter is what q selects, of the rows that more selects.
func filter(q Query, more ...bson.E) (bson.D, error) {
	if err := q.Validate(); err != nil {
		return nil, err
	}
	var all bson.A
	for _, e := range more {
		all = append(all, bson.D{e})
	}
	equals := func(name, value string) {
		if value != "" {
			all = append(all, bson.D{{Key: name, Value: value}})
		}
	}
	equals(fieldState, string(q.State))
	equals(fieldTopic, q.Topic)
	equals(fieldKey, q.Key)
	if len(q.IDs) > 0 {
		all = append(all, bson.D{{Key: fieldID, Value: bson.D{{Key: "$in", Value: q.IDs}}}})
	}
	if len(all) == 0 {
		return bson.D{}, nil
	}
	return bson.D{{Key: "$and", Value: all}}, nil
}

// List returns rows, oldest first. The error wraps [jetbus.ErrInvalidOption] or is the
// server's.
func (b *Box) List(ctx context.Context, q Query) ([]Row, error) {
	out, err := b.list(alone(ctx), q)
	if err != nil {
		return nil, fmt.Errorf("list outbox %s: %w", b.name, err)
	}
	return out, nil
}

func (b *Box) list(ctx context.Context, q Query) ([]Row, error) {
	selected, err := filter(q)
	if err != nil {
		return nil, err
	}
	pipeline := mongo.Pipeline{{{Key: "$match", Value: selected}}, {{Key: "$sort", Value: byPos}}}
	if q.Limit == 0 {
		q.Limit = outbox.DefaultLimit
	}
	if q.Limit > 0 {
		pipeline = append(pipeline, bson.D{{Key: "$limit", Value: int64(q.Limit)}})
	}
	const field = "now"
	pipeline = append(pipeline, bson.D{{Key: "$set", Value: bson.D{{Key: field, Value: now}}}})
	cursor, err := b.rows.Aggregate(ctx, pipeline)
	if err != nil {
		return nil, err
	}
	defer func() { _ = cursor.Close(context.WithoutCancel(ctx)) }()
	var out []Row
	for cursor.Next(ctx) {
		at, _ := cursor.Current.Lookup(field).TimeOK()
		out = append(out, readRow(cursor.Current, at))
	}
	return out, cursor.Err()
}

// byPos is the order of rows.
var byPos = bson.D{{Key: fieldPos, Value: 1}, {Key: fieldRowID, Value: 1}}

var (
	// due matches rows whose wait or claim has ended. It includes rows whose due_at is not a
	// time: MongoDB orders other types before or after all dates. Otherwise rows with a
	// greater type would be pending forever. These rows are claimed with an error.
	due = bson.E{Key: "$expr", Value: bson.D{{Key: "$or", Value: bson.A{
		bson.D{{Key: "$lte", Value: bson.A{"$" + fieldDue, now}}},
		bson.D{{Key: "$gt", Value: bson.A{"$" + fieldDue, lastTime}}},
	}}}}
	// free matches rows that no drainer holds.
	free = bson.E{Key: "$or", Value: bson.A{
		bson.D{{Key: fieldOwner, Value: bson.D{{Key: "$in", Value: bson.A{"", nil}}}}},
		bson.D{due},
	}}
	// created is created_at if that is a time, or else null.
	created = bson.D{{Key: "$cond", Value: bson.A{
		bson.D{{Key: "$and", Value: bson.A{
			bson.D{{Key: "$gte", Value: bson.A{"$" + fieldCreated, firstTime}}},
			bson.D{{Key: "$lte", Value: bson.A{"$" + fieldCreated, lastTime}}},
		}}}, "$" + fieldCreated, nil,
	}}}
	// fits matches rows that have room for the fields that a change writes.
	fits = bson.E{Key: "$expr", Value: bson.D{{Key: "$lte", Value: bson.A{bson.D{{Key: "$bsonSize", Value: "$$ROOT"}}, maxRow}}}}
)

// inState are the rows in one of the states.
func inState(states ...State) bson.E {
	if len(states) == 1 {
		return bson.E{Key: fieldState, Value: string(states[0])}
	}
	list := bson.A{}
	for _, s := range states {
		list = append(list, string(s))
	}
	return bson.E{Key: fieldState, Value: bson.D{{Key: "$in", Value: list}}}
}

// Retry has dead rows published after all, and pending ones that wait for their next
// attempt at once, with their attempts forgotten. Rows that a drainer has are left
// alone, and those that leave no room in their document. It returns how many rows it
// changed.
func (b *Box) Retry(ctx context.Context, q Query) (int, error) {
	return b.set(ctx, "retry rows of", q, mongo.Pipeline{
		{{Key: "$set", Value: bson.D{{Key: fieldState, Value: string(Pending)}, {Key: fieldAttempts, Value: int32(0)}}}},
		{{Key: "$unset", Value: bson.A{fieldOwner, fieldDue}}},
	}, inState(Pending, Dead), free, fits)
}

// Kill sets pending rows aside: they are not published until they are retried. Rows
// that a drainer has are left alone. It returns how many rows it changed.
func (b *Box) Kill(ctx context.Context, q Query) (int, error) {
	return b.set(ctx, "kill rows of", q, mongo.Pipeline{
		{{Key: "$set", Value: bson.D{{Key: fieldState, Value: string(Dead)}, {Key: fieldError, Value: "killed by hand"}}}},
		{{Key: "$unset", Value: bson.A{fieldOwner, fieldDue}}},
	}, inState(Pending), free, fits)
}

// Remove deletes dead rows for good: their events will never be published, and later
// rows of their keys go on. It returns how many rows it deleted.
func (b *Box) Remove(ctx context.Context, q Query) (int, error) {
	return b.set(ctx, "remove rows of", q, nil, inState(Dead))
}

// set changes the rows that q and more select, or deletes them.
func (b *Box) set(ctx context.Context, what string, q Query, change mongo.Pipeline, more ...bson.E) (int, error) {
	ctx = alone(ctx)
	selected, err := filter(q, more...)
	n := int64(0)
	switch {
	case err != nil:
	case change == nil:
		var r *mongo.DeleteResult
		if r, err = b.rows.DeleteMany(ctx, selected); err == nil {
			n = r.DeletedCount
		}
	default:
		var r *mongo.UpdateResult
		if r, err = b.rows.UpdateMany(ctx, selected, change); err == nil {
			n = r.MatchedCount
		}
	}
	if err != nil {
		return 0, fmt.Errorf("%s outbox %s: %w", what, b.name, err)
	}
	return int(n), nil
}

// alone is ctx without the caller's session: what is not Add is no part of the caller's
// transaction.
func alone(ctx context.Context) context.Context { return mongo.NewSessionContext(ctx, nil) }

// OutboxStats implements [jetbus.Outbox]. Its cost grows with the number of rows, which it
// counts. A row whose created_at is not a time has no age.
func (b *Box) OutboxStats(ctx context.Context) (jetbus.OutboxStats, error) {
	s, err := b.count(alone(ctx))
	if err != nil {
		return s, fmt.Errorf("count outbox %s: %w", b.name, err)
	}
	return s, nil
}

func (b *Box) count(ctx context.Context) (s jetbus.OutboxStats, err error) {
	cursor, err := b.rows.Aggregate(ctx, mongo.Pipeline{
		{{Key: "$match", Value: bson.D{inState(Pending, Dead)}}},
		{{Key: "$group", Value: bson.D{
			{Key: "_id", Value: "$" + fieldState},
			{Key: "n", Value: bson.D{{Key: "$sum", Value: int32(1)}}},
			{Key: "since", Value: bson.D{{Key: "$min", Value: created}}},
		}}},
		{{Key: "$set", Value: bson.D{{Key: "now", Value: now}}}},
	})
	if err != nil {
		return s, err
	}
	var groups []struct {
		State bson.RawValue `bson:"_id"`
		N     int           `bson:"n"`
		Since time.Time     `bson:"since"`
		Now   time.Time     `bson:"now"`
	}
	if err := cursor.All(ctx, &groups); err != nil {
		return s, err
	}
	for _, g := range groups {
		if state, _ := g.State.StringValueOK(); state == string(Dead) {
			s.Dead += g.N
			continue
		}
		s.Pending += g.N // a row whose state is an array with "pending" is claimed, too
		if !g.Since.IsZero() {
			s.Age = max(s.Age, g.Now.Sub(g.Since))
		}
	}
	return s, nil
}
