package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/changefeed/mongobox"
	"github.com/seed-63e9a637/jetbus/embedded/mongod/mongotest"
	"github.com/seed-63e9a637/jetbus/outbox"
)

// outboxBench is an outbox in a database.
type outboxBench struct {
	uri string
	add func(t *testing.T, events ...jetbus.Event)
	box outboxBox
}

func newSQLiteBench(t *testing.T) *outboxBench {
	t.Helper()
	name := filepath.Join(t.TempDir(), "shop #1%.db")
	dsn, err := sqliteDSN(name, true)
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := outbox.Create(t.Context(), db, outbox.SQLite, ""); err != nil {
		t.Fatal(err)
	}
	box, err := outbox.Open(t.Context(), db, outbox.Options{Dialect: outbox.SQLite})
	if err != nil {
		t.Fatal(err)
	}
	add := func(t *testing.T, events ...jetbus.Event) {
		t.Helper()
		if err := box.Add(t.Context(), db, events...); err != nil {
			t.Fatal(err)
		}
	}
	return &outboxBench{"sqlite:" + name, add, box}
}

func newMongoOutboxBench(t *testing.T) *outboxBench {
	t.Helper()
	srv := mongotest.Start(t)
	box, err := mongobox.Open(t.Context(), openMongo(t, srv.URI()).Database(srv.Database()).Collection("outbox"), mongobox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	add := func(t *testing.T, events ...jetbus.Event) {
		t.Helper()
		if err := box.Add(t.Context(), events...); err != nil {
			t.Fatal(err)
		}
	}
	host, options, _ := strings.Cut(srv.URI(), "?")
	return &outboxBench{strings.TrimSuffix(host, "/") + "/" + srv.Database() + "?" + options, add, box}
}

// overOutboxes runs a test on an outbox of each kind.
func overOutboxes(t *testing.T, test func(*testing.T, *outboxBench)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) { test(t, newSQLiteBench(t)) })
	t.Run("mongodb", func(t *testing.T) { test(t, newMongoOutboxBench(t)) })
}

func (b *outboxBench) run(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	return commandEnv(t, map[string]string{"JETBUS_OUTBOX_DB": b.uri}, stdin, append([]string{"outbox"}, args...)...)
}

// ids are the ids of rows in a state.
func (b *outboxBench) ids(t *testing.T, state outbox.State) string {
	t.Helper()
	rows, err := b.box.List(t.Context(), outbox.Query{State: state})
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, r := range rows {
		list = append(list, r.Event.ID)
	}
	return strings.Join(list, " ")
}

func row(id, topic string) jetbus.Event {
	return jetbus.Event{ID: id, Topic: topic, Key: "k-" + id, Time: time.UnixMilli(1_700_000_000_000).UTC(), Payload: []byte(`{"n":1}`)}
}

func TestOutboxRun(t *testing.T) {
	t.Parallel()
	overOutboxes(t, func(t *testing.T, o *outboxBench) {
		b := newBench(t)
		b.ok(t, "", "topics", "create", "orders.paid")
		o.add(t, row("a", "orders.paid"), row("b", "orders.paid"), row("lost", "no.such.topic"))
		r := begin(t, nil, "--server", b.url, "outbox", "run", "--db", o.uri, "--poll", "10ms", "--window", "2")
		r.wait(t, "2 published")
		o.add(t, row("c", "orders.paid"))
		r.wait(t, "3 published")
		if code := r.end(); code != 0 {
			t.Errorf("exit code %d: %s", code, r.err)
		}
		if out := r.out.String(); !strings.HasPrefix(out, "draining outbox") || !strings.HasSuffix(out, "3 published  0 pending  1 dead\nsee jetbus outbox ls --state dead\n") {
			t.Errorf("printed\n%s", out)
		}
		var ids []string
		for _, e := range records(t, b.ok(t, "", "sub", "orders.paid", "--no-follow", "-o", "json")) {
			ids = append(ids, e.ID)
		}
		if diff := cmp.Diff([]string{"a", "b", "c"}, ids); diff != "" {
			t.Errorf("published (-want +got):\n%s", diff)
		}
		if dead := o.ids(t, outbox.Dead); dead != "lost" || o.ids(t, outbox.Pending) != "" {
			t.Errorf("dead: %s, pending: %s", dead, o.ids(t, outbox.Pending))
		}

		// For programs.
		o.add(t, row("d", "orders.paid"))
		got := begin(t, nil, "--server", b.url, "outbox", "run", "--db", o.uri, "-o", "ndjson", "--keep", "1h")
		(&mongoBench{}).until(t, "d is sent", func() bool { return o.ids(t, outbox.Sent) == "d" })
		got.end()
		var last drainLine
		for line := range strings.Lines(got.out.String()) {
			if err := json.Unmarshal([]byte(line), &last); err != nil {
				t.Fatalf("line %q: %v", line, err)
			}
		}
		if got.code != 0 || last.Published != 1 || last.Table != "outbox" || last.Waiting == nil || last.Waiting.Dead != 1 || last.Waiting.Pending != 0 {
			t.Errorf("exit code %d: %s\n%s", got.code, got.err, got.out)
		}
		if sent := o.ids(t, outbox.Sent); sent != "d" {
			t.Errorf("kept %q", sent)
		}
	})
}

// Several drainers share the work, and each is stopped in the middle of it.
func TestOutboxRunStopped(t *testing.T) {
	t.Parallel()
	b, o := newBench(t), newSQLiteBench(t)
	b.ok(t, "", "topics", "create", "orders.paid")
	const all = 100
	for i := range all {
		o.add(t, row(fmt.Sprint(i), "orders.paid"))
	}
	left := func() []outbox.Row {
		rows, err := o.box.List(t.Context(), outbox.Query{Limit: -1})
		if err != nil {
			t.Fatal(err)
		}
		return rows
	}
	for before := all; before > 0; {
		r := begin(t, nil, "--server", b.url, "outbox", "run", "--db", o.uri, "--window", "10")
		other := begin(t, nil, "--server", b.url, "outbox", "run", "--db", o.uri, "--window", "10")
		(&mongoBench{}).until(t, "some rows are gone", func() bool { return len(left()) < before })
		for _, r := range []*running{r, other} {
			if code := r.end(); code != 0 {
				t.Fatalf("exit code %d: %s", code, r.err)
			}
		}
		rows := left()
		before = len(rows)
		if n := len(records(t, b.ok(t, "", "sub", "orders.paid", "--no-follow", "-o", "json"))); n+before != all {
			t.Fatalf("%d events and %d rows of %d", n, before, all)
		}
		for _, row := range rows {
			if !row.ClaimedUntil.IsZero() {
				t.Fatalf("row %s is claimed, and nobody is there", row.Event.ID)
			}
		}
	}
}

func TestOutboxRows(t *testing.T) {
	t.Parallel()
	overOutboxes(t, func(t *testing.T, o *outboxBench) {
		if r := o.run(t, "", "ls"); r.code != 0 || r.out != "" || r.errOut != "no row of outbox matches\n" {
			t.Errorf("ls of nothing: %+v", r)
		}
		if r := o.run(t, "", "ls", "-o", "json"); r.out != "[]\n" {
			t.Errorf("ls of nothing: %+v", r)
		}
		if r := o.run(t, "", "stats"); r.code != 0 || r.out != "Table    outbox\nPending  0\nOldest   -\nDead     0\n" {
			t.Errorf("stats of nothing: %+v", r)
		}
		o.add(t, row("a", "orders.paid"), row("b", "orders.paid"), row("c", "orders.sent"), row("d", "orders.sent"))
		held, err := o.box.Claim(t.Context(), jetbus.ClaimOptions{Max: 1, Lease: time.Hour})
		if err != nil || len(held) != 1 {
			t.Fatal(held, err)
		}

		if r := o.run(t, "", "kill", "b", "a"); r.code != exitPartial || r.out != "1 row killed\n" || !strings.Contains(r.errOut, "1 of 2 rows killed: conflict: a drainer has a until ") {
			t.Errorf("kill: %+v", r)
		}
		if r := o.run(t, "", "kill", "b"); r.code != exitConflict || !strings.Contains(r.errOut, "0 of 1 row killed: conflict: b is dead") {
			t.Errorf("kill of a dead row: %+v", r)
		}
		if r := o.run(t, "", "kill", "x", "y"); r.code != exitNotFound || !strings.Contains(r.errOut, "no such row: there is no x, there is no y; see jetbus outbox ls") {
			t.Errorf("kill of no row: %+v", r)
		}
		r := o.run(t, "", "ls")
		lines := strings.Split(r.out, "\n")
		if len(lines) != 6 || !strings.HasPrefix(lines[0], "ID ") || !strings.Contains(lines[1], "pending, claimed") || !strings.Contains(lines[2], "dead") {
			t.Errorf("ls:\n%s", r.out)
		}
		if r := o.run(t, "", "ls", "--state", "dead"); strings.Count(r.out, "\n") != 2 || !strings.Contains(r.out, "killed by hand") {
			t.Errorf("ls --state dead:\n%s", r.out)
		}
		if r := o.run(t, "", "ls", "--topic", "orders.sent", "--key", "k-c", "-o", "ndjson"); strings.Count(r.out, "\n") != 1 || !strings.Contains(r.out, `"id":"c"`) {
			t.Errorf("ls with a filter:\n%s", r.out)
		}
		if r := o.run(t, "", "ls", "--limit", "1", "-o", "ndjson"); strings.Count(r.out, "\n") != 1 {
			t.Errorf("ls --limit 1:\n%s", r.out)
		}

		// Previews: nothing happens until it is confirmed.
		if r := o.run(t, "5\n", "kill", "--all-pending", "--topic", "orders.sent"); r.code != exitUsage || !strings.Contains(r.errOut, "2 rows would be killed; type their number to go on") || !strings.Contains(r.errOut, "not confirmed, nothing was changed") {
			t.Errorf("kill without a confirmation: %+v", r)
		}
		if dead := o.ids(t, outbox.Dead); dead != "b" {
			t.Errorf("dead: %q", dead)
		}
		if r := o.run(t, "2\n", "kill", "--all-pending", "--topic", "orders.sent"); r.code != 0 || r.out != "2 rows killed\n" {
			t.Errorf("kill with a confirmation: %+v", r)
		}
		if r := o.run(t, "", "stats"); !strings.Contains(r.out, "Pending  1\n") || !strings.Contains(r.out, "Dead     3\nsee jetbus outbox ls --state dead\n") {
			t.Errorf("stats: %+v", r)
		}
		if r := o.run(t, "", "retry", "b", "nope", "-o", "json"); r.code != exitPartial || r.out != "{\n  \"retried\": 1\n}\n" || !strings.Contains(r.errOut, "there is no nope") {
			t.Errorf("retry: %+v", r)
		}
		if r := o.run(t, "1\n", "rm", "c", "b"); r.code != exitPartial || r.out != "1 row removed\n" || !strings.Contains(r.errOut, "1 of 2 rows removed: conflict: b is pending") {
			t.Errorf("rm: %+v", r)
		}
		if r := o.run(t, "", "rm", "b"); r.code != exitConflict || !strings.Contains(r.errOut, "0 of 1 row removed: conflict: b is pending") {
			t.Errorf("rm of a pending row: %+v", r)
		}
		if r := o.run(t, "", "retry", "--all-dead", "--yes"); r.code != 0 || r.out != "1 row retried\n" {
			t.Errorf("retry: %+v", r)
		}
		if r := o.run(t, "", "retry", "--all-dead"); r.code != exitNotFound || !strings.Contains(r.errOut, "no such row: none is dead") {
			t.Errorf("retry of nothing: %+v", r)
		}
		if pending := o.ids(t, outbox.Pending); pending != "a b d" {
			t.Errorf("pending: %q", pending)
		}
	})
}

// An id that is given twice, and one that rows of two topics have: what counts is each id.
func TestOutboxIDTwice(t *testing.T) {
	t.Parallel()
	overOutboxes(t, func(t *testing.T, o *outboxBench) {
		o.add(t, row("a", "orders.paid"), row("a", "orders.sent"), row("b", "orders.paid"))
		if _, err := o.box.Kill(t.Context(), outbox.Query{}); err != nil {
			t.Fatal(err)
		}
		if r := o.run(t, "", "retry", "b", "b"); r.code != 0 || r.out != "1 row retried\n" || r.errOut != "" {
			t.Errorf("retry of an id that is given twice: %+v", r)
		}
		if r := o.run(t, "", "kill", "b", "b", "nope", "nope"); r.code != exitPartial || r.out != "1 row killed\n" ||
			!strings.Contains(r.errOut, "1 of 2 rows killed: no such row: there is no nope; see jetbus outbox ls") {
			t.Errorf("kill beside an id that is not there: %+v", r)
		}
		if r := o.run(t, "", "retry", "a", "nope"); r.code != exitPartial || r.out != "2 rows retried\n" ||
			!strings.Contains(r.errOut, "1 of 2 rows retried: no such row: there is no nope") {
			t.Errorf("retry of two rows beside an id that is not there: %+v", r)
		}
		if r := o.run(t, "", "kill", "a", "b"); r.code != exitPartial || r.out != "2 rows killed\n" ||
			!strings.Contains(r.errOut, "1 of 2 rows killed: conflict: b is dead") {
			t.Errorf("kill of two rows beside a dead one: %+v", r)
		}
		if _, err := o.box.Retry(t.Context(), outbox.Query{Topic: "orders.sent"}); err != nil {
			t.Fatal(err)
		}
		if r := o.run(t, "", "kill", "a"); r.code != 0 || r.out != "1 row killed\n" {
			t.Errorf("kill of an id one of whose rows is dead: %+v", r)
		}
	})
}

// More rows than can be named: they are counted, and taken by what they are.
func TestOutboxManyRows(t *testing.T) {
	t.Parallel()
	o := newSQLiteBench(t)
	events := make([]jetbus.Event, maxPreview+5)
	for i := range events {
		events[i] = row(fmt.Sprint(i), "orders.paid")
	}
	o.add(t, events...)
	if r := o.run(t, "1005\n", "kill", "--all-pending"); r.code != 0 || r.out != "1,005 rows killed\n" || !strings.Contains(r.errOut, "and 995 more\n1,005 rows would be killed; type their number") {
		t.Errorf("kill: %+v", r)
	}
	if r := o.run(t, "1005\n", "retry", "--all-dead", "--topic", "orders.paid"); r.code != exitUsage || !strings.Contains(r.errOut, "more than 1,000 rows would be retried; add --yes") {
		t.Errorf("retry: %+v", r)
	}
	if r := o.run(t, "", "retry", "--all-dead", "--topic", "orders.paid", "--yes"); r.code != 0 || r.out != "1,005 rows retried\n" {
		t.Errorf("retry: %+v", r)
	}
	if r := o.run(t, "", "ls"); strings.Count(r.out, "\n") != 101 {
		t.Errorf("ls shows %d lines", strings.Count(r.out, "\n"))
	}
	if r := o.run(t, "", "ls", "--limit", "0"); strings.Count(r.out, "\n") != 1006 {
		t.Errorf("ls --limit 0 shows %d lines", strings.Count(r.out, "\n"))
	}
}

// Programs rely on these names.
func TestOutboxForPrograms(t *testing.T) {
	t.Parallel()
	overOutboxes(t, func(t *testing.T, o *outboxBench) {
		o.add(t, row("a", "orders.paid"))
		if _, err := o.box.Kill(t.Context(), outbox.Query{}); err != nil {
			t.Fatal(err)
		}
		times := regexp.MustCompile(`"20[0-9T:.\-]+Z"|"ageMs":[0-9]+`)
		got := o.run(t, "", "ls", "-o", "ndjson").out + o.run(t, "", "stats", "-o", "ndjson").out
		want := `{"event":{"id":"a","ts":1700000000000,"topic":"orders.paid","key":"k-a","payload":{"n":1}},"state":"dead","attempts":0,"lastError":"killed by hand","added":*}
{"table":"outbox","pending":0,"dead":1,*}
`
		if diff := cmp.Diff(want, times.ReplaceAllString(got, "*")); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// A row that is no event is shown as what it is.
func TestOutboxBadRow(t *testing.T) {
	t.Parallel()
	o := newSQLiteBench(t)
	dsn, err := sqliteDSN(o.uri, false)
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(t.Context(), `INSERT INTO outbox (id, topic, headers) VALUES ('x', char(27) || 'NO TOPIC', 'no json')`); err != nil {
		t.Fatal(err)
	}
	if r := o.run(t, "", "ls"); r.code != 0 || !strings.Contains(r.out, `x   \x1bNO TOPIC`) || !strings.Contains(r.out, "headers") || hostile(strings.ReplaceAll(r.out, "\n", "")) {
		t.Errorf("%+v", r)
	}
	if r := o.run(t, "", "ls", "-o", "json"); r.code != 0 || !strings.Contains(r.out, `"problem": `) {
		t.Errorf("%+v", r)
	}
}

func TestOutboxCreate(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	name := filepath.Join(t.TempDir(), "new.db")
	if r := command(t, "", "outbox", "ls", "--db", name); r.code != exitUsage || !strings.Contains(r.errOut, "--db "+name+": there is no such file; jetbus outbox run --create makes it") {
		t.Errorf("no file: %+v", r)
	}
	if r := command(t, "", "--server", b.url, "outbox", "run", "--db", name, "--create", "--for", "100ms"); r.code != 0 {
		t.Errorf("run --create: %+v", r)
	}
	if r := command(t, "", "outbox", "stats", "--db", "sqlite:"+name); r.code != 0 {
		t.Errorf("stats: %+v", r)
	}
	if r := command(t, "", "outbox", "stats", "--db", name, "--table", "other"); r.code != exitNotFound || !strings.Contains(r.errOut, "jetbus outbox run --create") || strings.Contains(r.errOut, "make it with Create") {
		t.Errorf("no table: %+v", r)
	}
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("this is the text of a file that is no database"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := command(t, "", "outbox", "ls", "--db", text); r.code == 0 || !strings.Contains(r.errOut, "must name a file of SQLite") || strings.Contains(r.errOut, "server") {
		t.Errorf("no database: %+v", r)
	}
	m := newMongoOutboxBench(t)
	if r := m.run(t, "", "stats", "--table", "other"); r.code != exitNotFound || !strings.Contains(r.errOut, "jetbus outbox run --create") {
		t.Errorf("no collection: %+v", r)
	}
	if r := command(t, "", "--server", b.url, "outbox", "run", "--db", m.uri, "--table", "other", "--create", "--for", "100ms"); r.code != 0 {
		t.Errorf("run --create: %+v", r)
	}
	if r := m.run(t, "", "stats", "--table", "other"); r.code != 0 {
		t.Errorf("stats: %+v", r)
	}
}

func TestOutboxWrong(t *testing.T) {
	t.Parallel()
	db := strings.TrimPrefix(newSQLiteBench(t).uri, "sqlite:")
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"drain"}, `outbox has no command "drain"`},
		{[]string{"run"}, "name the database with --db or JETBUS_OUTBOX_DB"},
		{[]string{"run", "--db", "mysql://u:geheim@h/db"}, "use postgres://, sqlite:FILE or mongodb://"},
		{[]string{"run", "--db", db, "x"}, "1 argument given"},
		{[]string{"run", "--db", db, "--window", "0"}, "--window 0: use 1 to 1,000"},
		{[]string{"run", "--db", db, "--window", "1001"}, "--window 1001: use 1 to 1,000"},
		{[]string{"run", "--db", db, "--window-bytes", "0"}, "--window-bytes 0: use 1 or more, or -1"},
		{[]string{"run", "--db", db, "--window-bytes", "-2"}, "--window-bytes -2: use 1 or more, or -1"},
		{[]string{"run", "--db", db, "--lease", "1ms"}, "--lease 1ms: use at least 1s"},
		{[]string{"run", "--db", db, "--lease", "0s"}, "use at least 1s"},
		{[]string{"run", "--db", db, "--max-attempts", "0"}, "use 1 or more, or -1"},
		{[]string{"run", "--db", db, "--max-attempts", "-2"}, "--max-attempts -2: use 1 or more, or -1"},
		{[]string{"run", "--db", db, "--poll", "0s"}, "--poll 0s: use more than 0"},
		{[]string{"run", "--db", db, "--keep", "-1s"}, "--keep -1s: use 0 or more"},
		{[]string{"run", "--db", db, "--for", "-1s"}, "--for -1s: use more than 0"},
		{[]string{"run", "--db", db, "-o", "xml"}, `--output "xml": use table, json or ndjson`},
		{[]string{"ls", "--db", db, "--state", "gone"}, `--state "gone": use pending, dead or sent`},
		{[]string{"ls", "--db", db, "--limit", "-1"}, "--limit -1: use 1 or more, or 0 for all"},
		{[]string{"ls", "--db", db, "--table", "no table"}, "use at most 50 of a-z, 0-9 and '_'"},
		{[]string{"ls", "--db", db, "--timeout", "0s"}, "--timeout 0s: use more than 0"},
		{[]string{"retry", "--db", db}, "name rows by the ids of their events, or take --all-dead; see jetbus outbox ls --state dead"},
		{[]string{"kill", "--db", db}, "take --all-pending; see jetbus outbox ls --state pending"},
		{[]string{"rm", "--db", db, "a", "--all-dead"}, "name rows by their ids or take --all-dead, not both"},
		{[]string{"retry", "--db", db, ""}, "an id is empty"},
		{[]string{"ls", "--db", "sqlite:"}, "--db sqlite:: name the file, sqlite:FILE"},
		{[]string{"ls", "--db", filepath.Dir(db)}, "it is a folder, not the file of a database"},
		{[]string{"ls", "--db", db + "x"}, "there is no such file; jetbus outbox run --create makes it"},
		{[]string{"stats", "--db", "mongodb://u:geheim@h:port/"}, "--db: "},
	} {
		r := command(t, "", append([]string{"outbox"}, tt.args...)...)
		if r.code != exitUsage || !strings.Contains(r.errOut, tt.want) || strings.Count(r.errOut, "\n") != 1 || r.out != "" || strings.Contains(r.errOut, "geheim") {
			t.Errorf("%q: %+v, want %q", tt.args, r, tt.want)
		}
	}
	for _, args := range []string{"", "run", "ls", "retry", "kill", "rm", "stats"} {
		if r := command(t, "", append(append([]string{"outbox"}, strings.Fields(args)...), "--help")...); r.code != 0 || !strings.Contains(r.out, "Examples:") {
			t.Errorf("outbox %s --help: %+v", args, r)
		}
	}
}

func TestHideSecrets(t *testing.T) {
	t.Parallel()
	for uri, secret := range map[string]string{
		"postgres://shop:geheim@h:5432/db":              "geheim",
		"postgres://shop:geh%65im@h:5432/db":            "geheim",
		"postgres://h/db?user=a&password=geheim":        "geheim",
		"postgres://h/db?sslpassword=geh%65im&x=1":      "geheim",
		"mongodb://h/?tlsCertificateKeyFilePassword=ge": "ge",
	} {
		err := hideSecrets(fmt.Errorf("open %s: with %s: %w", uri, secret, outbox.ErrNoTable), uri)
		if strings.Contains(strings.TrimSuffix(err.Error(), outbox.ErrNoTable.Error()), secret) || !errors.Is(err, outbox.ErrNoTable) {
			t.Errorf("%s: %v", uri, err)
		}
	}
	plain := context.Canceled
	if err := hideSecrets(plain, "shop.db"); err != plain { //nolint:errorlint // the very same
		t.Errorf("%v", err)
	}
	if err := hideSecrets(nil, "shop.db"); err != nil {
		t.Errorf("%v", err)
	}
}
