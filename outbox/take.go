package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/outrow"
)

// A claim takes its rows with one statement. If the database refuses that because of some of
// them, the claim starts again and takes each row alone, under a savepoint. A row whose texts
// the database cannot convert is taken without reading them. A row that the database refuses to
// change stays pending: the claim returns it without a token, and the drainer reports it. Later
// rows of its key wait, as they do after any row with an error.
//
// A row whose due_at is not a time is dead when the claim ends. A claim replaces due_at. If the
// drainer died before it recorded the reason, the next claim would find a valid row.
const (
	takeText = `UPDATE {table} SET owner = ?, due_at = {now} + ? WHERE pos IN ({rows}) RETURNING `
	buryText = `UPDATE {table} SET state = 'dead', owner = '', due_at = 0, last_error = ? WHERE pos = ? RETURNING `
	// stateColumns are what both return last: a trigger may have set other values.
	stateColumns = `state, owner`
)

// mark makes the rows the caller's, and reads them.
func (c *claim) mark(ctx context.Context) ([]jetbus.OutboxRow, error) {
	if len(c.rows) == 0 {
		return nil, nil
	}
	c.taking, c.token = true, jetbus.NewID()
	slices.Sort(c.rows)
	if c.alone || len(c.errs) > 0 {
		return c.takeEach(ctx)
	}
	return c.takeRows(ctx, c.rows)
}

// takeRows takes rows with one statement. The error is errDropped if it does not change all.
func (c *claim) takeRows(ctx context.Context, positions []int64) ([]jetbus.OutboxRow, error) {
	args := []any{c.token, c.o.Lease.Milliseconds()}
	for _, pos := range positions {
		args = append(args, pos)
	}
	got := map[int64]jetbus.OutboxRow{}
	query := c.fill(takeText+c.b.d.list(recordColumns, false)+", "+stateColumns, "{rows}", marks(len(positions)))
	err := c.each(ctx, query, args, func(rows *sql.Rows) error {
		var r record
		var state, owner text
		if err := rows.Scan(append(r.fields(), &state, &owner)...); err != nil {
			return err
		}
		if string(owner) == c.token {
			got[r.pos] = c.row(&r)
		}
		return nil
	})
	if err == nil && len(got) < len(positions) {
		err = errDropped
	}
	if err != nil {
		return nil, err
	}
	out := make([]jetbus.OutboxRow, 0, len(got))
	for _, pos := range positions { // RETURNING has no order
		out = append(out, got[pos])
	}
	return out, nil
}

// row is a record as a row of this claim.
func (c *claim) row(r *record) jetbus.OutboxRow {
	row := jetbus.OutboxRow{Ref: refOf(r.pos), Claim: c.token, Attempts: int(r.attempts.value)}
	row.Event, row.Err = r.event()
	return row
}

// takeEach takes each row alone.
func (c *claim) takeEach(ctx context.Context) (out []jetbus.OutboxRow, err error) {
	shut := map[lane]bool{}
	for _, pos := range c.rows {
		lane, keyed := c.lanes[pos]
		if shut[lane] {
			continue
		}
		row, err := c.takeOne(ctx, pos)
		if err != nil {
			return nil, err
		}
		out = append(out, row)
		shut[lane] = keyed && row.Err != nil
	}
	return out, nil
}

// takeOne takes a row, or makes it dead if its due_at is not a time.
func (c *claim) takeOne(ctx context.Context, pos int64) (row jetbus.OutboxRow, err error) {
	reason, refused := c.errs[pos], c.ended[pos]
	if reason == nil && refused == nil {
		var rows []jetbus.OutboxRow
		refused, err = c.try(ctx, pos, func() (err error) {
			rows, err = c.takeRows(ctx, []int64{pos})
			return err
		})
		if err != nil {
			return row, err
		}
		if refused == nil {
			return rows[0], nil
		}
		reason = unreadable(refused)
	}
	if c.ended[pos] == nil {
		if refused, err = c.takeUnread(ctx, pos, reason); err != nil {
			return row, err
		}
	}
	row, err = c.read(ctx, pos)
	row.Err = errors.Join(reason, row.Err)
	if refused != nil {
		row.Claim, row.Err = "", fmt.Errorf("the database refuses to let the row be claimed: %w", refused)
	}
	return row, err
}

// takeUnread takes a row for a reason without reading it, or makes it dead if its due_at is not a
// time. If the database refuses that for this row only, takeUnread returns why.
func (c *claim) takeUnread(ctx context.Context, pos int64, reason error) (refused, err error) {
	change := func(pos int64) error {
		if c.errs[pos] != nil {
			return c.changeOne(ctx, c.fill(buryText), outrow.ASCII(outrow.ErrorText(reason)), pos)
		}
		return c.changeOne(ctx, c.fill(takeText, "{rows}", "?"), c.token, c.o.Lease.Milliseconds(), pos)
	}
	refused, err = c.try(ctx, pos, func() error { return change(pos) })
	if err == nil && refused != nil {
		if err = change(oldest); errors.Is(err, errDropped) { // the database accepts the statement for no row
			err = nil
		}
	}
	return refused, err
}

// changeOne executes takeText or buryText for one row, and returns errDropped if the row is
// neither claimed nor dead then.
func (c *claim) changeOne(ctx context.Context, query string, args ...any) error {
	var state, owner text
	err := c.conn.QueryRowContext(ctx, query+stateColumns, args...).Scan(&state, &owner)
	if errors.Is(err, sql.ErrNoRows) || err == nil && State(state) != Dead && string(owner) != c.token {
		return errDropped
	}
	return err
}

// try calls f, which changes a row. If the database refuses the change, try undoes it and returns
// the reason as refused. If the refusal ended the transaction, try records it in c.ended.
func (c *claim) try(ctx context.Context, pos int64, f func() error) (refused, err error) {
	if _, err = c.conn.ExecContext(ctx, `SAVEPOINT one`); err != nil {
		return nil, err
	}
	end := `RELEASE SAVEPOINT one`
	if err = f(); isRefused(err) {
		refused, err = err, nil
		end = `ROLLBACK TO SAVEPOINT one`
	}
	if err == nil {
		_, err = c.conn.ExecContext(ctx, end)
	}
	if err != nil && refused != nil && ctx.Err() == nil {
		c.ended[pos] = refused
	}
	return refused, err
}

// read reads a row without conversion of its texts.
func (c *claim) read(ctx context.Context, pos int64) (row jetbus.OutboxRow, err error) {
	query := c.fill(`SELECT ` + c.b.d.list(recordColumns, true) + ` FROM {table} WHERE pos = ?`)
	var r record
	if err := c.conn.QueryRowContext(ctx, query, pos).Scan(r.fields()...); err != nil {
		return row, err
	}
	replaceInvalid(r.fields())
	return c.row(&r), nil
}

// recordColumns are the columns of a record, in the order of its fields.
var recordColumns = []string{"pos", "id", "topic", "key", "sid", "ts", "headers", "caused_by", "tags", "payload", "attempts", "created_at"}

// record is an event as columns.
type record struct {
	pos                                          int64
	id, topic, key, sid, headers, causedBy, tags text
	ts, attempts, created                        integer
	payload                                      []byte
}

// fields are where recordColumns go.
func (r *record) fields() []any {
	return []any{&r.pos, &r.id, &r.topic, &r.key, &r.sid, &r.ts, &r.headers, &r.causedBy, &r.tags, &r.payload, &r.attempts, &r.created}
}

// event returns what could be read, and why not all of it could.
func (r *record) event() (jetbus.Event, error) {
	e := jetbus.Event{
		ID: string(r.id), SID: string(r.sid), Topic: string(r.topic), Key: string(r.key), Partition: jetbus.NoPartition, Payload: r.payload,
	}
	e.Time = r.created.time()
	if r.ts.valid {
		e.Time = r.ts.time()
	}
	return e, errors.Join(
		r.ts.timeProblem("ts"),
		unmarshal("headers", r.headers, &e.Headers),
		unmarshal("caused_by", r.causedBy, &e.CausedBy),
		unmarshal("tags", r.tags, &e.Tags),
		r.attempts.problem("attempts"),
		r.created.timeProblem("created_at"),
	)
}

func unmarshal(column string, value text, to any) error {
	if value == "" {
		return nil
	}
	if err := json.Unmarshal([]byte(value), to); err != nil {
		return fmt.Errorf("%w: column %s: %w", jetbus.ErrInvalidEvent, column, err)
	}
	return nil
}
