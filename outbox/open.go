package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/outrow"
)

// Options say what an outbox is. Dialect has no default.
type Options struct {
	// Dialect is the SQL of the database.
	Dialect Dialect
	// Table is its name: a-z, 0-9 and '_', in PostgreSQL behind a schema and a dot if
	// you like. Defaults to DefaultTable.
	Table string
	// MaxBytes is how large an event may be that is added, its headers included, so
	// that the transaction learns of it and not the drainer. Defaults to 1 MiB, which
	// is what a NATS server takes unless told otherwise; -1 means any.
	MaxBytes int
	// Check is asked about each event that is added; an error refuses it. It is the
	// place to validate schemas. Defaults to none.
	Check func(ctx context.Context, e jetbus.Event) error
	// SkipDead publishes later rows of a key whose row is dead. The default holds them
	// back, until the dead row is retried or removed.
	SkipDead bool
	// Keep is how long rows stay after they were sent, for people who look. By default
	// they are deleted at once.
	Keep time.Duration
}

// DefaultMaxBytes is Options.MaxBytes where it is zero.
const DefaultMaxBytes = 1 << 20

// Tx is what Add needs of the caller's transaction: a *sql.Tx, or a *sql.Conn inside
// of one. A *sql.DB does as well, for events that stand alone.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Box is an outbox in a table. It is a [jetbus.Outbox]. All methods may be called
// from several goroutines at once, and by any number of processes on one table.
type Box struct {
	db *sql.DB
	o  Options
	d  dialect

	scan    scanFrom
	refused outrow.Refused
}

var (
	_ jetbus.Outbox        = (*Box)(nil)
	_ jetbus.OutboxCleaner = (*Box)(nil)
)

// Open returns the outbox in a table that exists; see [Create]. It checks the version
// of the database and the columns of the table. The error wraps
// [jetbus.ErrInvalidOption], [jetbus.ErrUnsupported] for a database that is too old or
// speaks another dialect, [ErrNoTable], or [jetbus.ErrConflict] for a table of another
// shape; others are those of the database. The caller closes db, when nothing uses the Box
// any more.
func Open(ctx context.Context, db *sql.DB, o Options) (*Box, error) {
	if o.Table == "" {
		o.Table = DefaultTable
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	b := &Box{db: db, o: o}
	if err := b.check(ctx); err != nil {
		return nil, fmt.Errorf("open outbox %.80s: %w", o.Table, err)
	}
	return b, nil
}

// fill puts names into a statement.
func (b *Box) fill(text string) string {
	return strings.NewReplacer(
		"{table}", b.o.Table, "{now}", b.d.now, "{lock}", b.d.lock, "{skiplocked}", b.d.skipLocked, "{dated}", b.d.dated,
		"{firsttime}", strconv.Itoa(firstTime), "{lasttime}", strconv.Itoa(lastTime)).Replace(text)
}

// exec executes a statement and returns how many rows it changed.
func (b *Box) exec(ctx context.Context, text string, args ...any) (int, error) {
	result, err := b.db.ExecContext(ctx, b.d.rebind(b.fill(text)), args...)
	if err != nil {
		return 0, err
	}
	n, err := result.RowsAffected()
	return int(n), err
}

// ErrNoTable says that the table does not exist.
var ErrNoTable = errors.New("no table of an outbox: make it with Create, or what Schema prints")

func (b *Box) check(ctx context.Context) (err error) {
	if b.d, err = checkTable(b.o.Dialect, b.o.Table); err != nil {
		return err
	}
	switch {
	case b.db == nil:
		return fmt.Errorf("%w: no database", jetbus.ErrInvalidOption)
	case b.o.MaxBytes < -1:
		return fmt.Errorf("%w: MaxBytes is %d, use 1 or more, or -1 for any", jetbus.ErrInvalidOption, b.o.MaxBytes)
	case b.o.Keep < 0:
		return fmt.Errorf("%w: Keep is %v", jetbus.ErrInvalidOption, b.o.Keep)
	}
	if err := b.db.PingContext(ctx); err != nil {
		return err
	}
	var version int
	if err := b.db.QueryRowContext(ctx, b.d.version).Scan(&version); err != nil {
		return fmt.Errorf("%w: the database does not speak %s: %w", jetbus.ErrUnsupported, b.o.Dialect, err)
	}
	if version < b.d.least {
		return fmt.Errorf("%w: %s %s or newer is needed, this one is %d", jetbus.ErrUnsupported, b.o.Dialect, b.d.readable, version)
	}
	return b.checkColumns(ctx)
}

// checkColumns compares the columns of the table with those of Schema.
func (b *Box) checkColumns(ctx context.Context) error {
	rows, err := b.db.QueryContext(ctx, "SELECT * FROM "+b.o.Table+" WHERE 1 = 0")
	if err != nil {
		return b.unreadable(ctx, err)
	}
	defer func() { _ = rows.Close() }()
	have, err := rows.ColumnTypes()
	if err != nil {
		return err
	}
	conflict := &jetbus.ConflictError{What: "table " + b.o.Table, Hint: "compare it with what outbox.Schema prints, or choose another Table"}
	for _, name := range columns {
		i := slices.IndexFunc(have, func(c *sql.ColumnType) bool { return c.Name() == name })
		if i < 0 {
			conflict.Differences = append(conflict.Differences, jetbus.Difference{Field: "column " + name, Have: "missing", Want: "there"})
			continue
		}
		is, want := kind(have[i].DatabaseTypeName()), wantedKind(name)
		if is != "" && is != want {
			conflict.Differences = append(conflict.Differences, jetbus.Difference{Field: "column " + name, Have: is, Want: want})
		}
	}
	if len(conflict.Differences) > 0 {
		return conflict
	}
	return rows.Err()
}

// unreadable says of a table that cannot be read whether there is none. The database is asked,
// since each driver has errors of its own.
func (b *Box) unreadable(ctx context.Context, err error) error {
	var n int
	if failed := b.db.QueryRowContext(ctx, b.d.rebind(b.d.exists), b.o.Table).Scan(&n); failed == nil && n == 0 {
		return fmt.Errorf("%w: %w", ErrNoTable, err)
	}
	return fmt.Errorf("read the columns of the table: %w", err)
}

// kind is what a type is: "integer", "text" or "bytes"; empty where the name is unknown.
func kind(typeName string) string {
	switch t := strings.ToUpper(typeName); {
	case strings.Contains(t, "INT"):
		return "integer"
	case strings.Contains(t, "CHAR"), strings.Contains(t, "TEXT"):
		return "text"
	case strings.Contains(t, "BLOB"), strings.Contains(t, "BYTEA"):
		return "bytes"
	case strings.Contains(t, "JSON"), strings.Contains(t, "UUID"), strings.Contains(t, "TIME"), strings.Contains(t, "BOOL"), strings.Contains(t, "NUMERIC"):
		return strings.ToLower(t)
	}
	return ""
}

func wantedKind(column string) string {
	switch column {
	case "pos", "ts", "attempts", "due_at", "created_at", "sent_at":
		return "integer"
	case "payload":
		return "bytes"
	}
	return "text"
}
