//go:build unix

package outbox

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus/outbox"
)

// listener opens connections of a driver whose queries it notes. It is for one goroutine.
type listener struct {
	to      driver.Driver
	dsn     string
	queries []query
}

type query struct {
	text string
	args []any
}

func (l *listener) Driver() driver.Driver { return l.to }

func (l *listener) Connect(context.Context) (driver.Conn, error) {
	c, err := l.to.Open(l.dsn)
	if err != nil {
		return nil, err
	}
	conn, ok := c.(listened)
	if !ok {
		return nil, errors.Join(fmt.Errorf("a %T does not take statements", c), c.Close())
	}
	return overheard{conn, l}, nil
}

type listened interface {
	driver.Conn
	driver.ExecerContext
	driver.QueryerContext
}

// overheard is a connection whose queries are noted.
type overheard struct {
	listened

	by *listener
}

func (o overheard) QueryContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Rows, error) {
	q := query{text: text}
	for _, arg := range args {
		q.args = append(q.args, arg.Value)
	}
	o.by.queries = append(o.by.queries, q)
	return o.listened.QueryContext(ctx, text, args)
}

// plan is how a database executes a query.
func (d *sqlDatabase) plan(ctx context.Context, q query) (string, error) {
	how := "EXPLAIN "
	if d.dialect == outbox.SQLite {
		how = "EXPLAIN QUERY PLAN "
	}
	rows, err := d.db.QueryContext(ctx, how+q.text, q.args...)
	if err != nil {
		return "", err
	}
	defer func() { _ = rows.Close() }()
	columns, err := rows.Columns()
	if err != nil {
		return "", err
	}
	var line string // the last column
	to := make([]any, len(columns))
	for i := range to {
		to[i] = new(any)
	}
	to[len(to)-1] = &line
	var plan strings.Builder
	for rows.Next() {
		if err := rows.Scan(to...); err != nil {
			return "", err
		}
		plan.WriteString(line + "\n")
	}
	return plan.String(), rows.Err()
}

// TestSkipDeadPlan passes over the dead rows of a key by an index that has none of them.
// Create adds it to a table that was made before there was one, which can be claimed from
// without it.
func TestSkipDeadPlan(t *testing.T) {
	onSQL(t, func(r *rig, d *sqlDatabase) {
		r.exec(d, `DROP INDEX IF EXISTS outbox_alive`, `WITH RECURSIVE n (i) AS (SELECT 10000 UNION ALL SELECT i + 1 FROM n WHERE i < 14999)
INSERT INTO outbox (id, topic, "key", state) SELECT CAST(i AS TEXT), 'orders', 'a', 'dead' FROM n`)
		r.add(order("a1", "a"), order("a2", "a"), order("b1", "b"))
		l := &listener{to: d.db.Driver(), dsn: d.dsn}
		db := sql.OpenDB(l)
		defer func() { r.ok(db.Close()) }()
		b, err := outbox.Open(r.Context(), db, outbox.Options{Dialect: d.dialect, SkipDead: true})
		r.ok(err)
		got, rows := r.claim(b, 10, time.Minute)
		r.want("without the index", got, ids{"a1", "a2", "b1"})
		r.ok(b.Release(r.Context(), rows))

		r.ok(outbox.Create(r.Context(), d.db, d.dialect, ""))
		if d.dialect == outbox.PostgreSQL {
			r.exec(d, `ANALYZE outbox`) // else it plans by when it comes to that itself
		}
		l.queries = nil
		got, _ = r.claim(b, 10, time.Minute)
		r.want("with it", got, ids{"a1", "a2", "b1"})
		n := 0
		for _, q := range l.queries {
			if !strings.Contains(q.text, "<> 'dead'") {
				continue
			}
			n++
			plan, err := d.plan(r.Context(), q)
			r.ok(err)
			if !strings.Contains(plan, "outbox_alive") || strings.Contains(plan, "outbox_keys") {
				r.Errorf("%s\nis executed so:\n%s", q.text, plan)
			}
		}
		r.want("statements that pass over dead rows", n, 2)
	})
}
