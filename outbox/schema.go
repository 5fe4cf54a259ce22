package outbox

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/seed-63e9a637/jetbus"
)

// DefaultTable is Options.Table where it is empty.
const DefaultTable = "outbox"

// maxTable leaves room for the names of its indexes in PostgreSQL's 63 bytes.
const maxTable = 50

var tableName = regexp.MustCompile(`^([a-z_][a-z0-9_]*\.)?[a-z_][a-z0-9_]*$`)

// checkTable checks what goes into statements as text.
func checkTable(d Dialect, table string) (dialect, error) {
	spec, ok := dialects[d]
	switch {
	case !ok:
		return spec, fmt.Errorf("%w: Dialect is %q, use %q or %q", jetbus.ErrInvalidOption, d, SQLite, PostgreSQL)
	case len(table) > maxTable || !tableName.MatchString(table):
		return spec, fmt.Errorf("%w: Table is %.80q, use at most %d of a-z, 0-9 and '_'", jetbus.ErrInvalidOption, table, maxTable)
	case strings.Contains(table, ".") && !spec.schemas:
		return spec, fmt.Errorf("%w: Table is %q, which names a schema; %s has none", jetbus.ErrInvalidOption, table, d)
	}
	return spec, nil
}

// columns of the table, in the order of Schema.
var columns = []string{
	"pos", "id", "topic", "key", "sid", "ts", "headers", "caused_by", "tags", "payload",
	"state", "attempts", "last_error", "owner", "due_at", "created_at", "sent_at",
}

// Schema returns the statements that make the table of an outbox, each ending with
// a semicolon, and nothing where it exists; where the table does, and an index does not, the
// index. An empty table means [DefaultTable]. The error wraps [jetbus.ErrInvalidOption].
//
// Times are in milliseconds since 1970 by the clock of the database, but for ts,
// which is the time of the event. Everything but id and topic has a default, so that
// triggers and programs in other languages can insert rows, too; headers is a JSON
// object, caused_by and tags are JSON arrays of strings, or empty. SQLite takes anything
// for an integer: a row with a time that is none becomes dead, so that a trigger writes
// CAST(unixepoch('subsec') * 1000 AS INTEGER).
func Schema(d Dialect, table string) (string, error) {
	if table == "" {
		table = DefaultTable
	}
	spec, err := checkTable(d, table)
	if err != nil {
		return "", fmt.Errorf("schema of an outbox: %w", err)
	}
	_, bare, found := strings.Cut(table, ".")
	if !found {
		bare = table
	}
	return strings.NewReplacer(
		"{table}", table, "{name}", bare, "{position}", spec.position, "{integer}", spec.integer, "{bytes}", spec.bytes, "{now}", spec.now,
	).Replace(schemaText), nil
}

// schemaText makes the table and its indexes. Where dead rows are skipped, {name}_alive passes
// over those of a key; by {name}_keys each is read to see that it is dead, again for each row
// behind it. The statements fit both, for tables that were made without {name}_alive. SQLite
// takes the two for equally good, and of these the one that was made last: {name}_alive stays
// behind {name}_keys.
const schemaText = `CREATE TABLE IF NOT EXISTS {table} (
  pos        {position},
  id         TEXT NOT NULL,
  topic      TEXT NOT NULL,
  "key"      TEXT NOT NULL DEFAULT '',
  sid        TEXT NOT NULL DEFAULT '',
  ts         {integer},
  headers    TEXT NOT NULL DEFAULT '',
  caused_by  TEXT NOT NULL DEFAULT '',
  tags       TEXT NOT NULL DEFAULT '',
  payload    {bytes},
  state      TEXT NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'sent', 'dead')),
  attempts   {integer} NOT NULL DEFAULT 0,
  last_error TEXT NOT NULL DEFAULT '',
  owner      TEXT NOT NULL DEFAULT '',
  due_at     {integer} NOT NULL DEFAULT 0,
  created_at {integer} NOT NULL DEFAULT ({now}),
  sent_at    {integer}
);
CREATE UNIQUE INDEX IF NOT EXISTS {name}_id ON {table} (topic, id);
CREATE INDEX IF NOT EXISTS {name}_pending ON {table} (pos) WHERE state = 'pending';
CREATE INDEX IF NOT EXISTS {name}_keys ON {table} (topic, "key", pos) WHERE state <> 'sent';
CREATE INDEX IF NOT EXISTS {name}_alive ON {table} (topic, "key", pos) WHERE state <> 'sent' AND state <> 'dead';
CREATE INDEX IF NOT EXISTS {name}_sent ON {table} (sent_at) WHERE state = 'sent';
`

// Create makes the table of an outbox where it does not exist, and the indexes that one of
// an earlier version lacks. To make an index of a table with many rows takes a while, in
// which PostgreSQL has writers wait: by hand, ahead of Create, CREATE INDEX CONCURRENTLY does
// not. The errors are those of [Schema] and of the database. A table of another shape is
// found by [Open]. Any number may call it at once, but in PostgreSQL not in transactions: one
// of them may fail then.
func Create(ctx context.Context, db Tx, d Dialect, table string) error {
	text, err := Schema(d, table)
	if err != nil {
		return err
	}
	for statement := range strings.SplitAfterSeq(strings.TrimSpace(text), ";\n") {
		if err := create(ctx, db, statement); err != nil {
			return fmt.Errorf("create outbox: %w", err)
		}
	}
	return nil
}

// sqlStateError is an error of PostgreSQL, as its drivers have them.
type sqlStateError interface {
	error
	SQLState() string
}

// madeMeanwhile are what PostgreSQL says of an IF NOT EXISTS that another one was ahead of
// while it ran: of a name in its catalog that is there twice, of a table and of its type.
var madeMeanwhile = []string{"23505", "42P07", "42710"}

// create executes a statement of Schema, and once more if somebody else made the same thing
// at the same time: then it exists.
func create(ctx context.Context, db Tx, statement string) error {
	_, err := db.ExecContext(ctx, statement)
	if refused, ok := errors.AsType[sqlStateError](err); ok && slices.Contains(madeMeanwhile, refused.SQLState()) {
		if _, failed := db.ExecContext(ctx, statement); failed == nil {
			return nil
		}
	}
	return err
}
