package mongobox

import (
	"context"
	"errors"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
)

// take makes what was found the caller's, and reads what it got.
func (c *claim) take(ctx context.Context) (rows []jetbus.OutboxRow, err error) {
	slices.SortStableFunc(c.found, byPosition)
	var ids, huge bson.A
	for _, p := range c.found {
		if p.size > maxRow {
			huge = append(huge, p.id)
		} else {
			ids = append(ids, p.id)
		}
	}
	defer func() {
		if err != nil { // some rows may be taken, which would be hidden for the whole lease
			ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBack)
			defer cancel()
			_ = c.b.release(ending, c.token, ids)
		}
	}()
	got := map[string]jetbus.OutboxRow{}
	if len(huge) > 0 {
		err = c.setAside(ctx, huge, got)
	}
	if err == nil && len(ids) > 0 {
		err = c.own(ctx, ids, got)
	}
	if err != nil {
		return nil, err
	}
	for _, p := range c.found {
		if row, ok := got[p.ref()]; ok && p.err != nil { // the claim has changed due_at
			row.Err = errors.Join(p.err, row.Err)
			got[p.ref()] = row
		}
	}
	rows, back := c.split(got)
	if len(back) > 0 {
		err = c.b.release(ctx, c.token, back)
	}
	return rows, err
}

// own claims rows for the caller, and reads the rows that it got. If the server refuses to
// change a row because of a validator, own still claims the others.
func (c *claim) own(ctx context.Context, ids bson.A, got map[string]jetbus.OutboxRow) error {
	these := bson.E{Key: fieldRowID, Value: bson.D{{Key: "$in", Value: ids}}}
	claim := mongo.Pipeline{{{Key: "$set", Value: bson.D{
		{Key: fieldOwner, Value: c.token}, {Key: fieldDue, Value: after(c.o.Lease)},
	}}}}
	_, err := c.b.rows.UpdateMany(ctx, bson.D{these, inState(Pending), due}, claim)
	if isRefused(err) {
		var changes []mongo.WriteModel
		for _, id := range ids {
			changes = append(changes, mongo.NewUpdateOneModel().SetFilter(bson.D{{Key: fieldRowID, Value: id}, inState(Pending), due}).SetUpdate(claim))
		}
		_, err = c.b.changeEach(ctx, changes)
	}
	if err != nil {
		return err
	}
	return c.read(ctx, bson.D{these, {Key: fieldOwner, Value: c.token}}, nil, got)
}

// setAside makes rows dead that leave no room in their documents for a claim, nor for an
// error. They are among those that the claim returns, so that whoever drains hears of it.
func (c *claim) setAside(ctx context.Context, ids bson.A, got map[string]jetbus.OutboxRow) error {
	these := bson.E{Key: fieldRowID, Value: bson.D{{Key: "$in", Value: ids}}}
	without := bson.D{{Key: fieldPayload, Value: 0}, {Key: fieldHeaders, Value: 0}, {Key: fieldTags, Value: 0}, {Key: fieldCausedBy, Value: 0}}
	mine := map[string]jetbus.OutboxRow{}
	if err := c.read(ctx, bson.D{these, inState(Pending), due}, without, mine); err != nil {
		return err
	}
	_, err := c.b.rows.UpdateMany(ctx, bson.D{these, inState(Pending), due}, mongo.Pipeline{
		{{Key: "$set", Value: bson.D{{Key: fieldState, Value: string(Dead)}}}},
		{{Key: "$unset", Value: bson.A{fieldOwner, fieldDue}}},
	})
	for _, p := range c.found {
		if row, ok := mine[p.ref()]; ok {
			row.Err = errNoRoom(p.size)
			got[p.ref()] = row
		}
	}
	return err
}

// read reads rows, but for some fields.
func (c *claim) read(ctx context.Context, filter, without bson.D, got map[string]jetbus.OutboxRow) error {
	find := options.Find()
	if without != nil {
		find.SetProjection(without)
	}
	cursor, err := c.b.rows.Find(ctx, filter, find)
	if err != nil {
		return err
	}
	defer func() { _ = cursor.Close(context.WithoutCancel(ctx)) }()
	for cursor.Next(ctx) {
		r := reader{raw: cursor.Current}
		row := jetbus.OutboxRow{Ref: refOf(cursor.Current.Lookup(fieldRowID)), Claim: c.token, Attempts: int(r.whole(fieldAttempts, 0))}
		row.Event, row.Err = readEvent(cursor.Current)
		row.Err = errors.Join(append(r.errs, row.Err)...)
		got[row.Ref] = row
	}
	return cursor.Err()
}

// split sorts out the rows that are behind one of their key that others got.
func (c *claim) split(got map[string]jetbus.OutboxRow) (rows []jetbus.OutboxRow, back bson.A) {
	shut := map[lane]bool{}
	for _, p := range c.found {
		row, ok := got[p.ref()]
		switch {
		case !ok:
			shut[p.lane] = p.lane.key != ""
		case shut[p.lane]:
			back = append(back, p.id)
		default:
			rows = append(rows, row)
		}
	}
	return rows, back
}
