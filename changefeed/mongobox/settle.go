package mongobox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
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
	if err := b.sent(alone(ctx), rows); err != nil {
		return fmt.Errorf("note as sent in outbox %s: %w", b.name, err)
	}
	return nil
}

func (b *Box) sent(ctx context.Context, rows []jetbus.OutboxRow) error {
	refs, ids := idsOf(rows)
	these := bson.D{{Key: fieldRowID, Value: bson.D{{Key: "$in", Value: ids}}}}
	if b.o.Keep <= 0 {
		_, err := b.rows.DeleteMany(ctx, these)
		return err
	}
	states := inState(Pending, Dead)
	mark := mongo.Pipeline{
		{{Key: "$set", Value: bson.D{{Key: fieldState, Value: string(Sent)}, {Key: fieldSent, Value: now}}}},
		{{Key: "$unset", Value: bson.A{fieldOwner, fieldDue, fieldError}}},
	}
	if _, err := b.rows.UpdateMany(ctx, append(these, states), mark); !isRefused(err) {
		return err
	}
	refused, err := b.changeEach(ctx, ids, bson.D{states}, mark)
	return errors.Join(err, refusedRows(refs, refused))
}

// idsOf returns the Refs and the _ids of the rows that belong to this outbox.
func idsOf(rows []jetbus.OutboxRow) (refs []string, ids bson.A) {
	ids = bson.A{}
	for _, row := range rows {
		if id, ok := idOf(row.Ref); ok {
			refs, ids = append(refs, row.Ref), append(ids, id)
		}
	}
	return refs, ids
}

// Release implements [jetbus.Outbox].
func (b *Box) Release(ctx context.Context, rows []jetbus.OutboxRow) error {
	byClaim := map[string][]jetbus.OutboxRow{}
	for _, row := range rows {
		byClaim[row.Claim] = append(byClaim[row.Claim], row)
	}
	var unchanged jetbus.OutboxRowsError
	for claim, rows := range byClaim {
		refs, ids := idsOf(rows)
		refused, err := b.release(alone(ctx), claim, ids)
		if err != nil {
			return fmt.Errorf("give back to outbox %s: %w", b.name, err)
		}
		for _, i := range slices.Sorted(maps.Keys(refused)) {
			unchanged.Add(refs[i], refused[i])
		}
	}
	if err := unchanged.OrNil(); err != nil {
		return fmt.Errorf("give back to outbox %s: %w", b.name, err)
	}
	return nil
}

// release ends a claim on rows. It returns the errors of rows that the server refuses to change,
// by index, and an error that concerns all rows.
func (b *Box) release(ctx context.Context, claim string, ids bson.A) (refused map[int]error, err error) {
	if claim == "" { // nothing is claimed
		return nil, nil
	}
	owned := bson.D{inState(Pending), {Key: fieldOwner, Value: claim}}
	end := mongo.Pipeline{{{Key: "$unset", Value: bson.A{fieldOwner, fieldDue}}}}
	_, err = b.rows.UpdateMany(ctx, append(bson.D{{Key: fieldRowID, Value: bson.D{{Key: "$in", Value: ids}}}}, owned...), end)
	if isRefused(err) {
		return b.changeEach(ctx, ids, owned, end)
	}
	return nil, err
}

// Failed implements [jetbus.Outbox].
func (b *Box) Failed(ctx context.Context, failures []jetbus.OutboxFailure) error {
	if err := b.failed(alone(ctx), failures); err != nil {
		return fmt.Errorf("note failures in outbox %s: %w", b.name, err)
	}
	return nil
}

func (b *Box) failed(ctx context.Context, failures []jetbus.OutboxFailure) error {
	var refs []string
	var changes []mongo.WriteModel
	var unchanged jetbus.OutboxRowsError
	for _, f := range failures {
		id, ok := idOf(f.Row.Ref)
		if !ok {
			continue // of another outbox
		}
		if f.Row.Claim == "" && f.Row.Err != nil { // it was never claimed
			unchanged.Add(f.Row.Ref, f.Row.Err)
			continue
		}
		state := Pending
		if f.Dead {
			state = Dead
		}
		refs = append(refs, f.Row.Ref)
		changes = append(changes, mongo.NewUpdateOneModel().
			SetFilter(bson.D{{Key: fieldRowID, Value: id}, inState(Pending), {Key: fieldOwner, Value: f.Row.Claim}}).
			SetUpdate(mongo.Pipeline{
				{{Key: "$set", Value: bson.D{
					{Key: fieldState, Value: string(state)},
					{Key: fieldAttempts, Value: outrow.Attempts(f.Row)},
					{Key: fieldError, Value: bson.D{{Key: "$literal", Value: outrow.ErrorText(f.Err)}}},
					{Key: fieldDue, Value: after(max(f.RetryIn, 0))},
				}}},
				{{Key: "$unset", Value: bson.A{fieldOwner}}},
			}))
	}
	refused, err := b.bulkWrite(ctx, changes)
	for _, i := range slices.Sorted(maps.Keys(refused)) {
		unchanged.Add(refs[i], refused[i])
	}
	if err != nil {
		return err
	}
	return unchanged.OrNil()
}

// refusedCodes are the error codes with which MongoDB refuses to change a single document,
// because of a value, a type, an immutable field, a validator, the size or a unique index.
var refusedCodes = []int{2, 14, 28, 66, 121, 10334, codeDuplicateKey, 17419, 17420}

// isRefused reports whether the server refused to change a document.
func isRefused(err error) bool {
	if refused, ok := errors.AsType[mongo.CommandError](err); ok { // of FindOneAndUpdate
		return slices.Contains(refusedCodes, int(refused.Code))
	}
	failed, ok := errors.AsType[mongo.WriteException](err)
	return ok && failed.WriteConcernError == nil && len(failed.WriteErrors) > 0 &&
		!slices.ContainsFunc(failed.WriteErrors, func(e mongo.WriteError) bool { return !slices.Contains(refusedCodes, e.Code) })
}

// changeEach changes documents that match a filter independently of each other. It returns the
// errors of refused changes by index, and an error that concerns all changes.
func (b *Box) changeEach(ctx context.Context, ids bson.A, filter bson.D, change mongo.Pipeline) (refused map[int]error, err error) {
	var changes []mongo.WriteModel
	for _, id := range ids {
		this := bson.D{{Key: fieldRowID, Value: id}}
		changes = append(changes, mongo.NewUpdateOneModel().SetFilter(append(this, filter...)).SetUpdate(change))
	}
	return b.bulkWrite(ctx, changes)
}

// bulkWrite makes changes independently of each other, with the results of changeEach.
func (b *Box) bulkWrite(ctx context.Context, changes []mongo.WriteModel) (refused map[int]error, err error) {
	if len(changes) == 0 {
		return nil, nil
	}
	_, err = b.rows.BulkWrite(ctx, changes, options.BulkWrite().SetOrdered(false))
	failed, ok := errors.AsType[mongo.BulkWriteException](err)
	if !ok || failed.WriteConcernError != nil {
		return nil, err
	}
	refused = map[int]error{}
	for _, e := range failed.WriteErrors {
		if !slices.Contains(refusedCodes, e.Code) {
			return nil, err
		}
		refused[e.Index] = e
	}
	return refused, nil
}

// refusedRows returns the error for rows that the server refused to change.
func refusedRows(refs []string, refused map[int]error) error {
	var rows jetbus.OutboxRowsError
	for _, i := range slices.Sorted(maps.Keys(refused)) {
		rows.Add(refs[i], refused[i])
	}
	return rows.OrNil()
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
