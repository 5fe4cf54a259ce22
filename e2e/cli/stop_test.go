//go:build unix

package cli

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	_ "modernc.org/sqlite" // the driver

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/embedded/mongod/mongotest"
	"github.com/seed-63e9a637/jetbus/outbox"
)

// outboxOf makes an outbox with n events for a topic.
func outboxOf(t *testing.T, n int, topic string) (uri string) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "shop.db")
	db, err := sql.Open("sqlite", "file:"+name+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := outbox.Create(t.Context(), db, outbox.SQLite, ""); err != nil {
		t.Fatal(err)
	}
	box, err := outbox.Open(t.Context(), db, outbox.Options{Dialect: outbox.SQLite})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if err := box.Add(t.Context(), db, jetbus.Event{ID: fmt.Sprint(i), Topic: topic}); err != nil {
			t.Fatal(err)
		}
	}
	return "sqlite:" + name
}

// A service manager stops what runs with SIGTERM.
func TestTerminated(t *testing.T) {
	broker := bustest.Start(t, embedded.Config{Listen: "127.0.0.1:0"})
	mongo := mongotest.Start(t)
	ok(t, "topics", "create", "orders.paid", "--server", broker.URL())
	for _, c := range []struct {
		args        []string
		ready, last string
	}{
		{[]string{"outbox", "run", "--db", outboxOf(t, 20, "orders.paid")}, "20 published", "20 published  0 pending  0 dead\n"},
		{
			[]string{"changefeed", "run", "--collection", "orders", "--topic", "orders.changed", "--mongo", mongo.URI(), "--database", mongo.Database()},
			"streaming", "stopped  0 published  lag ",
		},
	} {
		p := start(t, append(c.args, "--server", broker.URL())...)
		p.wait(t, c.ready, 1)
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil { // not the interrupt of a terminal
			t.Fatal(err)
		}
		<-p.ended
		if p.err != nil || p.stderr.String() != "" || !strings.Contains(p.stdout.String(), c.last) {
			t.Errorf("%q: %v\n%s%s", c.args, p.err, p.stdout.String(), p.stderr.String())
		}
	}
}
