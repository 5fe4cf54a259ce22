//go:build unix

package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/outbox"
)

// A protection makes the database refuse statements that change rows whose ID begins with "stuck".
type protection struct {
	statements []string
	end        string // makes the database accept all statements again
}

// protections returns the ways in which a database refuses an UPDATE or a DELETE.
func protections(d outbox.Dialect, event string) map[string]protection {
	row := map[string]string{"UPDATE": "new", "DELETE": "old"}[event]
	if d == outbox.SQLite {
		out := map[string]protection{}
		for name, action := range map[string]string{
			"abort": "RAISE(ABORT, 'no')", "fail": "RAISE(FAIL, 'no')", "ignore": "RAISE(IGNORE)", "function": "json(old.id)", "rollback": "RAISE(ROLLBACK, 'no')",
		} {
			out[name] = protection{
				[]string{fmt.Sprintf(`CREATE TRIGGER protect BEFORE %s ON outbox WHEN old.id LIKE 'stuck%%' BEGIN SELECT %s; END`, event, action)}, `DROP TRIGGER protect`,
			}
		}
		return out
	}
	function := func(body string) string {
		return `CREATE FUNCTION protect() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN ` + body + ` END $$`
	}
	trigger := func(body string) protection {
		return protection{
			[]string{function(body), fmt.Sprintf(`CREATE TRIGGER protect BEFORE %s ON outbox FOR EACH ROW WHEN (old.id LIKE 'stuck%%') EXECUTE FUNCTION protect()`, event)},
			`DROP TRIGGER protect ON outbox`,
		}
	}
	out := map[string]protection{
		"raise":       trigger(`RAISE EXCEPTION 'no';`),
		"own code":    trigger(`RAISE EXCEPTION 'no' USING ERRCODE = 'AU001';`),
		"unsupported": trigger(`RAISE EXCEPTION 'no' USING ERRCODE = '0A000';`),
		"bug":         trigger(`PERFORM * FROM no_such_table; RETURN ` + row + `;`),
		"ignore":      trigger(`RETURN NULL;`),
		"deferred": {
			[]string{
				function(`RAISE EXCEPTION 'no'; RETURN NULL;`),
				fmt.Sprintf(`CREATE CONSTRAINT TRIGGER protect AFTER %s ON outbox DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (old.id LIKE 'stuck%%') EXECUTE FUNCTION protect()`, event),
			}, `DROP TRIGGER protect ON outbox`,
		},
	}
	if event == "UPDATE" {
		out["keep"] = trigger(`RETURN old;`)
		out["check"] = protection{[]string{`ALTER TABLE outbox ADD CONSTRAINT protect CHECK (id NOT LIKE 'stuck%') NOT VALID`}, `ALTER TABLE outbox DROP CONSTRAINT protect`}
	}
	return out
}

// onProtections runs a test with each protection from an UPDATE or a DELETE, on each database that
// has it.
func onProtections(t *testing.T, event string, test func(r *rig, d *sqlDatabase, p protection)) {
	dialects := []outbox.Dialect{outbox.SQLite}
	if postgresURI != "" {
		dialects = append(dialects, outbox.PostgreSQL)
	}
	names := map[string]bool{}
	for _, d := range dialects {
		for name := range protections(d, event) {
			names[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		t.Run(name, func(t *testing.T) {
			onSQL(t, func(r *rig, d *sqlDatabase) {
				p, ok := protections(d.dialect, event)[name]
				if !ok {
					r.Skip("this database has no such protection")
				}
				test(r, d, p)
			})
		})
	}
}

// untilReadyNames waits until Ready names a row.
func (r *rig) untilReadyNames(d *jetbus.Drainer, id string) {
	r.Helper()
	r.until("Ready names row "+id, func() bool {
		err := d.Ready()
		return err != nil && strings.Contains(err.Error(), fmt.Sprintf("id %q", id))
	})
}

// The drainer publishes all rows except those that the database refuses to change, and rows that
// follow these with the same key. Ready names one of them. When the database accepts changes again,
// the drainer publishes the rest in order.
func TestRowsThatCannotBeClaimed(t *testing.T) {
	onProtections(t, "UPDATE", func(r *rig, d *sqlDatabase, p protection) {
		bus := r.startBus()
		for i := range 5 { // more than a window
			r.add(order(fmt.Sprintf("stuck%d", i), fmt.Sprint("k", i)), order(fmt.Sprintf("z%d", i), fmt.Sprint("k", i)))
		}
		r.add(order("1", "a"), order("2", "a"), order("3", ""))
		r.exec(d, p.statements...)
		dr, _ := r.drain(r.box, bus, jetbus.DrainOptions{Window: 3, StatsEvery: 50 * time.Millisecond, Lease: time.Second})
		r.until("the other rows are published", func() bool { return dr.Stats().Published == 3 })
		r.untilReadyNames(dr, "stuck0")
		r.until("all refused rows are counted", func() bool { return dr.Stats().Unrecorded == 5 })
		r.add(order("4", "b"))
		r.until("later rows are published", func() bool { return dr.Stats().Published == 4 })
		r.want("pending", r.pending(), 10)
		r.want("dead", dr.Stats().Dead, uint64(0))
		r.exec(d, p.end)
		r.settled(dr, 14)
		r.inOrder(r.stored(bus), 14)
		r.until("the drainer is ready", func() bool { return dr.Ready() == nil })
	})
}

// A box returns a refused row at most once in a lease. If each claim returned it, the drainer would
// never wait.
func TestRefusedRowIsReturnedOncePerLease(t *testing.T) {
	onSQL(t, func(r *rig, d *sqlDatabase) {
		r.add(order("stuck1", "k"), order("z", "k"), order("1", ""))
		r.exec(d, protections(d.dialect, "UPDATE")["ignore"].statements...)
		got, rows := r.claim(r.box, 10, time.Hour)
		r.want("claimed", got, ids{"stuck1", "1"})
		if rows[0].Claim != "" || rows[0].Err == nil || rows[1].Err != nil {
			r.Errorf("claimed %+v", rows)
		}
		var refused *jetbus.OutboxRowsError
		err := r.box.Failed(r.Context(), []jetbus.OutboxFailure{{Row: rows[0], Err: rows[0].Err, Dead: true}})
		if !errors.As(err, &refused) || len(refused.Refs) != 1 || !errors.Is(refused, rows[0].Err) {
			r.Errorf("Failed returns %v", err)
		}
		r.ok(r.box.Release(r.Context(), rows[:1]))
		r.add(order("2", ""))
		got, _ = r.claim(r.box, 1, time.Hour)
		r.want("claimed then", got, ids{"2"})
		got, _ = r.claim(r.openBox(outbox.Options{}), 10, time.Hour)
		r.want("claimed by another process", got, ids{"stuck1"})
	})
}

// Rows that were published and cannot be deleted become dead. They are published once.
func TestRowsThatCannotBeDeleted(t *testing.T) {
	onProtections(t, "DELETE", func(r *rig, d *sqlDatabase, p protection) {
		bus := r.startBus()
		r.add(order("stuck1", "k"), order("z", "k"), order("1", ""), order("stuck2", ""))
		r.exec(d, p.statements...)
		dr, _ := r.drain(r.box, bus, jetbus.DrainOptions{StatsEvery: 50 * time.Millisecond, Lease: time.Second})
		r.settled(dr, 4)
		r.wantDead(dr, ids{"stuck1", "stuck2"})
		r.want("stored", slices.Sorted(slices.Values(r.stored(bus))), ids{"1", "k/stuck1", "k/z", "stuck2"})
		r.want("duplicates", dr.Stats().Duplicates, uint64(0))
	})
}

// Sent, Failed and Release return an error that names the rows that the database refuses to change.
func TestRowsThatCannotBeSettled(t *testing.T) {
	onProtections(t, "UPDATE", func(r *rig, d *sqlDatabase, p protection) {
		b := r.openBox(outbox.Options{Keep: time.Hour})
		r.add(order("stuck1", ""), order("stuck2", ""), order("1", ""), order("2", ""), order("stuck3", ""), order("3", ""))
		_, rows := r.claim(b, 6, time.Hour)
		r.exec(d, p.statements...)
		unchanged := func(what string, err error, want ...jetbus.OutboxRow) {
			r.Helper()
			refused, ok := errors.AsType[*jetbus.OutboxRowsError](err)
			if !ok {
				r.Fatalf("%s: error %v", what, err)
			}
			refs := ids{}
			for _, row := range want {
				refs = append(refs, row.Ref)
			}
			r.want(what, refused.Refs, refs)
		}
		unchanged("Sent", b.Sent(r.Context(), slices.Concat(rows[:1], rows[2:3])), rows[0])
		unchanged("Failed", b.Failed(r.Context(), []jetbus.OutboxFailure{{Row: rows[1], Err: errFull}, {Row: rows[3], Err: errFull, Dead: true}}), rows[1])
		unchanged("Release", b.Release(r.Context(), rows[4:]), rows[4])
		r.want("rows", r.list(outbox.Query{}), ids{"stuck1 pending 0 claimed", "stuck2 pending 0 claimed", "1 sent 0", "2 dead 1", "stuck3 pending 0 claimed", "3 pending 0"})
		r.exec(d, p.end)
		r.ok(b.Sent(r.Context(), rows[:1]))
		r.ok(b.Failed(r.Context(), []jetbus.OutboxFailure{{Row: rows[1], Err: errFull}}))
		r.ok(b.Release(r.Context(), rows[4:5]))
		r.want("rows", r.list(outbox.Query{})[:2], ids{"stuck1 sent 0", "stuck2 pending 1"})
	})
}

var errFull = errors.New("full")

// An error that affects all rows is not an OutboxRowsError, and no row is lost.
func TestOutagesAreNotRows(t *testing.T) {
	onSQL(t, func(r *rig, d *sqlDatabase) {
		r.add(order("1", ""), order("2", ""))
		_, rows := r.claim(r.box, 2, time.Hour)
		if d.dialect == outbox.PostgreSQL {
			r.exec(d, `CREATE FUNCTION protect() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '42501'; END $$`,
				`CREATE TRIGGER protect BEFORE UPDATE OR DELETE ON outbox FOR EACH STATEMENT EXECUTE FUNCTION protect()`)
		} else {
			r.exec(d, `ALTER TABLE outbox RENAME TO elsewhere`)
		}
		wantOutage := func(what string, err error) {
			r.Helper()
			if _, ok := errors.AsType[*jetbus.OutboxRowsError](err); ok || err == nil {
				r.Errorf("%s: %v", what, err)
			}
		}
		wantOutage("Sent", r.box.Sent(r.Context(), rows))
		wantOutage("Failed", r.box.Failed(r.Context(), []jetbus.OutboxFailure{{Row: rows[0], Err: errFull, Dead: true}}))
		wantOutage("Release", r.box.Release(r.Context(), rows))
		if _, err := r.box.Claim(r.Context(), jetbus.ClaimOptions{Max: 2, Lease: time.Hour}); (err == nil) != (d.dialect == outbox.PostgreSQL) {
			r.Errorf("Claim: %v", err) // in PostgreSQL no row is due, and nothing is changed
		}
		if d.dialect == outbox.PostgreSQL {
			r.exec(d, `DROP TRIGGER protect ON outbox`)
		} else {
			r.exec(d, `ALTER TABLE elsewhere RENAME TO outbox`)
		}
		r.ok(r.box.Release(r.Context(), rows))
		got, _ := r.claim(r.box, 2, time.Hour)
		r.want("claimed", got, ids{"1", "2"})
	})
}

// The drainer settles the rows that the row security policies of PostgreSQL let it change.
func TestRowSecurity(t *testing.T) {
	onPostgres(t, func(r *rig, d *sqlDatabase) {
		bus := r.startBus()
		r.add(order("stuck1", ""), order("1", ""), order("kept", ""), order("2", ""))
		role := "r" + strings.ReplaceAll(jetbus.NewID(), "-", "")
		r.exec(d, `CREATE ROLE `+role, `ALTER TABLE outbox ENABLE ROW LEVEL SECURITY`,
			`CREATE POLICY look ON outbox FOR SELECT USING (true)`,
			`CREATE POLICY change ON outbox FOR UPDATE USING (true) WITH CHECK (id NOT LIKE 'stuck%')`,
			`CREATE POLICY remove ON outbox FOR DELETE USING (id <> 'kept')`,
			`GRANT SELECT, UPDATE, DELETE ON outbox TO `+role)
		r.Cleanup(func() {
			for _, end := range []string{`DROP OWNED BY ` + role, `DROP ROLE ` + role} {
				if _, err := d.db.ExecContext(context.Background(), end); err != nil {
					r.Error(err)
				}
			}
		})
		var schema string
		r.ok(d.db.QueryRowContext(r.Context(), `SELECT current_schema()`).Scan(&schema))
		r.exec(d, `GRANT USAGE ON SCHEMA `+schema+` TO `+role)
		u, err := url.Parse(d.dsn)
		r.ok(err)
		q := u.Query()
		q.Set("role", role)
		u.RawQuery = q.Encode()
		db, err := sql.Open(d.driver, u.String())
		r.ok(err)
		r.Cleanup(func() { _ = db.Close() })
		limited, err := outbox.Open(r.Context(), db, outbox.Options{Dialect: d.dialect})
		r.ok(err)
		dr, _ := r.drain(limited, bus, jetbus.DrainOptions{StatsEvery: 50 * time.Millisecond, Lease: time.Second})
		r.until("the other rows are published", func() bool { return dr.Stats().Published == 3 })
		r.untilReadyNames(dr, "stuck1")
		r.want("rows", r.list(outbox.Query{}), ids{"stuck1 pending 0", "kept dead 1"})
	})
}

// A row whose due_at is not a time stays dead, even if the drainer that claimed it dies.
func TestOddTimeStaysOdd(t *testing.T) {
	onSQL(t, func(r *rig, d *sqlDatabase) {
		r.exec(d, `INSERT INTO outbox (id, topic, "key", due_at) VALUES ('odd', 'orders', 'k', 9223372036854775807)`)
		r.add(order("next", "k"), order("free", ""))
		got, rows := r.claim(r.box, 10, time.Millisecond)
		r.want("claimed", got, ids{"odd", "free"})
		if rows[0].Err == nil || rows[1].Err != nil {
			r.Errorf("claimed %+v", rows)
		}
		r.want("rows", r.list(outbox.Query{State: outbox.Dead}), ids{"odd dead 0"})
		bus := r.startBus()
		dr, _ := r.drain(r.box, bus, jetbus.DrainOptions{StatsEvery: 50 * time.Millisecond})
		r.until("the free row is published", func() bool { return dr.Stats().Published == 1 })
		dead, err := r.box.List(r.Context(), outbox.Query{State: outbox.Dead})
		r.ok(err)
		if len(dead) != 1 || !strings.Contains(dead[0].LastError, "due_at") {
			r.Errorf("dead rows: %+v", dead)
		}
	})
}

// A row is dead if the database cannot convert its ID, topic, key or headers to UTF-8. It holds back
// its key. Unreadable text in last_error or owner does not stop a row.
func TestTextsThatCannotBeRead(t *testing.T) {
	needPostgres(t)
	for encoding, text := range map[string]string{"SQL_ASCII": `\351`, "WIN1252": `\201`} {
		t.Run(encoding, func(t *testing.T) {
			t.Parallel()
			d := newSQL(t, &sqlDatabase{driver: "pgx", dsn: ownDatabase(t, encoding), dialect: outbox.PostgreSQL})
			r := newRig(t, d)
			odd := fmt.Sprintf(`convert_from('\x6f'::bytea || '%s'::bytea, getdatabaseencoding())`, text)
			for i, insert := range []string{
				`(id, topic, "key") VALUES (` + odd + `, 'orders', 'a')`,
				`(id, topic, "key") VALUES ('a2', 'orders', 'a')`,
				`(id, topic, "key") VALUES ('key', 'orders', ` + odd + `)`,
				`(id, topic, "key") VALUES ('key2', 'orders', ` + odd + `)`,
				`(id, topic, headers) VALUES ('headers', 'orders', ` + odd + `)`,
				`(id, topic) VALUES ('topic', ` + odd + `)`,
				`(id, topic, last_error) VALUES ('error', 'orders', ` + odd + `)`,
				`(id, topic, owner) VALUES ('owner', 'orders', ` + odd + `)`,
			} {
				r.exec(d, `INSERT INTO outbox `+insert, fmt.Sprintf(`INSERT INTO outbox (id, topic, "key") VALUES ('good%d', 'orders', 'g')`, i))
			}
			rows, err := r.box.List(r.Context(), outbox.Query{})
			r.ok(err)
			unreadable := 0
			for _, row := range rows {
				if row.Err != nil {
					unreadable++
				}
			}
			r.want("rows", len(rows), 16)
			r.want("unreadable rows", unreadable, 7)
			bus := r.startBus()
			dr, _ := r.drain(r.box, bus, jetbus.DrainOptions{Window: 4, StatsEvery: 50 * time.Millisecond, Lease: time.Second})
			r.until("each row is published, dead, or waits for a dead one", func() bool { return dr.Stats().Published == 10 && dr.Stats().Dead == 4 })
			r.want("waiting", r.pending(), 2)
			r.until("the drainer has counted the rows", func() bool { return dr.Stats().Outbox.Dead == 4 })
			r.ok(dr.Ready())
			n, err := r.box.Remove(r.Context(), outbox.Query{State: outbox.Dead, Key: "a"})
			r.ok(err)
			r.want("removed", n, 1)
			r.until("the next row of the key is published", func() bool { return dr.Stats().Published == 11 })
		})
	}
}
