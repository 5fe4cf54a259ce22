package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// State is where a row is on its way.
type State string

// The states of a row.
const (
	Pending State = "pending" // to be published; Row.ClaimedUntil says whether a drainer has it
	Dead    State = "dead"    // set aside, until it is retried or removed
	Sent    State = "sent"    // published, and kept for Options.Keep
)

// Row is an event in an outbox, as [Box.List] shows it.
type Row struct {
	Event jetbus.Event
	// Err says why the row cannot be read as an event, or not all of it; Event and the
	// other fields then have what could be.
	Err       error
	State     State
	Attempts  int       // that failed
	LastError string    // of the last of them; empty if there was none
	Added     time.Time // by the clock of the database
	DueAt     time.Time // when a pending row may be claimed; zero: at once
	// ClaimedUntil is when the claim of a drainer on the row ends; zero: nobody has it.
	ClaimedUntil time.Time
	SentAt       time.Time // zero if it was not
}

// Query selects rows. The zero value selects all.
type Query struct {
	State State    // empty: any
	Topic string   // empty: any
	Key   string   // empty: any
	IDs   []string // of events, at most 1,000; nil: any
	// Limit is how many rows List returns at most, oldest first. Defaults to 100, -1 means
	// no limit. The other methods take all rows that are selected.
	Limit int
}

// DefaultLimit is Query.Limit where it is zero.
const DefaultLimit = 100

const maxIDs = 1000

// Validate reports a state that there is none of, too many IDs or a negative Limit other
// than -1. The error wraps [jetbus.ErrInvalidOption].
func (q Query) Validate() error {
	switch {
	case q.State != "" && q.State != Pending && q.State != Dead && q.State != Sent:
		return fmt.Errorf("%w: State is %q, use %q, %q or %q", jetbus.ErrInvalidOption, q.State, Pending, Dead, Sent)
	case len(q.IDs) > maxIDs:
		return fmt.Errorf("%w: %d IDs, use at most %d", jetbus.ErrInvalidOption, len(q.IDs), maxIDs)
	case q.Limit < -1:
		return fmt.Errorf("%w: Limit is %d, use 1 or more, or -1 for no limit", jetbus.ErrInvalidOption, q.Limit)
	}
	return nil
}

// where is the condition, which begins with WHERE, and its arguments.
func (q Query) where(more string) (text string, args []any, err error) {
	conditions := []string{more}
	equals := func(column, value string) {
		if value != "" {
			conditions = append(conditions, column+" = ?")
			args = append(args, value)
		}
	}
	equals("state", string(q.State))
	equals("topic", q.Topic)
	equals(`"key"`, q.Key)
	if err := q.Validate(); err != nil {
		return "", nil, err
	}
	if len(q.IDs) > 0 {
		conditions = append(conditions, "id IN ("+marks(len(q.IDs))+")")
		for _, id := range q.IDs {
			args = append(args, id)
		}
	}
	return " WHERE " + strings.Join(conditions, " AND "), args, nil
}

// List returns rows, oldest first. The error wraps [jetbus.ErrInvalidOption] or is the
// database's.
func (b *Box) List(ctx context.Context, q Query) ([]Row, error) {
	out, err := b.list(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("list outbox %s: %w", b.o.Table, err)
	}
	return out, nil
}

func (b *Box) list(ctx context.Context, q Query) ([]Row, error) {
	where, args, err := q.where("1 = 1")
	if err != nil {
		return nil, err
	}
	where += ` ORDER BY pos`
	if q.Limit == 0 {
		q.Limit = DefaultLimit
	}
	if q.Limit > 0 {
		where += " LIMIT ?"
		args = append(args, int64(q.Limit))
	}
	out, err := b.read(ctx, false, where, args...)
	if isRefused(err) {
		return b.readEach(ctx, where, args)
	}
	return out, err
}

// readEach reads each row alone, because the database cannot convert the texts of some.
func (b *Box) readEach(ctx context.Context, where string, args []any) (out []Row, err error) {
	rows, err := b.db.QueryContext(ctx, b.d.rebind(b.fill(`SELECT pos FROM {table}`+where)), args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var positions []int64
	for rows.Next() {
		var pos int64
		if err := rows.Scan(&pos); err != nil {
			return nil, err
		}
		positions = append(positions, pos)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil { // the pool may have one connection
		return nil, err
	}
	for _, pos := range positions {
		const alone = ` WHERE pos = ?`
		row, refused := b.read(ctx, false, alone, pos)
		if err = refused; isRefused(refused) {
			row, err = b.read(ctx, true, alone, pos)
			for i := range row {
				row[i].Err = errors.Join(unreadable(refused), row[i].Err)
			}
		}
		if err != nil {
			return nil, err
		}
		out = append(out, row...) // none if it is gone
	}
	return out, nil
}

// unreadable is the error of a row with texts that the database cannot convert because of err.
func unreadable(err error) error {
	return fmt.Errorf("%w: the texts of the row cannot be read: %w", jetbus.ErrInvalidEvent, err)
}

// rowColumns are the columns of a Row, but for the time of the statement.
var rowColumns = slices.Concat(recordColumns, []string{"state", "last_error", "owner", "due_at", "sent_at"})

// read reads rows. If raw is set, it does so without conversion of their texts.
func (b *Box) read(ctx context.Context, raw bool, where string, args ...any) ([]Row, error) {
	query := `SELECT ` + b.d.list(rowColumns, raw) + `, {now} FROM {table}` + where
	rows, err := b.db.QueryContext(ctx, b.d.rebind(b.fill(query)), args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var out []Row
	for rows.Next() {
		row, err := scanRow(rows, raw)
		if err != nil {
			return nil, err
		}
		out = append(out, row)
	}
	return out, rows.Err()
}

func scanRow(rows *sql.Rows, raw bool) (Row, error) {
	var r record
	var row Row
	var state, lastError, owner text
	var due, sent, now integer
	fields := append(r.fields(), &state, &lastError, &owner, &due, &sent, &now)
	if err := rows.Scan(fields...); err != nil {
		return row, err
	}
	if raw {
		replaceInvalid(fields)
	}
	row.State, row.LastError = State(state), string(lastError)
	row.Event, row.Err = r.event()
	row.Err = errors.Join(row.Err, due.timeProblem("due_at"), sent.timeProblem("sent_at"))
	row.Attempts, row.Added, row.SentAt = int(r.attempts.value), r.created.time(), sent.time()
	switch {
	case row.State != Pending || !due.isTime():
	case owner != "" && due.value > now.value:
		row.ClaimedUntil = due.time()
		fallthrough
	case due.value > 0:
		row.DueAt = due.time()
	}
	return row, nil
}

// free are rows that no drainer has at the moment.
const free = `(coalesce(owner, '') = '' OR ` + dueText + `)`

// Retry has dead rows published after all, and pending ones that wait for their next
// attempt at once, with their attempts forgotten. Rows that a drainer has are left
// alone. It returns how many rows it changed.
func (b *Box) Retry(ctx context.Context, q Query) (int, error) {
	return b.set(ctx, "retry rows of", `UPDATE {table} SET state = 'pending', attempts = 0, owner = '', due_at = 0`, q, `state <> 'sent' AND `+free)
}

// Kill sets pending rows aside: they are not published until they are retried. Rows
// that a drainer has are left alone. It returns how many rows it changed.
func (b *Box) Kill(ctx context.Context, q Query) (int, error) {
	return b.set(ctx, "kill rows of", `UPDATE {table} SET state = 'dead', owner = '', last_error = 'killed by hand'`, q, `state = 'pending' AND `+free)
}

// Remove deletes dead rows for good: their events will never be published, and later
// rows of their keys go on. It returns how many rows it deleted.
func (b *Box) Remove(ctx context.Context, q Query) (int, error) {
	return b.set(ctx, "remove rows of", `DELETE FROM {table}`, q, `state = 'dead'`)
}

func (b *Box) set(ctx context.Context, what, text string, q Query, more string) (int, error) {
	where, args, err := q.where(more)
	n := 0
	if err == nil {
		n, err = b.exec(ctx, text+where, args...)
	}
	if err != nil {
		return 0, fmt.Errorf("%s outbox %s: %w", what, b.o.Table, err)
	}
	return n, nil
}
