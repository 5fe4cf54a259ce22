package outbox

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// empty is a database without rows, that notes what it is told.
type empty struct {
	backlog

	told   []string
	fails  map[string]error // by the first word of a statement
	tables int64            // of the name that is asked for
	closed int              // connections
}

func (e *empty) Connect(context.Context) (driver.Conn, error) { return e, nil }

func (e *empty) Close() error {
	e.closed++
	return nil
}

func (e *empty) ExecContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Result, error) {
	e.told = append(e.told, query)
	word, _, _ := strings.Cut(query, " ")
	return driver.RowsAffected(0), e.fails[word]
}

func (e *empty) QueryContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Rows, error) {
	switch {
	case strings.HasPrefix(query, "SELECT max("):
		return &answer{columns: 3, row: []driver.Value{nil, int64(0), int64(0)}}, nil
	case query == dialects[SQLite].exists:
		return &answer{columns: 1, row: []driver.Value{e.tables}}, nil
	}
	return nil, errLost
}

var (
	errLost   = errors.New("the connection is lost")
	errNoneOn = errors.New("cannot rollback - no transaction is active")
)

// claimFrom claims from a database, and returns how many connections were given up.
func claimFrom(t *testing.T, e *empty, d Dialect, lease time.Duration) (givenUp int, err error) {
	t.Helper()
	db := sql.OpenDB(e)
	b := &Box{db: db, d: dialects[d]}
	_, err = b.Claim(t.Context(), jetbus.ClaimOptions{Max: 10, Lease: lease})
	givenUp = e.closed
	if err := db.Close(); err != nil {
		t.Error(err)
	}
	return givenUp, err
}

// TestClaimIdle has PostgreSQL, and nobody else, let go of what a host that vanished in a
// claim has locked: after a lease, but never while it is merely busy.
func TestClaimIdle(t *testing.T) {
	for _, c := range []struct {
		d     Dialect
		lease time.Duration
		want  []string
	}{
		{PostgreSQL, 30 * time.Second, []string{"BEGIN ISOLATION LEVEL READ COMMITTED", "SET LOCAL idle_in_transaction_session_timeout = 30000", "COMMIT"}},
		{PostgreSQL, time.Second, []string{"BEGIN ISOLATION LEVEL READ COMMITTED", "SET LOCAL idle_in_transaction_session_timeout = 10000", "COMMIT"}},
		{PostgreSQL, 1000 * time.Hour, []string{"BEGIN ISOLATION LEVEL READ COMMITTED", "SET LOCAL idle_in_transaction_session_timeout = 86400000", "COMMIT"}},
		{SQLite, 30 * time.Second, []string{"BEGIN IMMEDIATE", "COMMIT"}},
	} {
		e := &empty{}
		if _, err := claimFrom(t, e, c.d, c.lease); err != nil {
			t.Errorf("%s: %v", c.d, err)
		}
		if !slices.Equal(e.told, c.want) {
			t.Errorf("%s with a lease of %v was told %q, want %q", c.d, c.lease, e.told, c.want)
		}
	}
}

// TestClaimNotBegun ends a transaction whose BEGIN failed: it may have begun all the same,
// and the next one to have the connection would be in it.
func TestClaimNotBegun(t *testing.T) {
	for _, c := range []struct {
		name     string
		rollback error
		givenUp  int
	}{
		{"it had begun", nil, 0},
		{"it had not, in SQLite", errNoneOn, 0},
		{"nobody knows", errLost, 1},
	} {
		e := &empty{fails: map[string]error{"BEGIN": errNoUse, "ROLLBACK": c.rollback}}
		givenUp, err := claimFrom(t, e, SQLite, time.Minute)
		if !errors.Is(err, errNoUse) {
			t.Errorf("%s: %v", c.name, err)
		}
		if want := []string{"BEGIN IMMEDIATE", "ROLLBACK"}; !slices.Equal(e.told, want) || givenUp != c.givenUp {
			t.Errorf("%s: told %q, want %q; %d connections given up, want %d", c.name, e.told, want, givenUp, c.givenUp)
		}
	}
}

// refused is a database without rows that refuses the first queries.
type refused struct {
	empty

	errs []error // one a query
}

func (r *refused) Connect(context.Context) (driver.Conn, error) { return r, nil }

func (r *refused) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if len(r.errs) == 0 {
		return r.empty.QueryContext(ctx, query, args)
	}
	err := r.errs[0]
	r.errs = r.errs[1:]
	return nil, err
}

// TestClaimDeadlock makes a claim once more that PostgreSQL ended since another one and it
// waited for each other, and no other one that failed.
func TestClaimDeadlock(t *testing.T) {
	ended, denied := stateError("40P01"), stateError("42501")
	for _, c := range []struct {
		name string
		errs []error
		want error
		told []string // first words
	}{
		{"ended", []error{ended}, nil, []string{"BEGIN", "SET", "ROLLBACK", "BEGIN", "SET", "COMMIT"}},
		{"again and again", []error{ended, ended}, ended, []string{"BEGIN", "SET", "ROLLBACK", "BEGIN", "SET", "ROLLBACK"}},
		{"failed", []error{denied}, denied, []string{"BEGIN", "SET", "ROLLBACK"}},
	} {
		r := &refused{errs: c.errs}
		db := sql.OpenDB(r)
		b := &Box{db: db, d: dialects[PostgreSQL]}
		_, err := b.Claim(t.Context(), jetbus.ClaimOptions{Max: 10, Lease: time.Minute})
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		var told []string
		for _, statement := range r.told {
			word, _, _ := strings.Cut(statement, " ")
			told = append(told, word)
		}
		if !slices.Equal(told, c.told) {
			t.Errorf("%s: told %q, want %q", c.name, told, c.told)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestNoTable tells a table that is not there from one that cannot be read.
func TestNoTable(t *testing.T) {
	for tables, want := range []error{ErrNoTable, errLost} {
		db := sql.OpenDB(&empty{tables: int64(tables)})
		b := &Box{db: db, d: dialects[SQLite], o: Options{Table: DefaultTable}}
		err := b.checkColumns(t.Context())
		if !errors.Is(err, want) || !errors.Is(err, errLost) || errors.Is(err, ErrNoTable) != (tables == 0) {
			t.Errorf("with %d tables: %v", tables, err)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}
}

// stateError is an error of PostgreSQL.
type stateError string

func (e stateError) Error() string    { return "refused: " + string(e) }
func (e stateError) SQLState() string { return string(e) }

// refusing is a database that refuses the first statements of Create.
type refusing struct {
	errs []error // one a statement
	told []string
}

func (r *refusing) ExecContext(_ context.Context, query string, _ ...any) (sql.Result, error) {
	r.told = append(r.told, query)
	if len(r.errs) == 0 {
		return driver.RowsAffected(0), nil
	}
	err := r.errs[0]
	r.errs = r.errs[1:]
	return nil, err
}

// TestCreateRace tries a statement of Create once more that another Create was ahead of.
func TestCreateRace(t *testing.T) {
	text, err := Schema(PostgreSQL, "")
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Count(text, ";\n")
	raced, aborted, denied := stateError("23505"), stateError("25P02"), stateError("42501")
	for _, c := range []struct {
		name  string
		errs  []error
		want  error
		told  int
		twice bool // the first statement
	}{
		{"nobody else", nil, nil, all, false},
		{"the table is made", []error{raced}, nil, all + 1, true},
		{"an index is made", []error{nil, stateError("42P07")}, nil, all + 1, false},
		{"in a transaction", []error{raced, aborted}, raced, 2, true},
		{"for good", []error{raced, raced}, raced, 2, true},
		{"not allowed", []error{denied}, denied, 1, false},
		{"lost", []error{errLost}, errLost, 1, false},
	} {
		r := &refusing{errs: c.errs}
		err := Create(t.Context(), r, PostgreSQL, "")
		if !errors.Is(err, c.want) || len(r.told) != c.told {
			t.Errorf("%s: %d statements, %v; want %d, %v", c.name, len(r.told), err, c.told, c.want)
		}
		if len(r.told) > 1 && (r.told[0] == r.told[1]) != c.twice {
			t.Errorf("%s: told %q", c.name, r.told[:2])
		}
	}
}

// sqliteError is an error of SQLite, with an extended result code.
type sqliteError int

func (e sqliteError) Error() string { return "refused: " + strconv.Itoa(int(e)) }
func (e sqliteError) Code() int     { return int(e) }

// fieldError is an error of a driver for SQLite that has the code as a field.
type fieldError struct {
	Code resultCode
	text string
}

type resultCode int

func (e fieldError) Error() string { return e.text }

// TestIsRefused tells what a database may refuse because of a row from what concerns all rows.
func TestIsRefused(t *testing.T) {
	for err, want := range map[error]bool{
		nil: false, errLost: false, errors.New("CHECK constraint failed: attempts"): true,
		stateError("22P05"): true, stateError("22003"): true, stateError("23503"): true, stateError("P0001"): true,
		stateError("AU001"): true, stateError("42501"): true, stateError("0A000"): true, stateError("21000"): true,
		stateError("40001"): false, stateError("08006"): false, stateError(""): false, stateError("2"): false,
		sqliteError(1811): true, sqliteError(19): true, sqliteError(5): false, sqliteError(13): false,
		sqliteError(1): true, fieldError{19, "no"}: true, fieldError{5, "database is locked"}: false, errDropped: true,
		stateError("53100"): false, stateError("57014"): false, stateError("25006"): false, errors.New("datatype mismatch"): true,
	} {
		if got := isRefused(err); got != want {
			t.Errorf("%v: refused %v, want %v", err, got, want)
		}
	}
}
