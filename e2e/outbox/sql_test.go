//go:build unix

package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/outbox"
)

// sqlDatabase has the table of an outbox.
type sqlDatabase struct {
	driver, dsn string
	dialect     outbox.Dialect

	db *sql.DB
}

// onSQL runs a test on SQLite, and on PostgreSQL if there is one.
func onSQL(t *testing.T, test func(r *rig, d *sqlDatabase)) {
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		dsn := "file:" + filepath.Join(t.TempDir(), "db") + "?_pragma=busy_timeout(60000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)&_txlock=immediate"
		d := newSQL(t, &sqlDatabase{driver: "sqlite", dsn: dsn, dialect: outbox.SQLite})
		test(newRig(t, d), d)
	})
	if postgresURI == "" {
		return
	}
	t.Run("postgresql", func(t *testing.T) {
		t.Parallel()
		onPostgres(t, test)
	})
}

// onPostgres runs a test on PostgreSQL, and skips it if there is none.
func onPostgres(t *testing.T, test func(r *rig, d *sqlDatabase)) {
	t.Helper()
	needPostgres(t)
	d := newSQL(t, &sqlDatabase{driver: "pgx", dsn: ownSchema(t), dialect: outbox.PostgreSQL})
	test(newRig(t, d), d)
}

// needPostgres skips a test if there is no PostgreSQL.
func needPostgres(t *testing.T) {
	t.Helper()
	if postgresURI == "" {
		t.Skip("needs PostgreSQL: use -postgres")
	}
}

// ownSchema makes a schema for a test.
func ownSchema(t *testing.T) (dsn string) {
	t.Helper()
	db, err := sql.Open("pgx", postgresURI)
	if err != nil {
		t.Fatal(err)
	}
	schema := "t" + strings.ReplaceAll(jetbus.NewID(), "-", "")
	if _, err := db.ExecContext(t.Context(), "CREATE SCHEMA "+schema); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, err := db.ExecContext(context.Background(), "DROP SCHEMA "+schema+" CASCADE")
		if err := errors.Join(err, db.Close()); err != nil {
			t.Error(err)
		}
	})
	u, err := url.Parse(postgresURI)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("search_path", schema)
	u.RawQuery = q.Encode()
	return u.String()
}

// newSQL makes the table.
func newSQL(t *testing.T, d *sqlDatabase) *sqlDatabase {
	t.Helper()
	var err error
	if d.db, err = sql.Open(d.driver, d.dsn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.db.Close(); err != nil {
			t.Error(err)
		}
	})
	for range 2 { // twice is fine
		if err := outbox.Create(t.Context(), d.db, d.dialect, ""); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func (d *sqlDatabase) open(ctx context.Context, o outbox.Options) (box, error) {
	o.Dialect = d.dialect
	return outbox.Open(ctx, d.db, o)
}

func (d *sqlDatabase) begin(ctx context.Context) (transaction, error) {
	tx, err := d.db.BeginTx(ctx, nil)
	return sqlTransaction{tx}, err
}

func (d *sqlDatabase) backlog(ctx context.Context, first, last int) error {
	_, err := d.db.ExecContext(ctx, fmt.Sprintf(`WITH RECURSIVE n (i) AS (SELECT %d UNION ALL SELECT i + 1 FROM n WHERE i < %d)
INSERT INTO outbox (id, topic, "key") SELECT CAST(i AS TEXT), 'orders', 'a' FROM n`, first, last))
	return err
}

func (d *sqlDatabase) byHand(ctx context.Context) error {
	for _, insert := range []string{
		`INSERT INTO outbox (id, topic) VALUES ('1', 'orders')`,
		`INSERT INTO outbox (id, topic, "key", headers, tags) VALUES ('2', 'orders', 'a', '{"x-shop":"north"}', '["new"]')`,
		`INSERT INTO outbox (id, topic, headers) VALUES ('3', 'orders', 'x-shop=north')`,
		`INSERT INTO outbox (id, topic) VALUES ('4', 'Orders!')`,
		`INSERT INTO outbox (id, topic) VALUES ('', 'orders')`,
	} {
		if _, err := d.db.ExecContext(ctx, insert); err != nil {
			return err
		}
	}
	return nil
}

func (d *sqlDatabase) parallel() bool { return d.dialect == outbox.PostgreSQL }

func (d *sqlDatabase) quick() bool { return d.dialect == outbox.PostgreSQL } // SQLite is slow under the race detector

func (d *sqlDatabase) drainer() drainerConfig {
	return drainerConfig{Driver: d.driver, DSN: d.dsn, Dialect: d.dialect}
}

type sqlTransaction struct{ tx *sql.Tx }

func (t sqlTransaction) add(ctx context.Context, b box, events ...jetbus.Event) error {
	return b.(*outbox.Box).Add(ctx, t.tx, events...) //nolint:forcetypeassert // of open
}

func (t sqlTransaction) commit(context.Context) error { return t.tx.Commit() }

func (t sqlTransaction) rollback(context.Context) error { return t.tx.Rollback() }
