package mongobox

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/outrow"
)

// take makes what was found the caller's, and reads what it got. Rows that the server refuses to
// change stay pending, and are returned without a claim.
func (c *claim) take(ctx context.Context) (rows []jetbus.OutboxRow, err error) {
	slices.SortStableFunc(c.found, byPosition)
	var ids, huge bson.A
	for _, p := range c.found {
		switch {
		case p.size > maxRow:
			huge = append(huge, p.id)
		case !p.oddDue:
			ids = append(ids, p.id)
		}
	}
	defer func() {
		if err != nil { // some rows may be taken, which would be hidden for the whole lease
			ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBack)
			defer cancel()
			_, _ = c.b.release(ending, c.token, ids)
		}
	}()
	got := map[string]jetbus.OutboxRow{}
	if len(huge) > 0 {
		err = c.setAside(ctx, huge, got)
	}
	for _, p := range c.found {
		if err == nil && p.oddDue && p.size <= maxRow {
			err = c.bury(ctx, p, got)
		}
	}
	if err == nil && len(ids) > 0 {
		err = c.own(ctx, ids, got)
	}
	if err != nil {
		return nil, err
	}
	for _, p := range c.found {
		if row, ok := got[p.ref()]; ok && p.err != nil {
			row.Err = errors.Join(p.err, row.Err)
			got[p.ref()] = row
		}
	}
	rows, back := c.split(got)
	if len(back) > 0 { // a row that the server refuses to release is due after the lease
		_, err = c.b.release(ctx, c.token, back)
	}
	return rows, err
}

// own claims rows for the caller, and reads the rows that it got.
func (c *claim) own(ctx context.Context, ids bson.A, got map[string]jetbus.OutboxRow) error {
	err := c.change(ctx, ids, mongo.Pipeline{{{Key: "$set", Value: bson.D{
		{Key: fieldOwner, Value: c.token}, {Key: fieldDue, Value: after(c.o.Lease)},
	}}}}, got)
	if err != nil {
		return err
	}
	these := bson.E{Key: fieldRowID, Value: bson.D{{Key: "$in", Value: ids}}}
	return c.read(ctx, bson.D{these, {Key: fieldOwner, Value: c.token}}, nil, got)
}

// change changes the rows that are still due. If the server refuses to change some because of a
// validator, it changes the others.
func (c *claim) change(ctx context.Context, ids bson.A, change mongo.Pipeline, got map[string]jetbus.OutboxRow) error {
	these := bson.E{Key: fieldRowID, Value: bson.D{{Key: "$in", Value: ids}}}
	_, err := c.b.rows.UpdateMany(ctx, bson.D{these, inState(Pending), due}, change)
	if !isRefused(err) {
		return err
	}
	refused, err := c.b.changeEach(ctx, ids, bson.D{inState(Pending), due}, change)
	for i, reason := range refused {
		if err == nil {
			err = c.unclaimed(ctx, ids[i], reason, got)
		}
	}
	return err
}

// unclaimed reads a row that the server refuses to change for a reason.
func (c *claim) unclaimed(ctx context.Context, id any, reason error, got map[string]jetbus.OutboxRow) error {
	rows := map[string]jetbus.OutboxRow{}
	err := c.read(ctx, bson.D{{Key: fieldRowID, Value: id}, inState(Pending), due}, nil, rows)
	for ref, row := range rows {
		row.Claim, row.Err = "", fmt.Errorf("the database refuses to let the row be claimed: %w", reason)
		got[ref] = row
	}
	return err
}

// bury makes a row dead whose due_at is not a time. A claim replaces due_at: if the drainer died
// before it recorded the reason, the next claim would find a valid row.
func (c *claim) bury(ctx context.Context, p place, got map[string]jetbus.OutboxRow) error {
	raw, err := c.b.rows.FindOneAndUpdate(ctx, bson.D{{Key: fieldRowID, Value: p.id}, inState(Pending), due}, mongo.Pipeline{
		{{Key: "$set", Value: bson.D{
			{Key: fieldState, Value: string(Dead)}, {Key: fieldError, Value: bson.D{{Key: "$literal", Value: outrow.ErrorText(p.err)}}},
		}}},
		{{Key: "$unset", Value: bson.A{fieldOwner, fieldDue}}},
	}).Raw()
	switch {
	case errors.Is(err, mongo.ErrNoDocuments): // another claim was first
		return nil
	case isRefused(err):
		return c.unclaimed(ctx, p.id, err, got)
	case err != nil:
		return err
	}
	row := c.row(raw)
	got[row.Ref] = row
	return nil
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
	for _, p := range c.found {
		if row, ok := mine[p.ref()]; ok {
			row.Err = errNoRoom(p.size)
			got[p.ref()] = row
		}
	}
	return c.change(ctx, ids, mongo.Pipeline{
		{{Key: "$set", Value: bson.D{{Key: fieldState, Value: string(Dead)}}}},
		{{Key: "$unset", Value: bson.A{fieldOwner, fieldDue}}},
	}, got)
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
		row := c.row(cursor.Current)
		got[row.Ref] = row
	}
	return cursor.Err()
}

// row is a document as a row of this claim.
func (c *claim) row(raw bson.Raw) jetbus.OutboxRow {
	r := reader{raw: raw}
	row := jetbus.OutboxRow{Ref: refOf(raw.Lookup(fieldRowID)), Claim: c.token, Attempts: int(r.whole(fieldAttempts, 0))}
	row.Event, row.Err = readEvent(raw)
	row.Err = errors.Join(append(r.errs, row.Err)...)
	return row
}

// split finds the rows to give back: those after one of their key that is not claimed.
func (c *claim) split(got map[string]jetbus.OutboxRow) (rows []jetbus.OutboxRow, back bson.A) {
	shut := map[lane]bool{}
	for _, p := range c.found {
		row, ok := got[p.ref()]
		switch {
		case !ok:
			shut[p.lane] = p.lane.key != ""
		case shut[p.lane]:
			if row.Claim != "" {
				back = append(back, p.id)
			}
		default:
			rows = append(rows, row)
			shut[p.lane] = row.Claim == "" && p.lane.key != ""
		}
	}
	return rows, back
}
