package outbox

import (
	"strconv"
	"strings"
)

// Dialect is the SQL of a database.
type Dialect string

// The dialects.
const (
	SQLite     Dialect = "sqlite"     // 3.35 and newer, by any driver
	PostgreSQL Dialect = "postgresql" // 12 and newer, by any driver
)

// dialect is what differs between databases.
type dialect struct {
	now      string // epoch milliseconds of the statement
	position string // the column pos, ascending with inserts and never used twice
	integer  string // type of 64 bits
	bytes    string // type of a payload
	dated    string // condition, behind others: created_at is an integer
	octets   string // function for the number of its bytes, or about so of a text
	begin    string // a transaction that may write, and sees in each statement what is committed
	idle     string // statement that ends the transaction when it is idle for that many milliseconds, which follow; empty: there is none
	// immediate is a statement after which the database checks deferred constraints with each
	// statement of the transaction; empty: the database has none.
	immediate string
	raw       string // of a text column: its bytes in the encoding of the database
	lock      string // of rows of a query, until the end of the transaction
	// skipLocked is lock, and passes over rows that another transaction has locked.
	skipLocked string
	exists     string // query for the number of tables of a name
	version    string // query for the version, as a number
	least      int    // the least version
	readable   string // least, for people
	numbered   bool   // parameters are $1, $2, ... instead of ?
	schemas    bool   // table names may have a schema
}

var dialects = map[Dialect]dialect{
	SQLite: {
		now:      `CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)`,
		position: `INTEGER PRIMARY KEY AUTOINCREMENT`,
		integer:  `INTEGER`,
		bytes:    `BLOB`,
		dated:    `AND typeof(created_at) = 'integer'`, // a text is a number in a subtraction
		octets:   `length`,
		raw:      `{column}`,
		begin:    `BEGIN IMMEDIATE`, // one writer at a time: nothing needs a lock of its own
		exists:   `SELECT count(*) FROM sqlite_master WHERE type IN ('table', 'view') AND lower(name) = ?`,
		version:  `SELECT CAST(substr(v, 1, instr(v, '.') - 1) AS INTEGER) * 1000 + CAST(substr(v, instr(v, '.') + 1) AS INTEGER) FROM (SELECT sqlite_version() AS v)`,
		least:    3035, readable: "3.35",
	},
	PostgreSQL: {
		now:       `CAST(extract(epoch FROM statement_timestamp()) * 1000 AS BIGINT)`,
		position:  `BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY`,
		integer:   `BIGINT`,
		bytes:     `BYTEA`,
		octets:    `octet_length`,
		begin:     `BEGIN ISOLATION LEVEL READ COMMITTED`,
		idle:      `SET LOCAL idle_in_transaction_session_timeout = `,
		immediate: `SET CONSTRAINTS ALL IMMEDIATE`,
		raw:       `convert_to({column}, getdatabaseencoding())`,
		lock:      `FOR UPDATE`, skipLocked: `FOR UPDATE SKIP LOCKED`,
		exists:  `SELECT CASE WHEN to_regclass(CAST(? AS TEXT)) IS NULL THEN 0 ELSE 1 END`,
		version: `SELECT CAST(current_setting('server_version_num') AS INTEGER)`,
		least:   120000, readable: "12",
		numbered: true, schemas: true,
	},
}

// rawColumn is raw of a column.
func (d dialect) rawColumn(name string) string { return strings.ReplaceAll(d.raw, "{column}", name) }

// list returns columns as a list. If raw is set, texts are their bytes in the encoding of the
// database.
func (d dialect) list(names []string, raw bool) string {
	list := make([]string, len(names))
	for i, name := range names {
		list[i] = `"` + name + `"`
		if raw && wantedKind(name) == "text" {
			list[i] = d.rawColumn(list[i])
		}
	}
	return strings.Join(list, ", ")
}

// rebind spells parameters as the database does. No statement here has a question
// mark in any other place.
func (d dialect) rebind(query string) string {
	if !d.numbered {
		return query
	}
	var b strings.Builder
	for n := 1; ; n++ {
		before, after, found := strings.Cut(query, "?")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		b.WriteString("$" + strconv.Itoa(n))
		query = after
	}
}

// marks is "?, ?, ?".
func marks(n int) string { return strings.TrimSuffix(strings.Repeat("?, ", n), ", ") }
