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

// refusingBus fails events by ID and publishes the others.
type refusingBus struct {
	jetbus.Batcher

	errs map[string]error
}

func (b *refusingBus) PublishBatch(ctx context.Context, events []jetbus.Event, o jetbus.BatchOptions) ([]jetbus.Receipt, error) {
	for i := range events {
		if err := b.errs[events[i].ID]; err != nil {
			return nil, err
		}
	}
	return b.Batcher.PublishBatch(ctx, events, o)
}

// settled waits until each row is published or dead.
func (r *rig) settled(d *jetbus.Drainer, published int) {
	r.Helper()
	r.until("each row is published or dead", func() bool { return r.pending() == 0 && d.Stats().Published == uint64(published) })
}

// wantDead compares the dead rows with ids, wants a reason for each, and the drainer to have
// counted them and to be ready.
func (r *rig) wantDead(d *jetbus.Drainer, want ids) {
	r.Helper()
	rows, err := r.box.List(r.Context(), outbox.Query{State: outbox.Dead})
	r.ok(err)
	got := ids{}
	for _, row := range rows {
		got = append(got, row.Event.ID)
		if row.LastError == "" {
			r.Errorf("row %s is dead without a reason", row.Event.ID)
		}
	}
	r.want("dead", got, want)
	r.until("the drainer has counted the dead rows", func() bool { s := d.Stats(); return s.Outbox.Dead == len(want) && s.Outbox.Pending == 0 })
	if s := d.Stats(); s.Dead != uint64(len(want)) || s.Unrecorded != 0 {
		r.Errorf("the drainer counts %d dead rows and %d unrecorded ones, want %d and 0", s.Dead, s.Unrecorded, len(want))
	}
	r.ok(d.Ready())
}

// TestOddTimesAreDead dead-letters each row whose due_at is not a time. Other rows are published,
// those of its key once it is removed.
func TestOddTimesAreDead(t *testing.T) {
	odd := map[outbox.Dialect][]string{
		outbox.SQLite:     {`'soon'`, `''`, `x'00'`, `x''`, `'2026-01-01T00:00:00Z'`, `9e999`, `9223372036854775807`, `1e300`},
		outbox.PostgreSQL: {`9223372036854775807`, `253402300800000`},
	}
	onSQL(t, func(r *rig, d *sqlDatabase) {
		want := ids{}
		stored := ids{}
		for i, value := range odd[d.dialect] {
			id, key := fmt.Sprintf("odd%d", i), fmt.Sprintf("k%d", i)
			r.exec(d,
				fmt.Sprintf(`INSERT INTO outbox (id, topic, "key", due_at) VALUES ('%s', 'orders', '%s', %s)`, id, key, value),
				fmt.Sprintf(`INSERT INTO outbox (id, topic, "key") VALUES ('next%d', 'orders', '%s')`, i, key),
				fmt.Sprintf(`INSERT INTO outbox (id, topic) VALUES ('free%d', 'orders')`, i))
			want, stored = append(want, id), append(stored, fmt.Sprintf("free%d", i))
		}
		if d.dialect == outbox.SQLite { // the digits of a number, in a blob
			r.exec(d, `INSERT INTO outbox (id, topic, due_at) VALUES ('digits', 'orders', x'31303030')`)
			stored = append(stored, "digits")
		}
		bus := r.startBus()
		dr, _ := r.drain(r.box, bus, jetbus.DrainOptions{Window: 2, StatsEvery: 50 * time.Millisecond})
		r.until("the odd rows are dead", func() bool {
			rows, err := r.box.List(r.Context(), outbox.Query{State: outbox.Dead})
			r.ok(err)
			return len(rows) == len(want) && r.pending() == len(want)
		})
		r.until("the free rows are published", func() bool { return dr.Stats().Published == uint64(len(stored)) })
		r.want("stored", r.stored(bus), stored)
		n, err := r.box.Remove(r.Context(), outbox.Query{State: outbox.Dead, IDs: want[:1]})
		r.ok(err)
		r.want("removed", n, 1)
		n, err = r.box.Retry(r.Context(), outbox.Query{State: outbox.Dead})
		r.ok(err)
		r.want("retried", n, len(want)-1)
		r.settled(dr, len(stored)+2*len(want)-1)
	})
}

// TestOddRowsFailAlone publishes the good rows around rows that no drainer can read, or that
// have no room for another attempt, and dead-letters these.
func TestOddRowsFailAlone(t *testing.T) {
	const bigint = "9223372036854775807"
	inserts := map[outbox.Dialect]map[string]string{
		outbox.PostgreSQL: {
			"attempts": `attempts) VALUES ('%s', 'orders', ` + bigint,
			"below":    `attempts) VALUES ('%s', 'orders', -` + bigint,
			"created":  `created_at) VALUES ('%s', 'orders', -` + bigint,
			"future":   `created_at) VALUES ('%s', 'orders', ` + bigint,
			"ts":       `ts) VALUES ('%s', 'orders', ` + bigint,
			"json":     `headers) VALUES ('%s', 'orders', '{"x-a":1}'`,
		},
		outbox.SQLite: {
			"attempts": `attempts) VALUES ('%s', 'orders', ` + bigint,
			"below":    `attempts) VALUES ('%s', 'orders', -` + bigint,
			"created":  `created_at) VALUES ('%s', 'orders', -` + bigint,
			"future":   `created_at) VALUES ('%s', 'orders', 9e999`,
			"ts":       `ts) VALUES ('%s', 'orders', x'ff00'`,
			"blob":     `created_at) VALUES ('%s', 'orders', x'00'`,
			"tries":    `attempts) VALUES ('%s', 'orders', x'00'`,
			"json":     `headers) VALUES ('%s', 'orders', x'ff'`,
		},
	}
	onSQL(t, func(r *rig, d *sqlDatabase) {
		bus := r.startBus()
		dead, stored := ids{}, ids{}
		refuses := &refusingBus{Batcher: bus, errs: map[string]error{}}
		for i, name := range slices.Sorted(maps.Keys(inserts[d.dialect])) {
			good := fmt.Sprintf("good%d", i)
			r.exec(d,
				fmt.Sprintf(`INSERT INTO outbox (id, topic, `+inserts[d.dialect][name]+`)`, name),
				fmt.Sprintf(`INSERT INTO outbox (id, topic) VALUES ('%s', 'orders')`, good))
			dead, stored = append(dead, name), append(stored, good)
		}
		refuses.errs["attempts"] = errors.New("temporary")
		refuses.errs["below"] = jetbus.ErrSchema
		s, err := r.box.OutboxStats(r.Context())
		r.ok(err)
		r.want("pending", s.Pending, 2*len(dead))
		dr, _ := r.drain(r.box, refuses, jetbus.DrainOptions{StatsEvery: 50 * time.Millisecond, Lease: time.Second})
		r.settled(dr, len(stored))
		r.want("stored", r.stored(bus), stored)
		r.wantDead(dr, dead)
	})
}

// TestReasonsFitTheDatabase records failures whose text has characters that the encoding of the
// database lacks.
func TestReasonsFitTheDatabase(t *testing.T) {
	if postgresURI == "" {
		onSQL(t, func(r *rig, d *sqlDatabase) { testReasons(r) })
		return
	}
	for _, encoding := range []string{"LATIN1", "WIN1252", "SQL_ASCII", "UTF8"} {
		t.Run(encoding, func(t *testing.T) {
			t.Parallel()
			d := newSQL(t, &sqlDatabase{driver: "pgx", dsn: ownDatabase(t, encoding), dialect: outbox.PostgreSQL})
			testReasons(newRig(t, d))
		})
	}
}

func testReasons(r *rig) {
	bus := r.startBus()
	const text = "no \u2603, \u4e16\u754c, \U0001f600, \x81 or \x00 here"
	refuses := &refusingBus{Batcher: bus, errs: map[string]error{
		"b": fmt.Errorf("%w: %s", jetbus.ErrSchema, text),
		"d": errors.New(text), // is tried again
		"f": fmt.Errorf("%w: %s", jetbus.ErrSchema, strings.Repeat("\U0001f600", 1000)),
	}}
	r.add(order("a", ""), order("b", "k"), order("c", ""), order("d", "l"), order("e", ""), order("f", ""), order("g", ""))
	dr, _ := r.drain(r.box, refuses, jetbus.DrainOptions{
		StatsEvery: 50 * time.Millisecond, MaxAttempts: 3, Backoff: jetbus.Backoff{Min: time.Millisecond, Max: time.Millisecond},
	})
	r.settled(dr, 4)
	r.want("stored", r.stored(bus), ids{"a", "c", "e", "g"})
	r.want("rows", r.list(outbox.Query{}), ids{"b dead 1", "d dead 3", "f dead 1"})
	r.wantDead(dr, ids{"b", "d", "f"})
	rows, err := r.box.List(r.Context(), outbox.Query{})
	r.ok(err)
	if !strings.Contains(rows[0].LastError, jetbus.ErrSchema.Error()) {
		r.Errorf("the reason %q does not say what was wrong", rows[0].LastError)
	}
}

// ownDatabase makes a database of an encoding for a test.
func ownDatabase(t *testing.T, encoding string) (dsn string) {
	t.Helper()
	db, err := sql.Open("pgx", postgresURI)
	if err != nil {
		t.Fatal(err)
	}
	name := "d" + strings.ReplaceAll(jetbus.NewID(), "-", "")
	if _, err := db.ExecContext(t.Context(), fmt.Sprintf("CREATE DATABASE %s ENCODING '%s' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0", name, encoding)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, err := db.ExecContext(context.Background(), "DROP DATABASE "+name+" WITH (FORCE)")
		if err := errors.Join(err, db.Close()); err != nil {
			t.Error(err)
		}
	})
	u, err := url.Parse(postgresURI)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	q := u.Query()
	q.Set("client_encoding", "UTF8") // as most drivers do
	u.RawQuery = q.Encode()
	return u.String()
}

// TestRowsThatCannotBeMarked publishes and records all rows but those that the database refuses
// to change, which are published once; Ready names one of them.
func TestRowsThatCannotBeMarked(t *testing.T) {
	onSQL(t, func(r *rig, d *sqlDatabase) {
		d.refuseChanges(r, "stuck", "dead or gone")
		d.refuseDelete(r, "kept")
		bus := r.startBus()
		refuses := &refusingBus{Batcher: bus, errs: map[string]error{"stuck": jetbus.ErrSchema, "poison": jetbus.ErrSchema}}
		r.add(order("1", ""), order("stuck", "k"), order("poison", "l"), order("kept", "m"), order("2", "m"), order("3", ""))
		dr, _ := r.drain(r.box, refuses, jetbus.DrainOptions{StatsEvery: 50 * time.Millisecond, Lease: time.Second})
		r.until("the other rows are settled", func() bool { return r.pending() == 1 && dr.Stats().Published == 4 })
		r.until("Ready names the row", func() bool {
			err := dr.Ready()
			return err != nil && strings.Contains(err.Error(), "stuck")
		})
		r.add(order("4", "n"))
		r.until("later rows are published", func() bool { return dr.Stats().Published == 5 })
		s := dr.Stats()
		if s.Unrecorded != 1 || s.Dead != 2 {
			r.Errorf("%d unrecorded and %d dead rows, want 1 and 2", s.Unrecorded, s.Dead)
		}
		if err := dr.Ready(); err == nil || !strings.Contains(err.Error(), "stuck") {
			r.Errorf("Ready returns %v", err)
		}
		r.want("rows", r.list(outbox.Query{State: outbox.Dead}), ids{"poison dead 1", "kept dead 1"})
		r.want("stored", slices.Sorted(slices.Values(r.stored(bus))), ids{"1", "3", "m/2", "m/kept", "n/4"})
		d.acceptChanges(r)
		r.until("the row is dead", func() bool { return r.pending() == 0 })
		r.until("the drainer is ready again", func() bool { return dr.Ready() == nil })
		r.want("dead", dr.Stats().Dead, uint64(3))
	})
}

// refuseChanges makes a trigger that refuses another state of the row with an id.
func (d *sqlDatabase) refuseChanges(r *rig, id, why string) {
	if d.dialect == outbox.SQLite {
		r.exec(d, fmt.Sprintf(`CREATE TRIGGER no_change BEFORE UPDATE ON outbox WHEN new.id = '%s' AND new.state <> 'pending' BEGIN SELECT RAISE(ABORT, '%s'); END`, id, why))
		return
	}
	r.exec(d,
		fmt.Sprintf(`CREATE FUNCTION no_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION '%s'; END $$`, why),
		fmt.Sprintf(`CREATE TRIGGER no_change BEFORE UPDATE ON outbox FOR EACH ROW WHEN (new.id = '%s' AND new.state <> 'pending') EXECUTE FUNCTION no_change()`, id))
}

// acceptChanges ends what refuseChanges made.
func (d *sqlDatabase) acceptChanges(r *rig) {
	if d.dialect == outbox.SQLite {
		r.exec(d, `DROP TRIGGER no_change`)
		return
	}
	r.exec(d, `DROP TRIGGER no_change ON outbox`)
}

// refuseDelete has another table refer to the row with an id.
func (d *sqlDatabase) refuseDelete(r *rig, id string) {
	if d.dialect == outbox.SQLite {
		r.exec(d, fmt.Sprintf(`CREATE TRIGGER no_delete BEFORE DELETE ON outbox WHEN old.id = '%s' BEGIN SELECT RAISE(ABORT, 'referred to'); END`, id))
		return
	}
	r.exec(d,
		`CREATE FUNCTION no_delete() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'referred to'; END $$`,
		fmt.Sprintf(`CREATE TRIGGER no_delete BEFORE DELETE ON outbox FOR EACH ROW WHEN (old.id = '%s') EXECUTE FUNCTION no_delete()`, id))
}
