//go:build unix

package outbox

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/outbox"
)

// TestNoIntegers sets rows aside in whose columns for integers SQLite has kept something
// else, as it does where a trigger computes a time; the others go on. PostgreSQL refuses
// such rows itself.
func TestNoIntegers(t *testing.T) {
	onSQL(t, func(r *rig, d *sqlDatabase) {
		if d.dialect != outbox.SQLite {
			r.Skip("PostgreSQL refuses such rows")
		}
		r.exec(d,
			`INSERT INTO outbox (id, topic, ts) VALUES ('1', 'orders', 1000)`,
			`INSERT INTO outbox (id, topic, ts) VALUES ('half', 'orders', 1.5)`,
			`INSERT INTO outbox (id, topic, ts) VALUES ('text', 'orders', 'yesterday')`,
			`INSERT INTO outbox (id, topic, created_at) VALUES ('created', 'orders', 'now')`,
			`INSERT INTO outbox (id, topic, created_at) VALUES ('created-half', 'orders', 1.5)`,
			`INSERT INTO outbox (id, topic, attempts) VALUES ('attempts', 'orders', 'many')`,
			`INSERT INTO outbox (id, topic, ts) VALUES ('2', 'orders', 2000.0)`)
		s, err := r.box.OutboxStats(r.Context())
		r.ok(err)
		if s.Pending != 7 || s.Age < 0 || s.Age > time.Hour {
			r.Errorf("stats %+v", s)
		}
		bus := r.startBus()
		r.drain(r.box, bus, jetbus.DrainOptions{})
		r.untilEmpty()
		r.want("stored", r.stored(bus), ids{"1", "2"})
		r.want("left", r.list(outbox.Query{}), ids{"half dead 1", "text dead 1", "created dead 1", "created-half dead 1", "attempts dead 1"})
		r.wantProblems(ids{"half: ts", "text: ts", "created: created_at", "created-half: created_at", "attempts: "})

		r.exec(d, `UPDATE outbox SET ts = NULL, created_at = 1000`)
		_, err = r.box.Retry(r.Context(), outbox.Query{})
		r.ok(err)
		r.untilEmpty()
		r.want("stored once they are mended", r.stored(bus), ids{"1", "2", "half", "text", "created", "created-half", "attempts"})
	})
}

// TestNoIntegersListed shows rows that no drainer comes to, and lets people deal with them.
func TestNoIntegersListed(t *testing.T) {
	onSQL(t, func(r *rig, d *sqlDatabase) {
		if d.dialect != outbox.SQLite {
			r.Skip("PostgreSQL refuses such rows")
		}
		r.exec(d,
			`INSERT INTO outbox (id, topic, ts) VALUES ('ts', 'orders', 'yesterday')`,
			`INSERT INTO outbox (id, topic, attempts) VALUES ('attempts', 'orders', 0.5)`,
			`INSERT INTO outbox (id, topic, due_at) VALUES ('due', 'orders', 'soon')`,
			`INSERT INTO outbox (id, topic, state, sent_at) VALUES ('sent', 'orders', 'sent', 'just now')`)
		r.wantProblems(ids{"ts: ts", "attempts: attempts", "due: due_at", "sent: sent_at"})
		n, err := r.box.Kill(r.Context(), outbox.Query{IDs: ids{"ts"}})
		r.ok(err)
		r.want("killed", n, 1)
		n, err = r.box.Retry(r.Context(), outbox.Query{IDs: ids{"due", "attempts"}})
		r.ok(err)
		r.want("retried", n, 2)
		r.wantProblems(ids{"ts: ts", "attempts: ", "due: ", "sent: sent_at"})
		claimed, _ := r.claim(r.box, 10, time.Minute)
		r.want("claimed", claimed, ids{"attempts", "due"})
	})
}

func (r *rig) exec(d *sqlDatabase, statements ...string) {
	r.Helper()
	for _, statement := range statements {
		_, err := d.db.ExecContext(r.Context(), statement)
		r.ok(err)
	}
}

// wantProblems compares rows as "id: column that could not be read".
func (r *rig) wantProblems(want ids) {
	r.Helper()
	rows, err := r.box.List(r.Context(), outbox.Query{})
	r.ok(err)
	got := ids{}
	for _, row := range rows {
		column := ""
		if row.Err != nil {
			r.wantErr(row.Event.ID, row.Err, jetbus.ErrInvalidEvent)
			_, column, _ = strings.Cut(row.Err.Error(), "column ")
			column, _, _ = strings.Cut(column, " ")
		}
		got = append(got, fmt.Sprintf("%s: %s", row.Event.ID, column))
		if !row.DueAt.IsZero() && row.State == outbox.Pending || !row.SentAt.IsZero() {
			r.Errorf("%s is due at %v, was sent at %v", row.Event.ID, row.DueAt, row.SentAt)
		}
	}
	r.want("problems", got, want)
}
