package main

import (
	"context"
	"strings"
	"testing"
)

// An interrupt that comes while a command still connects and opens is an end in order,
// for each command that works until it is interrupted.
func TestInterruptedAtStart(t *testing.T) {
	t.Parallel()
	b, o := newMongoBench(t), newSQLiteBench(t)
	b.ok(t, "", "topics", "create", "orders.paid")
	for name, args := range map[string][]string{
		"outbox":     {"outbox", "run", "--db", o.uri},
		"project":    {"project", "orders.paid", "--mongo", b.uri},
		"changefeed": {"changefeed", "run", "--mongo", b.uri, "--db", b.db.Name(), "--collection", "orders", "--topic", "orders.changed"},
		"sub":        {"sub", "orders.paid"},
		"serve":      {"serve", "--dir", t.TempDir(), "--listen", "127.0.0.1:0"},
		"dev":        {"dev", "--listen", "127.0.0.1:0"},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "serve" && name != "dev" { // which are servers themselves, and refuse it
				args = append([]string{"--server", b.url}, args...)
			}
			r := begin(t, nil, args...)
			if code := r.end(); code != 0 || strings.Contains(r.err.String(), context.Canceled.Error()) {
				t.Errorf("exit code %d: %s", code, r.err)
			}
		})
	}

	// A rebuild that is not done is a failure all the same.
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	out := newBuffer()
	if code := run(ctx, []string{"--server", b.url, "project", "orders.paid", "--mongo", b.uri, "--rebuild"}, strings.NewReader(""), out, out, func(string) string { return "" }); code == 0 {
		t.Errorf("exit code 0: %s", out)
	}
}
