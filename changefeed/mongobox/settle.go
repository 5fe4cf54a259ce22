package mongobox

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/outrow"
)

// cleanRows is how many rows Clean removes at most.
const cleanRows = 5000

// Sent implements [jetbus.Outbox]: it deletes the rows, or notes when they were sent
// (Options.Keep).
func (b *Box) Sent(ctx context.Context, rows []jetbus.OutboxRow) error {
	ctx = alone(ctx)
	var err error
	for _, ids := range byClaim(rows, false) {
		these := bson.D{{Key: fieldRowID, Value: bson.D{{Key: "$in", Value: ids}}}}
		if b.o.Keep <= 0 {
			_, err = b.rows.DeleteMany(ctx, these)
		} else {
			_, err = b.rows.UpdateMany(ctx, append(these, inState(Pending, Dead)), mongo.Pipeline{
				{{Key: "$set", Value: bson.D{{Key: fieldState, Value: string(Sent)}, {Key: fieldSent, Value: now}}}},
				{{Key: "$unset", Value: bson.A{fieldOwner, fieldDue, fieldError}}},
			})
		}
	}
	if err != nil {
		return fmt.Errorf("note as sent in outbox %s: %w", b.name, err)
	}
	return nil
}

// Release implements [jetbus.Outbox].
func (b *Box) Release(ctx context.Context, rows []jetbus.OutboxRow) error {
	for claim, ids := range byClaim(rows, true) {
		if err := b.release(alone(ctx), claim, ids); err != nil {
			return fmt.Errorf("give back to outbox %s: %w", b.name, err)
		}
	}
	return nil
}

// release ends a claim on rows.
func (b *Box) release(ctx context.Context, claim string, ids bson.A) error {
	_, err := b.rows.UpdateMany(ctx, bson.D{
		{Key: fieldRowID, Value: bson.D{{Key: "$in", Value: ids}}}, inState(Pending), {Key: fieldOwner, Value: claim},
	}, bson.D{{Key: "$unset", Value: bson.D{{Key: fieldOwner, Value: ""}, {Key: fieldDue, Value: ""}}}})
	return err
}

// byClaim lists the _ids of rows, for each claim or together.
func byClaim(rows []jetbus.OutboxRow, owned bool) map[string]bson.A {
	out := map[string]bson.A{}
	for _, row := range rows {
		claim := ""
		if owned {
			claim = row.Claim
		}
		if id, ok := idOf(row.Ref); ok { // else it is of another outbox
			out[claim] = append(out[claim], id)
		}
	}
	return out
}

// Failed implements [jetbus.Outbox].
func (b *Box) Failed(ctx context.Context, failures []jetbus.OutboxFailure) error {
	var changes []mongo.WriteModel
	for _, f := range failures {
		id, ok := idOf(f.Row.Ref)
		if !ok {
			continue // of another outbox
		}
		state := Pending
		if f.Dead {
			state = Dead
		}
		changes = append(changes, mongo.NewUpdateOneModel().
			SetFilter(bson.D{{Key: fieldRowID, Value: id}, inState(Pending), {Key: fieldOwner, Value: f.Row.Claim}}).
			SetUpdate(mongo.Pipeline{
				{{Key: "$set", Value: bson.D{
					{Key: fieldState, Value: string(state)},
					{Key: fieldAttempts, Value: bson.D{{Key: "$add", Value: bson.A{bson.D{{Key: "$ifNull", Value: bson.A{"$" + fieldAttempts, int32(0)}}}, int32(1)}}}},
					{Key: fieldError, Value: bson.D{{Key: "$literal", Value: outrow.ErrorText(f.Err)}}},
					{Key: fieldDue, Value: after(max(f.RetryIn, 0))},
				}}},
				{{Key: "$unset", Value: bson.A{fieldOwner}}},
			}))
	}
	if len(changes) == 0 {
		return nil
	}
	if _, err := b.rows.BulkWrite(alone(ctx), changes, options.BulkWrite().SetOrdered(false)); err != nil {
		return fmt.Errorf("note failures in outbox %s: %w", b.name, err)
	}
	return nil
}

// after is the time of the server in d from now, as an expression.
func after(d time.Duration) bson.D {
	return bson.D{{Key: "$add", Value: bson.A{now, d.Milliseconds()}}}
}

// Clean implements [jetbus.OutboxCleaner]: it removes rows that were sent longer ago
// than Options.Keep, the oldest 5,000 of them.
func (b *Box) Clean(ctx context.Context) (int, error) {
	n, err := b.clean(alone(ctx))
	if err != nil {
		return 0, fmt.Errorf("clean outbox %s: %w", b.name, err)
	}
	return n, nil
}

func (b *Box) clean(ctx context.Context) (int, error) {
	var hello struct {
		Now time.Time `bson:"localTime"`
	}
	if err := b.rows.Database().RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello); err != nil {
		return 0, err
	}
	cursor, err := b.rows.Find(ctx, bson.D{ // a plain value, for the index
		inState(Sent), {Key: fieldSent, Value: bson.D{{Key: "$lte", Value: hello.Now.Add(-b.o.Keep)}}},
	}, options.Find().SetSort(bson.D{{Key: fieldSent, Value: 1}}).SetLimit(cleanRows).SetProjection(bson.D{{Key: fieldRowID, Value: 1}}))
	if err != nil {
		return 0, err
	}
	var old []struct {
		ID bson.RawValue `bson:"_id"`
	}
	if err := cursor.All(ctx, &old); err != nil || len(old) == 0 {
		return 0, err
	}
	ids := make(bson.A, len(old))
	for i := range old {
		ids[i] = old[i].ID
	}
	gone, err := b.rows.DeleteMany(ctx, bson.D{{Key: fieldRowID, Value: bson.D{{Key: "$in", Value: ids}}}, inState(Sent)})
	if err != nil {
		return 0, err
	}
	return int(gone.DeletedCount), nil
}
